"""The table of verdicts, row against column, as the report and the pages of `fedarena ui` show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedarena.reports.charts.posteriors import PosteriorPair
from fedarena.reports.charts.svg import meter

KINDS = {"+": "better", "=": "equal", "-": "worse", "?": "open"}
MANY_NAMES = 5  # algorithms from which the table is wider than the text


@dataclass(frozen=True)
class VerdictCell:
    """One pair: its sign, the probabilities of better, equal and worse, and a summary for the tooltip."""

    sign: str
    probabilities: tuple[float, float, float]
    summary: str

    @property
    def kind(self) -> str:
        """Return the class that gives the cell its colour."""
        return KINDS[self.sign]

    @property
    def meter(self) -> Markup:
        """Return the probabilities as a thin bar."""
        return meter(self.probabilities)


@dataclass(frozen=True)
class VerdictMatrix:
    """All pairs of the algorithms; a pair without a cell has no posterior (yet)."""

    caption: str
    names: Sequence[str]
    cells: Mapping[tuple[str, str], VerdictCell]
    unknown: str = "?"  # what stands in place of a cell

    @property
    def is_wide(self) -> bool:
        """Return whether it is wider than the text."""
        return len(self.names) > MANY_NAMES


def verdict_cells(pairs: Sequence[PosteriorPair], rope: float) -> dict[tuple[str, str], VerdictCell]:
    """Return the cells of pairs, by row and column."""
    return {
        (pair.row, pair.column): VerdictCell(pair.sign, pair.probabilities(rope), pair.summary(rope)) for pair in pairs
    }
