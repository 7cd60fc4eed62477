"""Line charts of metrics over rounds or costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from fedarena.reports.charts.svg import (
    LETTER,
    LINE,
    ROOMY,
    WIDE,
    AxisScale,
    Format,
    Point,
    format_number,
    format_share,
    group,
    line,
    mark,
    path,
    picture,
    rect,
    series_class,
    shorten,
    spread_apart,
    text,
    title,
    widen_to_ticks,
    x_axis,
    y_axis,
)

POINTS = 240  # of a line; more cannot be seen
PROBES = 40  # places where a chart shows its values under the pointer
MARKS = 7  # on each line
NEAR = 60.0  # ends of lines whose names share a column
MAX_NAME = 190.0  # width of the names at their ends


@dataclass(frozen=True)
class Series:
    """A line, with a band around it and a thin line of the best so far; without extent along x it is drawn as a level."""

    label: str
    x: Sequence[float] = ()
    y: Sequence[float] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    best: Sequence[float] = ()
    index: int = 0  # which colour and mark
    aside: bool = False  # shown for comparison only: grey

    @property
    def is_level(self) -> bool:
        """Return whether it costs nothing on this axis."""
        return len(self.x) > 1 and max(self.x) <= min(self.x)

    @property
    def look(self) -> str:
        """Return the classes of its colour and dash."""
        return "aside" if self.aside else series_class(self.index)

    @property
    def swatch(self) -> Markup:
        """Return a piece of the line with its mark, for a legend."""
        drawn = line(0, 7, 28, 7, f"line {self.look}") + mark(self.index, 14, 7, aside=self.aside)
        size = 'width="28" height="14" viewBox="0 0 28 14" aria-hidden="true"'
        return Markup(f'<svg class="chart key" {size}>{drawn}</svg>')


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str = "accuracy",
    width: float = WIDE,
    height: float = 400,
    label: str = "",
    target: float | None = None,
    y_from: float | None = None,
    y_to: float | None = None,
    fractions: bool = True,
) -> Markup:
    """Draw values over rounds or costs, cut off outside `y_from` and `y_to`; `target` is a level to reach."""
    series = [s for s in series if len(s.x)]
    longest = max((len(s.label) for s in series), default=0)
    names = 18 + min(LETTER * longest, MAX_NAME) if width >= ROOMY else 14  # else a legend must do
    write = format_share if fractions else format_number
    sx, sy = _frame(series, target, (y_from, y_to), (46, width - names), (height - 42, 26))
    body = y_axis(sy, sx.start, sx.end, y_label, write)
    body += x_axis(sx, sy.start, x_label, format_number, about=6 if width >= ROOMY else 4)
    if target is not None and sy.low <= target <= sy.high:
        body.append(line(sx.start, sy(target), sx.end, sy(target), "target"))
        beside = -5 if sy(target) > sy.end + 16 else 13  # at the top, below the line: above it stands the axis' name
        body.append(text(sx.start + 4, sy(target) + beside, f"target {write(target)}", "small quiet halo"))
    drawn = [_band(s, sx, sy) for s in series] + [_line(s, sx, sy) for s in series]
    body.append(_within(sx, sy, drawn))
    if width >= ROOMY:
        exact: Format = (lambda v: f"{100 * v:.1f}%") if fractions else (lambda v: f"{v:.4g}")
        body += [*_names(series, sx, sy), *_probes(series, sx, sy, x_label, exact)]
    return picture(width, height, label or f"{y_label} over {x_label}", body)


def _frame(
    series: Sequence[Series],
    target: float | None,
    ends: tuple[float | None, float | None],
    across: tuple[float, float],
    up: tuple[float, float],
) -> tuple[AxisScale, AxisScale]:
    """Return scales that hold all lines."""
    moving = [s for s in series if not s.is_level]
    judged = [s for s in moving if not s.aside] or moving  # a reference may continue beyond the edge
    x = [v for s in judged for v in s.x] or [0.0, 1.0]
    y = [v for s in series for v in (*s.y, *s.low, *s.high) if math.isfinite(v)] or [0.0, 1.0]
    y_from, y_to = ends
    levels = [] if target is None or (y_to is not None and target > y_to) else [target]
    lowest = min([*y, *levels]) if y_from is None else y_from
    low, high = widen_to_ticks(lowest, max([*(y if y_to is None else [y_to]), *levels]))
    start = 0.0 if 0 <= min(x) <= 0.5 * max(x) or 0 < min(x) == max(x) else min(x)
    return AxisScale(start, max(x), *across), AxisScale(low, high, *up)


def _within(sx: AxisScale, sy: AxisScale, drawn: Sequence[str]) -> str:
    """Clip lines at the frame, on whose edge marks may stand; a nested drawing clips by itself."""
    x, y, width, height = sx.start, sy.end - 6, sx.end - sx.start + 6, sy.start - sy.end + 6
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<svg {place} viewBox="{x:.1f} {y:.1f} {width:.1f} {height:.1f}">{"".join(drawn)}</svg>'


def _thinned(s: Series) -> list[int]:
    """Return the indices of the points that are drawn."""
    chosen = np.linspace(0, len(s.x) - 1, min(len(s.x), POINTS)).round().astype(int).tolist()
    return [i for i in dict.fromkeys(chosen) if math.isfinite(s.y[i])]


def _band(s: Series, sx: AxisScale, sy: AxisScale) -> str:
    if not len(s.low) or not len(s.high) or s.is_level:
        return ""
    at = _thinned(s)
    over = [(sx(s.x[i]), sy(s.high[i])) for i in at]
    under = [(sx(s.x[i]), sy(s.low[i])) for i in reversed(at)]
    return path([*over, *under], f"band {s.look}", closed=True)


def _line(s: Series, sx: AxisScale, sy: AxisScale) -> str:
    if s.is_level:
        return line(sx.start, sy(s.y[-1]), sx.end, sy(s.y[-1]), f"line level {s.look}")
    at = _thinned(s)
    drawn = [path([(sx(s.x[i]), sy(s.best[i])) for i in at], f"thin {s.look}")] if len(s.best) else []
    drawn.append(path([(sx(s.x[i]), sy(s.y[i])) for i in at], f"line {s.look}"))
    if not s.aside and at:
        step = len(at) / MARKS  # neighbours carry their marks at other places, so that none hides another
        own = {int(min(k * step + step * (s.index % 4) / 4, len(at) - 1)) for k in range(MARKS)} | {len(at) - 1}
        drawn += [mark(s.index, sx(s.x[at[k]]), sy(s.y[at[k]])) for k in sorted(own)]
    return "".join(drawn)


def _names(series: Sequence[Series], sx: AxisScale, sy: AxisScale) -> list[str]:
    """Write each line's name at its end, or where it leaves the frame; close ones make room for each other."""
    ends = sorted(((_end(s, sx, sy), s) for s in series), key=lambda pair: pair[0][0])
    clusters: list[list[tuple[Point, Series]]] = []
    for end, s in ends:
        if clusters and end[0] - clusters[-1][-1][0][0] < NEAR:
            clusters[-1].append((end, s))
        else:
            clusters.append([(end, s)])
    drawn = []
    for cluster in clusters:
        column = max(x for (x, _), _ in cluster)
        wanted = [y for (_, y), _ in cluster]
        for ((x, y), s), now in zip(cluster, spread_apart(wanted, LINE - 1, sy.end - 6, sy.start), strict=True):
            drawn.append(path([(x + 5, y), (column + 11, now)], "leader"))
            drawn.append(text(column + 14, now + 4, shorten(s.label, MAX_NAME), f"name halo {s.look}"))
    return drawn


