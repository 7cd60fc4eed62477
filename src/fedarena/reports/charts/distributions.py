"""Charts of many values: heat maps, strips of dots, dots in rows, bars and histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedarena.reports.charts.lines import Series
from fedarena.reports.charts.svg import (
    LETTER,
    ROOMY,
    WIDE,
    AxisScale,
    circle,
    format_number,
    format_share,
    group,
    line,
    mark,
    picture,
    rect,
    shorten,
    text,
    ticks,
    title,
    widen_to_ticks,
    x_axis,
    y_axis,
)

NUMBERED = 200  # cells up to which a heat map prints its numbers
DOTS = 400  # of a strip; of more, only the box is drawn
BINS = 16  # of a histogram, about
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
) -> Markup:
    """Draw a table of counts, darker for more, with the sum of every row as a bar beside it."""
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
    body = [text(left, 12, column_label, "label"), text(0, top - 6, row_label, "label")]
    for y, name in enumerate(columns):
        if cell < 9 and y % math.ceil(12 / cell):
            continue
        place = left + cell * (y + 0.5)
        turned = f' transform="rotate(-40 {place:.1f} {top - 6:.1f})"' if slanted and cell >= 9 else ""
        name_text = text(place, top - 6, name, "tick", "start" if turned else "middle")
        body.append(name_text.replace("<text", f"<text{turned}", 1))
    bar = AxisScale(0, max(int(sums.max()), 1), left + cell * len(columns) + 10, left + cell * len(columns) + bars - 36)
    body.append(text(bar.start, top - 6, unit, "label"))
    for k, name in enumerate(rows):
        y0 = top + height * k
        if height >= 12 or k % math.ceil(12 / height) == 0:
            body.append(text(left - 8, y0 + height / 2 + 4, name, "tick", "end"))
        for c in range(len(columns)):
            n = int(table[k, c])
            tip = title(f"{row_label} {name}, {column_label} {columns[c]}: {n} {unit}")
            shade = f"{0.1 + 0.9 * n / most:.2f}" if n else "0"
            gap = 1 if height > 8 and cell > 8 else 0
            kind = "cell" if n else "cell none"
            body.append(rect(left + cell * c, y0, cell - gap, height - gap, kind, tip, fill_opacity=shade if n else 1))
            if legible and n:
                ink = "cell-value strong" if n > 0.6 * most else "cell-value"
                body.append(text(left + cell * (c + 0.5), y0 + height / 2 + 4, n, ink, "middle"))
        total = int(sums[k])
        body.append(rect(bar.start, y0 + height * 0.2, bar(total) - bar.start, height * 0.6, "bar"))
        if height >= 12:
            body.append(text(bar(total) + 5, y0 + height / 2 + 4, total, "tick"))
    full = min(width, bar.end + 40)
    shown = f"{unit} of every {row_label} and {column_label}: {len(rows)} by {len(columns)}, at most {most}"
    return picture(full, top + height * len(rows) + 6, shown, body)


def strip_chart(
    strips: Sequence[Series], *, x_label: str, width: float = WIDE, fractions: bool = True
) -> Markup:
    """Draw a row for each series: every value a dot, the middle half a box, the median a line, the mean a mark."""
    wide = width >= ROOMY
    left = min(LETTER * max(len(s.label) for s in strips) + 14, 200) if wide else 16
    row = 40.0 if wide else 58.0
    known = [[v for v in s.y if math.isfinite(v)] for s in strips]
    x = _value_scale([v for values in known for v in values], left, width)
    bottom = 8 + row * len(strips)
    body = _value_axis(x, bottom, x_label, fractions, wide)
    for k, (s, values) in enumerate(zip(strips, known, strict=True)):
        middle = 8 + row * (k + 1) - 20
        name = shorten(s.label, left - 8 if wide else width)
        named = text(left - 14, middle + 4, name, "name", "end") if wide else text(0, middle - 20, name, "name")
        body += [named, *([_strip(s, values, x, middle, fractions)] if values else [])]
    summaries = (f"{s.label}: {_summary(v, fractions)}" for s, v in zip(strips, known, strict=True) if v)
    return picture(width, bottom + 40, "; ".join(summaries), body)


def _value_scale(values: Sequence[float], left: float, width: float) -> AxisScale:
    low, high = widen_to_ticks(min(values, default=0.0), max(values, default=1.0))
    return AxisScale(low, high, left, width - 16)


def _value_axis(x: AxisScale, bottom: float, label: str, fractions: bool, wide: bool) -> list[str]:
    write = format_share if fractions else format_number
    return x_axis(x, bottom, label, write, about=6 if wide else 4, grid_from=4)


def _strip(s: Series, values: Sequence[float], x: AxisScale, middle: float, fractions: bool) -> str:
    q1, q2, q3 = np.percentile(values, (25, 50, 75))
    drawn = [title(f"{s.label}: {_summary(values, fractions)}")]
    drawn.append(rect(x(q1), middle - 11, max(x(q3) - x(q1), 1), 22, f"quartiles {s.look}"))
    if len(values) <= DOTS:
        dots = zip(values, jitter(len(values)), strict=True)
        drawn += [circle(x(v), middle + 18 * j, 2.6, f"dot {s.look}") for v, j in dots]
    else:
        drawn.append(line(x(min(values)), middle, x(max(values)), middle, f"line {s.look}"))
    drawn.append(line(x(q2), middle - 11, x(q2), middle + 11, f"median {s.look}"))
    drawn.append(mark(s.index, x(float(np.mean(values))), middle, aside=s.aside))
    return group(drawn, "row")


def jitter(n: int) -> NDArray[np.float64]:
    """Return evenly spread offsets from -0.5 to 0.5, the same every time."""
    return np.arange(1, n + 1, dtype=np.float64) * GOLDEN % 1 - 0.5


def _summary(values: Sequence[float], fractions: bool) -> str:
    numbers = [float(np.mean(values)), *np.percentile(values, (0, 25, 50, 75, 100))]
    mean, low, q1, q2, q3, high = (f"{v:.1%}" if fractions else f"{v:.4g}" for v in numbers)
    return f"{len(values)} values, mean {mean}, lowest {low}, middle half {q1} to {q3}, median {q2}, highest {high}"


def dot_plot(
    rows: Sequence[str], strips: Sequence[Series], *, x_label: str, width: float = WIDE, fractions: bool = True
) -> Markup:
    """Draw a row for each split and in it a mark for each of its scores: what lies in one row is paired."""
    left = LETTER * max(map(len, rows)) + 14
    slot = 7.0
    row = max(24.0, slot * len(strips) + 8)
    x = _value_scale([v for s in strips for v in s.y if math.isfinite(v)], left, width)
    bottom = 8 + row * len(rows)
    body = _value_axis(x, bottom, x_label, fractions, width >= ROOMY)
    for k, name in enumerate(rows):
        middle = 8 + row * (k + 0.5)
        if k:
            body.append(line(0, middle - row / 2, width - 16, middle - row / 2, "grid"))
        body.append(text(left - 14, middle + 4, name, "tick", "end"))
        for j, s in enumerate(strips):
            if math.isfinite(s.y[k]):
                place = middle + slot * (j - (len(strips) - 1) / 2)
                value = f"{s.y[k]:.2%}" if fractions else f"{s.y[k]:.4g}"
                body.append(mark(s.index, x(s.y[k]), place, aside=s.aside, tip=f"{name}: {s.label} {value}"))
    return picture(width, bottom + 40, f"{x_label} of {len(strips)} algorithms on {len(rows)} splits", body)


def bar_chart(values: Sequence[float], *, x_label: str, y_label: str, width: float = WIDE) -> Markup:
    """Draw one bar for each value, side by side."""
    height = 240.0
    y = AxisScale(*widen_to_ticks(0, max(values)), height - 44, 24)
    x = AxisScale(0, len(values), 46, width - 8)
    gap = 1 if x(1) - x(0) > 4 else 0
    bars = [(x(k), x(k + 1) - gap, v, f"{k + 1}: {v:g} {y_label}") for k, v in enumerate(values)]
    body = [*_bars(bars, y, x, y_label), text(x.middle, height - 8, x_label, "label", "middle")]
    return picture(width, height, f"{y_label} of {len(values)}, from {min(values):g} to {max(values):g}", body)


def histogram(
    values: Sequence[float], *, x_label: str, y_label: str, factor: float = 1.0, width: float = WIDE
) -> Markup:
    """Draw how many values lie in each bin between round limits; values times `factor` are printed."""
    height = 220.0
    low, high = widen_to_ticks(factor * min(values), factor * max(values), BINS)
    edges = ticks(low, high, BINS)
    counts, used = np.histogram(factor * np.asarray(values), bins=edges if len(edges) > 1 else 1)
    y = AxisScale(*widen_to_ticks(0, int(counts.max())), height - 44, 24)
    x = AxisScale(float(used[0]), float(used[-1]), 46, width - 12)
    bars = [
        (x(left), x(right) - 1, count, f"{format_number(left)} to {format_number(right)}: {count} {y_label}")
        for count, left, right in zip(counts.tolist(), used[:-1].tolist(), used[1:].tolist(), strict=True)
    ]
    body = _bars(bars, y, x, y_label)
    if x.low < 0 < x.high:
        body.append(line(x(0), 20, x(0), y.start, "zero"))
    body += x_axis(x, y.start, x_label, format_number, about=7 if width >= ROOMY else 4)
    ends = f"from {format_number(factor * min(values))} to {format_number(factor * max(values))}"
    return picture(width, height, f"Histogram: {len(values)} {y_label} {ends}, {x_label}", body)


def _bars(bars: Sequence[tuple[float, float, float, str]], y: AxisScale, x: AxisScale, label: str) -> list[str]:
    """Draw bars, each given by its left and right edge, its value and its tooltip, over a grid of values."""
    drawn = y_axis(y, x.start, x.end, label, format_number, about=4)
    return drawn + [
        rect(left, y(value), right - left, y.start - y(value), "bar", title(tip)) for left, right, value, tip in bars
    ]
