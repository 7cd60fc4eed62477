"""Charts for pages: from plain numbers to SVG text that needs nothing but the style sheet.

>>> line_chart([Series("fedavg", [1, 2, 3], [0.5, 0.7, 0.8])], x_label="round")[:18]
'<svg class="chart"'
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from fedarena.reports.charts.distributions import Strip, bar_chart, dot_plot, heat_map, strip_chart
from fedarena.reports.charts.lines import Series, legend, line_chart
from fedarena.reports.charts.posteriors import PosteriorPair, posterior_chart, posterior_rows
from fedarena.reports.charts.svg import NARROW, WIDE, breakable, escape

__all__ = [
    "NARROW",
    "WIDE",
    "PosteriorPair",
    "Series",
    "Strip",
    "bar_chart",
    "breakable",
    "dot_plot",
    "escape",
    "heat_map",
    "legend",
    "line_chart",
    "posterior_chart",
    "posterior_rows",
    "strip_chart",
    "style_sheet",
]


@cache
def style_sheet() -> str:
    """What charts look like, in light and in dark: charts.css."""
    return (resources.files("fedarena.reports.charts") / "charts.css").read_text(encoding="utf-8")
