"""Figures of reproductions in the form of the published ones: published values hollow or dashed, measured ones filled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedarena.common.files import writing
from fedarena.reports.charts.posteriors import PosteriorPair, shown_range
from fedarena.reports.paper_figures import LOOK, line_style, new_figure, plot_density
from fedarena.reproduction.check_kinds import ROPE, compared, sign
from fedarena.reproduction.score_sheet import Cell, ScoreSheet, label, selected_scores
from fedarena.results.run_plots import COLOURS
from fedarena.statistics.bayes import Posterior
from fedarena.statistics.curve_summary import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Table = Mapping[str, Any]
Curves = dict[Cell, list[Curve]]
GREY = "#5c6670"
DPI = 130


@dataclass(frozen=True)
class FigureData:
    """The data of a figure: its form, the numbers, the curves, and the settings of each cell."""

    how: Table
    sheet: ScoreSheet
    curves: Curves
    settings: Mapping[Cell, Table]
    title: str

    @property
    def measure(self) -> str:
        """The measure that is drawn: that of the recipe's figure, or its first."""
        return str(self.how.get("measure", next(iter(self.sheet.scores))))

    def panels(self, cells: Sequence[Cell]) -> dict[str, list[Cell]]:
        """Return the cells of each panel, one panel per choice of an axis."""
        choices = self.sheet.axes.get(self.how.get("panels", ""), [])
        found = {choice: [cell for cell in cells if choice in cell] for choice in choices}
        return {choice: inside for choice, inside in found.items() if inside} or {"": list(cells)}

    def cells(self, known: Mapping[Cell, Any]) -> list[Cell]:
        """Return the cells that are drawn."""
        return [cell for cell in known if fnmatchcase(label(cell), self.how.get("cells", "*"))]


def draw(data: FigureData, path: Path) -> Path | None:
    """Draw the figure of a recipe as a PNG and return its path; None where there is nothing to draw."""
    import matplotlib as mpl

    form = FORMS[data.how.get("form", "dots")]
    with mpl.rc_context({**LOOK, "savefig.dpi": DPI}), writing(path):
        figure = form(data)
        if figure is None:
            return None
        figure.suptitle(data.title, fontsize=10, color=GREY)
        figure.savefig(path)
    return path


