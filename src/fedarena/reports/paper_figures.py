"""Figures for papers, drawn with matplotlib as PDF or PNG: curves, posteriors, verdicts, clients, trade-offs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedarena.common.files import writing
from fedarena.reports.charts.distributions import jitter
from fedarena.reports.charts.posteriors import PosteriorPair, format_probability, format_sign, shown_range
from fedarena.reports.curves import Axis
from fedarena.reports.report_data import ReportData
from fedarena.results.comparison import Comparison
from fedarena.results.run_plots import COLOURS
from fedarena.results.tradeoff_points import TradeoffPoint, axis_name, by_algorithm, is_of_attack, levels, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Format = Literal["pdf", "png"]

LETTERS, HANDLE = 13, 9  # of a legend: letters in an inch, and the width of a line's picture in letters
MARKERS = "os^DPvXp"
BETTER, EQUAL, WORSE, QUIET = "#0b6bb0", "#7d868e", "#bf4f0b", "#5c6670"
LOOK: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "pdf.fonttype": 42,  # fonts that journals accept
    "savefig.dpi": 300,
}


def write_figures(result: Comparison, folder: str | Path, form: Format = "pdf") -> list[Path]:
    """Write all figures that these runs allow into a folder; without a verdict, only the curves and the clients."""
    import matplotlib as mpl

    data, folder = ReportData(result), Path(folder)
    wanted: dict[str, Callable[[ReportData], Figure]] = {"curves": draw_curves}
    if data.no_verdict_reason is None:
        wanted |= {"posteriors": draw_posteriors, "verdicts": draw_verdicts}
    wanted["clients"] = draw_clients
    if result.plan.sweep:
        wanted["tradeoff"] = lambda data: draw_tradeoff(data.result)
    files = []
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, draw in wanted.items():
            with mpl.rc_context(LOOK):
                file = folder / f"{name}.{form}"
                metadata = {"CreationDate": None} if form == "pdf" else {}  # the same figure is the same file
                draw(data).savefig(file, metadata=metadata)
                files.append(file)
    return files


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches."""
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    return Figure(figsize=(width, height), layout="constrained")


def _look(data: ReportData, label: str) -> dict[str, Any]:
    return {"color": QUIET, "ls": "--"} if data.is_aside(label) else line_style(data.index(label))


