"""The progress reporter of runs, comparisons, searches and downloads: live on a terminal, in plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from fedarena.common.formatting import format_clock, format_size

REFRESH = 0.1  # seconds between two updates of a live display
EACH = 10_000_000  # bytes of a download between two plain lines


class ProgressReporter:
    """Writes to stderr. It starts no thread: pools could not fork their workers any more."""

    transient = False  # whether the live display is removed at the end

    def __init__(self, enabled: bool = True, console: Any = None) -> None:
        if enabled and console is None:
            from rich.console import Console

            console = Console(stderr=True, highlight=False, emoji=False)
        self._console = console
        self._display: Any = None
        self._refreshed = 0.0
        self._began = time.monotonic()

    @property
    def enabled(self) -> bool:
        """Whether anything is reported."""
        return self._console is not None

    @property
    def is_live(self) -> bool:
        """Whether there is a terminal, on which a display can be updated in place."""
        return self.enabled and bool(self._console.is_terminal)

    def print_line(self, text: str) -> None:
        """Print a line that stays, above the display if there is one."""
        if self.enabled:
            self._console.print(text, markup=False, soft_wrap=True)

    def show(self, renderable: Any) -> None:
        """Show something in place of what was shown before; on a terminal only."""
        if not self.is_live:
            return
        if self._display is None:
            from rich.live import Live

            redirect = not self.transient
            self._display = Live(
                console=self._console,
                auto_refresh=False,
                transient=self.transient,
                redirect_stdout=redirect,
                redirect_stderr=redirect,
            )
            self._display.start()
        now = time.monotonic()
        refresh = now - self._refreshed >= REFRESH
        self._display.update(renderable, refresh=refresh)
        self._refreshed = now if refresh else self._refreshed

    def show_bar(self, title: str, share: float | None, facts: str, width: int | None) -> None:
        """Show a progress bar between two texts, without the bar if `width` is None; `share` may be unknown."""
        if not self.is_live:
            return
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(None if share is None else 1.0, share or 0.0, width)
        cells = [title, facts] if width is None else [title, bar, facts]
        for _ in cells:
            row.add_column(no_wrap=True)
        row.add_row(*cells)
        self.show(row)

    def stop(self) -> None:
        """End the live display, if there is one."""
        if self._display is not None:
            self._display.stop()
            self._display = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def elapsed(self) -> float:
        """Return the seconds since this reporter was created."""
        return time.monotonic() - self._began

    def remaining(self, done: float, total: float) -> str:
        """Return the remaining time, as a clock shows it, if the rest takes as long as what was done meanwhile."""
        return format_clock(self.elapsed() / done * (total - done)) if done > 0 else "-"


class DownloadProgress(ProgressReporter):
    """Reports the bytes of a download."""

    def __init__(self, name: str, silent: bool = False) -> None:
        super().__init__(not silent)
        self.name = name
        self._printed = 0

    def __call__(self, done: int, total: int | None) -> None:
        """Report that `done` bytes of `total` have arrived."""
        if self.is_live:
            share = None if total is None else done / max(total, 1)
            size = format_size(done) if total is None else f"{format_size(done)} of {format_size(total)}"
            eta = "" if total is None else f"  eta {self.remaining(done, total)}"
            self.show_bar(self.name, share, f"{size}{eta}", width=40)
        elif done - self._printed >= EACH:
            self._printed = done
            self.print_line(f"{self.name}: {done / 1e6:.0f} MB")