def _end(s: Series, sx: AxisScale, sy: AxisScale) -> Point:
    if s.is_level:
        return sx.end, sy(s.y[-1])
    inside = int(np.searchsorted(np.asarray(s.x, dtype=float), sx.high + 1e-9, side="right")) - 1
    level = s.y[inside] if math.isfinite(s.y[inside]) else sy.low
    return (sx.end if inside < len(s.x) - 1 else sx(s.x[-1])), sy(min(max(level, sy.low), sy.high))


def _probes(series: Sequence[Series], sx: AxisScale, sy: AxisScale, x_label: str, write: Format) -> list[str]:
    """Draw invisible strips whose tooltips list all values at their place."""
    places = sorted({float(v) for s in series if not s.is_level for v in s.x if sx.low <= v <= sx.high})
    if not places:
        return []
    chosen = sorted({places[i] for i in np.linspace(0, len(places) - 1, min(len(places), PROBES)).round().astype(int)})
    at = [sx(v) for v in chosen]
    edges = [sx.start, *((a + b) / 2 for a, b in pairwise(at)), sx.end]
    drawn = []
    for k, value in enumerate(chosen):
        strip = rect(edges[k], sy.end, edges[k + 1] - edges[k], sy.start - sy.end, "")
        hair = line(at[k], sy.end, at[k], sy.start, "")
        drawn.append(group([title(_values(series, value, x_label, write)), strip, hair], "probe"))
    return drawn


def _values(series: Sequence[Series], place: float, x_label: str, write: Format) -> str:
    """List the values of all lines at one place, the highest first."""
    lines = []
    for s in series:
        reached = int(np.searchsorted(np.asarray(s.x, dtype=float), place + 1e-12, side="right")) - 1
        i = len(s.x) - 1 if s.is_level else reached
        if i >= 0 and math.isfinite(s.y[i]):
            band = f"  ({write(s.low[i])} to {write(s.high[i])})" if len(s.low) and len(s.high) else ""
            lines.append((s.y[i], f"{s.label}  {write(s.y[i])}{band}"))
    lines.sort(key=lambda pair: -pair[0])
    return "\n".join([f"{x_label} {place:.4g}", *(entry for _, entry in lines)])
