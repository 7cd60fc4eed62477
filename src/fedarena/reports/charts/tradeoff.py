"""Accuracy against privacy, bytes or attackers: the chart of a sweep."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedarena.reports.charts.svg import (
    AxisScale,
    format_number,
    format_share,
    line,
    mark,
    path,
    picture,
    series_class,
    text,
    widen_to_ticks,
    x_axis,
    y_axis,
)
from fedarena.results.tradeoff_points import TradeoffPoint

HEIGHT = 320.0
LEFT = 46.0
BESIDE = 70.0  # room at the right for what has no bound

Cost = Callable[[TradeoffPoint], float | None]


@dataclass(frozen=True)
class TradeoffChart:
    """The accuracy of every algorithm over one cost, a line each; what was not swept is a level to compare with."""

    lines: Mapping[str, Sequence[TradeoffPoint]]
    levels: Mapping[str, float]
    x_label: str
    cost: Cost
    is_log: bool = False
    has_values: bool = True  # the values of the sweep stand beside their marks
    y_label: str = "final accuracy"

    def __call__(self, width: float) -> Markup:
        """Draw the chart in this width."""
        found = [point for line in self.lines.values() for point in line]
        costs = [cost for point in found if (cost := self.cost(point)) is not None]
        right, unbounded = width - 40, len(costs) < len(found)
        x = self._scale(costs, right - BESIDE * unbounded)
        heights = [v for p in found for v in (p.accuracy - p.sd, p.accuracy + p.sd)] + list(self.levels.values())
        y = AxisScale(*widen_to_ticks(min(heights), max(heights)), HEIGHT - 42, 26)
        body = y_axis(y, LEFT, right, self.y_label, format_share)
        body += [*x_axis(x, y.start, self.x_label, format_number), line(x.end, y.start, right, y.start, "axis")]
        if unbounded:
            body.append(text(right - 20, y.start + 18, "no bound", "tick", "middle"))
        body += [line(LEFT, y(level), right, y(level), "line level aside") for level in self.levels.values()]
        for index, points in enumerate(self.lines.values()):
            body += self._line(index, points, x, y, right - 20)
        return picture(width, HEIGHT, f"{self.y_label} over {self.x_label}", body)

    def _scale(self, costs: Sequence[float], end: float) -> AxisScale:
        """Return the scale of the cost; a single value stands in the middle of a logarithmic one."""
        if not self.is_log:
            return AxisScale(0.0, 1.05 * max(costs) or 0.3, LEFT, end)
        low, high = math.log10(min(costs)), math.log10(max(costs))
        room = 0.05 * (high - low) or 0.3
        return AxisScale(10 ** (low - room), 10 ** (high + room), LEFT, end, is_log=True)

    def _line(
        self, index: int, points: Sequence[TradeoffPoint], x: AxisScale, y: AxisScale, beyond: float
    ) -> list[str]:
        costs = [(self.cost(point), point) for point in points]
        placed = sorted(((beyond if cost is None else x(cost), p) for cost, p in costs), key=lambda pair: pair[0])
        body = [path([(at, y(p.accuracy)) for at, p in placed], f"line {series_class(index)}")]
        for at, p in placed:
            body.append(line(at, y(p.accuracy - p.sd), at, y(p.accuracy + p.sd), f"thin {series_class(index)}"))
            body.append(mark(index, at, y(p.accuracy), tip=f"{p.algorithm}, {p.value}: {p.accuracy:.1%}"))
            if self.has_values:
                body.append(text(at + 7, y(p.accuracy) - 7, str(p.value), "small quiet halo"))
        return body
