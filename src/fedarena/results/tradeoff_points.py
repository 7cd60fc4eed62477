"""The points of a sweep, accuracy against privacy and bytes, as numbers and as a figure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedarena.common.files import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedarena.results.comparison import Comparison
    from fedarena.results.run import Run

COLOURS = ("#0b6bb0", "#c8500a", "#00785a", "#8d3a86", "#8a6500", "#3d4db0", "#b02a4a", "#2d7d8c")  # as in charts.css
MARKERS = "os^DPvXp"


@dataclass(frozen=True)
class TradeoffPoint:
    """One algorithm at one value of the swept setting, over all splits."""

    algorithm: str
    value: Any
    accuracy: float  # mean of the final accuracies
    sd: float
    epsilon: float | None  # None: unbounded
    bytes_up: float


def points(result: Comparison) -> list[TradeoffPoint]:
    """Return the points in the order of the contestants; none without a sweep."""
    of = result.plan.sweep.get("of", {})
    return [_point(runs, **of[label]) for label, runs in result.runs.items() if label in of]


def _point(runs: list[Run], algorithm: str, value: Any) -> TradeoffPoint:
    final = [run.final.accuracy or 0.0 for run in runs]
    spent = [run.epsilon for run in runs if run.epsilon is not None]
    return TradeoffPoint(
        algorithm,
        value,
        float(np.mean(final)),
        float(np.std(final, ddof=1)) if len(final) > 1 else 0.0,
        float(np.mean(spent)) if spent else None,
        float(np.mean([run.records[-1].bytes_up for run in runs])),
    )


def as_dict(result: Comparison) -> dict[str, Any] | None:
    """Return what `compare --json` prints of the sweep."""
    if not result.plan.sweep:
        return None
    return {"key": result.plan.sweep["key"], "points": [asdict(point) for point in points(result)]}


def by_algorithm(found: list[TradeoffPoint]) -> dict[str, list[TradeoffPoint]]:
    """Return the points of each algorithm, which form one line."""
    lines: dict[str, list[TradeoffPoint]] = {}
    for point in found:
        lines.setdefault(point.algorithm, []).append(point)
    return lines


def levels(result: Comparison) -> dict[str, float]:
    """Return the mean accuracy of algorithms that were not swept, which are drawn as levels."""
    of = result.plan.sweep.get("of", {})
    return {
        label: float(np.mean([run.final.accuracy or 0.0 for run in runs]))
        for label, runs in result.runs.items()
        if label not in of
    }


def draw(result: Comparison) -> Figure:
    """Draw accuracy against epsilon, where noise bounds it, and against the bytes that clients send."""
    from matplotlib.figure import Figure

    found = points(result)
    private = any(point.epsilon is not None for point in found)
    figure = Figure(figsize=(7.5 if private else 4.2, 3.4), layout="constrained")
    panels = figure.subplots(1, 1 + private, sharey=True, squeeze=False)[0]
    name = result.plan.sweep["key"].removeprefix("uplink.")
    if private:
        bounded = [point.epsilon for point in found if point.epsilon is not None]
        beyond = 3 * max(bounded)  # where points without a bound are drawn
        _panel(panels[0], result, name, lambda point: beyond if point.epsilon is None else point.epsilon)
        panels[0].set(xscale="log", xlabel="epsilon: to the left more private")
        plain = lambda v, _: f"{v:g}" if f"{v:e}"[0] in "125" else ""
        for axis in (panels[0].xaxis.set_major_formatter, panels[0].xaxis.set_minor_formatter):
            axis(plain)
        if len(bounded) < len(found):
            panels[0].axvline(beyond, color="#5c6670", lw=0.6, ls=":")
            panels[0].text(beyond, 0.02, "no bound ", transform=panels[0].get_xaxis_transform(), ha="right", size=7)
    _panel(panels[-1], result, "" if private else name, lambda point: point.bytes_up / 1e6)
    panels[-1].set(xlabel="megabytes sent up", xlim=(0, None))
    panels[0].set(ylabel="final accuracy")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
    return figure


def _panel(ax: Axes, result: Comparison, name: str, place: Any) -> None:
    for k, (label, line) in enumerate(by_algorithm(points(result)).items()):
        line = sorted(line, key=place)
        x, y, sd = [place(p) for p in line], [p.accuracy for p in line], [p.sd for p in line]
        style: Any = {"color": COLOURS[k % len(COLOURS)], "marker": MARKERS[k % len(MARKERS)]}
        thick = max(2.4 - 0.5 * k, 0.8)  # equal lines all stay visible
        ax.errorbar(x, y, yerr=sd, lw=thick, ms=3 * thick, elinewidth=0.8, capsize=2, label=label, **style)
        for point, at in zip(line, x, strict=True) if name else ():
            value = f"{name} {point.value}"
            ax.annotate(value, (at, point.accuracy), xytext=(4, 4), textcoords="offset points", size=6, color="#5c6670")
    for label, level in levels(result).items():
        ax.axhline(level, color="#5c6670", lw=1.0, ls="--", label=label)
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    ax.yaxis.set_major_formatter(lambda v, _: f"{100 * v:g}%")
    ax.margins(x=0.12)


def write(result: Comparison, file: Path) -> Path:
    """Write the figure as PNG and return its path."""
    with writing(file):
        draw(result).savefig(file, dpi=150)
    return file
