"""Posterior distributions of mean differences: what is drawn of them, and their charts.

The report, the pages of `fedarena ui` and the figures for papers share the numbers (ranges, regions, densities); the
first two share the charts as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedarena.reports.charts.svg import (
    LETTER,
    MINUS,
    ROOMY,
    WIDE,
    AxisScale,
    circle,
    format_difference,
    group,
    line,
    path,
    picture,
    range_within,
    rope_region,
    shorten,
    spread_apart,
    text,
    title,
    x_axis,
)
from fedarena.results.scoring import Scoring
from fedarena.statistics.bayes import Posterior

SHOWN = 0.98  # of a distribution lies within the drawing
FAR = 3  # an axis reaches at most this many times as far as the typical pair of candidates
FINE = 81  # points of a density


@dataclass(frozen=True)
class PosteriorPair:
    """Row against column: the posterior of row minus column, its sign, and the score that it is a difference of."""

    row: str
    column: str
    posterior: Posterior
    sign: str
    scoring: Scoring = Scoring()
    is_reference: bool = False  # one of them is a baseline: it does not choose the range of the axis

    def probabilities(self, rope: float) -> tuple[float, float, float]:
        """Return the probabilities that the row is better, practically equal, and worse."""
        below, equal, above = self.posterior.regions(rope)
        return (above, equal, below) if self.scoring.sign > 0 else (below, equal, above)

    def summary(self, rope: float) -> str:
        """Return the probabilities, the mean difference and its interval in one sentence."""
        better, equal, worse = map(format_probability, self.probabilities(rope))
        low, high = map(self.scoring.signed, self.posterior.interval(0.9))
        return (
            f"{self.row} against {self.column}: better {better}, practically equal {equal}, worse {worse}; mean "
            f"difference {self.scoring.signed(self.posterior.mean, unit=True)}, 90% between {low} and {high}"
        )

    def regions(self, rope: float, low: float, high: float) -> list[tuple[str, float, float]]:
        """Return the three regions of an axis, from left to right, each with its kind: better, equal or worse."""
        left, right = ("worse", "better") if self.scoring.sign > 0 else ("better", "worse")
        return [(left, low, -rope), ("equal", -rope, rope), (right, rope, high)]

    def kind(self, rope: float) -> str:
        """Return the region in which the mean lies: better, equal or worse."""
        return next(kind for kind, _, end in self.regions(rope, -np.inf, np.inf) if self.posterior.mean <= end)

    def density(self, rope: float, low: float, high: float, points: int) -> tuple[NDArray[np.float64], ...]:
        """Return places on the axis, the ends of the rope among them, and the density there as a share of its peak."""
        x = np.unique(np.concatenate([np.linspace(low, high, points), [-rope, rope]]))
        return x, self.posterior.density(x) / float(self.posterior.density([self.posterior.mean])[0])

    def far_side(self, low: float, high: float) -> int:
        """Return 1 if the mean lies beyond the right end of the axis, -1 beyond the left one, else 0."""
        return int(self.posterior.mean > high) - int(self.posterior.mean < low)

    @property
    def far_text(self) -> str:
        """Return what stands in place of a curve that lies beyond the axis: its mean difference and its 90% interval."""
        low, high = map(self.scoring.signed, self.posterior.interval(0.9))
        return f"{self.scoring.signed(self.posterior.mean, unit=True)} ({low} to {high})"

    def arrow(self, side: int) -> str:
        """Return the text of a pair beyond the axis, with an arrow to its side."""
        return f"{self.far_text} \N{RIGHTWARDS ARROW}" if side > 0 else f"\N{LEFTWARDS ARROW} {self.far_text}"

    def axis_label(self, room: float = 1000) -> str:
        """Name the axis: which difference, in which unit, and which direction is good where that is the smaller one."""
        smaller = "" if self.scoring.sign > 0 else " (smaller is better)"
        return f"{shorten(self.row, room)} minus the other, {self.scoring.unit}{smaller}"


def format_probability(p: float) -> str:
    """Write a probability with two digits; 1.00 and 0.00 are reserved for certainty.

    >>> [format_probability(p) for p in (0.0, 0.0004, 0.379, 0.9996, 1.0)]
    ['0.00', '<0.01', '0.38', '>0.99', '1.00']
    """
    if p in (0.0, 1.0):
        return f"{p:.2f}"
    return "<0.01" if p < 0.005 else ">0.99" if p > 0.995 else f"{p:.2f}"


def format_sign(sign: str) -> str:
    """Return the sign of a verdict as it is printed: a minus is no hyphen."""
    return MINUS if sign == "-" else sign


def shown_range(pairs: Sequence[PosteriorPair], rope: float) -> tuple[float, float]:
    """Return the ends of the axis, chosen by the pairs of candidates.

    It holds nearly all of their distributions, but reaches at most three times as far as the lower median of them: a
    baseline or an algorithm that lies far off must not squeeze the others.
    """
    candidates = [p for p in pairs if not p.is_reference] or list(pairs)
    ends = [p.posterior.interval(SHOWN) for p in candidates]
    typical = float(np.quantile(np.abs(ends).max(axis=1), 0.5, method="lower"))
    return range_within(ends, rope, FAR * typical, least=1e-4 if rope or typical else 1.0)


@dataclass(frozen=True)
class VerdictRows:
    """The layout of rows with a name, a drawing, three probabilities and a sign: side by side, or the texts above."""

    width: float
    names: float  # width of the column of names; 0 where they stand above the drawing

    @classmethod
    def of(cls, names: Sequence[str], width: float, most: float = 190) -> VerdictRows:
        """Return the layout for rows of these names, in a chart of this width."""
        return cls(width, min(max(map(len, names)) * LETTER + 12, most) if width >= ROOMY else 0)

    @property
    def columns(self) -> tuple[float, float, float]:
        """Return the right ends of the three probabilities."""
        gap = 50 if self.names else 44
        return self.width - 30 - 2 * gap, self.width - 30 - gap, self.width - 30

    def scale(self, low: float, high: float) -> AxisScale:
        """Return the scale of the differences."""
        return AxisScale(low, high, self.names + 7, self.columns[0] - 45 if self.names else self.width - 7)

    def heads(self, y: float) -> list[str]:
        """Write the names of the three probabilities above the rows, or at the top of the chart."""
        heads = zip(self.columns, ("better", "equal", "worse"), strict=True)
        return [text(place, y if self.names else 10, head, "small quiet", "end") for place, head in heads]

    def texts(self, y: float, name: str, probabilities: Sequence[float], sign: str) -> list[str]:
        """Write the name, the probabilities and the sign of one row; without probabilities only the other two."""
        columns = zip(self.columns, probabilities, strict=False)
        values = [text(place, y, format_probability(p), "value", "end") for place, p in columns]
        shown = text(self.width - 11, y + 1, format_sign(sign), "sign", "middle")
        return [text(0, y, shorten(name, self.names or 190), "name"), *values, shown]


def posterior_rows(pairs: Sequence[PosteriorPair], rope: float, *, width: float = WIDE) -> Markup:
    """Draw one algorithm against all others, a row each on a common axis; arrows at its edge stand for far-off ones."""
    rows = VerdictRows.of([pair.column for pair in pairs], width)
    row, top, above = (58, 40, 12) if rows.names else (80, 58, 52)
    scoring = pairs[0].scoring
    bottom = top + row * len(pairs)
    x = rows.scale(*shown_range(pairs, rope))
    middle = min(max(x(0), x.start + 50), x.end - 50)
    body = [
        *rope_region(x, (-rope, rope), top - 8, bottom),
        text(middle, top - 26, "practically equal", "small", "middle"),
        text(middle, top - 13, f"within {scoring.difference(rope)}", "small quiet", "middle"),
        *rows.heads(top - 13),
    ]
    for k, pair in enumerate(pairs):
        base = top + row * (k + 1) - 12
        texts = rows.texts(base - above, pair.column, pair.probabilities(rope), pair.sign)
        body.append(group([title(pair.summary(rope)), *_density(pair, rope, x, base, 38), *texts], "row"))
        body.append(line(0, base + 12, width, base + 12, "grid"))
    body += x_axis(x, bottom, pairs[0].axis_label(160 if rows.names else 110), format_difference, factor=scoring.scale)
    summaries = "; ".join(pair.summary(rope) for pair in pairs)
    return picture(width, bottom + 44, f"Posterior distributions of mean differences. {summaries}", body)


def posterior_chart(pair: PosteriorPair, rope: float, *, width: float = 236, height: float = 150) -> Markup:
    """Draw one pair by itself, on an axis of its own."""
    low, high = shown_range([pair], rope)
    x = AxisScale(low, high, 6, width - 6)
    base = height - 40
    body = [*rope_region(x, (-rope, rope), 22, base), *_density(pair, rope, x, base, base - 48)]
    centres = spread_apart([x((low - rope) / 2), x(0.0), x((rope + high) / 2)], 40, 0, width)
    regions = zip(centres, pair.posterior.regions(rope), strict=True)
    body += [text(centre, 36, format_probability(p), "value", "middle") for centre, p in regions]
    body.append(text(6, 12, shorten(f"{pair.row} {MINUS} {pair.column}", width - 30), "name"))
    body.append(text(width - 12, 13, format_sign(pair.sign), "sign", "middle"))
    body += x_axis(x, base, pair.scoring.unit, format_difference, about=4, factor=pair.scoring.scale)
    return picture(width, height, pair.summary(rope), [title(pair.summary(rope)), *body])


def _density(pair: PosteriorPair, rope: float, x: AxisScale, base: float, height: float) -> list[str]:
    """Draw three areas under a curve, the 90 % interval and the mean; a single point is a needle, a far pair an arrow."""
    known = pair.posterior
    if side := pair.far_side(x.low, x.high):
        place, anchor = (x.end - 4, "end") if side > 0 else (x.start + 4, "start")
        return [text(place, base - 6, pair.arrow(side), "far", anchor)]
    if known.scale == 0:
        return [line(x(known.mean), base, x(known.mean), base - height, f"needle {pair.kind(rope)}")]
    at, shares = pair.density(rope, x.low, x.high, FINE)
    curve = [(x(v), base - height * share) for v, share in zip(at.tolist(), shares.tolist(), strict=True)]
    drawn = []
    for kind, low, high in pair.regions(rope, x.low, x.high):
        edge = [point for point, v in zip(curve, at, strict=True) if low <= v <= high]
        if edge:
            drawn.append(path([(edge[0][0], base), *edge, (edge[-1][0], base)], f"area {kind}", closed=True))
    drawn.append(path(curve, "density"))
    low, high = map(x.clamp, known.interval(0.9))
    return [*drawn, line(low, base, high, base, "interval"), circle(x(known.mean), base, 3.5, "mean")]
