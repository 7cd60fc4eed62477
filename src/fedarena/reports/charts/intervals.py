"""Credible intervals in rows: a row for each client, in it an interval and a mark for each algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from fedarena.reports.charts.posteriors import format_sign
from fedarena.reports.charts.svg import (
    LETTER,
    ROOMY,
    WIDE,
    AxisScale,
    format_number,
    group,
    line,
    mark,
    picture,
    range_within,
    rope_region,
    series_class,
    shorten,
    text,
    title,
    widen_to_ticks,
    x_axis,
)

SLOT = 13.0  # height of one interval


@dataclass(frozen=True)
class CredibleInterval:
    """A mean with its credible interval, the colour and mark of its algorithm, and a summary for the tooltip."""

    index: int
    mean: float
    low: float
    high: float
    summary: str
    sign: str = ""


IntervalRow = tuple[str, Sequence[CredibleInterval]]  # the name of a row, and the intervals in it


def interval_chart(
    rows: Sequence[IntervalRow], *, x_label: str, rope: float | None = None, factor: float = 1.0, width: float = WIDE
) -> Markup:
    """Draw rows of intervals on one axis; values times `factor` are printed, and the region within the rope is shaded."""
    wide = width >= ROOMY
    names = min(LETTER * max(len(name) for name, _ in rows) + 14, 220) if wide else 0.0
    heights = [SLOT * max(len(found), 1) + (10 if wide else 26) for _, found in rows]
    top = 20.0 if rope is not None else 6.0
    bottom = top + sum(heights)
    x = AxisScale(*_range(rows, rope), names + 8, width - 34)
    body = x_axis(x, bottom, x_label, format_number, about=7 if wide else 4, factor=factor, grid_from=top)
    if rope is not None:
        middle = min(max(x(0), 60), x.end - 60)
        body += [*rope_region(x, (-rope, rope), top, bottom)]
        body.append(text(middle, top - 7, "practically equal", "small quiet", "middle"))
    y = top
    for (name, found), height in zip(rows, heights, strict=True):
        body.append(line(0, y, width, y, "grid"))
        middle = y + height / 2 + 4
        body.append(text(0, middle if wide else y + 15, shorten(name, names or width), "name"))
        first = y + (height - SLOT * (len(found) - 1)) / 2 if wide else y + 22 + SLOT / 2
        for slot, interval in enumerate(found):
            body.append(group(_interval(interval, x, first + SLOT * slot, width), "row"))
        y += height
    summaries = "; ".join(interval.summary for _, found in rows for interval in found)
    return picture(width, bottom + 42, f"Means and 90% credible intervals. {summaries}", body)


def _interval(interval: CredibleInterval, x: AxisScale, y: float, width: float) -> list[str]:
    """Draw one interval; what lies beyond the axis ends at its edge."""
    return [
        title(interval.summary),
        line(x.clamp(interval.low), y, x.clamp(interval.high), y, f"line {series_class(interval.index)}"),
        mark(interval.index, x.clamp(interval.mean), y),
        text(width - 12, y + 4, format_sign(interval.sign), "value", "middle"),
    ]


def _range(rows: Sequence[IntervalRow], rope: float | None) -> tuple[float, float]:
    """Return a range that shows nearly all of nearly all intervals; one far away does not flatten the others."""
    found = [(one.low, one.high) for _, row in rows for one in row]
    if not found:
        return -1.0, 1.0
    if rope is None:
        return widen_to_ticks(min(low for low, _ in found), max(high for _, high in found))
    return range_within(found, rope, 4 * float(np.median(np.abs(found).max(axis=1))))
