"""A run is a folder that explains itself.

experiment.toml    the experiment, complete; reading it gives it back
rounds.parquet     one row an evaluation          clients.parquet   one row a client
partition.npz      who owned which rows           model.safetensors the final model, by parameter name
result.json        the numbers in short           versions.json     what it ran with
checkpoint/        everything needed to go on
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import platform
import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import fedarena
from fedarena.common.files import atomic_write, writing
from fedarena.config.errors import BadValue, CannotWrite, FedarenaError, ResumeMismatch
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import PADDING, Partition
from fedarena.data.published_files import reading
from fedarena.engine.checkpoint import stored_types
from fedarena.engine.checkpoint_files import CheckpointFolder, DamagedCheckpoint
from fedarena.engine.context import ExperimentContext
from fedarena.engine.record import RoundRecord, plain_record
from fedarena.engine.stopping import participants
from fedarena.engine.task_metrics import FinalMetrics
from fedarena.engine.validated_round import ValidatedRound
from fedarena.models.compiled import SWITCH, library, processor
from fedarena.models.task import sha256
from fedarena.statistics.metric_registry import RESERVED_PREFIX

DAMAGED = "restore the file from a copy, or run the experiment again in a new folder"
SEAL = "# sha256 "  # the last line of experiment.toml, over the lines above it
HASHED = (
    "experiment.toml", "versions.json", "partition.npz", "rounds.parquet", "clients.parquet", "model.safetensors",
    "checkpoint/rounds.jsonl",
)  # fmt: skip
MAY_GROW = ("rounds", "uploads")  # a finished run may be continued with a larger budget


def new_folder(experiment: Experiment, out: str | Path | None) -> Path:
    """Make the folder of a new run: the one asked for, or the next free name under runs/."""
    if out is not None:
        path = Path(out)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            resumable = (path / "experiment.toml").exists()
            raise CannotWrite(
                f"{path} is there already" + (" and holds a run" if resumable else ""),
                remedy=f"go on with it: --resume {path}, or choose another folder"
                if resumable
                else "choose another folder",
                where="--out",
            )
    else:
        return free_folder(f"{experiment.data.name}-{experiment.algorithm.name}-seed{experiment.seed}")
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def free_folder(stem: str) -> Path:
    """The next free name under runs/; making it is taking it, whoever else is looking for one."""
    for number in itertools.count(1):
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError), writing(path):
            path.mkdir(parents=True)
            return path
    raise AssertionError("numbers do not end")


def as_json(value: Any) -> str:
    """JSON that everybody can read: it knows no NaN and no infinity, they become null."""

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(k): finite(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [finite(v) for v in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(value), indent=1, default=str, allow_nan=False)


def check_room(path: Path, site: ExperimentContext) -> None:
    """Refuse a disk that cannot even hold two checkpoints and what the clients keep."""
    need_room(path, room_for(site), "this run")


def room_for(site: ExperimentContext) -> int:
    """Bytes that a run may take while it is under way."""
    local = site.experiment.local
    keeps_momentum = local.momentum > 0 and (site.algorithm.keeps_momentum or not local.reset_momentum)
    leaves_out = getattr(site.experiment.uplink, "top_k", None) is not None
    vectors = (site.algorithm.remember(site.initial) is not None) + keeps_momentum + leaves_out
    people = len(site.partition.population)
    models = 5 + vectors * (2 * people + participants(site.experiment, people))  # two rounds kept, one under way
    return models * site.initial.nbytes + (1 << 20)


def need_room(path: Path, needed: int, what: str) -> None:
    """Refuse a disk that has less."""
    free = shutil.disk_usage(path).free
    if free < needed:
        raise CannotWrite(
            f"{path} has {free / 1e6:.0f} MB free, {what} needs about {needed / 1e6:.0f} MB",
            remedy="make room or choose another folder with --out",
        )


def read_experiment(path: Path, **own: Any) -> Experiment:
    """The experiment of a run; what came from Python (`own`) must be given again."""
    file = path / "experiment.toml"
    if not file.exists():
        raise BadValue(
            f"{path} is no run folder: it has no experiment.toml", remedy="give the folder of a run", where=str(path)
        )
    table = _toml(file)
    for key, value in list(table.items()):
        if isinstance(value, dict) and value.pop("own", False):
            if key not in own:
                raise BadValue(
                    f"the {key} of this run ('{value['name']}') came from Python, no file can bring it back",
                    remedy=f"use Python: fa.run(..., resume=...), fa.verify(..., {key}=...) or run.again()",
                    where=str(file),
                )
            table[key] = own[key]
    return Experiment.make(table, where=str(file))


def check_same_experiment(path: Path, experiment: Experiment) -> None:
    """Refuse to go on in a folder that belongs to another experiment."""
    file = path / "experiment.toml"
    if not file.exists():
        raise ResumeMismatch(f"{path} holds no run", remedy="give the folder of an interrupted run", where="--resume")
    before = _completed(_toml(file), experiment)
    now = tomllib.loads(experiment.to_toml())
    changed = [k for k in {**before, **now} if k not in MAY_GROW and before.get(k) != now.get(k)]
    if changed:
        key, old, new = _first_difference(changed[0], before.get(changed[0]), now.get(changed[0]))
        raise ResumeMismatch(
            f"{path} belongs to another experiment: its {key} is {old}, not {new}",
            remedy="resume it without changes (only rounds or uploads may grow), or start a new run",
            where="--resume",
        )
    for key in MAY_GROW:
        if (key in before) != (key in now) or before.get(key, 0) > now.get(key, 0):
            raise ResumeMismatch(
                f"{path} had a budget of {key} = {before.get(key)}, not {now.get(key)}",
                remedy=f"give the same {key} or more",
                where="--resume",
            )


def _completed(table: dict[str, Any], experiment: Experiment) -> dict[str, Any]:
    """Settings that did not exist yet when a table was written, with the values they have where nothing is said."""
    own = {key: value for key, value in table.items() if isinstance(value, dict) and "own" in value}
    try:
        whole = Experiment.make({**table, **{key: getattr(experiment, key) for key in own}})
    except FedarenaError:  # it has a setting that is gone, and differs by it
        return table
    return {**tomllib.loads(whole.to_toml()), **own}


def _first_difference(key: str, old: Any, new: Any) -> tuple[str, Any, Any]:
    """The one setting that differs, where the value is a table."""
    if isinstance(old, dict) and isinstance(new, dict):
        inner = next(k for k in {**old, **new} if old.get(k) != new.get(k))
        return f"{key}.{inner}", old.get(inner), new.get(inner)
    return key, old, new


def write_start(path: Path, site: ExperimentContext) -> None:
    """What is known before the first round."""
    partition = site.owners
    facts = {**versions(), **fingerprints(site), "path": site.task.path}
    write_table(path / "versions.json", facts)
    _write_partition(path, partition)
    _write_experiment(path, site.experiment)  # last: a folder that has it is a run


def check_resume(path: Path, site: ExperimentContext) -> None:
    """On resume: data, partition and model must be the ones the run began with; it is no longer finished."""
    check_same_start(path, site)
    reopen(path, site)


def check_same_start(path: Path, site: ExperimentContext) -> None:
    """Refuse to resume with other data, another partition or another model than the run began with."""
    before = read_facts(path)
    for key, now in fingerprints(site).items():
        if before.get(key) != now:
            raise ResumeMismatch(
                f"the {key.partition('_')[0]} is not the one this run began with",
                remedy="restore what it used, or start a new run",
                where=str(path),
            )


def reopen(path: Path, site: ExperimentContext) -> None:
    """Make a run unfinished again, with today's budget; the partition is known to be the same, so it is written again."""
    (path / "result.json").unlink(missing_ok=True)
    _write_partition(path, site.owners)
    _write_experiment(path, site.experiment)


