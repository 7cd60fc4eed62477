"""Charts for pages: from plain numbers to SVG that needs nothing but the style sheet charts.css.

The report and the pages of `fedarena ui` use the same charts; how a page is put together is not their concern.

>>> line_chart([Series("fedavg", [1, 2, 3], [0.5, 0.7, 0.8])], x_label="round")[:18]
Markup('<svg class="chart"')
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from fedarena.reports.charts.distributions import bar_chart, dot_plot, heat_map, histogram, strip_chart
from fedarena.reports.charts.lines import Series, line_chart
from fedarena.reports.charts.posteriors import PosteriorPair, posterior_chart, posterior_rows
from fedarena.reports.charts.svg import NARROW, WIDE

__all__ = [
    "NARROW",
    "WIDE",
    "PosteriorPair",
    "Series",
    "bar_chart",
    "dot_plot",
    "heat_map",
    "histogram",
    "line_chart",
    "posterior_chart",
    "posterior_rows",
    "strip_chart",
    "style_sheet",
]


@cache
def style_sheet() -> str:
    """Return charts.css: the colours and fonts of the charts, in light and in dark."""
    return (resources.files("fedarena.reports.charts") / "charts.css").read_text(encoding="utf-8")
