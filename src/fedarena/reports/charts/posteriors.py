"""Charts of posterior distributions of mean differences, with the region of practical equivalence marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedarena.reports.charts.svg import (
    LETTER,
    ROOMY,
    WIDE,
    AxisScale,
    box,
    group,
    line,
    path,
    picture,
    shortened,
    spread,
    ticks,
    title,
    words,
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
    known: Posterior
    sign: str
    scoring: Scoring = Scoring()
    is_reference: bool = False  # one of them is a baseline: it does not choose the range of the axis

    def chances(self, rope: float) -> tuple[float, float, float]:
        """Return the probabilities that the row is better, practically equal, and worse."""
        below, equal, above = self.known.regions(rope)
        return (above, equal, below) if self.scoring.sign > 0 else (below, equal, above)

    def told(self, rope: float) -> str:
        """Return what is known in one sentence."""
        better, equal, worse = self.chances(rope)
        low, high = map(self.scoring.signed, self.known.interval(0.9))
        return (
            f"{self.row} against {self.column}: better {chance(better)}, practically equal {chance(equal)}, "
            f"worse {chance(worse)}; mean difference {self.scoring.signed(self.known.mean, unit=True)}, "
            f"90% between {low} and {high}"
        )


def chance(p: float) -> str:
    """A probability; 1.00 and 0.00 are kept for what is certain.

    >>> [chance(p) for p in (0.0, 0.0004, 0.379, 0.9996, 1.0)]
    ['0.00', '<0.01', '0.38', '>0.99', '1.00']
    """
    if p in (0.0, 1.0):
        return f"{p:.2f}"
    return "<0.01" if p < 0.005 else ">0.99" if p > 0.995 else f"{p:.2f}"


@dataclass(frozen=True)
class _Layout:
    """Where things stand in the rows: names and chances beside the drawing, or on a line above it."""

    width: float
    names: float  # width of the column of names; none where they stand above
    row: float
    top: float
    text: float  # of a row, above its base line

    @classmethod
    def of(cls, pairs: Sequence[PosteriorPair], width: float) -> _Layout:
        longest = max(len(p.column) for p in pairs) * LETTER + 12
        return cls(width, min(longest, 190), 58, 40, 12) if width >= ROOMY else cls(width, 0, 80, 58, 52)

    @property
    def columns(self) -> tuple[float, float, float]:
        """Right ends of the three chances."""
        gap = 50 if self.names else 44
        return self.width - 30 - 2 * gap, self.width - 30 - gap, self.width - 30

    def scale(self, low: float, high: float) -> AxisScale:
        """From differences to places."""
        return AxisScale(low, high, self.names + 6, self.columns[0] - 45 if self.names else self.width - 6)


def posterior_rows(pairs: Sequence[PosteriorPair], rope: float, *, width: float = WIDE) -> str:
    """Draw one algorithm against all others, a row each on a common axis; arrows at its edge stand for far-off ones."""
    at = _Layout.of(pairs, width)
    scoring = pairs[0].scoring
    bottom = at.top + at.row * len(pairs)
    x = at.scale(*shown_range(pairs, rope))
    body = _region(x, rope, at.top - 8, bottom)
    middle = min(max((x(-rope) + x(rope)) / 2, x.start + 50), x.end - 50)
    body.append(words(middle, at.top - 26, "practically equal", "small", "middle"))
    body.append(words(middle, at.top - 13, f"within {scoring.difference(rope)}", "small quiet", "middle"))
    heads = zip(at.columns, ("better", "equal", "worse"), strict=True)
    body += [words(place, at.top - 13 if at.names else 10, text, "small quiet", "end") for place, text in heads]
    for k, pair in enumerate(pairs):
        base = at.top + at.row * (k + 1) - 12
        body.append(group([title(pair.told(rope)), *_row(pair, rope, x, base, at)], "row"))
        body.append(line(0, base + 12, width, base + 12, "grid"))
    body += _axis(x, bottom, axis_label(pairs[0], 160 if at.names else 110), scoring)
    told = "; ".join(p.told(rope) for p in pairs)
    return picture(width, bottom + 44, f"Posterior distributions of mean differences. {told}", body)


def axis_label(pair: PosteriorPair, room: float = 1000) -> str:
    """Name the axis: which difference, in which unit, and which direction is good where that is the smaller one."""
    smaller = "" if pair.scoring.sign > 0 else " (smaller is better)"
    return f"{shortened(pair.row, room)} minus the other, {pair.scoring.unit}{smaller}"


def _row(pair: PosteriorPair, rope: float, x: AxisScale, base: float, at: _Layout) -> list[str]:
    y = base - at.text
    drawn = [*_density(pair, rope, x, base, 38), words(0, y, shortened(pair.column, at.names or 190), "name")]
    for place, p in zip(at.columns, pair.chances(rope), strict=True):
        drawn.append(words(place, y, chance(p), "value", "end"))
    drawn.append(words(at.width - 11, y + 1, typeset(pair.sign), "sign", "middle"))
    if (side := far_side(pair, x.low, x.high)) > 0:
        drawn.append(words(x.end - 4, base - 6, f"{far_text(pair)} \N{RIGHTWARDS ARROW}", "far", "end"))
    elif side < 0:
        drawn.append(words(x.start + 4, base - 6, f"\N{LEFTWARDS ARROW} {far_text(pair)}", "far"))
    return drawn


def far_side(pair: PosteriorPair, low: float, high: float) -> int:
    """Return 1 if the mean lies beyond the right end of the axis, -1 beyond the left one, else 0."""
    return int(pair.known.mean > high) - int(pair.known.mean < low)


def far_text(pair: PosteriorPair) -> str:
    """Return what stands beside the arrow of a far-off pair: its mean difference and its 90 % interval."""
    low, high = map(pair.scoring.signed, pair.known.interval(0.9))
    return f"{pair.scoring.signed(pair.known.mean, unit=True)} ({low} to {high})"


def posterior_chart(pair: PosteriorPair, rope: float, *, width: float = 236, height: float = 150) -> str:
    """Draw one pair by itself, on an axis of its own."""
    low, high = shown_range([pair], rope)
    x = AxisScale(low, high, 6, width - 6)
    base = height - 40
    body = [*_region(x, rope, 22, base), *_density(pair, rope, x, base, base - 48)]
    centres = spread([x((low - rope) / 2), x(0.0), x((rope + high) / 2)], 40, 0, width)
    regions = zip(centres, pair.known.regions(rope), strict=True)
    body += [words(c, 36, chance(p), "value", "middle") for c, p in regions]
    body.append(words(6, 12, shortened(f"{pair.row} \N{MINUS SIGN} {pair.column}", width - 30), "name"))
    body.append(words(width - 12, 13, typeset(pair.sign), "sign", "middle"))
    body += _axis(x, base, pair.scoring.unit, pair.scoring, about=4)
    return picture(width, height, pair.told(rope), [title(pair.told(rope)), *body])


def typeset(sign: str) -> str:
    """A verdict as it is printed: a minus is no hyphen."""
    return "\N{MINUS SIGN}" if sign == "-" else sign


def shown_range(pairs: Sequence[PosteriorPair], rope: float) -> tuple[float, float]:
    """Return the ends of the axis, chosen by the pairs of candidates.

    It holds nearly all of their distributions, but reaches at most three times as far as the lower median of them: a
    baseline or an algorithm that lies far off must not squeeze the others. The same range serves the report, the page of
    `fedarena ui` and the figures of a paper.
    """
    judged = [p for p in pairs if not p.is_reference] or list(pairs)
    ends = [p.known.interval(SHOWN) for p in judged]
    reach = np.abs(ends).max(axis=1)
    typical = float(np.quantile(reach, 0.5, method="lower"))
    least = 1e-4 if rope or typical else 1.0
    limit = max(FAR * typical, 4 * rope, least)
    room = max(1.8 * rope, least)
    low = min(-room, max(-limit, min(low for low, _ in ends)))
    high = max(room, min(limit, max(high for _, high in ends)))
    return low, high


def _region(x: AxisScale, rope: float, top: float, bottom: float) -> list[str]:
    left, right = x(-rope), x(rope)
    return [
        box(left, top, right - left, bottom - top, "rope"),
        line(left, top, left, bottom, "rope-edge"),
        line(right, top, right, bottom, "rope-edge"),
        line(x(0), top, x(0), bottom, "zero"),
    ]


def areas(pair: PosteriorPair, rope: float, low: float, high: float) -> list[tuple[str, float, float]]:
    """Return the three regions of the axis, from left to right, each with its kind: better, equal or worse."""
    left, right = ("worse", "better") if pair.scoring.sign > 0 else ("better", "worse")
    return [(left, low, -rope), ("equal", -rope, rope), (right, rope, high)]


def kind_of(pair: PosteriorPair, rope: float) -> str:
    """Return the region in which the mean lies: better, equal or worse."""
    return next(kind for kind, _, end in areas(pair, rope, -np.inf, np.inf) if pair.known.mean <= end)


def _density(pair: PosteriorPair, rope: float, x: AxisScale, base: float, height: float) -> list[str]:
    """Draw three areas under a curve, the 90 % interval and the mean; a single point is a needle."""
    known = pair.known
    if far_side(pair, x.low, x.high):
        return []
    if known.scale == 0:
        return [line(x(known.mean), base, x(known.mean), base - height, f"needle {kind_of(pair, rope)}")]
    at = np.unique(np.concatenate([np.linspace(x.low, x.high, FINE), [-rope, rope]]))
    heights = known.density(at) / float(known.density([known.mean])[0]) * height
    drawn = []
    for kind, low, high in areas(pair, rope, x.low, x.high):
        part = (at >= low) & (at <= high)
        edge = [(x(v), base - h) for v, h in zip(at[part], heights[part], strict=True)]
        if edge:
            drawn.append(path([(edge[0][0], base), *edge, (edge[-1][0], base)], f"area {kind}", closed=True))
    drawn.append(path([(x(v), base - h) for v, h in zip(at, heights, strict=True)], "density"))
    low, high = (min(max(v, x.low), x.high) for v in known.interval(0.9))
    drawn.append(line(x(low), base, x(high), base, "interval"))
    drawn.append(f'<circle cx="{x(known.mean):.1f}" cy="{base:.1f}" r="3.5" class="mean"/>')
    return drawn


def _axis(x: AxisScale, y: float, label: str, scoring: Scoring, about: int = 6) -> list[str]:
    drawn, times = [line(x.start, y, x.end, y, "axis")], scoring.scale
    for v in ticks(times * x.low, times * x.high, about):
        text = f"{v:+g}".replace("-", "\N{MINUS SIGN}") if v else "0"
        place = x(v / times)
        drawn += [line(place, y, place, y + 4, "axis"), words(place, y + 17, text, "tick", "middle")]
    return [*drawn, words((x.start + x.end) / 2, y + 34, label, "label", "middle")]
