"""`fedarena run`: one experiment."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from fedarena.cli.options import (
    Address,
    ExperimentSource,
    File,
    Json,
    Quiet,
    Runtime,
    TrainingOptions,
    Workers,
    one_source,
    passed_on,
)
from fedarena.cli.output import print_result

LOGGER = logging.getLogger(__name__)


def run(
    *,
    experiment: ExperimentSource = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", "-a", help="The algorithm: `-a fedprox:mu=0.1`.", show_default=False)
    ] = None,
    changes: TrainingOptions,
    out: Annotated[Path | None, "Folder of the run; by default the next free one under runs/."] = None,
    resume: Annotated[Path | None, "Resume the run in this folder."] = None,
    from_intact: Annotated[
        bool, "With --resume: if files of the latest round are damaged, resume from the last intact round."
    ] = False,
    runtime: Runtime = "processes",
    workers: Workers = None,
    address: Address = None,
    file: File = None,
    track: Annotated[
        str | None, "Also log to MLflow: the address of a server, or a folder. Needs `fedarena[track]`."
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run one experiment.

    `fedarena run digits`

    `fedarena run digits -a fedprox:mu=0.1 --rounds 50 --clients 20 --lr 0.05`

    `fedarena run exp.toml --set local.epochs=2 --set partition.beta=0.1`

    `fedarena run hospital.csv --label diagnosis --client site`

    `fedarena run north.csv south.csv east.parquet --label diagnosis`

    `fedarena run digits --file mine.py --set algorithm=mine`

    `fedarena run exp.toml --runtime ray --address auto`

    `fedarena run --resume runs/digits-fedavg-seed0`
    """
    options = passed_on(locals(), "algorithm") | changes.table | ({} if algorithm is None else {"algorithm": algorithm})
    from fedarena.experiments.run import run as run_experiment
    from fedarena.models.compiled import report_missing_kernels

    source = one_source(experiment)
    if source is None and resume is None:
        raise typer.BadParameter("name an experiment file or a data set, e.g. `fedarena run digits`")
    report_missing_kernels()
    result = run_experiment(source, overrides=changes.overrides, progress=not quiet, **options)
    for note in dict.fromkeys(result.notes):
        LOGGER.info("note: %s", note)
    print_result(result, result.summary() if json_ else None, json_)
