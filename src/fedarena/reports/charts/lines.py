"""Lines over rounds or costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedarena.reports.charts.svg import (
    LETTER,
    LINE,
    ROOMY,
    WIDE,
    AxisScale,
    Point,
    box,
    breakable,
    group,
    line,
    mark,
    number,
    outward,
    path,
    percent,
    picture,
    shortened,
    spread,
    style,
    ticks,
    title,
    words,
)

POINTS = 240  # of a line; more cannot be seen
PROBES = 40  # places where a chart tells its values
MARKS = 7  # on each line
NEAR = 60.0  # ends of lines whose names share a column
MAX_NAME = 190.0  # width of the names at their ends

Written = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """A line, with a band around it and a thin line of the best so far; without extent along x it is drawn as a level."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    best: Sequence[float] = ()
    index: int = 0  # which colour and mark
    aside: bool = False  # shown for comparison only: grey

    @property
    def is_level(self) -> bool:
        """Does it cost nothing on this axis?"""
        return len(self.x) > 1 and max(self.x) <= min(self.x)

    @property
    def look(self) -> str:
        """Its classes."""
        return "aside" if self.aside else style(self.index)


def legend(series: Sequence[Series]) -> str:
    """The key to colours and marks, as an HTML list."""
    items = []
    for s in series:
        swatch = line(0, 7, 28, 7, f"line {s.look}") + mark(s.index, 14, 7, "mark aside" if s.aside else "mark")
        key = f'<svg class="chart key" width="28" height="14" viewBox="0 0 28 14" aria-hidden="true">{swatch}</svg>'
        items.append(f"<li>{key}<span>{breakable(s.label)}</span></li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


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
) -> str:
    """Values over rounds or costs. `target` is a level to reach; what lies outside `y_from` and `y_to` is cut off."""
    series = [s for s in series if len(s.x)]
    longest = max((len(s.label) for s in series), default=0)
    names = 18 + min(LETTER * longest, MAX_NAME) if width >= ROOMY else 14  # else a legend must do
    written = percent if fractions else number
    sx, sy = _frame(series, target, (y_from, y_to), (46, width - names), (height - 42, 26))
    body = _grid(sx, sy, x_label, y_label, written, about=6 if width >= ROOMY else 4)
    if target is not None and sy.low <= target <= sy.high:
        body.append(line(sx.start, sy(target), sx.end, sy(target), "target"))
        beside = -5 if sy(target) > sy.end + 16 else 13  # at the top, below the line: above it stands the axis' name
        body.append(words(sx.start + 4, sy(target) + beside, f"target {written(target)}", "small quiet halo"))
    drawn = [_band(s, sx, sy) for s in series] + [_line(s, sx, sy) for s in series]
    body.append(_within(sx, sy, drawn))
    if width >= ROOMY:
        told: Written = (lambda v: f"{100 * v:.1f}%") if fractions else (lambda v: f"{v:.4g}")
        body += [*_names(series, sx, sy), *_probes(series, sx, sy, x_label, told)]
    return picture(width, height, label or f"{y_label} over {x_label}", body)


def _frame(
    series: Sequence[Series],
    target: float | None,
    ends: tuple[float | None, float | None],
    across: tuple[float, float],
    up: tuple[float, float],
) -> tuple[AxisScale, AxisScale]:
    """The scales that hold everything."""
    moving = [s for s in series if not s.is_level]
    judged = [s for s in moving if not s.aside] or moving  # what is shown aside may go on beyond the edge
    x = [v for s in judged for v in s.x] or [0.0, 1.0]
    y = [v for s in series for v in (*s.y, *s.low, *s.high) if math.isfinite(v)] or [0.0, 1.0]
    y_from, y_to = ends
    levels = [] if target is None or (y_to is not None and target > y_to) else [target]
    lowest = min([*y, *levels]) if y_from is None else y_from
    low, high = outward(lowest, max([*(y if y_to is None else [y_to]), *levels]))
    start = 0.0 if 0 <= min(x) <= 0.5 * max(x) or 0 < min(x) == max(x) else min(x)
    return AxisScale(start, max(x), *across), AxisScale(low, high, *up)


