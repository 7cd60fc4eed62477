"""Checks of a finished run folder: files that were changed, are missing, or do not belong to the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.data.published_files import reading
from fedarena.engine.checkpoint import stored_types
from fedarena.engine.checkpoint_files import CheckpointFolder, DamagedCheckpoint
from fedarena.engine.context import ExperimentContext
from fedarena.engine.record import RoundRecord
from fedarena.models.task import sha256
from fedarena.results.json_files import file_sha256, read_table, write_table
from fedarena.results.run_folder import DAMAGED, partition_arrays


def altered_files(
    path: Path, context: ExperimentContext, records: list[RoundRecord], state: Mapping[str, Any], weights_sha256: str
) -> list[str]:
    """Return the files of a run folder that contradict its record, one sentence each."""
    found = [*changed_files(path), *changed_checkpoint(path, context.algorithm), *changed_rounds(path, records)]
    with reading(path / "partition.npz", remedy=DAMAGED), np.load(path / "partition.npz", allow_pickle=False) as stored:
        arrays = partition_arrays(context.owners)
        if {*stored.files} != {*arrays} or not all(np.array_equal(stored[k], a) for k, a in arrays.items()):
            found.append("partition.npz: not the partition of this experiment")
    if not context.has_personal_models:
        context.task.module.load_state_dict(state)
        if sha256(context.task.vector(), context.task.buffers().values) != weights_sha256:
            found.append("model.safetensors: not the weights that result.json names")
    return found


def changed_files(path: Path, names: Sequence[str] | None = None) -> list[str]:
    """Return those of the named files, or of all, that were changed after the run, one sentence each.

    Runs of earlier versions of fedarena recorded no hashes, and none of their files counts as changed.
    """
    known = read_table(path / "result.json", DAMAGED).get("files", {})
    found = []
    for name in known if names is None else [name for name in names if name in known]:
        if (now := file_sha256(path / name)) != known[name]:
            found.append(f"{name}: " + ("it was changed after the run ended" if now else "it is missing"))
    return found


def changed_rounds(path: Path, records: list[RoundRecord]) -> list[str]:
    """Return a sentence if rounds.parquet does not hold the evaluated rounds of the log."""
    import pyarrow.parquet as pq

    with reading(path / "rounds.parquet", remedy=DAMAGED):
        stored_rows = pq.read_table(path / "rounds.parquet").to_pylist()
    empty = dict.fromkeys(RoundRecord.__dataclass_fields__)  # a folder may be older than a column
    is_log = str([{**empty, **row} for row in stored_rows]) == str(
        [asdict(r) for r in records if r.accuracy is not None]
    )
    return [] if is_log else ["rounds.parquet: not the rounds of the log"]


def changed_checkpoint(path: Path, algorithm: Any) -> list[str]:
    """Return what is wrong with the snapshots of a finished run and the client states that they name."""
    result, folder = read_table(path / "result.json", DAMAGED), path / "checkpoint"
    if "files" not in result:  # written by an earlier version of fedarena
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


def mark_slim(path: Path) -> None:
    """Record in a finished run that its client states are removed on purpose."""
    write_table(path / "result.json", {**read_table(path / "result.json", DAMAGED), "client_states": "removed"})
