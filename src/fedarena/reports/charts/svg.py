"""The alphabet of the charts: SVG elements as text, scales and ticks. Colours, fonts and themes are left to charts.css."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Point = tuple[float, float]

WIDE, NARROW = 800, 350  # charts on a desk, and on a telephone
ROOMY = 560  # a width from which names have room beside a drawing
LETTER = 7.1  # mean width of a letter, in the widest of the usual fonts
LINE = 16  # height of a line of text
COLOURS = 8  # as many as charts.css defines
SHAPES = (  # marks of about equal weight around the origin, told apart without colour
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",  # disc
    "M-3.5,-3.5h7v7h-7z",  # square
    "M0,-4.6L4.4,3.2H-4.4z",  # triangle
    "M0,-5L5,0L0,5L-5,0z",  # diamond
    "M-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",  # cross
    "M0,4.6L4.4,-3.2H-4.4z",  # triangle on its head
    "M-4.2,-2.1L-2.1,-4.2L0,-2.1L2.1,-4.2L4.2,-2.1L2.1,0L4.2,2.1L2.1,4.2L0,2.1L-2.1,4.2L-4.2,2.1L-2.1,0z",  # x
    "M0,-4.8L4.6,-1.5L2.8,3.9H-2.8L-4.6,-1.5z",  # pentagon
)


def style(index: int) -> str:
    """The classes of series number `index`: a colour, and after eight of them another dash."""
    return f"s{index % COLOURS} d{index // COLOURS % 4}"


def escape(text: object) -> str:
    """Text that is only text: names come from users and files."""
    return html.escape(str(text))


def breakable(label: str) -> str:
    """A name that may be broken where its settings begin."""
    return re.sub("([:,+])", r"\1<wbr>", escape(label))


def picture(width: float, height: float, label: str, body: Iterable[str]) -> str:
    """A whole drawing. `label` says in words what it shows, to whoever cannot see it."""
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return f'<svg class="chart" {size} role="img" aria-label="{escape(label)}">{"".join(body)}</svg>'


def words(x: float, y: float, text: object, kind: str = "", anchor: str = "start") -> str:
    """A line of text; `anchor` is start, middle or end."""
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{place}{_kind(kind)}>{escape(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight one."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{_kind(kind)}/>'


def box(x: float, y: float, width: float, height: float, kind: str, inner: str = "", **more: object) -> str:
    """A rectangle; `inner` may hold its title."""
    rest = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    size = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return f"<rect {size}{rest}{_kind(kind)}>{inner}</rect>" if inner else f"<rect {size}{rest}{_kind(kind)}/>"


def path(points: Sequence[Point], kind: str, *, closed: bool = False) -> str:
    """A line through all points, or the area within them."""
    if not points:
        return ""
    steps = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<path d="M{steps}{"z" if closed else ""}"{_kind(kind)}/>'


def mark(index: int, x: float, y: float, kind: str = "mark", tip: str = "") -> str:
    """The mark of series number `index`."""
    place = f'd="{SHAPES[index % len(SHAPES)]}" transform="translate({x:.1f} {y:.1f})"'
    look = kind if "aside" in kind else f"{kind} {style(index)}"
    return f"<path {place}{_kind(look)}>{title(tip)}</path>"


def group(body: Iterable[str], kind: str, more: str = "") -> str:
    """Elements that belong together."""
    return f"<g{_kind(kind)}{more}>{''.join(body)}</g>"


def title(text: str) -> str:
    """What a browser shows when the pointer rests on the element around it."""
    return f"<title>{escape(text)}</title>" if text else ""


def _kind(kind: str) -> str:
    return f' class="{kind.strip()}"' if kind else ""


@dataclass(frozen=True)
class AxisScale:
    """From values to places on the paper."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values from low to high, a step of 1, 2 or 5 times a power of ten apart.

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


def outward(low: float, high: float, about: int = 5) -> tuple[float, float]:
    """The same range, widened to whole ticks."""
    if not high > low:
        return low - (abs(low) / 4 or 0.5), high + (abs(high) / 4 or 0.5)
    marks = ticks(low, high, about)
    step = marks[1] - marks[0] if len(marks) > 1 else high - low
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def number(value: float) -> str:
    """Short, with as many digits as say something: 0.25, 12, 3.4k, 1.2M.

    >>> [number(v) for v in (0, 0.25, 12, 3400, 1_200_000)]
    ['0', '0.25', '12', '3400', '1.2M']
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:g}"


def shortened(text: str, width: float) -> str:
    """As much of it as has room."""
    most = max(int(width / LETTER), 4)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def percent(value: float) -> str:
    """As written on an axis."""
    return f"{100 * value:g}%" if abs(100 * value) >= 1 or value == 0 else f"{100 * value:.2g}%"


def spread(places: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Nearby places moved as little as keeps them `apart`, within low and high: for labels beside each other.

    >>> spread([10, 12, 50], 10, 0, 100)
    [6.0, 16.0, 50.0]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    blocks: list[
        tuple[float, list[int]]
    ] = []  # where a block of touching labels would best be centred, and who is in it
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
