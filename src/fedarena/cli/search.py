"""`fedarena search`: good settings for an algorithm."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedarena.cli.options import (
    Address,
    ExperimentSource,
    File,
    Json,
    PoolRuntime,
    Quiet,
    SearchMethod,
    TrainingOptions,
    Workers,
    one_source,
    passed_on,
)
from fedarena.cli.output import print_result


def search(
    *,
    experiment: ExperimentSource = None,
    space: Annotated[Path | None, "Search space as a TOML file; by default the algorithm's own."] = None,
    trials: Annotated[int | None, "Number of trials, including those of earlier calls."] = None,
    preset: Annotated[str | None, "A published search, e.g. `nilsson-fedavg`."] = None,
    method: SearchMethod = None,
    seed: Annotated[int, "Seed of the search; the experiment's own is `--set seed=1`."] = 0,
    score: Annotated[Literal["best", "final"], "Accuracy on the held-out samples that counts."] = "best",
    evaluate_on: Annotated[
        Literal["common", "own", "own:uniform"] | None,
        "Held-out samples that count.  [default: common; own where clients have their own models]",
    ] = None,
    ahead: Annotated[int, "Trials that may run at the same time; changes which trials are chosen."] = 4,
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Stop hopeless trials early.")] = True,
    study: Annotated[Path | None, "SQLite file of the study; by default inside the folder."] = None,
    gains: Annotated[
        bool, typer.Option("--gains", help="Show what each client gains from the best trial over training alone.")
    ] = False,
    changes: TrainingOptions,
    out: Annotated[Path | None, "Folder of the search; by default one under runs/ that belongs to it."] = None,
    resume: Annotated[Path | None, "Resume the search in this folder."] = None,
    runtime: PoolRuntime = "processes",
    workers: Workers = None,
    address: Address = None,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for good settings on samples held out of the training samples. The test samples are never used.

    `fedarena search digits --trials 20`

    `fedarena search exp.toml --space space.toml --trials 40 --set algorithm=fedprox`

    `fedarena search exp.toml --preset nilsson-fedavg`

    `fedarena search --resume runs/search-digits-fedavg-seed0 --trials 60`

    Running the same command again resumes the search. The trials are the same for any number of workers.
    """
    options = passed_on(locals(), "gains") | changes.table
    from fedarena.experiments.search import search as search_settings
    from fedarena.experiments.search_gains import gain_lines
    from fedarena.models.compiled import report_missing_kernels

    source = one_source(experiment)
    if source is None and resume is None:
        raise typer.BadParameter("name an experiment file or a data set, e.g. `fedarena search digits --trials 20`")
    report_missing_kernels()
    found = search_settings(source, overrides=changes.overrides, progress=not quiet, **options)
    known = found.client_gains() if gains else []
    text = "\n".join([str(found), *(gain_lines(found.search, known) if gains else [])])
    table = found.as_dict() | ({"client_gains": [asdict(one) for one in known]} if gains else {}) if json_ else None
    print_result(text, table, json_)
