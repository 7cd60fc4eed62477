"""The progress of a comparison: a table with a row for each cell on a terminal, a line for each finished cell elsewhere.

The process that waits for the workers reads the status of the cells from their folders.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedarena.common.formatting import format_clock
from fedarena.common.progress import ProgressReporter
from fedarena.config.comparison_plan import LookRecord, Plan
from fedarena.results.run_status import OVER, ComparisonCell, RunStatus, left_out_cells, read_status

if TYPE_CHECKING:
    from rich.table import Table

NEXT = 3  # waiting cells that are shown before those that ended
COLOURS = {"running": "cyan", "done": "green", "diverged": "yellow", "failed": "red"}


class ComparisonProgress(ProgressReporter):
    """Reports the cells of a comparison: all of them in a live table, or a plain line for each that has ended."""

    transient = True

    def __init__(self, enabled: bool = True, console: Any = None) -> None:
        super().__init__(enabled, console)
        self.seen: dict[ComparisonCell, RunStatus] = {}
        self._ended: list[ComparisonCell] = []
        self._done_before = 0.0

    def start(self, plan: Plan | str, cells: Sequence[ComparisonCell]) -> None:
        """Print what is compared; a plan that has grown only adds its new cells."""
        if not self.enabled:
            return
        is_first = not self.seen
        self.seen = {cell: self.seen.get(cell) or _before(read_status(cell.folder)) for cell in cells}
        self._ended = [cell for cell, seen in self.seen.items() if seen.over]
        if is_first:
            self._began, self._done_before = time.monotonic(), self.cells_done
            self.print_line(plan if isinstance(plan, str) else _title(plan))

    def update(self, running: Sequence[ComparisonCell]) -> None:
        """Read the status of the running cells, and draw the table."""
        if self.is_live:
            self.seen |= {cell: _now(read_status(cell.folder)) for cell in running}
            self.show(self.table(running))

    def finish_cell(self, cell: ComparisonCell) -> None:
        """Report how a cell has ended; on a terminal the table shows it."""
        if not self.enabled:
            return
        now = self.seen[cell] = read_status(cell.folder)
        self._ended.append(cell)
        if self.is_live:
            return
        width = max(len(c.title) for c in self.seen)
        ended = sum(seen.over for seen in self.seen.values())
        facts = now.why if now.state == "failed" else f"best {_number(now.best)}  final {_number(now.accuracy)}"
        state = "" if now.state == "done" else f"  {now.state}"
        self.print_line(
            f"{ended:>{len(str(len(self.seen)))}}/{len(self.seen)}  {cell.title:{width}}  {cell.split.name}  {facts}{state}"
        )

    def report_look(self, found: LookRecord) -> None:
        """Print the result of a look at a comparison that adds repeats until it is decided."""
        self.print_line(f"look at {found}")

    def stop(self) -> None:
        """Remove the table, and leave its last line."""
        super().stop()
        if self.is_live:
            self.print_line(self.summary())

    @property
    def cells_done(self) -> float:
        """The number of cells that have ended, with the finished share of those that run."""
        return sum(seen.share for seen in self.seen.values())

    def summary(self) -> str:
        """Return how much is done, how long it took and how long the rest will take, in one line."""
        states = Counter(seen.state for seen in self.seen.values())
        ended = sum(states[state] for state in OVER)
        trouble = [f"{states[state]} {state}" for state in ("diverged", "failed") if states[state]]
        times = [f"elapsed {format_clock(self.elapsed())}"]
        if ended < len(self.seen):
            before = self._done_before
            times.append(f"eta {self.remaining(self.cells_done - before, len(self.seen) - before)}")
        return " · ".join([f"{ended}/{len(self.seen)} runs", *trouble, *times])

    def _shown(self, running: Sequence[ComparisonCell], room: int) -> list[ComparisonCell]:
        """Return all cells in order or, where not all have room, running ones, the next, those that ended last, others."""
        if len(self.seen) <= room:
            return list(self.seen)
        known = {*running, *self._ended}
        waiting = [cell for cell in self.seen if cell not in known]
        return [*running, *waiting[:NEXT], *reversed(self._ended), *waiting[NEXT:]][:room]

    def table(self, running: Sequence[ComparisonCell]) -> Table:
        """Return the table of the cells, as many as have room."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        shown = self._shown(running, max(self._console.height - 6, 3))
        table = Table(box=SIMPLE_HEAD, padding=(0, 1), caption=self.summary(), caption_justify="left")
        table.add_column("algorithm", no_wrap=True, max_width=max(self._console.width - 62, 12))
        table.add_column("split", no_wrap=True)
        for column in ("round", "accuracy", "best"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("state", no_wrap=True)
        for cell in shown:
            now = self.seen[cell]
            rounds = f"{now.round}/{now.rounds or '?'}" if now.state != "waiting" else ""
            style = COLOURS.get(now.state, "dim")
            cells = (cell.title, cell.split.name, rounds, _number(now.accuracy), _number(now.best), now.state)
            table.add_row(*cells, style=style)
        return table


def _title(plan: Plan) -> str:
    """Return what is compared, in one line."""
    exp, judged = plan.experiment, [label for label in plan.contestants if label != plan.reference]
    beside = f" beside {plan.reference}" if plan.reference else ""
    return (
        f"{', '.join(judged)}{beside} · {exp['data']['name']} · {exp['partition']['name']} · {exp['model']['name']} · "
        f"{len(plan.contestants)} x {len(plan.splits)} runs"
        + ("" if plan.at_most is None else f" or more, until it is decided or has {plan.at_most} splits")
        + (f" + {len(left_out_cells(plan, Path()))} without a client" if plan.leave_one_out else "")
    )


def _now(seen: RunStatus) -> RunStatus:
    """Mark a cell as running that has not written a round yet, or that runs on another machine."""
    return replace(seen, state="running") if seen.state == "waiting" else seen


def _before(seen: RunStatus) -> RunStatus:
    """Return the status of a cell before the pool starts: unfinished cells wait, failed ones start again."""
    if seen.state == "failed":
        return RunStatus()
    return seen if seen.over else replace(seen, state="waiting")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
