"""Charts for pages: from plain numbers to SVG that needs nothing but the style sheet charts.css.

The report and the pages of `fedarena ui` use the same charts; how a page is put together is not their concern.

>>> from fedarena.reports.charts.lines import Series, line_chart
>>> line_chart([Series("fedavg", [1, 2, 3], [0.5, 0.7, 0.8])], x_label="round")[:18]
Markup('<svg class="chart"')
"""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def read_asset(package: str, name: str) -> str:
    """Return a style sheet or a script of a package."""
    return (resources.files(package) / name).read_text(encoding="utf-8")


def style_sheet() -> str:
    """Return charts.css: the colours and fonts of the charts, in light and in dark."""
    return read_asset("fedarena.reports.charts", "charts.css")
