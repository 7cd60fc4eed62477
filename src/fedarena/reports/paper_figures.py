"""Figures for papers, by matplotlib: learning curves with bands, posteriors, the table of verdicts; PDF or PNG."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedarena.common.files import writing
from fedarena.reports.charts.distributions import jitter
from fedarena.reports.charts.posteriors import (
    PosteriorPair,
    areas,
    axis_label,
    chance,
    far_side,
    far_text,
    kind_of,
    shown_range,
    typeset,
)
from fedarena.reports.report_data import ReportData
from fedarena.results import tradeoff_points
from fedarena.results.comparison import Comparison
from fedarena.statistics.metric_registry import OPTIMISTIC

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Format = Literal["pdf", "png"]

COLOURS = ("#0b6bb0", "#c8500a", "#00785a", "#8d3a86", "#8a6500", "#3d4db0", "#b02a4a", "#2d7d8c")  # as in charts.css
MARKERS = "os^DPvXp"
BETTER, EQUAL, WORSE, QUIET = "#0b6bb0", "#7d868e", "#bf4f0b", "#5c6670"
LOOK: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "pdf.fonttype": 42,  # letters stay letters: journals ask for it
    "savefig.dpi": 300,
}


def write_figures(result: Comparison, folder: str | Path, form: Format = "pdf") -> list[Path]:
    """All figures that these runs allow, into a folder; without a verdict, the curves and the clients alone."""
    import matplotlib as mpl

    subject, folder = ReportData(result), Path(folder)
    wanted: dict[str, Callable[[ReportData], Figure]] = {"curves": draw_curves}
    if subject.why_not is None:
        wanted |= {"posteriors": draw_posteriors, "verdicts": draw_verdicts}
    wanted["clients"] = draw_clients
    if result.plan.sweep:
        wanted["tradeoff"] = lambda subject: tradeoff_points.draw(subject.result)
    files = []
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, draw in wanted.items():
            with mpl.rc_context(LOOK):
                file = folder / f"{name}.{form}"
                when = {"CreationDate": None} if form == "pdf" else {}  # the same figure is the same file
                draw(subject).savefig(file, metadata=when)
                files.append(file)
    return files


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    return Figure(figsize=(width, height), layout="constrained")


def _look(subject: ReportData, label: str) -> dict[str, Any]:
    if subject.is_aside(label):
        return {"color": QUIET, "ls": "--"}
    index = subject.index(label)
    dash = ("-", "--", ":", "-.")[index // len(COLOURS) % 4]
    return {"color": COLOURS[index % len(COLOURS)], "ls": dash, "marker": MARKERS[index % len(MARKERS)]}


def draw_curves(subject: ReportData) -> Figure:
    """Mean of the metric that the runs followed, with the range over splits, over rounds and every cost."""
    shown, followed = subject.axes, subject.followed
    columns = min(len(shown), 2)
    lines = -(-len(shown) // columns)
    figure = _figure(3.5 * columns, 2.6 * lines + 0.5)
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    for ax, axis in zip(grid.flat, shown, strict=False):
        for label in subject.everyone:
            c, look = subject.curve(label, axis), _look(subject, label)
            if c.x[-1] == c.x[0] and len(c.x) > 1:  # it costs nothing: a level to compare with
                ax.axhline(c.mean[-1], lw=1.2, **{**look, "marker": ""}, label=label)
                continue
            ax.plot(c.x, c.mean, lw=1.4, ms=3.5, markevery=_places(subject, label, len(c.x)), label=label, **look)
            ax.fill_between(c.x, c.low, c.high, color=look["color"], alpha=0.1, lw=0)
        ends = [subject.curve(label, axis).x[-1] for label in subject.result.labels]
        ax.set(xlabel=axis.label, xlim=(0, max(ends) or 1))
        ax.grid(alpha=0.25)
        ax.yaxis.set_major_formatter(lambda v, _: f"{100 * v:g}%" if followed.is_share else f"{v:g}")
    for ax in grid.flat[len(shown) :]:
        ax.set_visible(False)
    for ax in grid[:, 0]:
        ax.set(ylabel=f"{followed.metric}, common test samples")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
    return figure


def _places(subject: ReportData, label: str, points: int) -> tuple[int, int]:
    """Where a line carries its marks: neighbours at other places, so that none hides another."""
    step = max(points // 6, 1)
    return step * (subject.index(label) % 4) // 4, step


def draw_posteriors(subject: ReportData) -> Figure:
    """The leader against each other, with the region of practical equivalence."""
    plan, (leader, *others) = subject.result.plan, subject.ranked
    pairs = [subject.pair(leader, other) for other in others]
    low, high = shown_range(pairs, plan.rope)
    scoring, times = pairs[0].scoring, pairs[0].scoring.scale
    figure = _figure(7, 0.62 * len(pairs) + 1.2)
    ax = figure.subplots()
    ax.axvspan(-times * plan.rope, times * plan.rope, color=EQUAL, alpha=0.14, lw=0)
    ax.axvline(0, color=QUIET, lw=0.6)
    for k, pair in enumerate(pairs):
        base = len(pairs) - 1 - k
        _density(ax, pair, plan.rope, low, high, base)
        chances = [chance(p) for p in pair.chances(plan.rope)]
        _beside(ax, base + 0.15, [*chances, typeset(pair.sign)], "black")
    _beside(ax, len(pairs) - 0.2, ["better", "equal", "worse", ""], QUIET)
    ax.set(xlim=(times * low, times * high), ylim=(-0.15, len(pairs)))
    ax.set(xlabel=f"{axis_label(pairs[0])}\n{named(subject)}; grey: within {scoring.difference(plan.rope)}")
    ax.set_yticks([len(pairs) - 1 - k for k in range(len(pairs))], [pair.column for pair in pairs])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return figure


def named(subject: ReportData) -> str:
    """Return the score of a comparison as figures and tables name it: round, metric, view."""
    scoring = subject.result.scoring()
    return scoring.name + (f" ({OPTIMISTIC})" if scoring.score == "best" else "")


def _beside(ax: Axes, y: float, texts: list[str], colour: str) -> None:
    """Texts in columns at the right of the drawing."""
    for k, text in enumerate(texts):
        end = 38 * (k + 1) if k < 3 else 134
        place: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "xytext": (end, 0)}
        ax.annotate(text, (1, y), ha="right", color=colour, **place)


def _density(ax: Axes, pair: PosteriorPair, rope: float, low: float, high: float, base: float) -> None:
    known, times = pair.known, pair.scoring.scale
    colours = {"better": BETTER, "equal": EQUAL, "worse": WORSE}
    if side := far_side(pair, low, high):  # an arrow at the edge, with its number
        text = f"{far_text(pair)} \N{RIGHTWARDS ARROW}" if side > 0 else f"\N{LEFTWARDS ARROW} {far_text(pair)}"
        ax.text(times * (high if side > 0 else low), base + 0.12, text, ha="right" if side > 0 else "left", size=8)
        return
    if known.scale == 0:
        ax.plot([times * known.mean] * 2, [base, base + 0.75], color=colours[kind_of(pair, rope)], lw=2.5)
        return
    x = np.unique(np.concatenate([np.linspace(low, high, 301), [-rope, rope]]))
    y = base + 0.75 * known.density(x) / known.density([known.mean])[0]
    for kind, start, end in areas(pair, rope, low, high):
        part = (x >= start) & (x <= end)
        ax.fill_between(times * x[part], base, y[part], color=colours[kind], alpha=0.4, lw=0)
    ax.plot(times * x, y, color="black", lw=0.7)
    ax.plot([times * v for v in known.interval(0.9)], [base, base], color="black", lw=2.2, solid_capstyle="round")
    ax.plot(times * known.mean, base, "o", ms=4, mfc="white", mec="black")


def draw_verdicts(subject: ReportData) -> Figure:
    """The table of + = - ? with the three probabilities, and P(best) of every candidate."""
    names, standings = subject.ranked, subject.result.ranking.standings if subject.result.ranking else {}
    duels = {(d.row, d.column): d for d in subject.result.duels()}
    figure = _figure(1.05 * len(names) + 1.4, 0.5 * len(names) + 0.7)
    ax = figure.subplots()
    tints = {"+": BETTER, "=": EQUAL, "-": WORSE, "?": "white"}
    for (row, column), d in duels.items():
        x, y = names.index(column), names.index(row)
        ax.add_patch(_tile(x, y, tints[d.verdict]))
        ax.text(x, y - 0.14, typeset(d.verdict), ha="center", va="center", size=11, weight="bold")
        told = "  ".join(chance(p).replace("0.", ".") for p in (d.p_better, d.p_equal, d.p_worse))
        ax.text(x, y + 0.24, told, ha="center", va="center", size=6.5)
    ax.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5))
    ax.set_xticks(range(len(names)), names, rotation=20 if max(map(len, names)) > 12 else 0)
    shown = [f"{n}\nP(best) {chance(standings[n].p_best)}" if n in standings else n for n in names]
    ax.set_yticks(range(len(names)), shown)
    ax.xaxis.tick_top()
    about = fill(f"row against column: {named(subject)}; probabilities of better, equal, worse", 16 * len(names))
    ax.set(xlabel=about)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return figure


def _tile(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    face = (*_rgb(colour), 0.2 if colour != "white" else 0.0)
    return Rectangle((x - 0.48, y - 0.47), 0.96, 0.94, facecolor=face, edgecolor="#d5d9dd", lw=0.6)


def _rgb(colour: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(colour)


def draw_clients(subject: ReportData) -> Figure:
    """Accuracy on the clients' own test samples: every client a dot, the middle half a box, the median a line."""
    figure = _figure(7, 0.34 * len(subject.everyone) + 0.8)
    ax = figure.subplots()
    for k, name in enumerate(subject.everyone):
        own = 100 * np.concatenate([run.client_accuracy for run in subject.result.runs[name]])
        own, colour = own[~np.isnan(own)], _look(subject, name)["color"]
        if not len(own):
            continue
        q1, q2, q3 = np.percentile(own, (25, 50, 75))
        ax.barh(k, q3 - q1, left=q1, height=0.6, color=colour, alpha=0.2, lw=0)
        ax.plot([q2, q2], [k - 0.3, k + 0.3], color=colour, lw=1.5)
        ax.plot(own, k + 0.5 * jitter(len(own)), "o", ms=2.5, color=colour, alpha=0.5, mew=0)
        ax.plot(own.mean(), k, "D", ms=4.5, mfc="white", mec=colour)
    ax.set_yticks(range(len(subject.everyone)), subject.everyone)
    ax.invert_yaxis()
    ax.grid(axis="x", alpha=0.25)
    ax.set(xlabel="accuracy on a client's own test samples, percent")
    return figure
