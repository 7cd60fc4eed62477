"""What is known about a difference, with the region of practical equivalence marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedarena.results.comparison import points
from fedarena.results.report.svg import (
    LETTER,
    ROOMY,
    WIDE,
    Scale,
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
from fedarena.statistics.bayes import Posterior

SHOWN = 0.98  # of a distribution lies within the drawing
FINE = 81  # points of a density


@dataclass(frozen=True)
class Pair:
    """Row against column: the posterior of row minus column, and its sign."""

    row: str
    column: str
    known: Posterior
    sign: str

    def told(self, rope: float) -> str:
        """In a sentence."""
        worse, equal, better = self.known.regions(rope)
        low, high = self.known.interval(0.9)
        return (
            f"{self.row} against {self.column}: better {chance(better)}, practically equal {chance(equal)}, "
            f"worse {chance(worse)}; mean difference {signed(self.known.mean)} points, "
            f"90% between {signed(low)} and {signed(high)}"
        )


def chance(p: float) -> str:
    """A probability; 1.00 and 0.00 are kept for what is certain.

    >>> [chance(p) for p in (0.0, 0.0004, 0.379, 0.9996, 1.0)]
    ['0.00', '<0.01', '0.38', '>0.99', '1.00']
    """
    if p in (0.0, 1.0):
        return f"{p:.2f}"
    return "<0.01" if p < 0.005 else ">0.99" if p > 0.995 else f"{p:.2f}"


def signed(difference: float) -> str:
    """A difference of accuracies, in percentage points, with its sign."""
    return f"{100 * difference:+.1f}".replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class _Layout:
    """Where things stand in the rows: names and chances beside the drawing, or on a line above it."""

    width: float
    names: float  # width of the column of names; none where they stand above
    row: float
    top: float
    text: float  # of a row, above its base line

    @classmethod
    def of(cls, pairs: Sequence[Pair], width: float) -> _Layout:
        longest = max(len(p.column) for p in pairs) * LETTER + 12
        return cls(width, min(longest, 190), 58, 40, 12) if width >= ROOMY else cls(width, 0, 80, 58, 52)

    @property
    def columns(self) -> tuple[float, float, float]:
        """Right ends of the three chances."""
        gap = 50 if self.names else 44
        return self.width - 30 - 2 * gap, self.width - 30 - gap, self.width - 30

    def scale(self, low: float, high: float) -> Scale:
        """From differences to places."""
        return Scale(low, high, self.names + 6, self.columns[0] - 45 if self.names else self.width - 6)


def posterior_rows(pairs: Sequence[Pair], rope: float, *, width: float = WIDE) -> str:
    """One against all others, a row each on a common axis; far ones are named at the edge."""
    at = _Layout.of(pairs, width)
    bottom = at.top + at.row * len(pairs)
    x = at.scale(*shown_range(pairs, rope))
    body = _region(x, rope, at.top - 8, bottom)
    middle = min(max((x(-rope) + x(rope)) / 2, 50), width - 50)
    body.append(words(middle, at.top - 26, "practically equal", "small", "middle"))
    body.append(words(middle, at.top - 13, f"within {points(rope)}", "small quiet", "middle"))
    heads = zip(at.columns, ("better", "equal", "worse"), strict=True)
    body += [words(place, at.top - 13 if at.names else 10, text, "small quiet", "end") for place, text in heads]
    for k, pair in enumerate(pairs):
        base = at.top + at.row * (k + 1) - 12
        body.append(group([title(pair.told(rope)), *_row(pair, rope, x, base, at)], "row"))
        body.append(line(0, base + 12, width, base + 12, "grid"))
    body += _axis(x, bottom, f"{shortened(pairs[0].row, 160)} minus the other, percentage points")
    told = "; ".join(p.told(rope) for p in pairs)
    return picture(width, bottom + 44, f"Posterior distributions of mean differences. {told}", body)


def _row(pair: Pair, rope: float, x: Scale, base: float, at: _Layout) -> list[str]:
    worse, equal, better = pair.known.regions(rope)
    y = base - at.text
    drawn = [*_density(pair.known, rope, x, base, 38), words(0, y, shortened(pair.column, at.names or 190), "name")]
    for place, p in zip(at.columns, (better, equal, worse), strict=True):
        drawn.append(words(place, y, chance(p), "value", "end"))
    drawn.append(words(at.width - 11, y + 1, typeset(pair.sign), "sign", "middle"))
    far = f"{signed(pair.known.mean)} points"
    if pair.known.mean >= x.high:
        drawn.append(words(x.end - 4, base - 6, f"{far} \N{RIGHTWARDS ARROW}", "small", "end"))
    elif pair.known.mean <= x.low:
        drawn.append(words(x.start + 4, base - 6, f"\N{LEFTWARDS ARROW} {far}", "small"))
    return drawn


def posterior_chart(pair: Pair, rope: float, *, width: float = 236, height: float = 150) -> str:
    """One pair by itself, on an axis of its own."""
    low, high = shown_range([pair], rope)
    x = Scale(low, high, 6, width - 6)
    base = height - 40
    body = [*_region(x, rope, 22, base), *_density(pair.known, rope, x, base, base - 48)]
    chances = pair.known.regions(rope)
    centres = spread([x((low - rope) / 2), x(0.0), x((rope + high) / 2)], 40, 0, width)
    body += [words(c, 36, chance(p), "value", "middle") for c, p in zip(centres, chances, strict=True)]
    body.append(words(6, 12, shortened(f"{pair.row} \N{MINUS SIGN} {pair.column}", width - 30), "name"))
    body.append(words(width - 12, 13, typeset(pair.sign), "sign", "middle"))
    body += _axis(x, base, "percentage points", about=4)
    return picture(width, height, pair.told(rope), [title(pair.told(rope)), *body])


def typeset(sign: str) -> str:
    """A verdict as it is printed: a minus is no hyphen."""
    return "\N{MINUS SIGN}" if sign == "-" else sign


def shown_range(pairs: Sequence[Pair], rope: float) -> tuple[float, float]:
    """Wide enough for nearly all of nearly all; one that lies far off must not flatten the others."""
    ends = [p.known.interval(SHOWN) for p in pairs]
    reach = np.abs(ends).max(axis=1)
    limit = max(6 * float(np.median(reach)), 4 * rope, 1e-4)
    room = max(1.8 * rope, 1e-4)
    low = min(-room, max(-limit, min(low for low, _ in ends)))
    high = max(room, min(limit, max(high for _, high in ends)))
    return low, high


def _region(x: Scale, rope: float, top: float, bottom: float) -> list[str]:
    left, right = x(-rope), x(rope)
    return [
        box(left, top, right - left, bottom - top, "rope"),
        line(left, top, left, bottom, "rope-edge"),
        line(right, top, right, bottom, "rope-edge"),
        line(x(0), top, x(0), bottom, "zero"),
    ]


def _density(known: Posterior, rope: float, x: Scale, base: float, height: float) -> list[str]:
    """Three areas under a curve, the 90 % interval and the mean; a single point is a needle."""
    inside = min(max(known.mean, x.low), x.high)
    if known.scale == 0:
        kind = "worse" if known.mean < -rope else "better" if known.mean > rope else "equal"
        return [line(x(inside), base, x(inside), base - height, f"needle {kind}")]
    at = np.unique(np.concatenate([np.linspace(x.low, x.high, FINE), [-rope, rope]]))
    heights = known.density(at) / float(known.density([known.mean])[0]) * height
    drawn = []
    for kind, low, high in (("worse", x.low, -rope), ("equal", -rope, rope), ("better", rope, x.high)):
        part = (at >= low) & (at <= high)
        edge = [(x(v), base - h) for v, h in zip(at[part], heights[part], strict=True)]
        if edge:
            drawn.append(path([(edge[0][0], base), *edge, (edge[-1][0], base)], f"area {kind}", closed=True))
    drawn.append(path([(x(v), base - h) for v, h in zip(at, heights, strict=True)], "density"))
    low, high = (min(max(v, x.low), x.high) for v in known.interval(0.9))
    drawn.append(line(x(low), base, x(high), base, "interval"))
    if x.low < known.mean < x.high:
        drawn.append(f'<circle cx="{x(known.mean):.1f}" cy="{base:.1f}" r="3.5" class="mean"/>')
    return drawn


def _axis(x: Scale, y: float, label: str, about: int = 6) -> list[str]:
    drawn = [line(x.start, y, x.end, y, "axis")]
    for v in ticks(100 * x.low, 100 * x.high, about):
        text = f"{v:+g}".replace("-", "\N{MINUS SIGN}") if v else "0"
        drawn += [line(x(v / 100), y, x(v / 100), y + 4, "axis"), words(x(v / 100), y + 17, text, "tick", "middle")]
    return [*drawn, words((x.start + x.end) / 2, y + 34, label, "label", "middle")]
