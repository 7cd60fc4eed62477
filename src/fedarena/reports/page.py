"""The page: a comparison as one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import fedarena
from fedarena.config.errors import BadValue, repeated
from fedarena.config.limits import check_paths
from fedarena.reports import client_gains_section, sections
from fedarena.reports.charts import escape, style_sheet
from fedarena.reports.collect import collect_runs
from fedarena.reports.metrics_section import metrics
from fedarena.reports.report_data import ReportData
from fedarena.results.comparison import Comparison
from fedarena.results.json_files import write_text
from fedarena.results.run import Run
from fedarena.results.suite import SuiteComparison
from fedarena.results.suite_plan import holds_suite

# Nothing may be fetched from anywhere: the browser itself holds the page to that.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

Section = Callable[[ReportData], str]
SECTIONS: dict[str, tuple[str, Section]] = {
    "verdict": ("The verdict", sections.verdict),
    "question": ("What was compared", sections.question),
    "sure": ("How sure is that?", sections.posteriors),
    "tradeoff": ("What privacy and bytes cost", sections.traded),
    "curves": ("Learning curves", sections.curves),
    "costs": ("Results and costs", sections.costs),
    "metrics": ("Metrics", metrics),
    "splits": ("Split by split", sections.splits),
    "gains": ("Who gains by the federation", client_gains_section.gains),
    "left-out": ("Without one client", client_gains_section.effects),
    "clients": ("Client by client", sections.clients),
    "partition": ("Samples of every client", sections.partition),
    "notes": ("Notes", sections.notes),
    "repeat": ("Repeat it", sections.repeat),
}


def report(
    source: Comparison | SuiteComparison | Run | str | Path | Sequence[Run | str | Path], out: str | Path | None = None
) -> Path:
    """Write the report of a comparison, or of run folders taken together; into their (first) folder unless `out` is given.

    >>> import fedarena as fa
    >>> first = fa.run("digits", rounds=2, clients=5, out="first", runtime="serial")
    >>> fa.report("first").as_posix()
    'first/report.html'
    """
    if isinstance(source, Comparison):
        return write_report(source, out or (source.dir or Path()) / "report.html")
    check_paths(("out", out))
    if isinstance(source, SuiteComparison) or holds_suite(source):
        from fedarena.reports.suite_report import write_suite_report

        suite = source if isinstance(source, SuiteComparison) else SuiteComparison.load(source)  # type: ignore[arg-type]
        return write_suite_report(suite, out or (suite.dir or Path()) / "report.html")
    several = isinstance(source, Sequence) and not isinstance(source, str)
    folders = [_folder(one) for one in (source if several else [source])]  # type: ignore[union-attr]
    result = collect_runs(folders)
    return write_report(result, out or folders[0] / "report.html")


def _folder(source: Any) -> Path:
    """Of a run, or as it is given."""
    if isinstance(source, Run) and source.dir is not None:
        return source.dir
    if not isinstance(source, str | Path):
        kept = "was not kept in a folder" if isinstance(source, Run) else "is neither a run nor a comparison"
        raise BadValue(
            f"{repeated(source)} {kept}", remedy="give a comparison, runs kept with out='FOLDER', or their folders"
        )
    return Path(source)


def write_report(result: Comparison, path: str | Path) -> Path:
    """Write the report of a comparison to this file. Without two paired algorithms it shows what it can, and says why."""
    if not result.labels:
        raise BadValue(
            "no algorithm has results, there is nothing to report",
            remedy="; ".join(f"{label}: {why}" for label, why in result.failures.items()) or "run one first",
        )
    path = Path(path)
    write_text(path, render(ReportData(result)))
    return path


def render(subject: ReportData) -> str:
    """The whole page; a section that has nothing to say is left out."""
    told = {key: (name, body) for key, (name, make) in SECTIONS.items() if (body := make(subject))}
    return whole_page(subject.title, subject.subtitle, told)


def whole_page(title: str, subtitle: str, told: Mapping[str, tuple[str, str]]) -> str:
    """Return the HTML file of a report from its sections: id -> heading and body."""
    links = "".join(f'<li><a href="#{key}">{escape(name)}</a></li>' for key, (name, _) in told.items())
    parts = "".join(
        f'<section id="{key}"><h2>{escape(name)}</h2>{body}</section>' for key, (name, body) in told.items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)} · fedarena</title>\n<link rel="icon" href="data:,">\n'
        f"<style>\n{style_sheet()}{_file('page.css')}</style>\n</head>\n<body>\n"
        f'<header><p class="kind">fedarena report</p><h1>{escape(title)}</h1>'
        f'<p class="facts">{escape(subtitle)}</p><nav aria-label="Sections"><ul>{links}</ul></nav></header>\n'
        f"<main>\n{parts}\n</main>\n"
        f"<footer>Made by fedarena {escape(fedarena.__version__)}. This file is complete: it needs no network.</footer>\n"
        f"<script>\n{_file('page.js')}</script>\n</body>\n</html>\n"
    )


@cache
def _file(name: str) -> str:
    return (resources.files("fedarena.reports") / name).read_text(encoding="utf-8")