def line_style(index: int) -> dict[str, Any]:
    """Return the colour, dash and marker of line number `index`."""
    dash = ("-", "--", ":", "-.")[index // len(COLOURS) % 4]
    return {"color": COLOURS[index % len(COLOURS)], "ls": dash, "marker": MARKERS[index % len(MARKERS)]}


def draw_curves(data: ReportData) -> Figure:
    """Draw the mean of the metric with the range over splits, over rounds and over every cost."""
    shown = data.axes
    columns = min(len(shown), 2)
    lines = -(-len(shown) // columns)
    figure = new_figure(3.5 * columns, 2.6 * lines + 0.5)
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    for ax, axis in zip(grid.flat, shown, strict=False):
        plot_curves(data, ax, axis)
    for ax in grid.flat[len(shown) :]:
        ax.set_visible(False)
    for ax in grid[:, 1:].flat:
        ax.set(ylabel="")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
    return figure


def plot_curves(data: ReportData, ax: Axes, axis: Axis) -> None:
    """Draw the curves of all algorithms over one axis: their means, and the range over splits as a band."""
    scoring = data.curve_scoring
    for label in data.all_labels:
        c, look = data.curve(label, axis), _look(data, label)
        if c.x[-1] == c.x[0] and len(c.x) > 1:  # it costs nothing: a level to compare with
            ax.axhline(c.mean[-1], lw=1.2, **{**look, "marker": ""}, label=label)
            continue
        ax.plot(c.x, c.mean, lw=1.4, ms=3.5, markevery=_places(data, label, len(c.x)), label=label, **look)
        ax.fill_between(c.x, c.low, c.high, color=look["color"], alpha=0.1, lw=0)
    ends = [data.curve(label, axis).x[-1] for label in data.result.labels]
    ax.set(xlabel=axis.label, xlim=(0, max(ends) or 1), ylabel=f"{scoring.metric}, common test samples")
    ax.locator_params(axis="x", integer=axis.name in ("rounds", "uploads"))
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    ax.yaxis.set_major_formatter(lambda v, _: f"{100 * v:g}%" if scoring.is_share else f"{v:g}")


def _places(data: ReportData, label: str, points: int) -> tuple[int, int]:
    """Return where a line carries its marks: neighbours at other places, so that none hides another."""
    step = max(points // 6, 1)
    return step * (data.index(label) % 4) // 4, step


def draw_posteriors(data: ReportData) -> Figure:
    """Draw the leader against each other algorithm, in a figure of their number."""
    figure = new_figure(*posteriors_size(data))
    plot_posteriors(data, figure.subplots())
    return figure


def posteriors_size(data: ReportData) -> tuple[float, float]:
    """Return the width and height in inches that the posteriors need."""
    return 7, 0.62 * (len(data.ranked) - 1) + 1.2


def plot_posteriors(data: ReportData, ax: Axes) -> None:
    """Draw the leader against each other algorithm, with the region of practical equivalence."""
    plan, (leader, *others) = data.result.plan, data.ranked
    pairs = [data.pair(leader, other) for other in others]
    low, high = shown_range(pairs, plan.rope)
    scoring, times = pairs[0].scoring, pairs[0].scoring.scale
    ax.axvspan(-times * plan.rope, times * plan.rope, color=EQUAL, alpha=0.14, lw=0)
    ax.axvline(0, color=QUIET, lw=0.6)
    for k, pair in enumerate(pairs):
        base = len(pairs) - 1 - k
        plot_density(ax, pair, plan.rope, low, high, base)
        probabilities = [format_probability(p) for p in pair.probabilities(plan.rope)]
        _write_columns(ax, base + 0.15, [*probabilities, format_sign(pair.sign)], "black")
    _write_columns(ax, len(pairs) - 0.2, ["better", "equal", "worse", ""], QUIET)
    ax.set(xlim=(times * low, times * high), ylim=(-0.15, len(pairs)))
    ax.set(
        xlabel=f"{pairs[0].axis_label()}\n{data.result.scoring().labelled}; grey: within {scoring.difference(plan.rope)}"
    )
    ax.set_yticks([len(pairs) - 1 - k for k in range(len(pairs))], [pair.column for pair in pairs])
    ax.tick_params(axis="y", length=0)
    ax.spines[["left", "top", "right"]].set_visible(False)


def _write_columns(ax: Axes, y: float, texts: list[str], colour: str) -> None:
    """Write texts in columns at the right of the drawing."""
    for k, text in enumerate(texts):
        end = 38 * (k + 1) if k < 3 else 134
        place: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "xytext": (end, 0)}
        ax.annotate(text, (1, y), ha="right", color=colour, **place)


def plot_density(ax: Axes, pair: PosteriorPair, rope: float, low: float, high: float, base: float) -> None:
    """Draw the density of a difference from `low` to `high` in the colours of its regions; without spread it is a line."""
    known, times = pair.posterior, pair.scoring.scale
    colours = {"better": BETTER, "equal": EQUAL, "worse": WORSE}
    if side := pair.far_side(low, high):
        end, align = (high, "right") if side > 0 else (low, "left")
        ax.text(times * end, base + 0.12, pair.arrow(side), ha=align, size=8)
        return
    if known.scale == 0:
        ax.plot([times * known.mean] * 2, [base, base + 0.75], color=colours[pair.kind(rope)], lw=2.5)
        return
    x, shares = pair.density(rope, low, high, 301)
    y = base + 0.75 * shares
    for kind, start, end in pair.regions(rope, low, high):
        part = (x >= start) & (x <= end)
        ax.fill_between(times * x[part], base, y[part], color=colours[kind], alpha=0.4, lw=0)
    ax.plot(times * x, y, color="black", lw=0.7)
    ax.plot([times * v for v in known.interval(0.9)], [base, base], color="black", lw=2.2, solid_capstyle="round")
    ax.plot(times * known.mean, base, "o", ms=4, mfc="white", mec="black")


def draw_verdicts(data: ReportData) -> Figure:
    """Draw the table of + = - ? with the three probabilities, and P(best) of every candidate."""
    names, standings = data.ranked, data.result.ranking.standings if data.result.ranking else {}
    duels = {(d.row, d.column): d for d in data.result.duels()}
    figure = new_figure(1.05 * len(names) + 1.4, 0.5 * len(names) + 0.7)
    ax = figure.subplots()
    tints = {"+": BETTER, "=": EQUAL, "-": WORSE, "?": "white"}
    for (row, column), d in duels.items():
        x, y = names.index(column), names.index(row)
        ax.add_patch(_tile(x, y, tints[d.verdict]))
        ax.text(x, y - 0.14, format_sign(d.verdict), ha="center", va="center", size=11, weight="bold")
        probabilities = (d.p_better, d.p_equal, d.p_worse)
        text = "  ".join(format_probability(p).replace("0.", ".") for p in probabilities)
        ax.text(x, y + 0.24, text, ha="center", va="center", size=6.5)
    ax.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5))
    ax.set_xticks(range(len(names)), names, rotation=20 if max(map(len, names)) > 12 else 0)
    shown = [f"{n}\nP(best) {format_probability(standings[n].p_best)}" if n in standings else n for n in names]
    ax.set_yticks(range(len(names)), shown)
    ax.xaxis.tick_top()
    about = f"row against column: {data.result.scoring().labelled}; probabilities of better, equal, worse"
    ax.set(xlabel=fill(about, 16 * len(names)))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return figure


