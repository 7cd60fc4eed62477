"""Differences on several federations: a forest plot, and the same differences against a setting that varies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedarena.reports.charts.posteriors import VerdictRows, format_probability
from fedarena.reports.charts.svg import (
    ROOMY,
    WIDE,
    AxisScale,
    circle,
    format_difference,
    format_number,
    group,
    line,
    path,
    picture,
    rect,
    rope_region,
    text,
    title,
    widen_to_ticks,
    x_axis,
    y_axis,
)

Estimate = tuple[float, float, float]  # low, mean, high
SettingPoint = tuple[str, float, Estimate]  # a federation, its value of the setting, its shrunk interval
FAR = 3.0  # times the range of what is concluded that a federation's own interval may widen the axis


@dataclass(frozen=True)
class Unit:
    """How differences are written: `label` names the axis, `rope` is the largest that does not matter."""

    label: str
    rope_text: str
    rope: tuple[float, float]


def summarize(name: str, estimate: Estimate, own: Estimate | None = None) -> str:
    """Return an estimate in words, with the federation's own mean where there is one."""
    low, mean, high = (format_difference(value, 3) for value in estimate)
    alone = f"; by itself {format_difference(own[1], 3)}" if own else ""
    return f"{name}: {mean}, 90% between {low} and {high}{alone}"


@dataclass(frozen=True)
class ForestRow:
    """A federation, the average or the next federation: its interval, its own one before shrinkage, and the verdict."""

    name: str
    interval: Estimate | None
    own: Estimate | None
    probabilities: tuple[float, float, float]  # better, equal, worse
    sign: str
    kind: str = ""  # "average", "next"

    @property
    def summary(self) -> str:
        """Return the row in a sentence."""
        if self.interval is None:
            return f"{self.name}: no estimate"
        better, equal, worse = map(format_probability, self.probabilities)
        shown = summarize(self.name, self.interval, self.own)
        return f"{shown}; better {better}, equal {equal}, worse {worse}"


def forest_chart(rows: Sequence[ForestRow], unit: Unit, *, width: float = WIDE) -> Markup:
    """Draw a row for every federation, then the average and the next federation, on one axis."""
    layout = VerdictRows.of([row.name for row in rows], width, most=220)
    height, top, middle, above = (34.0, 44.0, 17.0, -4.0) if layout.names else (56.0, 58.0, 40.0, 20.0)
    bottom = top + height * len(rows)
    x = layout.scale(*_forest_range(rows, unit))
    body = [*rope_region(x, unit.rope, top - 8, bottom), *layout.heads(top - 14)]
    if unit.rope[1] > unit.rope[0]:
        centre = min(max(x(sum(unit.rope) / 2), x.start + 45), x.end - 45)
        body.append(text(centre, top - 14, f"within {unit.rope_text}", "small quiet", "middle"))
    for k, row in enumerate(rows):
        start = top + height * k
        if k:
            body.append(line(0, start, width, start, "axis" if row.kind == "average" else "grid"))
        probabilities = () if row.interval is None else row.probabilities
        texts = layout.texts(start + middle - above, row.name, probabilities, row.sign)
        body.append(group([title(row.summary), *_forest_marks(row, x, start + middle), *texts], "row"))
    body += x_axis(x, bottom, unit.label, format_difference, about=6 if layout.names else 4)
    return picture(width, bottom + 44, "; ".join(row.summary for row in rows), body)


def _forest_range(rows: Sequence[ForestRow], unit: Unit) -> tuple[float, float]:
    """Return a range that holds all conclusions; own intervals that are far wider are cut off."""
    known = [row.interval for row in rows if row.interval] or [row.own for row in rows if row.own]
    low = min([unit.rope[0] * 1.5, 0.0, *(i[0] for i in known if i)])
    high = max([unit.rope[1] * 1.5, 0.0, *(i[2] for i in known if i)])
    room = (FAR - 1) / 2 * ((high - low) or 1.0)
    own = [row.own for row in rows if row.own]
    low = max(low - room, min([low, *(i[0] for i in own)]))
    high = min(high + room, max([high, *(i[2] for i in own)]))
    return (low, high) if high > low else (low - 1, high + 1)


def _forest_marks(row: ForestRow, x: AxisScale, y: float) -> list[str]:
    drawn = []
    if row.own is not None:
        low, mean, high = row.own
        drawn.append(line(x.clamp(low), y + 6, x.clamp(high), y + 6, "own-interval"))
        if x.low <= mean <= x.high:
            drawn.append(circle(x(mean), y + 6, 2.8, "own-mean"))
    if row.interval is not None:
        low, place, high = map(x.clamp, row.interval)
        at = y - 3 if row.own is not None else y
        drawn.append(line(low, at, high, at, f"interval {row.kind}"))
        diamond = [(place - 7, at), (place, at - 6), (place + 7, at), (place, at + 6)]
        drawn.append(path(diamond, "diamond", closed=True) if row.kind else circle(place, at, 3.5, "mean"))
    return drawn


# Against a setting


def setting_chart(
    points: Sequence[SettingPoint],
    band: Sequence[tuple[float, float, float, float]],
    changes: Sequence[tuple[float, str]],
    unit: Unit,
    *,
    key: str,
    logarithmic: bool,
    width: float = WIDE,
) -> Markup:
    """Draw differences against a setting: an interval for every federation, the fitted line, where the answer changes."""
    height = 360.0 if width >= ROOMY else 300.0
    left, right, top, bottom = 52.0, width - 16, 40.0, height - 44
    near = [v for _, _, interval in points for v in interval]
    values = [at for _, at, _ in points]
    spread = (max(near) - min(near)) or 1.0
    lowest = max(min(near) - spread, min(v[2] for v in band))
    highest = min(max(near) + spread, max(v[3] for v in band))
    y = AxisScale(*widen_to_ticks(min(*near, lowest, *unit.rope), max(*near, highest, *unit.rope)), bottom, top)
    x = AxisScale(min(values), max(values), left + 14, right - 14, is_log=logarithmic)
    body = y_axis(y, left, right, unit.label, format_difference)
    if unit.rope[1] > unit.rope[0]:
        low, high = map(y.clamp, unit.rope)
        body.append(rect(left, high, right - left, low - high, "rope"))
    body.append(line(left, y.clamp(0), right, y.clamp(0), "zero"))
    over = [(x(v[0]), y.clamp(v[3])) for v in band]
    under = [(x(v[0]), y.clamp(v[2])) for v in reversed(band)]
    body.append(path([*over, *under], "trend-band", closed=True))
    body.append(path([(x(v[0]), y.clamp(v[1])) for v in band], "line s0"))
    for k, (at, answer) in enumerate(changes):
        place = x(at)
        body.append(line(place, top, place, bottom, "target"))
        anchor, shift = ("start", 5) if place < width / 2 else ("end", -5)
        body.append(text(place + shift, top + 12 + 15 * (k % 3), answer, "small halo", anchor))
    for name, at, interval in points:
        start, mean, end = map(y.clamp, interval)
        drawn = [line(x(at), start, x(at), end, "interval"), circle(x(at), mean, 3.5, "mean")]
        body.append(group([title(summarize(name, interval)), *drawn], "row"))
    body += x_axis(x, bottom, key, format_number, about=6 if width >= ROOMY else 4)
    summary = f"{unit.label} against {key}, for {len(points)} federations"
    return picture(width, height, "; ".join([summary, *(answer for _, answer in changes)]), body)
