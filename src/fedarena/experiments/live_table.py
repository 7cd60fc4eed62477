"""What a person sees of a comparison under way: a table with a row a cell on a terminal, a line a finished cell elsewhere.

Everything is read from the cells' folders, by the process that waits for the workers: no threads, they must stay
forkable.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedarena.common.formatting import format_clock
from fedarena.config.comparison_plan import LookRecord, Plan
from fedarena.results.run_status import OVER, ComparisonCell, RunStatus, left_out_cells, read_status

if TYPE_CHECKING:
    from rich.table import Table

NEXT = 3  # waiting cells that are shown before those that ended
COLOURS = {"running": "cyan", "done": "green", "diverged": "yellow", "failed": "red"}


class SilentView:
    """Shows nothing."""

    def start(self, plan: Plan | str, cells: Sequence[ComparisonCell]) -> None:
        """The comparison begins, or goes on."""

    def look(self, running: Sequence[ComparisonCell]) -> None:
        """A moment has passed."""

    def over(self, cell: ComparisonCell) -> None:
        """A cell has ended."""

    def looked(self, found: LookRecord) -> None:
        """A look was made at a comparison that adds repeats until it is decided."""

    def stop(self) -> None:
        """The comparison has ended, or was interrupted."""


class LineView(SilentView):
    """A title, a plain line for each cell that ends, a last word."""

    def __init__(self, console: Any) -> None:
        self._console = console
        self.seen: dict[ComparisonCell, RunStatus] = {}
        self._began = time.monotonic()
        self._done_before = 0.0

    def start(self, plan: Plan | str, cells: Sequence[ComparisonCell]) -> None:
        """Print what is compared; a plan that has grown only adds its new cells."""
        if self.seen:
            self.seen = {cell: self.seen.get(cell) or _before(read_status(cell.folder)) for cell in cells}
            return
        self.seen = {cell: _before(read_status(cell.folder)) for cell in cells}
        self._began, self._done_before = time.monotonic(), self.progress
        self._say(plan if isinstance(plan, str) else _title(plan))

    def over(self, cell: ComparisonCell) -> None:
        """How it ended."""
        now = self.seen[cell] = read_status(cell.folder)
        width = max(len(c.title) for c in self.seen)
        ended = sum(seen.over for seen in self.seen.values())
        facts = now.why if now.state == "failed" else f"best {_number(now.best)}  final {_number(now.accuracy)}"
        state = "" if now.state == "done" else f"  {now.state}"
        self._say(
            f"{ended:>{len(str(len(self.seen)))}}/{len(self.seen)}  {cell.title:{width}}  {cell.split.name}  {facts}{state}"
        )

    def looked(self, found: LookRecord) -> None:
        """Print what a look found."""
        self._say(f"look at {found}")

    @property
    def progress(self) -> float:
        """Cells done, the begun ones by their share."""
        return sum(seen.share for seen in self.seen.values())

    def summary(self) -> str:
        """In one line: how much is done, how long it took, how long it will take."""
        states = Counter(seen.state for seen in self.seen.values())
        ended = sum(states[state] for state in OVER)
        trouble = [f"{states[state]} {state}" for state in ("diverged", "failed") if states[state]]
        elapsed, gained = time.monotonic() - self._began, self.progress - self._done_before
        left = elapsed / gained * (len(self.seen) - self.progress) if gained > 0 else None
        times = [f"elapsed {format_clock(elapsed)}"]
        if ended < len(self.seen):
            times.append(f"eta {'-' if left is None else format_clock(left)}")
        return " · ".join([f"{ended}/{len(self.seen)} runs", *trouble, *times])

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class TableView(LineView):
    """A live table: every cell with its round, accuracy and state."""

    def __init__(self, console: Any) -> None:
        from rich.live import Live

        super().__init__(console)
        self._ended: list[ComparisonCell] = []
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def start(self, plan: Plan | str, cells: Sequence[ComparisonCell]) -> None:
        """The title, and the table below it."""
        super().start(plan, cells)
        self._ended = [cell for cell, seen in self.seen.items() if seen.over]
        self._live.start()

    def look(self, running: Sequence[ComparisonCell]) -> None:
        """Read what is running, and draw."""
        self.seen |= {cell: _now(read_status(cell.folder)) for cell in running}
        self._live.update(self.table(running), refresh=True)

    def over(self, cell: ComparisonCell) -> None:
        """It moves down the table, where not all have room."""
        self.seen[cell] = read_status(cell.folder)
        self._ended.append(cell)

    def stop(self) -> None:
        """The table goes, its last line stays."""
        self._live.stop()
        self._say(self.summary())

    def _shown(self, running: Sequence[ComparisonCell], room: int) -> list[ComparisonCell]:
        """All in order or, where not all have room: the running ones, the next, those that ended last, the others."""
        if len(self.seen) <= room:
            return list(self.seen)
        known = {*running, *self._ended}
        waiting = [cell for cell in self.seen if cell not in known]
        return [*running, *waiting[:NEXT], *reversed(self._ended), *waiting[NEXT:]][:room]

    def table(self, running: Sequence[ComparisonCell]) -> Table:
        """A row a cell."""
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
    """Say what is compared, in one line."""
    exp, judged = plan.experiment, [label for label in plan.contestants if label != plan.reference]
    beside = f" beside {plan.reference}" if plan.reference else ""
    return (
        f"{', '.join(judged)}{beside} · {exp['data']['name']} · {exp['partition']['name']} · {exp['model']['name']} · "
        f"{len(plan.contestants)} x {len(plan.splits)} runs"
        + ("" if plan.at_most is None else f" or more, until it is decided or has {plan.at_most} splits")
        + (f" + {len(left_out_cells(plan, Path()))} without a client" if plan.leave_one_out else "")
    )


def open_view(progress: bool) -> SilentView:
    """For a terminal, for a file, or for nobody."""
    if not progress:
        return SilentView()
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    return TableView(console) if console.is_terminal else LineView(console)


def _now(seen: RunStatus) -> RunStatus:
    """Who has only just begun, or works on another machine, has nothing to show for it yet."""
    return replace(seen, state="running") if seen.state == "waiting" else seen


def _before(seen: RunStatus) -> RunStatus:
    """What is not over waits for its turn, and what failed is tried again from the start."""
    if seen.state == "failed":
        return RunStatus()
    return seen if seen.over else replace(seen, state="waiting")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
