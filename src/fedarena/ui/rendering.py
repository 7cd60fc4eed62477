"""How pages of `fedarena ui` are rendered: the templates of this package, their filters, and the sections of a page."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup

from fedarena.common.formatting import format_duration, format_percent, format_size
from fedarena.reports.charts.svg import circle, path
from fedarena.reports.templating import Macros, environment
from fedarena.reports.templating import render as render_template
from fedarena.ui.safe_files import reason
from fedarena.ui.summaries import RunSummary

PACKAGE = "fedarena.ui"
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
    '<g stroke="#0b6bb0" stroke-width="2"><path d="M16 16L6 7M16 16L27 10M16 16L9 27M16 16L25 25"/></g>'
    '<g fill="#0b6bb0"><circle cx="16" cy="16" r="5.5"/><circle cx="6" cy="7" r="3.5"/><circle cx="27" cy="10" r="3"/>'
    '<circle cx="9" cy="27" r="3"/><circle cx="25" cy="25" r="3.8"/></g></svg>'
)
BUSY, IDLE = 1500, 3000  # milliseconds between two updates of a page
FULL, HALF = 1100, 540  # widths of a chart on a desktop, in pixels: the whole page, and beside another chart
SPARK = 96, 26  # width and height of a sparkline


ui_macros = Macros("elements.html", PACKAGE)


def render_page(template: str, title: str, /, *, running: int = 0, folder: str = "", **values: Any) -> str:
    """Return a whole page; the script in it fetches the page again and again and updates what has changed."""
    every = BUSY if running else IDLE
    return render_template(
        template, package=PACKAGE, title=title, running=running, folder=folder, every=every, **values
    )


def render_problem(problem: str, remedy: str) -> str:
    """Return a page that says what is wrong."""
    return render_page("problem.html", problem, problem=problem, remedy=remedy)


def render_unreadable(title: str, name: str, error: Exception, **values: Any) -> str:
    """Return a page about a folder that cannot be shown, with the reason."""
    return render_page("unreadable.html", title, name=name, reason=reason(error), **values)


# Values as text


def format_settings(values: Mapping[str, Any]) -> str:
    """Write settings on one line: mu=0.1, steps=3."""
    return ", ".join(f"{key}={f'{value:g}' if isinstance(value, float) else value}" for key, value in values.items())


def percent(value: float | None) -> str:
    """Write a share as a percentage, or a dash where it is not known."""
    return "–" if value is None or not math.isfinite(value) else format_percent(value)


def decimal(value: float | None) -> str:
    """Write a number with four digits, or a dash where it is not known."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.4g}"


def size(number: float | None) -> str:
    """Write a number of bytes with its unit, or a dash where it is not known or zero."""
    return "–" if number is None or not math.isfinite(number) or number <= 0 else format_size(number)


def duration(seconds: float | None) -> str:
    """Write a duration with its unit, or a dash where it is not known."""
    return "–" if seconds is None or not math.isfinite(seconds) else format_duration(seconds)


def when(moment: float) -> str:
    """Write how long ago something happened, so coarsely that an idle page does not change all the time."""
    if not moment:
        return ""
    past = time.time() - moment
    if past < 60:
        return "just now"
    if past < 3600:
        return f"{past // 60:.0f} min ago"
    if past < 86400:
        return f"{past // 3600:.0f} h ago"
    return time.strftime("%d %b %Y", time.localtime(moment)).lstrip("0")


def progress(run: RunSummary) -> str:
    """Write the rounds that are done and their number: 12 / 30, or 12 where the number is not known."""
    if run.state == "damaged":
        return ""
    return f"{run.round} / {run.rounds}" if run.rounds else str(run.round)


def spark(points: Iterable[tuple[float, float]]) -> Markup:
    """Draw a curve the size of a word."""
    width, height = SPARK
    known, drawn = list(points), ""
    if len(known) > 1:
        xs, ys = zip(*known, strict=True)
        across, up = (max(xs) - min(xs)) or 1.0, (max(ys) - min(ys)) or 1.0
        at = [(2 + (x - xs[0]) / across * (width - 8), height - 4 - (y - min(ys)) / up * (height - 8)) for x, y in known]
        drawn = path(at, "") + circle(*at[-1], 2.4, "")
    frame = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" aria-hidden="true"'
    return Markup(f'<svg class="spark s0" {frame}>{drawn}</svg>')


FILTERS = (percent, decimal, size, duration, when, progress, spark)
environment(PACKAGE).filters |= {filter.__name__: filter for filter in FILTERS}
