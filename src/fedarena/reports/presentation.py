"""How `Comparison` shows itself: the tables, figures and pages of this package behind its methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedarena.config.errors import BadValue, check_known, quoted
from fedarena.reports.page import report
from fedarena.reports.paper_figures import plot_curves, plot_posteriors, posteriors_size
from fedarena.reports.report_data import ReportData
from fedarena.reports.text_tables import text_tables
from fedarena.results.comparison import Comparison
from fedarena.results.comparison_outputs import Over
from fedarena.results.run_plots import new_axes, with_room

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_latex(result: Comparison) -> str:
    """Return the tables of scores, costs and pairs in LaTeX."""
    return text_tables(result, "latex")


def draw_posteriors(result: Comparison, ax: Axes | None) -> Axes:
    """Draw the best algorithm against each other one; raise where the runs allow no verdict."""
    data = ReportData(result)
    if data.no_verdict_reason is not None:
        raise BadValue(
            f"there is no posterior to draw: {data.no_verdict_reason}",
            remedy="compare two algorithms or more on the same splits",
        )
    ax = new_axes(*posteriors_size(data)) if ax is None else with_room(ax)
    plot_posteriors(data, ax)
    return ax


def draw_curves(result: Comparison, ax: Axes | None, over: Over) -> Axes:
    """Draw the metric over rounds or over a cost, in the colours of the report."""
    data = ReportData(result)
    known = {axis.name: axis for axis in data.axes}
    check_known(over, known, f"there is no axis '{quoted(over)}'", f"give one of: {', '.join(known)}", "over")
    ax = new_axes(6, 3.6) if ax is None else with_room(ax)
    plot_curves(data, ax, known[over])
    ax.legend(frameon=False)
    return ax


def write_report(result: Comparison, path: str | Path | None) -> Path:
    """Write the report as one HTML file, into the folder of the comparison unless a path is given."""
    return report(result, path)
