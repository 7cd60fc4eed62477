"""`fedarena report`: an HTML report of a comparison or of runs, with figures and tables for papers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedarena.cli.options import File, Json, Quiet
from fedarena.cli.output import print_json

LOGGER = logging.getLogger(__name__)


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="The folder of a comparison, or the folders of runs.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="HTML file; by default report.html in the first folder.")
    ] = None,
    figures: Annotated[Path | None, "Also draw figures for a paper into this folder."] = None,
    form: Annotated[Literal["pdf", "png"], typer.Option("--format", help="File format of the figures.")] = "pdf",
    table: Annotated[Literal["latex", "markdown"] | None, "Print the tables in this format."] = None,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write one HTML file about a comparison or any runs: verdict, curves, costs, clients, and how to repeat it.

    `fedarena report runs/digits-compare`

    `fedarena report runs/digits-fedavg-seed0 runs/digits-scaffold-seed0 -o both.html`

    `fedarena report runs/digits-compare --figures figures --format png --table latex`

    Runs that differ only in algorithm, local settings and split are judged like a comparison if all algorithms were run
    on the same splits. The file needs no network connection.
    """
    from fedarena.config.limits import check_paths
    from fedarena.reports import collect_runs, why_no_verdict, write_report
    from fedarena.results.suite_plan import holds_suite

    check_paths(("--out", out), ("--figures", figures))
    if len(runs) == 1 and holds_suite(runs[0]):
        if figures is not None or table is not None:
            raise typer.BadParameter(
                "--figures and --table are for one federation: name a folder of FOLDER/federations"
            )
        _report_suite(runs[0], out, json_)
        return
    result = collect_runs(runs)
    path = write_report(result, out or runs[0] / "report.html")
    drawn: list[Path] = []
    if figures is not None:
        from fedarena.reports.paper_figures import write_figures

        drawn = write_figures(result, figures, form)
    tables = None
    if table is not None:
        from fedarena.reports.text_tables import text_tables

        tables = text_tables(result, table)
    why = why_no_verdict(result)
    if json_:
        print_json(
            {
                "report": str(path),
                "figures": list(map(str, drawn)),
                "tables": tables,
                "algorithms": result.labels,
                "verdict": [] if why else result.words,
                "no_verdict": why,
            }
        )
        return
    LOGGER.info(f"no verdict: {why}" if why else "\n".join(result.words))
    print(tables if tables is not None else "\n".join(map(str, [path, *drawn])))


def _report_suite(folder: Path, out: Path | None, json_: bool) -> None:
    from fedarena.reports import report as write_report
    from fedarena.results.suite import SuiteComparison

    result = SuiteComparison.load(folder)
    path = write_report(result, out)
    if json_:
        print_json({"report": str(path), "algorithms": result.labels, "verdict": result.words})
        return
    LOGGER.info("\n".join(result.words))
    print(path)