def _grid(count: int, size: tuple[float, float, float, float], sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure with this many axes, up to three beside each other.

    `size` is the width and height of one, the least width of the figure, and the height added to it, in inches.
    """
    width, height, least, added = size
    columns = min(count, 3)
    lines = math.ceil(count / columns)
    figure = new_figure(max(width * columns, least), height * lines + added)
    grid = figure.subplots(lines, columns, sharey=sharey, squeeze=False)
    for spare in grid.flat[count:]:
        spare.set_visible(False)
    return figure, list(grid.flat[:count])


def _panels(data: FigureData, cells: Sequence[Cell]) -> tuple[Figure, list[tuple[Axes, str, list[Cell]]]]:
    """Return a figure with titled axes for each panel."""
    panels = data.panels(cells)
    figure, grid = _grid(len(panels), (3.6, 3.1, 5.2, 0.6), sharey=True)
    for axes, name in zip(grid, panels, strict=True):
        axes.set_title(name, loc="left", fontsize=9)
        axes.grid(alpha=0.25)
    return figure, [(axes, *panel) for axes, panel in zip(grid, panels.items(), strict=True)]


def _legend(figure: Figure) -> None:
    """Draw the legend below the figure, in as many columns as fit."""
    known = {
        name: handle for axes in figure.axes for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if len(known) > 1:
        width = 0.075 * max(map(len, known)) + 0.7  # inches, about
        columns = max(1, min(len(known), int(figure.get_figwidth() / width)))
        figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=columns, frameon=False)


def draw_dots(data: FigureData) -> Figure | None:
    """Draw a table as dots: a line per cell, the published value as a ring, the measured one as a dot with its range.

    Targets that were never reached are arrows at the right edge.
    """
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    printed = data.sheet.published.get(data.measure, {})
    scores = data.sheet.scores.get(data.measure, {})
    cells = [cell for cell in data.cells(scores) if not any(map(math.isnan, scores[cell]))]
    if not any(map(math.isfinite, (score for cell in cells for score in scores[cell]))):
        return None
    figure = new_figure(6.4, 0.26 * len(cells) + 1.2)
    axes = figure.subplots()
    ring: dict[str, Any] = {"mfc": "none", "mec": COLOURS[1], "mew": 1.4, "ms": 8}
    edge: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "clip_on": False}
    for place, cell in enumerate(cells):
        ours = scores[cell]
        if math.inf in ours:
            axes.plot(1, place, ">", color=COLOURS[0], ms=5, label="measured: never", **edge)
        else:
            axes.plot([min(ours), max(ours)], [place, place], color=COLOURS[0], lw=2, alpha=0.4)
            axes.plot(float(np.mean(ours)), place, "o", color=COLOURS[0], ms=5, label="measured")
        if printed.get(cell) == math.inf:
            axes.plot(1, place, ">", **ring, label="published: never", **edge)
        elif isinstance(theirs := printed.get(cell), int | float) and math.isfinite(theirs):
            axes.plot(theirs, place, "o", **ring, label="published")
    axes.set_yticks(range(len(cells)), [label(cell) for cell in cells])
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.25)
    axes.set(xlabel=data.measure)
    if data.how.get("log"):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(ScalarFormatter())  # 200, not 2 x 10^2
        axes.xaxis.set_minor_formatter(NullFormatter())
    _legend(figure)
    return figure


def draw_curves(data: FigureData) -> Figure | None:
    """Draw accuracy over rounds, mean and range over splits; `monotone` draws the best so far."""
    from matplotlib.ticker import MaxNLocator

    cells = data.cells(data.curves)
    if not cells:
        return None
    figure, panels = _panels(data, cells)
    names = list(dict.fromkeys(_rest(cell, panel) for _, panel, inside in panels for cell in inside))
    for axes, panel, inside in panels:
        for cell in inside:
            x, low, middle, high = _band(data.curves[cell], data.how.get("monotone", False))
            style = {**line_style(names.index(_rest(cell, panel))), **({"marker": ""} if len(x) > 3 else {"ms": 4})}
            axes.plot(x, middle, lw=1.3, label=_rest(cell, panel), **style)
            axes.fill_between(x, low, high, color=style["color"], alpha=0.12, lw=0)
        axes.set(xlabel="round", ylabel="accuracy")
        axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
        axes.label_outer()
    _legend(figure)
    return figure


def _rest(cell: Cell, panel: str) -> str:
    return label(tuple(choice for choice in cell if choice != panel))


def _band(curves: list[Curve], monotone: bool) -> tuple[list[int], Any, Any, Any]:
    """Return the rounds that all splits have, and the lowest, mean and highest accuracy."""
    common = sorted(set.intersection(*({t for t, _ in curve} for curve in curves)))
    rows = np.array([[dict(curve)[t] for t in common] for curve in curves])
    rows = np.maximum.accumulate(rows, axis=1) if monotone else rows
    return common, rows.min(axis=0), rows.mean(axis=0), rows.max(axis=0)


def draw_lines(data: FigureData) -> Figure | None:
    """Draw a measure along an axis (`x`), one line for each choice of another (`lines`)."""
    scores = data.sheet.scores.get(data.measure, {})
    along, names = data.sheet.axes[data.how["x"]], list(data.sheet.axes[data.how["lines"]])
    cells = [c for c in data.cells(scores) if any(choice in c for choice in along)]
    if not cells:
        return None
    figure, panels = _panels(data, cells)
    for axes, _, inside in panels:
        places = [choice for choice in along if any(choice in cell for cell in inside)]
        for name in names:
            own = {c: cell for cell in inside if name in cell for c in places if c in cell}
            if own:
                x, values = [places.index(c) for c in own], [list(scores[cell]) for cell in own.values()]
                style = line_style(names.index(name))
                axes.plot(x, [np.mean(v) for v in values], lw=1.2, ms=4, label=name, **style)
                axes.vlines(x, [*map(min, values)], [*map(max, values)], color=style["color"], lw=0.7)
        axes.set_xticks(range(len(places)), [c.partition("=")[2] or c for c in places])
        axes.set(xlabel=data.how["x"], ylabel=data.measure)
        axes.label_outer()
    _legend(figure)
    return figure


def draw_bars(data: FigureData) -> Figure | None:
    """Draw groups of bars, a bar for each choice of an axis (`bars`), with the published height as a line."""
    scores = data.sheet.scores.get(data.measure, {})
    printed = data.sheet.published.get(data.measure, {})
    bars = list(data.sheet.axes[data.how["bars"]])
    cells = [cell for cell in data.cells(scores) if any(choice in cell for choice in bars)]
    if not cells:
        return None
    groups = list(dict.fromkeys(tuple(c for c in cell if c not in bars) for cell in cells))
    figure = new_figure(max(1.1 * len(groups) + 1.5, 5.5), 3.6)
    axes = figure.subplots()
    width = 0.8 / len(bars)
    for cell in cells:
        bar = next(i for i, choice in enumerate(bars) if choice in cell)
        place = groups.index(tuple(c for c in cell if c not in bars)) + (bar - (len(bars) - 1) / 2) * width
        axes.bar(place, float(np.mean(scores[cell])), 0.92 * width, color=COLOURS[bar], alpha=0.75, label=bars[bar])
        axes.vlines(place, min(scores[cell]), max(scores[cell]), color="black", lw=0.8)
        if isinstance(theirs := printed.get(cell), int | float):
            axes.hlines(
                theirs, place - width / 2, place + width / 2, color="black", lw=1.6, ls=(0, (2, 1)), label="published"
            )
    axes.set_xticks(range(len(groups)), [label(group) for group in groups], rotation=20 if len(groups) > 4 else 0)
    axes.set(ylabel=data.measure)
    axes.grid(axis="y", alpha=0.25)
    _legend(figure)
    return figure


def draw_posteriors(data: FigureData) -> Figure | None:
    """Draw the density of the mean difference of each pair that has a published sign, with both signs."""
    published = data.sheet.published.get("sign", {})
    known = {where: seen for where in published if (seen := compared(data.sheet, data.measure, where))}
    if not known:
        return None
    figure, grid = _grid(len(known), (3.0, 1.9, 5.2, 0.7))
    for axes, (where, posterior) in zip(grid, known.items(), strict=True):
        ours, theirs = sign(data.sheet, data.measure, where) or "", published[where]
        _density(axes, posterior, ROPE)
        axes.set_title(f"{label(where[:-1])} − {where[-1]}", loc="left", fontsize=9)
        signs = f"{ours} (printed {theirs})".replace("-", "−")
        axes.set_title(signs, loc="right", fontsize=9, color=COLOURS[2] if ours in theirs else COLOURS[1])
    figure.supxlabel(f"mean difference of accuracies ({data.measure}), percentage points", fontsize=9)
    return figure


def _density(axes: Axes, posterior: Posterior, rope: float) -> None:
    """Draw a posterior as reports do, in percentage points, with dotted lines at the ends of the rope."""
    pair = PosteriorPair("", "", posterior, "")
    low, high = shown_range([pair], rope)
    plot_density(axes, pair, rope, low, high, 0)
    for border in (-rope, rope):
        axes.axvline(100 * border, color=GREY, lw=0.8, ls=":")
    axes.set(yticks=[], xlim=(100 * low, 100 * high), ylim=(-0.05, 0.8))
    axes.locator_params(axis="x", nbins=5)


def draw_posterior(data: FigureData) -> Figure | None:
    """Draw the density of the mean difference and its three areas."""
    (cell, known), *_ = data.settings.items()
    posterior, rope = Posterior(known["mean"], known["scale"], known["df"]), known["rope"]
    figure = new_figure(5.2, 3.2)
    axes = figure.subplots()
    _density(axes, posterior, rope)
    for name, at in (("left", -170 * rope), ("rope", 0.0), ("right", 170 * rope)):
        area = data.sheet.scores[name][cell][0]
        axes.text(at, 0.15, f"{area:.3f}", ha="center", fontsize=9)
    axes.set(xlabel="mean difference of accuracies, B minus A, percentage points")
    return figure


def draw_partitions(data: FigureData) -> Figure | None:
    """Draw ten clients of each partition, a bar per client, a colour per class."""
    from fedarena.config.experiment import Experiment
    from fedarena.data.partition_statistics import class_counts
    from fedarena.engine.setup import partition_data
    from fedarena.reports.partition_plots import draw_bars as draw_clients

    cells = list(data.settings)
    figure, grid = _grid(len(cells), (3.6, 2.5, 0.0, 0.4))
    for axes, cell in zip(grid, cells, strict=True):
        samples, partition = partition_data(Experiment.make(dict(data.settings[cell])))
        draw_clients(axes, class_counts(samples, partition), tuple(str(y) for y in range(samples.classes)))
        if (legend := axes.get_legend()) is not None:
            legend.remove()
        axes.set_title(label(cell), loc="left", fontsize=9)
    return figure


def draw_effects(data: FigureData) -> Figure | None:
    """Draw the mean along each axis, averaged over all other axes."""
    found = {}
    for axis in data.sheet.axes:
        others = [name for name in data.sheet.axes if name != axis]
        means = selected_scores(data.sheet, {**data.how, "measure": data.measure, "mean_over": others})
        if len(means) > 1:
            found[axis] = means
    if not found:
        return None
    figure = new_figure(3.2 * len(found), 3.2)
    grid = figure.subplots(1, len(found), sharey=True, squeeze=False)
    for axes, (axis, means) in zip(grid.flat, found.items(), strict=True):
        known = [choice for choice in data.sheet.axes[axis] if (choice,) in means]
        for place, choice in enumerate(known):
            values = means[(choice,)]
            axes.plot([place] * 2, [min(values), max(values)], color=COLOURS[0], alpha=0.4, lw=2)
        axes.plot(range(len(known)), [np.mean(means[(choice,)]) for choice in known], "o-", color=COLOURS[0], ms=5)
        axes.set_xticks(range(len(known)), [choice.partition("=")[2] or choice for choice in known])
        axes.set(xlabel=axis)
        axes.grid(alpha=0.25)
    grid.flat[0].set(ylabel=data.measure)
    return figure


FORMS: dict[str, Callable[[FigureData], Figure | None]] = {
    "dots": draw_dots,
    "curves": draw_curves,
    "lines": draw_lines,
    "bars": draw_bars,
    "posterior": draw_posterior,
    "posteriors": draw_posteriors,
    "partitions": draw_partitions,
    "effects": draw_effects,
}
