"""Learning curves of runs, drawn with matplotlib for files and notebooks."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedarena.results.run import Run

COLOURS = ("#0b6bb0", "#c8500a", "#00785a", "#8d3a86", "#8a6500", "#3d4db0", "#b02a4a", "#2d7d8c")  # as in charts.css


def draw_curve(run: Run, ax: Axes | None = None, label: str | None = None, colour: str = COLOURS[0]) -> Axes:
    """Draw accuracy over rounds, with the best so far as a thin line above it."""
    from matplotlib.figure import Figure

    if ax is None:
        ax = Figure(figsize=(6, 3.6), layout="constrained").subplots()
    ax.plot(*zip(*run.curve, strict=True), color=colour, lw=1.8, label=label or run.experiment.algorithm.name)
    ax.plot(*zip(*run.monotone_curve, strict=True), color=colour, lw=0.7, alpha=0.6)
    ax.set(xlabel="round", ylabel="test accuracy")
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def draw_curves(runs: Mapping[str, Run], path: str | Path, title: str = "") -> Path:
    """Draw several runs in one PNG: accuracy over rounds, and over megabytes sent."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    over_rounds, over_bytes = figure.subplots(1, 2, sharey=True)
    for (name, run), colour in zip(runs.items(), COLOURS * 4, strict=False):
        draw_curve(run, over_rounds, name, colour)
        sent = [(r.bytes_up + r.bytes_down) / 1e6 for r in run.evaluations]
        if sent[-1] > 0:
            over_bytes.plot(sent, [a for _, a in run.curve], color=colour, lw=1.8, label=name)
        else:  # nothing is sent: a level to compare with
            over_bytes.axhline(run.final.accuracy or 0.0, color=colour, lw=1.2, ls="--", label=f"{name}, final")
    target = next(iter(runs.values())).experiment.evaluate.target
    for ax in (over_rounds, over_bytes):
        if target is not None:
            ax.axhline(target, color="#888888", lw=0.8, ls=":")
        ax.legend(frameon=False, loc="lower right")
    over_bytes.set(xlabel="megabytes sent, up and down")
    over_bytes.grid(alpha=0.25)
    over_bytes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
    return Path(path)


def curve_as_svg(run: Run) -> str:
    """Return the curve of a run as SVG, for a notebook cell."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    draw_curve(run, figure.subplots())
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()[text.getvalue().index("<svg") :]
