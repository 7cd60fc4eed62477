"""Accuracy against privacy and against bytes, for the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedarena.reports.charts.lines import Series, legend
from fedarena.reports.charts.svg import (
    NARROW,
    WIDE,
    AxisScale,
    escape,
    line,
    mark,
    number,
    outward,
    path,
    percent,
    picture,
    ticks,
    words,
)
from fedarena.reports.charts.svg import style as look
from fedarena.results.tradeoff_points import TradeoffPoint, by_algorithm, levels, points

HEIGHT = 320.0
LEFT = 46.0
BESIDE = 70.0  # room at the right for what has no bound

Place = Callable[[TradeoffPoint], float | None]


def tradeoff(result: Any) -> str:
    """The figure with its words; nothing without a sweep."""
    found = points(result)
    if not found:
        return ""
    key = result.plan.sweep["key"]
    lines, aside = by_algorithm(found), levels(result)
    keys = [Series(label, [0], [0], index=k) for k, label in enumerate(lines)]
    keys += [Series(label, [0], [0], aside=True) for label in aside]
    body = legend(keys)
    private = any(point.epsilon is not None for point in found)
    if private:
        body += _both(
            TradeoffChart(lines, aside, "epsilon, to the left more private", lambda point: point.epsilon, log=True)
        )
    body += _both(
        TradeoffChart(lines, aside, "megabytes sent up", lambda point: point.bytes_up / 1e6, named=not private)
    )
    caption = (
        f"Final accuracy, the mean over splits, at every value of {key}, which stands beside its mark. Thin bars are one "
        "standard deviation over splits."
    )
    if private:
        caption += (
            " Epsilon bounds what the released means can tell about whether a client took part at all; the scale is "
            "logarithmic, and what has no noise has no bound."
        )
    return f"<figure>{body}<figcaption>{escape(caption)}</figcaption></figure>"


@dataclass(frozen=True)
class TradeoffChart:
    """Lines over one cost."""

    lines: Mapping[str, list[TradeoffPoint]]
    aside: Mapping[str, float]
    x_label: str
    place: Place
    log: bool = False
    named: bool = True  # values stand beside their marks

    def drawn(self, width: float) -> str:
        """As a picture."""
        found = [point for line in self.lines.values() for point in line]
        at = [x for point in found if (x := self.place(point)) is not None]
        unbounded = len(at) < len(found)
        right = width - 40
        sx = self._across(at, right - BESIDE * unbounded)
        heights = [v for p in found for v in (p.accuracy - p.sd, p.accuracy + p.sd)] + list(self.aside.values())
        sy = AxisScale(*outward(min(heights), max(heights)), HEIGHT - 42, 26)
        body = [*self._grid(sx, sy, right, unbounded), *self._marks(at, sx, sy)]
        body += [line(LEFT, sy(level), right, sy(level), "line level aside") for level in self.aside.values()]
        for k, each in enumerate(self.lines.values()):
            body += self._line(k, each, sx, sy, right - 20)
        return picture(width, HEIGHT, f"final accuracy over {self.x_label}", body)

    def _across(self, at: list[float], end: float) -> AxisScale:
        """The scale of the cost; a single one stands in the middle."""
        values = [math.log10(x) for x in at] if self.log else [0.0, *at]
        low, high = min(values), max(values)
        room = 0.05 * (high - low) or 0.3
        return AxisScale(low - room if self.log else 0.0, high + room, LEFT, end)

    def _grid(self, sx: AxisScale, sy: AxisScale, right: float, unbounded: bool) -> list[str]:
        heights = ticks(sy.low, sy.high)
        body = [line(LEFT, sy(v), right, sy(v), "grid") for v in heights]
        body += [words(LEFT - 8, sy(v) + 4, percent(v), "tick", "end") for v in heights]
        body.append(line(LEFT, sy.start, right, sy.start, "axis"))
        body.append(words((sx.start + sx.end) / 2, sy.start + 36, self.x_label, "label", "middle"))
        body.append(words(4, sy.end - 12, "final accuracy", "label"))
        if unbounded:
            body.append(words(right - 20, sy.start + 18, "no bound", "tick", "middle"))
        return body

    def _marks(self, at: list[float], sx: AxisScale, sy: AxisScale) -> list[str]:
        body = []
        for v in _round_powers(sx) or at[:1] if self.log else ticks(sx.low, sx.high, 6):
            x = sx(math.log10(v) if self.log else v)
            body += [line(x, sy.start, x, sy.start + 4, "axis"), words(x, sy.start + 18, number(v), "tick", "middle")]
        return body

    def _line(self, k: int, points: list[TradeoffPoint], sx: AxisScale, sy: AxisScale, beyond: float) -> list[str]:
        placed = []
        for p in points:
            where = self.place(p)
            placed.append((beyond if where is None else sx(math.log10(where) if self.log else where), p))
        placed.sort(key=lambda pair: pair[0])
        body = [path([(x, sy(p.accuracy)) for x, p in placed], f"line {look(k)}")]
        for x, p in placed:
            body.append(line(x, sy(p.accuracy - p.sd), x, sy(p.accuracy + p.sd), f"thin {look(k)}"))
            body.append(mark(k, x, sy(p.accuracy), tip=f"{p.algorithm}, {p.value}: {p.accuracy:.1%}"))
            if self.named:
                body.append(words(x + 7, sy(p.accuracy) - 7, str(p.value), "small quiet halo"))
        return body


def _both(chart: TradeoffChart) -> str:
    return f'<div class="wide">{chart.drawn(WIDE)}</div><div class="narrow">{chart.drawn(NARROW)}</div>'


def _round_powers(sx: AxisScale) -> list[float]:
    """Powers of ten within a scale of them; also twice and five times, where there are few."""
    powers = range(math.floor(sx.low), math.ceil(sx.high) + 1)
    steps = (1, 2, 5) if sx.high - sx.low < 2 else (1,)
    return [s * 10.0**p for p in powers for s in steps if sx.low <= math.log10(s * 10.0**p) <= sx.high]