def _tile(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    face = colour, 0.2 if colour != "white" else 0.0
    return Rectangle((x - 0.48, y - 0.47), 0.96, 0.94, facecolor=face, edgecolor="#d5d9dd", lw=0.6)


def draw_clients(data: ReportData) -> Figure:
    """Draw accuracy on the clients' own test samples: every client a dot, the middle half a box, the median a line."""
    figure = new_figure(7, 0.34 * len(data.all_labels) + 0.8)
    ax = figure.subplots()
    for k, name in enumerate(data.all_labels):
        own = 100 * np.concatenate([run.client_accuracy for run in data.result.runs[name]])
        own, colour = own[~np.isnan(own)], _look(data, name)["color"]
        if not len(own):
            continue
        q1, q2, q3 = np.percentile(own, (25, 50, 75))
        ax.barh(k, q3 - q1, left=q1, height=0.6, color=colour, alpha=0.2, lw=0)
        ax.plot([q2, q2], [k - 0.3, k + 0.3], color=colour, lw=1.5)
        ax.plot(own, k + 0.5 * jitter(len(own)), "o", ms=2.5, color=colour, alpha=0.5, mew=0)
        ax.plot(own.mean(), k, "D", ms=4.5, mfc="white", mec=colour)
    ax.set_yticks(range(len(data.all_labels)), data.all_labels)
    ax.invert_yaxis()
    ax.grid(axis="x", alpha=0.25)
    ax.set(xlabel="accuracy on a client's own test samples, percent")
    return figure


def draw_tradeoff(result: Comparison) -> Figure:
    """Draw accuracy against epsilon, where noise bounds it, and against the bytes that clients send."""
    found = points(result)
    if is_of_attack(result):
        return _draw_attackers(result)
    is_private = any(point.epsilon is not None for point in found)
    figure = new_figure(7.5 if is_private else 4.2, 3.4)
    panels = figure.subplots(1, 1 + is_private, sharey=True, squeeze=False)[0]
    name = result.plan.sweep["key"].rpartition(".")[2]
    if is_private:
        bounded = [point.epsilon for point in found if point.epsilon is not None]
        beyond = 3 * max(bounded)  # where a point without a bound is drawn
        _tradeoff_panel(panels[0], result, name, lambda point: beyond if point.epsilon is None else point.epsilon)
        panels[0].set(xscale="log", xlabel="epsilon: to the left more private")
        plain = lambda v, _: f"{v:g}" if f"{v:e}"[0] in "125" else ""
        for axis in (panels[0].xaxis.set_major_formatter, panels[0].xaxis.set_minor_formatter):
            axis(plain)
        if len(bounded) < len(found):
            panels[0].axvline(beyond, color=QUIET, lw=0.6, ls=":")
            panels[0].text(beyond, 0.02, "no bound ", transform=panels[0].get_xaxis_transform(), ha="right", size=7)
    _tradeoff_panel(panels[-1], result, "" if is_private else name, lambda point: point.bytes_up / 1e6)
    panels[-1].set(xlabel="megabytes sent up", xlim=(0, None))
    panels[0].set(ylabel="final accuracy")
    _legend_below(figure, panels[0])
    return figure


def _draw_attackers(result: Comparison) -> Figure:
    """Draw accuracy, and the success of a backdoor, against the swept setting of an attack."""
    has_success = any(point.attack_success is not None for point in points(result))
    figure = new_figure(7.5 if has_success else 4.6, 3.6)
    panels = figure.subplots(1, 1 + has_success, squeeze=False)[0]
    _tradeoff_panel(panels[0], result, "", lambda point: point.value)
    panels[0].set(ylabel="final accuracy", xlabel=axis_name(result))
    if has_success:
        _tradeoff_panel(panels[1], result, "", lambda point: point.value, lambda point: point.success)
        panels[1].set(ylabel="attack success", xlabel=axis_name(result), ylim=(-0.03, 1.03))
    for panel in panels:
        panel.set_xticks(result.plan.sweep["values"])
    _legend_below(figure, panels[0])
    return figure


def _legend_below(figure: Figure, panel: Axes) -> None:
    """Draw the legend below the panels, in as many columns as the width has room for."""
    handles, labels = panel.get_legend_handles_labels()
    room = int(LETTERS * figure.get_figwidth() / (max(map(len, labels)) + HANDLE))
    figure.legend(handles, labels, loc="outside lower center", ncols=max(min(4, room, len(labels)), 1), frameon=False)


def _tradeoff_panel(
    ax: Axes,
    result: Comparison,
    name: str,
    cost: Callable[[TradeoffPoint], float],
    shown: Callable[[TradeoffPoint], TradeoffPoint] | None = None,
) -> None:
    for k, (label, line) in enumerate(by_algorithm(points(result)).items()):
        line = sorted(line if shown is None else map(shown, line), key=cost)
        x, y, sd = [cost(p) for p in line], [p.accuracy for p in line], [p.sd for p in line]
        look: Any = {**line_style(k), "ls": "-"}
        width = max(2.4 - 0.5 * k, 0.8)  # lines that coincide can all be seen
        ax.errorbar(x, y, yerr=sd, lw=width, ms=3 * width, elinewidth=0.8, capsize=2, label=label, **look)
        for point, at in zip(line, x, strict=True) if name else ():
            place: Any = {"xytext": (4, 4), "textcoords": "offset points"}
            ax.annotate(f"{name} {point.value}", (at, point.accuracy), size=6, color=QUIET, **place)
    for label, level in levels(result).items() if shown is None else ():
        ax.axhline(level, color=QUIET, lw=1.0, ls="--", label=label)
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    ax.yaxis.set_major_formatter(lambda v, _: f"{100 * v:g}%")
    ax.margins(x=0.12)


def write_tradeoff(result: Comparison, file: Path) -> Path:
    """Write the figure of a sweep as PNG."""
    with writing(file):
        draw_tradeoff(result).savefig(file, dpi=150)
    return file
