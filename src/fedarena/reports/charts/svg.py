"""SVG elements as text, scales, ticks and axes, from which all charts are drawn. Colours and fonts are in charts.css."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from markupsafe import escape as escape_once

Point = tuple[float, float]
Format = Callable[[float], str]

WIDE, NARROW = 800, 350  # widths of charts on a desktop and on a phone
ROOMY = 560  # a width from which names have room beside a drawing
LETTER = 7.1  # mean width of a letter, in the widest of the usual fonts
LINE = 16  # height of a line of text
COLOURS = 8  # as many as charts.css defines
MINUS = "\N{MINUS SIGN}"
SHAPES = (  # marks of about equal weight around the origin, distinguishable without colour
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",  # disc
    "M-3.5,-3.5h7v7h-7z",  # square
    "M0,-4.6L4.4,3.2H-4.4z",  # triangle
    "M0,-5L5,0L0,5L-5,0z",  # diamond
    "M-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",  # cross
    "M0,4.6L4.4,-3.2H-4.4z",  # inverted triangle
    "M-4.2,-2.1L-2.1,-4.2L0,-2.1L2.1,-4.2L4.2,-2.1L2.1,0L4.2,2.1L2.1,4.2L0,2.1L-2.1,4.2L-4.2,2.1L-2.1,0z",  # x
    "M0,-4.8L4.6,-1.5L2.8,3.9H-2.8L-4.6,-1.5z",  # pentagon
)


def series_class(index: int) -> str:
    """Return the classes of series number `index`: a colour, and after eight of them another dash."""
    return f"s{index % COLOURS} d{index // COLOURS % 4}"


def escape(text: object) -> str:
    """Escape a text from a user or a file, so that it cannot become markup."""
    return html.escape(str(text))


def breakable(label: str) -> Markup:
    """Return a name that a browser may break where its settings begin."""
    return Markup(re.sub("([:,+])", r"\1<wbr>", str(escape_once(label))))


def picture(width: float, height: float, label: str, body: Iterable[str]) -> Markup:
    """Return a whole drawing; `label` describes in words what it shows, for screen readers."""
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return Markup(f'<svg class="chart" {size} role="img" aria-label="{escape(label)}">{"".join(body)}</svg>')


def text(x: float, y: float, content: object, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text; `anchor` is start, middle or end."""
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{place}{_class(kind)}>{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a straight line between two points."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{_class(kind)}/>'


def circle(x: float, y: float, radius: float, kind: str) -> str:
    """Return a circle around a point."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"{_class(kind)}/>'


def rect(x: float, y: float, width: float, height: float, kind: str, inner: str = "", **more: object) -> str:
    """Return a rectangle; `inner` may hold its title."""
    rest = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    size = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return f"<rect {size}{rest}{_class(kind)}>{inner}</rect>" if inner else f"<rect {size}{rest}{_class(kind)}/>"


def path(points: Sequence[Point], kind: str, *, closed: bool = False) -> str:
    """Return a line through all points, or the area within them."""
    if not points:
        return ""
    steps = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<path d="M{steps}{"z" if closed else ""}"{_class(kind)}/>'


def mark(index: int, x: float, y: float, *, aside: bool = False, tip: str = "") -> str:
    """Return the mark of series number `index`; one that is shown for comparison only is grey."""
    place = f'd="{SHAPES[index % len(SHAPES)]}" transform="translate({x:.1f} {y:.1f})"'
    return f"<path {place}{_class('mark aside' if aside else f'mark {series_class(index)}')}>{title(tip)}</path>"


def group(body: Iterable[str], kind: str) -> str:
    """Return elements that belong together."""
    return f"<g{_class(kind)}>{''.join(body)}</g>"


def title(content: str) -> str:
    """Return what a browser shows when the pointer rests on the element around it."""
    return f"<title>{escape(content)}</title>" if content else ""


def meter(probabilities: Sequence[float]) -> Markup:
    """Return a thin bar of the probabilities of better, equal and worse, side by side."""
    starts = [100 * sum(probabilities[:k]) for k in range(len(probabilities))]
    kinds = ("better", "equal", "worse")
    bars = (rect(x, 0, 100 * p, 4, kind) for x, p, kind in zip(starts, probabilities, kinds, strict=True))
    frame = 'viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true"'
    return Markup(f'<svg class="meter" {frame}>{"".join(bars)}</svg>')


def _class(kind: str) -> str:
    return f' class="{kind.strip()}"' if kind else ""


# Scales and axes


@dataclass(frozen=True)
class AxisScale:
    """A linear or logarithmic map from values to coordinates."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (value - low) / ((high - low) or 1.0) * (self.end - self.start)

    def clamp(self, value: float) -> float:
        """Return the coordinate of a value, or that of the end of the axis beyond which it lies."""
        return self(min(max(value, self.low), self.high))

    @property
    def middle(self) -> float:
        """Return the coordinate halfway between both ends."""
        return (self.start + self.end) / 2


def x_axis(
    x: AxisScale,
    y: float,
    label: str,
    write: Format,
    *,
    about: int = 6,
    factor: float = 1.0,
    grid_from: float | None = None,
) -> list[str]:
    """Draw a horizontal axis at height `y`: values times `factor` below it, grid lines down from `grid_from` if given."""
    if x.is_log:
        values = log_ticks(x.low, x.high) or [math.sqrt(x.low * x.high)]
    else:
        values = ticks(factor * x.low, factor * x.high, about)
    places = [x(value / factor) for value in values]
    drawn = [] if grid_from is None else [line(place, grid_from, place, y, "grid") for place in places]
    drawn.append(line(x.start, y, x.end, y, "axis"))
    drawn += [line(place, y, place, y + 4, "axis") for place in places] if grid_from is None else []
    drawn += [text(place, y + 18, write(v), "tick", "middle") for place, v in zip(places, values, strict=True)]
    return [*drawn, text(max(x.middle, LETTER * len(label) / 2), y + 36, label, "label", "middle")]


def y_axis(y: AxisScale, left: float, right: float, label: str, write: Format, *, about: int = 5) -> list[str]:
    """Draw a vertical axis: grid lines from `left` to `right`, their values beside them, the label above."""
    values = ticks(y.low, y.high, about)
    drawn = [line(left, y(value), right, y(value), "grid") for value in values]
    drawn += [text(left - 8, y(value) + 4, write(value), "tick", "end") for value in values]
    return [*drawn, text(4, y.end - 12, label, "label")]


def rope_region(x: AxisScale, rope: tuple[float, float], top: float, bottom: float) -> list[str]:
    """Draw the region of practical equivalence, and the line of no difference."""
    left, right = map(x, rope)
    drawn = [line(x(0), top, x(0), bottom, "zero")]
    if right > left:
        drawn.append(rect(left, top, right - left, bottom - top, "rope"))
        drawn += [line(place, top, place, bottom, "rope-edge") for place in (left, right)]
    return drawn


def range_within(
    intervals: Sequence[tuple[float, float]], rope: float, reach: float, *, least: float = 1e-9
) -> tuple[float, float]:
    """Return a range around zero that holds the rope and all intervals, but none further out than `reach`."""
    limit, room = max(reach, 4 * rope, least), max(1.8 * rope, least)
    low = min(-room, max(-limit, min(low for low, _ in intervals)))
    return low, max(room, min(limit, max(high for _, high in intervals)))


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round values from low to high, a step of 1, 2 or 5 times a power of ten apart.

    >>> ticks(0.0, 1.0), ticks(0, 37, 4)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 10.0, 20.0, 30.0])
    """
    if not high > low:
        return [low]
    rough = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) + 0.0 for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return round values between two positive ones: powers of ten, and 2 and 5 times them where those are few.

    >>> log_ticks(0.1, 10), log_ticks(3, 40)
    ([0.1, 1.0, 10.0], [5.0, 10.0, 20.0])
    """
    powers = [10.0**p for p in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    steps = powers if sum(low <= v <= high for v in powers) > 2 else [k * v for v in powers for k in (1, 2, 5)]
    return [round(v, 12) for v in steps if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]


def widen_to_ticks(low: float, high: float, about: int = 5) -> tuple[float, float]:
    """Return the range, widened to whole ticks."""
    if not high > low:
        return low - (abs(low) / 4 or 0.5), high + (abs(high) / 4 or 0.5)
    marks = ticks(low, high, about)
    step = marks[1] - marks[0] if len(marks) > 1 else high - low
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def format_number(value: float) -> str:
    """Write a number with as many digits as matter on an axis.

    >>> [format_number(v) for v in (0, 0.25, 12, 3400, 1_200_000)]
    ['0', '0.25', '12', '3400', '1.2M']
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}".replace("-", MINUS)
    return f"{value:g}".replace("-", MINUS)


def format_difference(value: float, digits: int = 6) -> str:
    """Write a difference with its sign."""
    return f"{value:+.{digits}g}".replace("-", MINUS) if value else "0"


def format_share(value: float) -> str:
    """Write a share as a percentage, as it stands on an axis."""
    return f"{100 * value:g}%" if abs(100 * value) >= 1 or value == 0 else f"{100 * value:.2g}%"


def shorten(content: str, width: float) -> str:
    """Return as much of a text as has room."""
    most = max(int(width / LETTER), 4)
    return content if len(content) <= most else f"{content[: most - 1]}…"


def spread_apart(places: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Move nearby labels as little as puts them `apart`, within low and high.

    >>> spread_apart([10, 12, 50], 10, 0, 100)
    [6.0, 16.0, 50.0]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    blocks: list[tuple[float, list[int]]] = []  # the best centre of each block of touching labels, and its members
    for i in order:
        centre, members = min(max(float(places[i]), low + apart / 2), high - apart / 2), [i]
        while blocks and centre - len(members) * apart / 2 < blocks[-1][0] + len(blocks[-1][1]) * apart / 2:
            before, others = blocks.pop()
            size = len(others) + len(members)
            centre = (before * len(others) + centre * len(members)) / size
            members = others + members
            half = size * apart / 2
            centre = min(max(centre, low + half), high - half) if high - low > 2 * half else (low + high) / 2
        blocks.append((centre, members))
    moved = [0.0] * len(places)
    for centre, members in blocks:
        for rank, i in enumerate(members):
            moved[i] = centre + (rank - (len(members) - 1) / 2) * apart
    return moved
