"""Reading a run folder back as a `Run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, DataBroken
from fedarena.config.limits import check_path
from fedarena.data.published_files import reading
from fedarena.engine.record import parse_records
from fedarena.results.json_files import read_table
from fedarena.results.run import Run
from fedarena.results.run_files import TRAITS, read_metrics, read_validated
from fedarena.results.run_folder import DAMAGED, FEDERATION, read_experiment
from fedarena.results.run_integrity import changed_files


def load_run(path: str | Path, **own: Any) -> Run:
    """Return the run of a folder; parts of its experiment that came from Python can be given again by keyword."""
    run, changed = load_with_changes(check_path(path, "the folder of a run"), **own)
    if changed:
        raise DataBroken(f"{run.dir} is damaged: {changed[0]}", remedy=DAMAGED)
    return run


def load_with_changes(folder: Path, **own: Any) -> tuple[Run, list[str]]:
    """Return the run of a folder, and one sentence for each file that was changed after the run."""
    if not (folder / "result.json").exists():
        read_experiment(folder, **own)  # raises if it is no folder of a run
        if (folder / "model" / "result.json").exists():
            raise BadValue(f"{folder} is the state of a client", remedy=f"its model is in {folder / 'model'}")
        command = "serve" if (folder / FEDERATION).exists() else "run"
        raise BadValue(
            f"{folder} holds a run that has not finished",
            remedy=f"resume it: fedarena {command} --resume {folder}",
            where=str(folder),
        )
    result = read_table(folder / "result.json", DAMAGED)
    with reading(folder / "result.json", remedy=DAMAGED):
        sha, notes = str(result["weights_sha256"]), tuple(map(str, result["notes"]))
        traits = {name: bool(value) for name, value in result.get("algorithm_traits", {}).items() if name in TRAITS}
        used, ages = dict(result.get("algorithm_settings", {})), dict(result.get("ages", {}))
    experiment = read_experiment(folder, traits, **own)
    log = folder / "checkpoint" / "rounds.jsonl"
    with reading(log, remedy=DAMAGED):
        records = parse_records(log.read_bytes().splitlines())
        if not any(record.accuracy is not None and record.loss is not None for record in records):
            raise ValueError("it holds no evaluation")
    clients, own_accuracy, sizes = _read_clients(folder / "clients.parquet")
    with reading(folder / "result.json", remedy=DAMAGED):
        measured = read_metrics(result, clients)
        chosen = read_validated(result, clients)
        if chosen is not None and not 1 <= chosen.round <= len(records):
            raise ValueError("its validated round is not in the log")
    state = _read_model(folder / "model.safetensors")
    changed = changed_files(folder, ("checkpoint/rounds.jsonl", "clients.parquet", "model.safetensors"))
    spent = np.array(clients["record_epsilon"], np.float64) if "record_epsilon" in clients else None
    run = Run(experiment, records, sha, own_accuracy, sizes, folder, state, notes, used, ages, measured, chosen, spent)
    return run, changed


def _read_clients(file: Path) -> tuple[dict[str, list[Any]], NDArray[np.float64], NDArray[np.int64]]:
    """Return the table of clients, and from it the accuracy and the number of training rows of each."""
    import pyarrow.parquet as pq

    with reading(file, remedy=DAMAGED):
        clients = pq.read_table(file).to_pydict()
        accuracy = np.array([np.nan if a is None else a for a in clients["accuracy"]], dtype=np.float64)
        return clients, accuracy, np.array(clients["rows"], dtype=np.int64)


def _read_model(file: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with reading(file, remedy=DAMAGED):
        try:
            state: dict[str, Any] = load_file(file)
        except SafetensorError as error:
            raise ValueError(str(error)) from error
    return state
