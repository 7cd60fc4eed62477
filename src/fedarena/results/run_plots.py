"""Learning curves of runs, drawn with matplotlib for files and notebooks."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedarena.config.algorithm_text import label_of
from fedarena.config.components import NotGiven

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedarena.results.run import Run

COLOURS = ("#0b6bb0", "#c8500a", "#00785a", "#8d3a86", "#8a6500", "#3d4db0", "#b02a4a", "#2d7d8c")  # as in charts.css


def new_axes(width: float, height: float) -> Axes:
    """Return empty axes of this size in inches; in a notebook, those of a figure that is shown below its cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        import matplotlib.pyplot as plt

        return plt.subplots(figsize=(width, height), layout="constrained")[1]
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    return Figure(figsize=(width, height), layout="constrained").subplots()


def with_room(ax: Axes) -> Axes:
    """Return axes whose figure makes room for what is written around them, unless it has a layout of its own."""
    from matplotlib.figure import Figure

    if isinstance(ax.figure, Figure) and ax.figure.get_layout_engine() is None:
        ax.figure.set_layout_engine("constrained")
    return ax


def draw_curve(run: Run, ax: Axes | None = None, label: str | None = None) -> Axes:
    """Draw the metric over rounds, with the best so far as a thin line; each further run has its own colour."""
    ax = new_axes(6, 3.6) if ax is None else ax
    before = ax.get_legend_handles_labels()[1]
    colour = COLOURS[len(before) % len(COLOURS)]
    rounds, values = map(np.array, zip(*run.metric_curve, strict=True))
    so_far = np.maximum if run.measured.direction == "maximize" else np.minimum
    ax.plot(rounds, values, color=colour, lw=1.8, label=_distinct(label or run_label(run), before))
    ax.plot(rounds, so_far.accumulate(values), color=colour, lw=0.7, alpha=0.6)
    ax.set(xlabel="round", ylabel=f"test {run.measured.metric}")
    ax.locator_params(axis="x", integer=True)
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    if before:
        ax.legend(frameon=False)
    return ax


def run_label(run: Run) -> str:
    """Return the algorithm of a run as it is typed; one that came from Python and is not given again has only a name."""
    algorithm = run.experiment.algorithm
    return algorithm.name if isinstance(algorithm.made, NotGiven) else label_of({"algorithm": algorithm})


def _distinct(label: str, others: Sequence[str]) -> str:
    """Return the label, with a number if another curve has it."""
    numbered = (f"{label} ({number})" for number in itertools.count(2))
    return next(name for name in itertools.chain([label], numbered) if name not in others)


def draw_curves(runs: Mapping[str, Run], path: str | Path, title: str = "") -> Path:
    """Draw several runs in one PNG: accuracy over rounds, and over megabytes sent.

    >>> import fedarena as fa
    >>> runs = {name: fa.run("digits", algorithm=name, rounds=2, out=False) for name in ("fedavg", "scaffold")}
    >>> fa.draw_curves(runs, "curves.png").as_posix()
    'curves.png'
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    over_rounds, over_bytes = figure.subplots(1, 2, sharey=True)
    for (name, run), colour in zip(runs.items(), COLOURS * 4, strict=False):
        draw_curve(run, over_rounds, name)
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