def _grid(sx: AxisScale, sy: AxisScale, x_label: str, y_label: str, written: Written, about: int) -> list[str]:
    lines = [line(sx.start, sy(v), sx.end, sy(v), "grid") for v in ticks(sy.low, sy.high)]
    lines += [words(sx.start - 8, sy(v) + 4, written(v), "tick", "end") for v in ticks(sy.low, sy.high)]
    lines += [line(sx.start, sy.start, sx.end, sy.start, "axis")]
    for v in ticks(sx.low, sx.high, about):
        lines.append(line(sx(v), sy.start, sx(v), sy.start + 4, "axis"))
        lines.append(words(sx(v), sy.start + 18, number(v), "tick", "middle"))
    lines.append(words((sx.start + sx.end) / 2, sy.start + 36, x_label, "label", "middle"))
    lines.append(words(4, sy.end - 12, y_label, "label"))
    return lines


def _within(sx: AxisScale, sy: AxisScale, drawn: Sequence[str]) -> str:
    """Nothing leaves the frame, but marks may stand on its edge. A drawing within the drawing clips by itself."""
    x, y, width, height = sx.start, sy.end - 6, sx.end - sx.start + 6, sy.start - sy.end + 6
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<svg {place} viewBox="{x:.1f} {y:.1f} {width:.1f} {height:.1f}">{"".join(drawn)}</svg>'


def _thinned(s: Series) -> list[int]:
    """Which of its points are drawn."""
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
    """Each line's name at its end, or where it leaves the frame; close ones make room for each other."""
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
        for ((x, y), s), now in zip(cluster, spread(wanted, LINE - 1, sy.end - 6, sy.start), strict=True):
            drawn.append(path([(x + 5, y), (column + 11, now)], "leader"))
            drawn.append(words(column + 14, now + 4, shortened(s.label, MAX_NAME), f"name halo {s.look}"))
    return drawn


def _end(s: Series, sx: AxisScale, sy: AxisScale) -> Point:
    if s.is_level:
        return sx.end, sy(s.y[-1])
    inside = int(np.searchsorted(np.asarray(s.x, dtype=float), sx.high + 1e-9, side="right")) - 1
    level = s.y[inside] if math.isfinite(s.y[inside]) else sy.low
    return (sx.end if inside < len(s.x) - 1 else sx(s.x[-1])), sy(min(max(level, sy.low), sy.high))


def _probes(series: Sequence[Series], sx: AxisScale, sy: AxisScale, x_label: str, told: Written) -> list[str]:
    """Invisible strips that tell all values at their place."""
    places = sorted({float(v) for s in series if not s.is_level for v in s.x if sx.low <= v <= sx.high})
    if not places:
        return []
    chosen = sorted({places[i] for i in np.linspace(0, len(places) - 1, min(len(places), PROBES)).round().astype(int)})
    at = [sx(v) for v in chosen]
    edges = [sx.start, *((a + b) / 2 for a, b in pairwise(at)), sx.end]
    drawn = []
    for k, value in enumerate(chosen):
        strip = box(edges[k], sy.end, edges[k + 1] - edges[k], sy.start - sy.end, "")
        hair = line(at[k], sy.end, at[k], sy.start, "")
        drawn.append(group([title(_values(series, value, x_label, told)), strip, hair], "probe"))
    return drawn


def _values(series: Sequence[Series], place: float, x_label: str, told: Written) -> str:
    """What every line says there, the highest first."""
    lines = []
    for s in series:
        reached = int(np.searchsorted(np.asarray(s.x, dtype=float), place + 1e-12, side="right")) - 1
        i = len(s.x) - 1 if s.is_level else reached
        if i >= 0 and math.isfinite(s.y[i]):
            band = f"  ({told(s.low[i])} to {told(s.high[i])})" if len(s.low) and len(s.high) else ""
            lines.append((s.y[i], f"{s.label}  {told(s.y[i])}{band}"))
    lines.sort(key=lambda pair: -pair[0])
    return "\n".join([f"{x_label} {place:.4g}", *(text for _, text in lines)])
