"""The report of a comparison: one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedarena.config.errors import BadValue, repeated
from fedarena.config.limits import check_paths
from fedarena.reports import client_gains_section, sections
from fedarena.reports.collect import collect_runs
from fedarena.reports.cost_table import costs
from fedarena.reports.metrics_section import metrics
from fedarena.reports.report_data import ReportData
from fedarena.reports.suite_report import write_suite_report
from fedarena.reports.templating import render_page
from fedarena.reports.unseen_section import unseen
from fedarena.results.comparison import Comparison
from fedarena.results.json_files import write_text
from fedarena.results.run import Run
from fedarena.results.suite import SuiteComparison
from fedarena.results.suite_plan import holds_suite

SECTIONS: dict[str, tuple[str, Callable[[ReportData], Markup]]] = {
    "verdict": ("The verdict", sections.verdict),
    "question": ("What was compared", sections.question),
    "sure": ("How sure is that?", sections.posteriors),
    "tradeoff": ("What privacy and bytes cost", sections.tradeoff),
    "attackers": ("What attackers cost", sections.attackers),
    "curves": ("Learning curves", sections.curves),
    "costs": ("Results and costs", costs),
    "metrics": ("Metrics", metrics),
    "splits": ("Split by split", sections.splits),
    "gains": ("Who gains by the federation", client_gains_section.gains),
    "left-out": ("Without one client", client_gains_section.effects),
    "unseen": ("Clients that never trained", unseen),
    "clients": ("Client by client", sections.clients),
    "partition": ("Samples of every client", sections.partition),
    "notes": ("Notes", sections.notes),
    "repeat": ("Repeat it", sections.repeat),
}


def report(
    source: Comparison | SuiteComparison | Run | str | Path | Sequence[Run | str | Path], out: str | Path | None = None
) -> Path:
    """Write the report of a comparison, or of several runs together, into their (first) folder unless `out` is given.

    >>> import fedarena as fa
    >>> first = fa.run("digits", rounds=2, clients=5, out="first", runtime="serial")
    >>> fa.report("first").as_posix()
    'first/report.html'
    """
    if isinstance(source, Comparison):
        return write_report(source, out or (source.dir or Path()) / "report.html")
    check_paths(("out", out))
    if isinstance(source, SuiteComparison) or holds_suite(source):
        suite = source if isinstance(source, SuiteComparison) else SuiteComparison.load(source)  # type: ignore[arg-type]
        return write_suite_report(suite, out or (suite.dir or Path()) / "report.html")
    several = isinstance(source, Sequence) and not isinstance(source, str)
    folders = [_folder(one) for one in (source if several else [source])]  # type: ignore[union-attr]
    result = collect_runs(folders)
    return write_report(result, out or folders[0] / "report.html")


def _folder(source: Any) -> Path:
    """Return the folder of a run, or the one that is given."""
    if isinstance(source, Run) and source.dir is not None:
        return source.dir
    if not isinstance(source, str | Path):
        problem = "was not saved in a folder" if isinstance(source, Run) else "is neither a run nor a comparison"
        raise BadValue(
            f"{repeated(source)} {problem}", remedy="give a comparison, runs saved with out='FOLDER', or their folders"
        )
    return Path(source)


def write_report(result: Comparison, path: str | Path) -> Path:
    """Write the report of a comparison to a file; without two paired algorithms it has no verdict, and states why."""
    if not result.labels:
        raise BadValue(
            "no algorithm has results, there is nothing to report",
            remedy="; ".join(f"{label}: {why}" for label, why in result.failures.items()) or "run one first",
        )
    path = Path(path)
    write_text(path, render(ReportData(result)))
    return path


def render(data: ReportData) -> str:
    """Return the whole page; a section without content is left out."""
    return render_page(data.title, data.subtitle, SECTIONS, data)
