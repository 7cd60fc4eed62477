"""Summaries of runs, comparisons and suites for the pages, which hold texts and finite numbers only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedarena.config.comparison_plan import Plan
from fedarena.config.components import is_from_python, title_of

STATES = ("running", "waiting", "interrupted", "failed", "diverged", "finished", "damaged")


@dataclass(frozen=True)
class RunSummary:
    """The state of a run in short; its folder may hold anything, but these are texts and finite numbers."""

    id: str
    folder: Path
    name: str
    state: str  # one of STATES
    table: dict[str, Any]  # its experiment
    round: int = 0
    rounds: int | None = None
    accuracy: float | None = None
    best: float | None = None
    spark: tuple[tuple[float, float], ...] = ()  # round, accuracy
    changed: float = 0.0  # seconds since 1970
    why: str = ""  # the reason if it failed or is damaged
    result: dict[str, Any] = field(default_factory=dict)  # result.json, once it has ended

    @property
    def share(self) -> float:
        """Return the share of the run that is done, from 0 to 1."""
        if self.state in ("finished", "diverged", "failed"):
            return 1.0
        return min(self.round / self.rounds, 1.0) if self.rounds else 0.0

    def part(self, key: str) -> str:
        """Return the name of a component: algorithm, data, partition or model."""
        return part_name(self.table.get(key))

    def settings(self, key: str) -> dict[str, Any]:
        """Return the settings of a component."""
        table = part_table(self.table, key)
        hidden = ("name", "own") if is_from_python(table) else ("name",)
        return {k: v for k, v in table.items() if k not in hidden}


def part_table(table: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a table within a table of a file; an empty one for anything else that the file may hold there."""
    value = table.get(key)
    return value if isinstance(value, dict) else {}


def part_name(value: Any) -> str:
    """Return the name of a component as a file has it, or that of the file which a data set is read from."""
    if isinstance(value, dict):
        return title_of(str(value.get("name", "?")), value)
    return "?" if value is None else str(value)


@dataclass(frozen=True)
class ComparisonSummary:
    """The state of a comparison in short: its plan, and its cells in the order of the plan's labels and splits."""

    id: str
    folder: Path
    name: str
    plan: Plan | None
    cells: dict[str, list[RunSummary]] = field(default_factory=dict)
    left_out: list[RunSummary] = field(default_factory=list)  # runs without a client
    busy: bool = False  # a process works on it
    why: str = ""  # the reason if it is damaged

    @property
    def known_plan(self) -> Plan:
        """Return the plan of a comparison that is not damaged."""
        assert self.plan is not None
        return self.plan

    @property
    def all_runs(self) -> list[RunSummary]:
        """Return all its cells, and the runs without a client."""
        return [*(run for row in self.cells.values() for run in row), *self.left_out]

    @property
    def ended(self) -> int:
        """Return how many of its cells have ended."""
        return sum(run.state in ("finished", "diverged", "failed") for run in self.all_runs)

    @property
    def state(self) -> str:
        """Return one of STATES for the comparison as a whole."""
        if self.plan is None:
            return "damaged"
        if self.busy:
            return "running"
        is_open = self.plan.at_most is not None and self.plan.stopped is None  # further repeats may be added
        if self.ended < len(self.all_runs) or is_open:
            return "interrupted"
        return "failed" if all(s.state == "failed" for s in self.all_runs) else "finished"

    @property
    def changed(self) -> float:
        """Return when its files last changed, in seconds since 1970."""
        return max((run.changed for run in self.all_runs), default=0.0)


@dataclass(frozen=True)
class SuiteSummary:
    """The state of a suite in short: the verdict sentences of its folder, once all of its runs have ended."""

    id: str
    folder: Path
    name: str
    state: str  # one of STATES
    federations: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    why: str = ""  # the reason if it is damaged
    changed: float = 0.0


@dataclass(frozen=True)
class Listing:
    """All runs, comparisons and suites under a folder, as they are now."""

    runs: list[RunSummary]
    comparisons: list[ComparisonSummary]
    partial: bool = False  # there were too many folders
    suites: list[SuiteSummary] = field(default_factory=list)
