"""The status of a run, read from its folder while another process works in it. Nothing here writes or waits."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedarena.common.locks import is_locked, open_regular
from fedarena.config.comparison_plan import Plan, Split
from fedarena.engine.record import RoundRecord, parse_record

State = Literal["waiting", "running", "stopped", "done", "diverged", "failed"]
OVER: tuple[State, ...] = ("done", "diverged", "failed")
FAILURE = 1 << 16  # bytes of a failure that are read
TAIL = 1 << 17  # bytes at the end of a log that are searched for the last evaluation


@dataclass(frozen=True)
class RunStatus:
    """The status of a run; `stopped` has begun, and no process is running it."""

    state: State = "waiting"
    round: int = 0
    rounds: int | None = None  # planned; None where it depends on the data
    accuracy: float | None = None  # at the last evaluation
    best: float | None = None
    why: str = ""  # the error, if it failed

    @property
    def over(self) -> bool:
        """Whether the run has finished, diverged or failed."""
        return self.state in OVER

    @property
    def share(self) -> float:
        """The share of planned rounds that are done, from 0 to 1."""
        return 1.0 if self.over else min(self.round / self.rounds, 1.0) if self.rounds else 0.0


@dataclass(frozen=True)
class ComparisonCell:
    """One run of a comparison: its algorithm, its split and its folder."""

    label: str
    split: Split
    folder: Path
    without: str | None = None  # the client that is left out of it

    @property
    def title(self) -> str:
        """The algorithm, and the client that is left out."""
        return self.label if self.without is None else f"{self.label} without {self.without}"


def all_cells(plan: Plan, root: Path) -> list[ComparisonCell]:
    """Return the cells of the comparison, then those without each client that is left out."""
    return [*comparison_cells(plan, root), *left_out_cells(plan, root)]


def left_out_cells(plan: Plan, root: Path) -> list[ComparisonCell]:
    """Return the cells without each client that is left out, client by client, in the order they are run."""
    return [
        ComparisonCell(label, split, plan.folder(root, label, split, client), client)
        for client in plan.leave_one_out
        for split in plan.splits
        for label in plan.federated
    ]


def comparison_cells(plan: Plan, root: Path) -> list[ComparisonCell]:
    """Return all cells in the order they are run: all algorithms on the first split, then on the second."""
    return [
        ComparisonCell(label, split, plan.folder(root, label, split))
        for split in plan.splits
        for label in plan.contestants
    ]


def read_status(folder: Path) -> RunStatus:
    """Return the status of the run in a folder, whether it is waiting, under way or over."""
    if (folder / "failure.txt").exists():
        return RunStatus("failed", *_last(folder), why=_text(folder / "failure.txt", most=FAILURE).strip())
    with contextlib.suppress(ValueError, TypeError, KeyError):  # a damaged file counts as unfinished
        if result := json.loads(_text(folder / "result.json") or "{}"):
            state: State = "diverged" if result["diverged"] else "done"
            done = result["rounds"]
            shown = "accuracy" if result["final_accuracy"] is not None else "metric"
            return RunStatus(state, done, done, result[f"final_{shown}"], result[f"best_{shown}"])
    if not (folder / "experiment.toml").exists():
        return RunStatus()
    return RunStatus("running" if is_locked(folder / "checkpoint") else "stopped", *_last(folder))


def records(folder: Path) -> list[RoundRecord]:
    """Return the records of a run so far, finished or not."""
    return _records(_text(folder / "checkpoint" / "rounds.jsonl"))


def _last(folder: Path) -> tuple[int, int | None, float | None, float | None]:
    """Return the round, the planned rounds, the accuracy and the best one of a run under way."""
    seen = _records(_text(folder / "checkpoint" / "rounds.jsonl", TAIL))
    evaluated = [r.accuracy for r in seen if r.accuracy is not None]
    last = seen[-1] if seen else RoundRecord(0)
    return last.round, _planned(folder), evaluated[-1] if evaluated else None, last.best_accuracy


def _records(lines: str) -> list[RoundRecord]:
    """Return the records of a log, one per line; the first and the last line may be incomplete."""
    known = []
    for line in lines.splitlines():
        with contextlib.suppress(ValueError):
            known.append(parse_record(line))
    return known


def _planned(folder: Path) -> int | None:
    with contextlib.suppress(ValueError, TypeError):  # the file is damaged
        table = tomllib.loads(_text(folder / "experiment.toml"))
        if "rounds" in table or "uploads" not in table:
            return table.get("rounds")
        cohort = table.get("per_round") or math.floor(table.get("share", 1.0) * table.get("clients", 0) + 1e-9)
        return math.ceil(table["uploads"] / cohort) if cohort else None
    return None


def _text(file: Path, tail: int | None = None, most: int = -1) -> str:
    """Return a text, or its last bytes, or its first ones; nothing if it cannot be opened."""
    try:
        with open_regular(file) as stream:
            if tail is not None:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - tail))
            return stream.read(most if tail is None else tail).decode("utf-8", "ignore")
    except OSError:
        return ""