def fingerprints(site: ExperimentContext) -> dict[str, str]:
    """What a run begins with, in three hashes."""
    return {
        "data_sha256": site.data.fingerprint(),
        "partition_sha256": site.owners.fingerprint(),
        "model_sha256": sha256(site.initial),
    }


def read_facts(path: Path) -> dict[str, Any]:
    """Return what versions.json holds."""
    return read_table(path / "versions.json", DAMAGED)


def write_table(file: Path, table: Mapping[str, Any]) -> None:
    """Write a JSON table with its own hash in it, atomically."""
    write_text(file, as_json({**table, "sha256": fingerprint(table)}))


def read_table(file: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON table and check its hash; a table that an earlier version of fedarena wrote has none."""
    with reading(file, remedy=remedy):
        table = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(table, dict) or not table:
            raise ValueError("it is no table")
        if "sha256" in table and table.pop("sha256") != fingerprint(table):
            raise ValueError("it is not as it was written, its sha256 differs")
        return table


def fingerprint(table: Mapping[str, Any]) -> str:
    """Return the hash of all that a table holds except its hash."""
    text = as_json({key: value for key, value in table.items() if key != "sha256"})
    return hashlib.sha256(text.encode()).hexdigest()


def file_sha256(file: Path) -> str:
    """Return the hash of a file; that of a missing file is empty."""
    if not file.is_file():
        return ""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write_experiment(path: Path, experiment: Experiment) -> None:
    text = experiment.to_toml()
    write_text(path / "experiment.toml", f"{text}{SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n")


def _write_partition(path: Path, partition: Partition) -> None:
    with atomic_write(path / "partition.npz") as file:
        np.savez_compressed(file, **partition_arrays(partition))


def _toml(file: Path) -> dict[str, Any]:
    """Read the experiment of a run and check its hash; one that an earlier version of fedarena wrote has none."""
    with reading(file, remedy=DAMAGED):
        text = file.read_bytes().decode()
        above, seal, told = text.rpartition(SEAL)
        if seal and hashlib.sha256(above.encode()).hexdigest() != told.strip():
            raise ValueError("it was changed after the run began; to run longer, resume with --set rounds=...")
        return tomllib.loads(text)


def partition_arrays(partition: Partition) -> dict[str, Any]:
    """A partition as plain arrays: all rows one after the other, and where each client begins."""
    tests, validation = partition.client_tests, partition.validation
    return {
        "rows": np.concatenate(partition.clients),
        "sizes": partition.sizes,
        "test": partition.test,
        "client_test_rows": np.concatenate(tests) if tests else np.empty(0, np.int64),
        "client_test_sizes": np.array([len(rows) for rows in tests], np.int64),
        **({} if partition.noise is None else {"noise": partition.noise}),
        **({} if not len(validation) else {"validation_rows": np.concatenate(validation)}),
        **({} if not len(validation) else {"validation_sizes": np.array([len(rows) for rows in validation], np.int64)}),
    }


def altered_files(
    path: Path, site: ExperimentContext, records: list[RoundRecord], state: Mapping[str, Any], weights_sha256: str
) -> list[str]:
    """Return the stored files that are not what the run's own record says of them."""
    import pyarrow.parquet as pq

    found = [*changed_files(path), *changed_checkpoint(path, site.algorithm)]
    with reading(path / "rounds.parquet", remedy=DAMAGED):
        stored_rows = pq.read_table(path / "rounds.parquet").to_pylist()
        empty = dict.fromkeys(RoundRecord.__dataclass_fields__)  # a folder may be older than a column
        if str([{**empty, **row} for row in stored_rows]) != str(
            [asdict(r) for r in records if r.accuracy is not None]
        ):
            found.append("rounds.parquet: not the rounds of the log")
    with reading(path / "partition.npz", remedy=DAMAGED), np.load(path / "partition.npz", allow_pickle=False) as stored:
        arrays = partition_arrays(site.owners)
        if {*stored.files} != {*arrays} or not all(np.array_equal(stored[k], a) for k, a in arrays.items()):
            found.append("partition.npz: not the partition of this experiment")
    if not site.algorithm.personal:
        site.task.module.load_state_dict(state)
        if sha256(site.task.vector(), site.task.buffers().values) != weights_sha256:
            found.append("model.safetensors: not the weights that result.json names")
    return found


def result_table(
    path: Path, summary: Mapping[str, Any], measured: FinalMetrics, chosen: ValidatedRound | None = None
) -> dict[str, Any]:
    """Return what result.json holds: the numbers in short, the drawn metrics, and the hash of every other file.

    The hashes of client states are in the snapshots.
    """
    names = (*HASHED, *sorted(f"checkpoint/{file.name}" for file in (path / "checkpoint").glob("server-*")))
    drawn = {"class_names": measured.class_names, **_pictures(measured)}
    if chosen is not None:
        drawn["validated"] = _pictures(chosen.measured)
    return {**summary, "evaluation": drawn, "files": {name: file_sha256(path / name) for name in names}}


def _pictures(measured: FinalMetrics) -> dict[str, Any]:
    """Return the confusion matrix and the calibration curve as plain values."""
    confusion = None if measured.confusion is None else measured.confusion.tolist()
    return {"confusion": confusion, "calibration": measured.calibration}


def mark_slim(path: Path) -> None:
    """Record in a finished run that its client states are removed on purpose."""
    write_table(path / "result.json", {**read_table(path / "result.json", DAMAGED), "client_states": "removed"})


def changed_files(path: Path, names: Sequence[str] | None = None) -> list[str]:
    """Return those of the named files, or of all, that are not as the run left them, in words.

    Runs of earlier versions of fedarena recorded no hashes, and none of their files counts as changed.
    """
    known = read_table(path / "result.json", DAMAGED).get("files", {})
    found = []
    for name in known if names is None else [name for name in names if name in known]:
        if (now := file_sha256(path / name)) != known[name]:
            found.append(f"{name}: " + ("it was changed after the run ended" if now else "it is missing"))
    return found


def changed_checkpoint(path: Path, algorithm: Any) -> list[str]:
    """Return what is wrong with the snapshots of a finished run and the client states that they name, in words."""
    result, folder = read_table(path / "result.json", DAMAGED), path / "checkpoint"
    if "files" not in result:  # of an earlier version of fedarena
        return []
    saved = CheckpointFolder(folder, stored_types(algorithm))
    lines, slim = saved.lines(), result.get("client_states") == "removed"
    named = {folder / "lock", saved.log}
    for round in saved.rounds():
        try:
            snapshot = saved.snapshot(round) if slim else saved.check(round, lines).snapshot
            assert snapshot is not None
            named |= saved.paths(round, snapshot.files)
        except DamagedCheckpoint as damage:
            return [str(damage)]
    there = {p for p in (*folder.glob("*"), *(folder / "clients").glob("*")) if p.is_file()}
    return [f"{file} belongs to no saved round" for file in sorted(there - named)]


def write_rounds(path: Path, records: list[RoundRecord]) -> None:
    """rounds.parquet: one row an evaluation."""
    _write_table(path / "rounds.parquet", [plain_record(r) for r in records if r.accuracy is not None])


def client_columns(measured: FinalMetrics, chosen: ValidatedRound | None) -> dict[str, np.ndarray[Any, Any]]:
    """Return the metrics of each client after the last round, and after the validated round if there is one."""
    validated = {} if chosen is None else chosen.measured.clients
    return {**measured.clients, **{f"{RESERVED_PREFIX}{name}": values for name, values in validated.items()}}


def client_rows(
    site: ExperimentContext, accuracy: np.ndarray[Any, Any], metrics: Mapping[str, np.ndarray[Any, Any]] | None = None
) -> list[dict[str, Any]]:
    """One row a client: its samples and its metrics."""
    owners = site.owners
    columns = {"accuracy": accuracy, **(metrics or {})}
    names = owners.names or tuple(str(k) for k in range(len(owners.clients)))
    return [
        {
            "client": k,
            "name": names[k],
            "rows": len(index),
            "test_rows": len(owners.client_tests[k]),
            "classes": _classes(site.data.y[index]),
            **{name: None if np.isnan(values[k]) else float(values[k]) for name, values in columns.items()},
        }
        for k, index in enumerate(owners.clients)
    ]


def _classes(labels: np.ndarray[Any, Any]) -> int | None:
    """How many there are; None where a row has many, or where they are not known here."""
    return None if labels.ndim > 1 or PADDING in labels else len(np.unique(labels))


def write_clients(
    path: Path, site: ExperimentContext, accuracy: np.ndarray[Any, Any], metrics: Mapping[str, np.ndarray[Any, Any]]
) -> None:
    """clients.parquet: one row a client."""
    _write_table(path / "clients.parquet", client_rows(site, accuracy, metrics))


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """JSON has no NaN: null is one."""
    return {name: math.nan if value is None else float(value) for name, value in values.items()}


def _bounds(pair: Sequence[float | None]) -> tuple[float, float]:
    """Return an interval; null is NaN."""
    low, high = (math.nan if value is None else float(value) for value in pair)
    return low, high


def read_metrics(result: Mapping[str, Any], clients: Mapping[str, list[Any]]) -> FinalMetrics:
    """Return the metrics of a run folder; empty for one that was made before there were metrics."""
    if "metrics" not in result:
        return FinalMetrics()
    return _read_metrics(result, clients, result.get("evaluation", {}), "")


def read_validated(result: Mapping[str, Any], clients: Mapping[str, list[Any]]) -> ValidatedRound | None:
    """Return the validated round of a run folder; None for a run without validation samples."""
    if "validated_round" not in result:
        return None
    measured = _read_metrics(result, clients, result["evaluation"]["validated"], RESERVED_PREFIX)
    value = result["validation_metric"]
    return ValidatedRound(int(result["validated_round"]), math.nan if value is None else float(value), measured)


def _read_metrics(
    result: Mapping[str, Any], clients: Mapping[str, list[Any]], drawn: Mapping[str, Any], prefix: str
) -> FinalMetrics:
    """Return the metrics whose names in a run folder begin with `prefix`."""
    confusion, bins = drawn.get("confusion"), drawn.get("calibration")
    own = result[f"{prefix}own_metrics"]
    return FinalMetrics(
        result["task"] or "",
        result["metric"],
        result["direction"],
        _numbers(result[f"{prefix}metrics"]),
        _numbers(own),
        dict(result[f"{prefix}own_undefined"]),
        {
            name: np.array([math.nan if value is None else value for value in clients[f"{prefix}{name}"]], np.float64)
            for name in own
            if f"{prefix}{name}" in clients
        },
        None if confusion is None else np.array(confusion, np.int64),
        None if bins is None else tuple(bins),
        tuple(result.get("evaluation", {}).get("class_names", ())),
        {} if prefix else {name: _bounds(pair) for name, pair in result.get("metric_bounds", {}).items()},
        tuple(map(str, clients.get("name", ()))),
        np.array(clients.get("test_rows", ()), np.int64),
    )


def write_model(path: Path, state: dict[str, Any]) -> None:
    """model.safetensors: parameters and buffers by name."""
    from safetensors.torch import save

    with atomic_write(path / "model.safetensors") as file:
        file.write(save(state))


def write_text(path: Path, text: str) -> None:
    """A whole text, atomically."""
    with atomic_write(path) as file:
        file.write(text.encode())


def versions() -> dict[str, Any]:
    """What a run was made with."""
    import scipy
    import torch

    return {
        "fedarena": fedarena.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "platform": platform.platform(),
        "processor": processor(),
        "kernels": built[0] if (built := library(os.environ.get(SWITCH, ""))) else "none",
        "cores": os.cpu_count(),
        "argv": sys.argv[1:],
    }


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_write(path) as file:
        pq.write_table(pa.Table.from_pylist(rows), file)
