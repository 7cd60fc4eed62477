"""The Jinja environment of the report and of the pages of `fedarena ui`.

Every value is escaped, unless it is `Markup`: charts are. A name that a template uses and Python does not pass is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

import fedarena
from fedarena.reports.charts import read_asset, style_sheet
from fedarena.reports.charts.posteriors import format_probability, format_sign
from fedarena.reports.charts.svg import NARROW, WIDE, breakable, meter
from fedarena.reports.page_elements import Section
from fedarena.results.comparison_verdict import SIGNS

REPORTS = "fedarena.reports"
# The browser itself makes sure that the page fetches nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@cache
def environment(package: str = REPORTS) -> Environment:
    """Return the environment of a package: it finds the package's own templates and the shared ones of the report."""
    loaders = [PackageLoader(name) for name in dict.fromkeys((package, REPORTS))]
    made = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"WIDE": WIDE, "NARROW": NARROW, "SIGNS": SIGNS}
    made.filters |= {"breakable": breakable, "meter": meter, "probability": format_probability, "sign": format_sign}
    return made


@cache
def template(name: str, package: str = REPORTS) -> Template:
    """Return a compiled template; each is compiled once."""
    return environment(package).get_template(name)


def render(name: str, /, *, package: str = REPORTS, **values: Any) -> Markup:
    """Return a template filled with values, as markup that other templates do not escape again."""
    return Markup(template(name, package).render(values))


class Macros:
    """The macros of a template as functions from plain values to markup."""

    def __init__(self, name: str, package: str = REPORTS) -> None:
        self._of = name, package

    def __getattr__(self, name: str) -> Callable[..., Markup]:
        found: Callable[..., Markup] = getattr(template(*self._of).module, name)
        return found


macros = Macros("macros.html")


def render_page(
    title: str, subtitle: str, sections: Mapping[str, tuple[str, Callable[[Any], Markup]]], data: Any
) -> str:
    """Return the HTML file of a report; each section has an id, a heading and the function that makes its body."""
    made = [Section(id, heading, make(data)) for id, (heading, make) in sections.items()]
    return render(
        "report.html",
        title=title,
        subtitle=subtitle,
        sections=[section for section in made if section.body],
        policy=POLICY,
        style=style_sheet() + read_asset("fedarena.reports", "page.css"),
        script=read_asset("fedarena.reports", "page.js"),
        version=fedarena.__version__,
    )
