"""Differences on several federations: a forest plot, and the same differences against a setting that varies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedarena.reports.charts.posteriors import chance, typeset
from fedarena.reports.charts.svg import (
    LETTER,
    ROOMY,
    WIDE,
    AxisScale,
    Point,
    box,
    group,
    line,
    number,
    outward,
    path,
    picture,
    shortened,
    ticks,
    title,
    words,
)

Interval = tuple[float, float, float]  # low, mean, high
FAR = 3.0  # times the range of what is concluded that a federation's own interval may widen the axis


@dataclass(frozen=True)
class Unit:
    """How differences are written: `label` names the axis, `rope` is the largest that does not matter."""

    label: str
    rope_text: str
    rope: tuple[float, float]

    def text(self, value: float) -> str:
        """Return a value with its sign."""
        return f"{value:+.3g}".replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class ForestRow:
    """A federation, the average or the next federation: its interval, its own one before shrinkage, and the verdict."""

    name: str
    interval: Interval | None
    own: Interval | None
    chances: tuple[float, float, float]  # better, equal, worse
    sign: str
    kind: str = ""  # "average", "next"

    def told(self, unit: Unit) -> str:
        """Return the row in a sentence."""
        if self.interval is None:
            return f"{self.name}: no estimate"
        low, mean, high = map(unit.text, self.interval)
        better, equal, worse = map(chance, self.chances)
        own = f"; by itself {unit.text(self.own[1])}" if self.own else ""
        return f"{self.name}: {mean}, 90% between {low} and {high}{own}; better {better}, equal {equal}, worse {worse}"


def forest_chart(rows: Sequence[ForestRow], unit: Unit, *, width: float = WIDE) -> str:
    """Return a row for every federation, then the average and the next federation, on one axis."""
    wide = width >= ROOMY
    names = min(max(len(row.name) for row in rows) * LETTER + 12, 220) if wide else 0.0
    height, top = (34.0, 44.0) if wide else (56.0, 58.0)
    columns = tuple(width - 30 - k * (50 if wide else 44) for k in (2, 1, 0))
    x = AxisScale(*_forest_range(rows, unit), names + 8, columns[0] - 44 if wide else width - 8)
    bottom = top + height * len(rows)
    body = _rope_region(x, unit, top - 8, bottom, width)
    heads = zip(columns, ("better", "equal", "worse"), strict=True)
    body += [words(at, top - 14 if wide else 10, text, "small quiet", "end") for at, text in heads]
    for k, row in enumerate(rows):
        base = top + height * k + (height / 2 if wide else 40)
        if row.kind == "average":
            body.append(line(0, top + height * k, width, top + height * k, "axis"))
        elif k:
            body.append(line(0, top + height * k, width, top + height * k, "grid"))
        drawn = _forest_marks(row, x, base)
        text = base + 4 if wide else base - 20
        drawn.append(words(0, text, shortened(row.name, names or width - 150), "name"))
        if row.interval is not None:
            for at, p in zip(columns, row.chances, strict=True):
                drawn.append(words(at, text, chance(p), "value", "end"))
        drawn.append(words(width - 11, text + 1, typeset(row.sign), "sign", "middle"))
        body.append(group([title(row.told(unit)), *drawn], "row"))
    body += _difference_axis(x, bottom, unit.label, 6 if wide else 4)
    return picture(width, bottom + 44, "; ".join(row.told(unit) for row in rows), body)


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
    def inside(value: float) -> float:
        return x(min(max(value, x.low), x.high))

    drawn = []
    if row.own is not None:
        low, mean, high = row.own
        drawn.append(line(inside(low), y + 6, inside(high), y + 6, "own-interval"))
        if x.low <= mean <= x.high:
            drawn.append(f'<circle cx="{x(mean):.1f}" cy="{y + 6:.1f}" r="2.8" class="own-mean"/>')
    if row.interval is not None:
        low, mean, high = row.interval
        at = y - 3 if row.own is not None else y
        drawn.append(line(inside(low), at, inside(high), at, f"interval {row.kind}"))
        if row.kind:
            place = inside(mean)
            drawn.append(
                path([(place - 7, at), (place, at - 6), (place + 7, at), (place, at + 6)], "diamond", closed=True)
            )
        else:
            drawn.append(f'<circle cx="{inside(mean):.1f}" cy="{at:.1f}" r="3.5" class="mean"/>')
    return drawn


def _rope_region(x: AxisScale, unit: Unit, top: float, bottom: float, width: float) -> list[str]:
    left, right = x(unit.rope[0]), x(unit.rope[1])
    middle = min(max((left + right) / 2, x.start + 45), x.end - 45)
    drawn = [line(x(0), top, x(0), bottom, "zero")]
    if right > left:
        drawn += [box(left, top, right - left, bottom - top, "rope")]
        drawn += [line(at, top, at, bottom, "rope-edge") for at in (left, right)]
        drawn.append(words(middle, top - 6, f"within {unit.rope_text}", "small quiet", "middle"))
    return drawn


def _difference_axis(x: AxisScale, y: float, label: str, about: int) -> list[str]:
    drawn = [line(x.start, y, x.end, y, "axis")]
    for value in ticks(x.low, x.high, about):
        text = f"{value:+g}".replace("-", "\N{MINUS SIGN}") if value else "0"
        drawn += [line(x(value), y, x(value), y + 4, "axis"), words(x(value), y + 17, text, "tick", "middle")]
    middle = max((x.start + x.end) / 2, LETTER * len(label) / 2)
    return [*drawn, words(middle, y + 34, label, "label", "middle")]


# Against a setting


@dataclass(frozen=True)
class SettingPoint:
    """A federation at its value of the setting, with its shrunk interval."""

    name: str
    at: float
    interval: Interval


@dataclass(frozen=True)
class Mark:
    """A value at which the most probable answer changes, with what holds below it and above it."""

    at: float
    text: str


def setting_chart(
    points: Sequence[SettingPoint],
    band: Sequence[tuple[float, float, float, float]],
    marks: Sequence[Mark],
    unit: Unit,
    *,
    key: str,
    logarithmic: bool,
    width: float = WIDE,
) -> str:
    """Return differences against a setting: an interval for every federation, the fitted line with its band, the changes."""
    height = 360.0 if width >= ROOMY else 300.0
    left, right, top, bottom = 52.0, width - 16, 40.0, height - 44
    values = [p.at for p in points]
    low, high = min(values), max(values)
    near = [v for p in points for v in p.interval]
    spread = (max(near) - min(near)) or 1.0
    lowest = max(min(near) - spread, min(v[2] for v in band))
    highest = min(max(near) + spread, max(v[3] for v in band))
    y = AxisScale(*outward(min(*near, lowest, *unit.rope), max(*near, highest, *unit.rope)), bottom, top)
    scale = AxisScale(*((math.log(low), math.log(high)) if logarithmic else (low, high)), left + 14, right - 14)

    def x(value: float) -> float:
        return scale(math.log(value) if logarithmic else value)

    def clipped(value: float) -> float:
        return y(min(max(value, y.low), y.high))

    body = []
    for value in ticks(y.low, y.high, 5):
        body += [
            line(left, y(value), right, y(value), "grid"),
            words(left - 8, y(value) + 4, unit.text(value) if value else "0", "tick", "end"),
        ]
    if unit.rope[1] > unit.rope[0]:
        body.append(
            box(left, clipped(unit.rope[1]), right - left, clipped(unit.rope[0]) - clipped(unit.rope[1]), "rope")
        )
    body.append(line(left, clipped(0), right, clipped(0), "zero"))
    over: list[Point] = [(x(v[0]), clipped(v[3])) for v in band]
    under: list[Point] = [(x(v[0]), clipped(v[2])) for v in reversed(band)]
    body.append(path([*over, *under], "trend-band", closed=True))
    body.append(path([(x(v[0]), clipped(v[1])) for v in band], "line s0"))
    for k, mark in enumerate(marks):
        body.append(line(x(mark.at), top, x(mark.at), bottom, "target"))
        anchor = "start" if x(mark.at) < width / 2 else "end"
        shift = 5 if anchor == "start" else -5
        body.append(words(x(mark.at) + shift, top + 12 + 15 * (k % 3), mark.text, "small halo", anchor))
    for point in points:
        start, mean, end = point.interval
        told = title(f"{point.name}: {unit.text(mean)}, 90% between {unit.text(start)} and {unit.text(end)}")
        drawn = line(x(point.at), clipped(start), x(point.at), clipped(end), "interval")
        dot = f'<circle cx="{x(point.at):.1f}" cy="{clipped(mean):.1f}" r="3.5" class="mean"/>'
        body.append(group([told, drawn, dot], "row"))
    body.append(line(left, bottom, right, bottom, "axis"))
    for value in log_ticks(low, high) if logarithmic else ticks(low, high, 6 if width >= ROOMY else 4):
        body += [
            line(x(value), bottom, x(value), bottom + 4, "axis"),
            words(x(value), bottom + 18, number(value), "tick", "middle"),
        ]
    body.append(words((left + right) / 2, bottom + 36, key, "label", "middle"))
    body.append(words(4, 14, unit.label, "label"))
    text = f"{unit.label} against {key}, for {len(points)} federations" + "".join(f"; {mark.text}" for mark in marks)
    return picture(width, height, text, body)


def log_ticks(low: float, high: float) -> list[float]:
    """Return round values between two positive ones: powers of ten, and 2 and 5 times them where those are few.

    >>> log_ticks(0.1, 10), log_ticks(3, 40)
    ([0.1, 1.0, 10.0], [5.0, 10.0, 20.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    whole = [10.0**p for p in powers]
    steps = whole if sum(low <= v <= high for v in whole) > 2 else [k * v for v in whole for k in (1, 2, 5)]
    return [round(v, 12) for v in steps if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
