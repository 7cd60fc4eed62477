"""Credible intervals in rows: a row for each client, in it an interval and a mark for each algorithm; and a histogram."""

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
    mark,
    number,
    outward,
    picture,
    shortened,
    style,
    ticks,
    title,
    words,
)

SLOT = 13.0  # height of one interval
BINS = 16  # of a histogram, about


@dataclass(frozen=True)
class Interval:
    """A mean with its credible interval: whose it is, its colour and mark, and what to say of it."""

    name: str
    index: int
    mean: float
    low: float
    high: float
    sign: str = ""
    told: str = ""


Row = tuple[str, Sequence[Interval]]  # the name of a row, and the intervals in it


def interval_chart(
    rows: Sequence[Row], *, x_label: str, rope: float | None = None, factor: float = 1.0, width: float = WIDE
) -> str:
    """Draw rows of intervals on one axis; values times `factor` are printed, and the region within the rope is shaded."""
    wide = width >= ROOMY
    names = min(LETTER * max(len(name) for name, _ in rows) + 14, 220) if wide else 0.0
    heights = [SLOT * max(len(found), 1) + (10 if wide else 26) for _, found in rows]
    top = 20.0 if rope is not None else 6.0
    bottom = top + sum(heights)
    x = AxisScale(*_range(rows, rope), names + 8, width - 34)
    body = _axis(x, top, bottom, x_label, factor, about=7 if wide else 4)
    if rope is not None:
        body += _region(x, rope, top, bottom)
    y = top
    for (name, found), height in zip(rows, heights, strict=True):
        body.append(line(0, y, width, y, "grid"))
        middle = y + height / 2 + 4
        body.append(words(0, middle if wide else y + 15, shortened(name, names or width), "name"))
        first = y + (height - SLOT * (len(found) - 1)) / 2 if wide else y + 22 + SLOT / 2
        for slot, one in enumerate(found):
            body.append(group(_interval(one, x, first + SLOT * slot, width), "row"))
        y += height
    told = "; ".join(one.told for _, found in rows for one in found)
    return picture(width, bottom + 42, f"Means and 90% credible intervals. {told}", body)


def _interval(one: Interval, x: AxisScale, y: float, width: float) -> list[str]:
    """Draw one interval; what lies beyond the axis ends at its edge."""
    low, mean, high = (min(max(value, x.low), x.high) for value in (one.low, one.mean, one.high))
    sign = "\N{MINUS SIGN}" if one.sign == "-" else one.sign
    return [
        title(one.told),
        line(x(low), y, x(high), y, f"line {style(one.index)}"),
        mark(one.index, x(mean), y),
        words(width - 12, y + 4, sign, "value", "middle"),
    ]


def _range(rows: Sequence[Row], rope: float | None) -> tuple[float, float]:
    """Return a range that shows nearly all of nearly all intervals; one far away does not flatten the others."""
    found = [one for _, row in rows for one in row]
    if not found:
        return -1.0, 1.0
    if rope is None:
        return outward(min(one.low for one in found), max(one.high for one in found))
    reach = [max(abs(one.low), abs(one.high)) for one in found]
    limit = max(4 * float(np.median(reach)), 4 * rope, 1e-9)
    room = max(1.8 * rope, 1e-9)
    low = min(-room, max(-limit, min(one.low for one in found)))
    high = max(room, min(limit, max(one.high for one in found)))
    return low, high


def _region(x: AxisScale, rope: float, top: float, bottom: float) -> list[str]:
    left, right = x(-rope), x(rope)
    return [
        box(left, top, right - left, bottom - top, "rope"),
        line(left, top, left, bottom, "rope-edge"),
        line(right, top, right, bottom, "rope-edge"),
        line(x(0), top, x(0), bottom, "zero"),
        words(min(max((left + right) / 2, 60), x.end - 60), top - 7, "practically equal", "small quiet", "middle"),
    ]


def _axis(x: AxisScale, top: float, bottom: float, label: str, factor: float, about: int) -> list[str]:
    marks = ticks(factor * x.low, factor * x.high, about)
    drawn = [line(x(v / factor), top, x(v / factor), bottom, "grid") for v in marks]
    drawn.append(line(x.start, bottom, x.end, bottom, "axis"))
    drawn += [words(x(v / factor), bottom + 17, _printed(v), "tick", "middle") for v in marks]
    return [*drawn, words((x.start + x.end) / 2, bottom + 35, label, "label", "middle")]


def _printed(value: float) -> str:
    return number(value).replace("-", "\N{MINUS SIGN}")


def histogram(values: Sequence[float], *, x_label: str, y_label: str, factor: float = 1.0, width: float = WIDE) -> str:
    """Draw how many values lie where, on round limits; values times `factor` are printed."""
    height = 220.0
    low, high = outward(factor * min(values), factor * max(values), BINS)
    edges = ticks(low, high, BINS)
    counts, edges_used = np.histogram(factor * np.asarray(values), bins=edges if len(edges) > 1 else 1)
    y = AxisScale(*outward(0, int(counts.max())), height - 44, 24)
    x = AxisScale(float(edges_used[0]), float(edges_used[-1]), 46, width - 12)
    body = [line(x.start, y(v), x.end, y(v), "grid") for v in ticks(y.low, y.high, 4)]
    body += [words(x.start - 8, y(v) + 4, number(v), "tick", "end") for v in ticks(y.low, y.high, 4)]
    for count, left, right in zip(counts.tolist(), edges_used[:-1], edges_used[1:], strict=True):
        tip = title(f"{_printed(left)} to {_printed(right)}: {count} {y_label}")
        body.append(box(x(left), y(count), x(right) - x(left) - 1, y.start - y(count), "bar", tip))
    if x.low < 0 < x.high:
        body.append(line(x(0), 20, x(0), y.start, "zero"))
    body += [
        words(x(v), y.start + 17, _printed(v), "tick", "middle")
        for v in ticks(x.low, x.high, 7 if width >= ROOMY else 4)
    ]
    body += [words(4, 12, y_label, "label"), words((x.start + x.end) / 2, height - 8, x_label, "label", "middle")]
    told = f"{len(values)} {y_label} from {_printed(factor * min(values))} to {_printed(factor * max(values))}"
    return picture(width, height, f"Histogram: {told}, {x_label}", body)
