"""The hook by which `Comparison` shows itself: `fedarena.reports`, a layer above this one, registers its functions here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from fedarena.config.errors import BadValue

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedarena.results.comparison import Comparison

Over = Literal["rounds", "uploads", "bytes", "simulated time"]


class Presentation(Protocol):
    """The functions that show a comparison."""

    def write_latex(self, result: Comparison) -> str:
        """Return the tables of a comparison in LaTeX."""

    def draw_posteriors(self, result: Comparison, ax: Axes | None) -> Axes:
        """Draw the best algorithm against each other one."""

    def draw_curves(self, result: Comparison, ax: Axes | None, over: Over) -> Axes:
        """Draw the learning curves of all algorithms."""

    def write_report(self, result: Comparison, path: str | Path | None) -> Path:
        """Write the report as one HTML file."""


_registered: list[Presentation] = []


def set_presentation(presentation: Presentation) -> None:
    """Set how comparisons are shown; `fedarena.reports.presentation` does so when it is imported."""
    _registered[:] = [presentation]


def presentation() -> Presentation:
    """Return the registered functions."""
    if not _registered:
        raise BadValue("nothing can show a comparison yet", remedy="import fedarena.api first")
    return _registered[-1]
