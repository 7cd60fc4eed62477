"""What a run is doing, read from its folder while somebody else is at work in it. Nothing here writes or waits."""

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
from fedarena.engine.record import RoundRecord, parse_record
from fedarena.results.comparison import Plan, Split

State = Literal["waiting", "running", "stopped", "done", "diverged", "failed"]
OVER: tuple[State, ...] = ("done", "diverged", "failed")
FAILURE = 1 << 16  # bytes of a failure that are read
TAIL = 1 << 17  # bytes at the end of a log in which the last evaluation is looked for


@dataclass(frozen=True)
class RunStatus:
    """A run at this moment. `stopped` is one that has begun and that nobody is at work on."""

    state: State = "waiting"
    round: int = 0
    rounds: int | None = None  # planned; None where only the data knows
    accuracy: float | None = None  # at the last evaluation
    best: float | None = None
    why: str = ""  # it failed
    validated: float | None = None  # accuracy of the round chosen on validation samples, once the run is over

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.state in OVER

    @property
    def share(self) -> float:
        """How much of it is done, 0 to 1."""
        return 1.0 if self.over else min(self.round / self.rounds, 1.0) if self.rounds else 0.0


@dataclass(frozen=True)
class ComparisonCell:
    """One run of a comparison: who, on which split, in which folder."""

    label: str
    split: Split
    folder: Path
    without: str | None = None  # the client that is left out of it

    @property
    def title(self) -> str:
        """Return the algorithm, and the client that it goes without."""
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
    """All cells in the order they are run: everyone on the first split, then everyone on the second."""
    return [
        ComparisonCell(label, split, plan.folder(root, label, split))
        for split in plan.splits
        for label in plan.contestants
    ]


def read_status(folder: Path) -> RunStatus:
    """What the folder of a run says of it, whether it is waiting, under way or over."""
    if (folder / "failure.txt").exists():
        return RunStatus("failed", *_last(folder), why=_text(folder / "failure.txt", most=FAILURE).strip())
    with contextlib.suppress(ValueError, TypeError, KeyError):  # damaged: not finished, as far as can be seen
        if result := json.loads(_text(folder / "result.json") or "{}"):
            state: State = "diverged" if result["diverged"] else "done"
            done = result["rounds"]
            validated = result.get("validated_accuracy")
            return RunStatus(state, done, done, result["final_accuracy"], result["best_accuracy"], validated=validated)
    if not (folder / "experiment.toml").exists():
        return RunStatus()
    return RunStatus("running" if is_locked(folder / "checkpoint") else "stopped", *_last(folder))


def records(folder: Path) -> list[RoundRecord]:
    """The rounds so far, finished or not."""
    return _records(_text(folder / "checkpoint" / "rounds.jsonl"))


def _last(folder: Path) -> tuple[int, int | None, float | None, float | None]:
    """Round, planned rounds, accuracy and best of a run under way."""
    seen = _records(_text(folder / "checkpoint" / "rounds.jsonl", TAIL))
    looked = [r.accuracy for r in seen if r.accuracy is not None]
    last = seen[-1] if seen else RoundRecord(0)
    return last.round, _planned(folder), looked[-1] if looked else None, last.best_accuracy


def _records(lines: str) -> list[RoundRecord]:
    """One a line; the first and the last may be cut."""
    known = []
    for line in lines.splitlines():
        with contextlib.suppress(ValueError):
            known.append(parse_record(line))
    return known


def _planned(folder: Path) -> int | None:
    with contextlib.suppress(ValueError, TypeError):  # a damaged file says nothing
        table = tomllib.loads(_text(folder / "experiment.toml"))
        if "rounds" in table or "uploads" not in table:
            return table.get("rounds")
        asked = table.get("per_round") or math.floor(table.get("share", 1.0) * table.get("clients", 0) + 1e-9)
        return math.ceil(table["uploads"] / asked) if asked else None
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
