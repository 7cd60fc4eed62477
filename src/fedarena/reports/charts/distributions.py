"""Many values at once: a heat map, strips of dots, dots side by side, bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedarena.reports.charts.svg import (
    LETTER,
    ROOMY,
    WIDE,
    AxisScale,
    box,
    group,
    line,
    mark,
    number,
    outward,
    percent,
    picture,
    shortened,
    style,
    ticks,
    title,
    words,
)

NUMBERED = 200  # cells up to which a heat map prints its numbers
DOTS = 400  # of a strip; more are told by the box alone
GOLDEN = (math.sqrt(5) - 1) / 2


def heat_map(
    counts: Sequence[Sequence[int]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    row_label: str = "client",
    column_label: str = "class",
    unit: str = "rows",
    width: float = WIDE,
    label: str = "",
) -> str:
    """Darker for more, empty for none, with the sum of every row as a bar beside it."""
    table = np.asarray(counts)
    left = max(34.0, LETTER * max(map(len, rows)) + 12)
    bars = 96 if width >= ROOMY else 62
    longest = LETTER * max(map(len, columns)) + 8
    cell = min((width - left - bars) / len(columns), max(54, longest))
    height = 25.0 if len(rows) <= 24 else max(4.0, 560 / len(rows))
    slanted = longest > cell + 12
    top = 30.0 + (0.75 * longest if slanted and cell >= 9 else 8)
    most, sums = max(int(table.max()), 1), table.sum(axis=1)
    legible = table.size <= NUMBERED and cell >= LETTER * len(str(most)) + 2 and height >= 14
    body = [words(left, 12, column_label, "label"), words(0, top - 6, row_label, "label")]
    for y, name in enumerate(columns):
        if cell < 9 and y % math.ceil(12 / cell):
            continue
        place = left + cell * (y + 0.5)
        turned = f' transform="rotate(-40 {place:.1f} {top - 6:.1f})"' if slanted and cell >= 9 else ""
        text = words(place, top - 6, name, "tick", "start" if turned else "middle")
        body.append(text.replace("<text", f"<text{turned}", 1))
    bar = AxisScale(0, max(int(sums.max()), 1), left + cell * len(columns) + 10, left + cell * len(columns) + bars - 36)
    body.append(words(bar.start, top - 6, unit, "label"))
    for k, name in enumerate(rows):
        y0 = top + height * k
        if height >= 12 or k % math.ceil(12 / height) == 0:
            body.append(words(left - 8, y0 + height / 2 + 4, name, "tick", "end"))
        for c in range(len(columns)):
            n = int(table[k, c])
            tip = title(f"{row_label} {name}, {column_label} {columns[c]}: {n} {unit}")
            shade = f"{0.1 + 0.9 * n / most:.2f}" if n else "0"
            gap = 1 if height > 8 and cell > 8 else 0
            kind = "cell" if n else "cell none"
            body.append(box(left + cell * c, y0, cell - gap, height - gap, kind, tip, fill_opacity=shade if n else 1))
            if legible and n:
                ink = "cell-value strong" if n > 0.6 * most else "cell-value"
                body.append(words(left + cell * (c + 0.5), y0 + height / 2 + 4, n, ink, "middle"))
        total = int(sums[k])
        body.append(box(bar.start, y0 + height * 0.2, bar(total) - bar.start, height * 0.6, "bar"))
        if height >= 12:
            body.append(words(bar(total) + 5, y0 + height / 2 + 4, total, "tick"))
    full = min(width, bar.end + 40)
    text = label or f"{unit} of every {row_label} and {column_label}: {len(rows)} by {len(columns)}, at most {most}"
    return picture(full, top + height * len(rows) + 6, text, body)


@dataclass(frozen=True)
class Strip:
    """A name and its values."""

    label: str
    values: Sequence[float]
    index: int = 0
    aside: bool = False


def strip_chart(
    strips: Sequence[Strip], *, x_label: str, width: float = WIDE, label: str = "", fractions: bool = True
) -> str:
    """A row each: every value a dot, the middle half a box, the median a line, the mean a mark."""
    wide = width >= ROOMY
    left = min(LETTER * max(len(s.label) for s in strips) + 14, 200) if wide else 16
    row = 40.0 if wide else 58.0
    known = [[v for v in s.values if math.isfinite(v)] for s in strips]
    everything = [v for values in known for v in values] or [0.0, 1.0]
    low, high = outward(min(everything), max(everything))
    x = AxisScale(low, high, left, width - 16)
    bottom = 8 + row * len(strips)
    body = _value_axis(x, 4, bottom, x_label, about=6 if wide else 4, fractions=fractions)
    for k, (s, values) in enumerate(zip(strips, known, strict=True)):
        middle = 8 + row * (k + 1) - 20
        name = shortened(s.label, left - 8 if wide else width)
        named = words(left - 14, middle + 4, name, "name", "end") if wide else words(0, middle - 20, name, "name")
        body += [named, *(_strip(s, values, x, middle, fractions) if values else [])]
    told = (f"{s.label}: {_spread_told(v, fractions)}" for s, v in zip(strips, known, strict=True) if v)
    text = label or "; ".join(told)
    return picture(width, bottom + 40, text, body)


def _strip(s: Strip, values: Sequence[float], x: AxisScale, middle: float, fractions: bool) -> list[str]:
    look = "aside" if s.aside else style(s.index)
    q1, q2, q3 = np.percentile(values, (25, 50, 75))
    drawn = [title(f"{s.label}: {_spread_told(values, fractions)}")]
    drawn.append(box(x(q1), middle - 11, max(x(q3) - x(q1), 1), 22, f"quartiles {look}"))
    if len(values) <= DOTS:
        dots = zip(values, jitter(len(values)), strict=True)
        drawn += [f'<circle cx="{x(v):.1f}" cy="{middle + 18 * j:.1f}" r="2.6" class="dot {look}"/>' for v, j in dots]
    else:
        drawn.append(line(x(min(values)), middle, x(max(values)), middle, f"line {look}"))
    drawn.append(line(x(q2), middle - 11, x(q2), middle + 11, f"median {look}"))
    drawn.append(mark(s.index, x(float(np.mean(values))), middle, "mark aside" if s.aside else "mark"))
    return [group(drawn, "row")]


def jitter(n: int) -> NDArray[np.float64]:
    """Places from -0.5 to 0.5 that lie evenly apart, and are the same every time."""
    return np.arange(1, n + 1, dtype=np.float64) * GOLDEN % 1 - 0.5


def _spread_told(values: Sequence[float], fractions: bool) -> str:
    numbers = [float(np.mean(values)), *np.percentile(values, (0, 25, 50, 75, 100))]
    mean, low, q1, q2, q3, high = (f"{v:.1%}" if fractions else f"{v:.4g}" for v in numbers)
    return f"{len(values)} values, mean {mean}, lowest {low}, middle half {q1} to {q3}, median {q2}, highest {high}"


def dot_plot(
    rows: Sequence[str],
    strips: Sequence[Strip],
    *,
    x_label: str,
    width: float = WIDE,
    label: str = "",
    fractions: bool = True,
) -> str:
    """A row a split and a mark for each of its scores: what lies in one row is paired."""
    left = LETTER * max(map(len, rows)) + 14
    slot = 7.0
    row = max(24.0, slot * len(strips) + 8)
    everything = [v for s in strips for v in s.values if math.isfinite(v)] or [0.0, 1.0]
    low, high = outward(min(everything), max(everything))
    x = AxisScale(low, high, left, width - 16)
    bottom = 8 + row * len(rows)
    body = _value_axis(x, 4, bottom, x_label, about=6 if width >= ROOMY else 4, fractions=fractions)
    for k, name in enumerate(rows):
        middle = 8 + row * (k + 0.5)
        if k:
            body.append(line(0, middle - row / 2, width - 16, middle - row / 2, "grid"))
        body.append(words(left - 14, middle + 4, name, "tick", "end"))
        for j, s in enumerate(strips):
            if math.isfinite(s.values[k]):
                place = middle + slot * (j - (len(strips) - 1) / 2)
                kind = "mark aside" if s.aside else "mark"
                value = f"{s.values[k]:.2%}" if fractions else f"{s.values[k]:.4g}"
                body.append(mark(s.index, x(s.values[k]), place, kind, f"{name}: {s.label} {value}"))
    return picture(width, bottom + 40, label or f"{x_label} of {len(strips)} algorithms on {len(rows)} splits", body)


def bar_chart(values: Sequence[float], *, x_label: str, y_label: str, width: float = WIDE, height: float = 240) -> str:
    """One bar a value, side by side."""
    low, high = outward(0, max(values))
    y = AxisScale(low, high, height - 40, 24)
    x = AxisScale(0, len(values), 46, width - 8)
    body = [line(x.start, y(v), x.end, y(v), "grid") for v in ticks(low, high, 4)]
    body += [words(x.start - 8, y(v) + 4, number(v), "tick", "end") for v in ticks(low, high, 4)]
    step = (x.end - x.start) / len(values)
    gap = 1 if step > 4 else 0
    body += [
        box(x(k), y(v), step - gap, y.start - y(v), "bar", title(f"{k + 1}: {v:g} {y_label}"))
        for k, v in enumerate(values)
    ]
    body += [words(4, 12, y_label, "label"), words((x.start + x.end) / 2, height - 8, x_label, "label", "middle")]
    return picture(width, height, f"{y_label} of {len(values)}, from {min(values):g} to {max(values):g}", body)


def _value_axis(x: AxisScale, top: float, bottom: float, label: str, about: int, fractions: bool = True) -> list[str]:
    written = percent if fractions else number
    drawn = [line(x(v), top, x(v), bottom, "grid") for v in ticks(x.low, x.high, about)]
    drawn.append(line(x.start, bottom, x.end, bottom, "axis"))
    drawn += [words(x(v), bottom + 17, written(v), "tick", "middle") for v in ticks(x.low, x.high, about)]
    return [*drawn, words((x.start + x.end) / 2, bottom + 35, label, "label", "middle")]
