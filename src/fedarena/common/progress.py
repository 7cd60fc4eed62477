"""What a person sees while waiting: one live line on a terminal, a plain line each tenth of the way elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from fedarena.common.formatting import format_clock, format_size

if TYPE_CHECKING:
    from fedarena.config.experiment import Experiment


class ProgressRecord(Protocol):
    """What progress needs to know of a round."""

    round: int
    accuracy: float | None
    loss: float | None
    best_accuracy: float | None
    bytes_up: int


class SilentProgress:
    """Says nothing."""

    def start(self, experiment: Experiment, clients: int, participants: int, rounds: int) -> None:
        """Nothing."""

    def see(self, record: Any) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


class ProgressLine(SilentProgress):
    """Progress on stderr."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._narrow = self._console.is_terminal and self._console.width < 108  # no room for a bar
        self._bar: Any = None
        self._rounds = self._best_round = self._first = 0
        self._best = -1.0
        self._shown: Any = None
        self._metric: str | None = None  # shown beside accuracy and loss
        self._began = time.monotonic()

    def start(self, experiment: Experiment, clients: int, participants: int, rounds: int) -> None:
        """The title, and an empty bar."""
        self._rounds = rounds
        followed = experiment.evaluate.metric
        self._metric = followed if followed not in ("accuracy", "loss") else None
        self._console.print(
            f"[bold]{experiment.algorithm.name}[/bold] · {experiment.data.name} · {experiment.partition.name} · "
            f"{experiment.model.name} · {clients} clients, {participants} a round · seed {experiment.seed}"
        )
        if self._console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn

            # No refresh thread: a round is news enough, and workers can still be forked.
            columns: list[Any] = [TextColumn("{task.description}"), TextColumn("{task.fields[facts]}")]
            if not self._narrow:
                columns.insert(1, BarColumn(bar_width=min(self._console.width - 96, 26)))
            self._bar = Progress(*columns, console=self._console, auto_refresh=False)
            self._bar.start()
            self._task = self._bar.add_task(f"round {0:>{len(str(rounds))}}/{rounds}", total=rounds, facts="")
            self._bar.refresh()

    def see(self, record: Any) -> None:
        """A round is over."""
        self._first = self._first or record.round - 1
        if record.accuracy is not None:
            self._shown = record
            if record.accuracy > self._best:
                self._best, self._best_round = record.accuracy, record.round
        if self._bar is not None:
            width = len(str(self._rounds))
            facts = f"{self._facts(record)}  eta {self._eta(record.round)}"
            self._bar.update(
                self._task,
                completed=record.round,
                description=f"round {record.round:>{width}}/{self._rounds}",
                facts=facts,
            )
            self._bar.refresh()
        elif (
            record.round == self._rounds or record.round * 10 // self._rounds > (record.round - 1) * 10 // self._rounds
        ):
            print(f"round {record.round}/{self._rounds}  {self._facts(record)}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Leave the last line standing."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _facts(self, record: Any) -> str:
        up = f"  {format_size(record.bytes_up)} up" if record.bytes_up else ""
        if self._shown is None:
            return up.strip()
        if self._metric is not None and self._shown.metric is not None:
            up = f"  {self._metric} {self._shown.metric:.4f}{up}"
        if self._narrow:
            return f"accuracy {self._shown.accuracy:.4f}  best {self._best:.4f} @{self._best_round}{up}"
        return (
            f"accuracy {self._shown.accuracy:.4f}  loss {self._shown.loss:.4f}  "
            f"best {self._best:.4f} @{self._best_round}{up}"
        )

    def _eta(self, done: int) -> str:
        made = done - self._first
        left = (time.monotonic() - self._began) / max(made, 1) * (self._rounds - done)
        return format_clock(left)


class DownloadProgress:
    """Bytes coming in: a bar on a terminal, a line each ten megabytes elsewhere."""

    def __init__(self, name: str, silent: bool = False) -> None:
        self.name, self.silent = name, silent
        self._bar: Any = None
        self._said = 0

    def __enter__(self) -> DownloadProgress:
        if not self.silent:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            console = Console(stderr=True)
            if console.is_terminal:
                columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
                self._bar = Progress(*columns, console=console)
                self._bar.start()
                self._task = self._bar.add_task(self.name, total=None)
        return self

    def __call__(self, done: int, total: int | None) -> None:
        """So many bytes, of so many."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif not self.silent and done - self._said >= 10_000_000:
            self._said = done
            print(f"{self.name}: {done / 1e6:.0f} MB", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
