"""`fedarena compare`: several algorithms on the same splits, judged by a Bayesian test."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedarena.cli.options import (
    Address,
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
from fedarena.cli.output import print_json, print_result

LOGGER = logging.getLogger(__name__)


def compare(
    *,
    experiment: Annotated[
        list[str] | None,
        typer.Argument(
            help="An experiment file, the name of a data set, CSV or Parquet files, or a suite file; three or more "
            "experiments are compared as several federations. Of several tables, each is a client of one federation.",
            show_default=False,
        ),
    ] = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", "-a", help="An algorithm to compare: `-a fedprox:mu=0.1`. Give two or more."),
    ] = None,
    folds: Annotated[int | None, "Folds of the cross-validation.  [default: 5]"] = None,
    repeats: Annotated[int | None, "Repetitions of the cross-validation, each with other folds.  [default: 1]"] = None,
    seeds: Annotated[int | None, "Number of random splits into training and test samples, instead of folds."] = None,
    fixed: Annotated[
        str, "What is the same in all splits: any of `partition,start,schedule`, and with --seeds `test`."
    ] = "",
    per_repeat: Annotated[
        str, "What the folds of one repeat share: any of `partition,start,schedule`; needs 5 repeats or more."
    ] = "",
    until_decided: Annotated[bool, "Add whole repeats until the comparison is decided."] = False,
    at_most: Annotated[int | None, "Largest number of splits with --until-decided.  [default: 50]"] = None,
    score: Annotated[
        Literal["final", "best", "validated"] | None,
        "Round that counts; `validated`: chosen on held-out training samples, `best`: on test samples.  "
        "[default: final]",
    ] = None,
    metric: Annotated[str | None, "Any of `fedarena list metrics`.  [default: accuracy]"] = None,
    evaluate_on: Annotated[
        Literal["common", "own", "own:uniform"] | None,
        "Test samples that decide.  [default: common; own where clients have their own models]",
    ] = None,
    rope: Annotated[
        float | None, "Largest difference that is practically irrelevant.  [default: that of the metric, 0.01]"
    ] = None,
    threshold: Annotated[float | None, "Probability above which a verdict is given.  [default: 0.95]"] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="Also train on all samples in one place, for reference.")
    ] = True,
    changes: TrainingOptions,
    out: Annotated[Path | None, "Folder of the comparison; by default the next free one under runs/."] = None,
    resume: Annotated[Path | None, "Resume the comparison in this folder."] = None,
    tune: Annotated[int | None, "Tune each algorithm first, with this many trials in its own search space."] = None,
    tune_per: Annotated[
        Literal["split", "repeat", "once"] | None, "Tune in each split, in each repeat, or once.  [default: split]"
    ] = None,
    tune_method: SearchMethod = None,
    spaces: Annotated[Path | None, "Other search spaces: a TOML file with one table per algorithm."] = None,
    sweep: Annotated[
        str | None, "Compare at each value of a setting of uplink, local.privacy or attack: `uplink.noise=0,0.5,1,2`."
    ] = None,
    leave_one_out: Annotated[
        bool, "Also repeat the comparison without each client in turn (at most 50), and show what the others lose."
    ] = False,
    leave_out: Annotated[
        list[str] | None, "Repeat it without this client: `--leave-out Cleveland`. May be repeated."
    ] = None,
    report: Annotated[Path | None, "Also write a report to this HTML file."] = None,
    runtime: PoolRuntime = "processes",
    workers: Workers = None,
    address: Address = None,
    file: File = None,
    dry_run: Annotated[bool, "Run nothing; show the planned runs, their duration and disk space."] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare algorithms on the same splits, and decide by a Bayesian test which is better.

    `fedarena compare digits -a fedavg -a fedprox:mu=0.1 -a scaffold`

    `fedarena compare exp.toml -a fedavg -a fedavgm:beta=0.9+fedir --folds 5 --repeats 3 --report verdict.html`

    `fedarena compare digits -a fedavg:local.lr=0.05 -a slow=fedavg:local.lr=0.01 --seeds 8`

    `fedarena compare digits -a fedavg -a fednova -a scaffold --until-decided --at-most 50`

    `fedarena compare digits -a fedavg -a fedprox -a scaffold --tune 20`

    `fedarena compare digits -a fedavg -a fedprox --seeds 3 --set uplink.clip=1 --sweep uplink.noise=0,0.5,1,2`

    `fedarena compare north.csv south.csv east.csv --label ill -a fedavg -a local --metric auc --evaluate-on own`

    `fedarena compare digits -a fedavg -a scaffold --score validated`

    `fedarena compare heart_disease -a fedavg -a local --leave-one-out`

    `fedarena compare clinics.toml banks.toml shops.toml -a fedavg -a scaffold --report suite.html`

    `fedarena compare suite.toml -a fedavg -a scaffold`

    `fedarena compare --resume runs/digits-compare`

    An algorithm is written `NAME[:setting=value,...][+COMPANION[:setting=value,...]]`. A setting `local.*` applies to that
    algorithm alone, and `slow=` before the name gives it a label. The scores are the same for any number of workers, and
    after an interruption and `--resume`.

    Several federations (three or more experiment files, or a suite file with `[[federation]]` blocks or a `[grid]`) are
    compared one by one, and the verdict is about the next federation like them.

    Each split repeats everything that is random: the test samples, the partition, the initial weights, the client schedule
    and the order of batches, which all algorithms of the split share. So the verdict is about federations drawn like this
    one. With `--fixed partition` it is about this partition, with a natural partition about this federation, and with
    `--seeds N --fixed test` about these test samples. `--per-repeat partition,start,schedule` is the protocol of
    Nilsson et al. 2018, where the folds of a repeat share a partition.

    `--until-decided` looks at the result after 10 splits and after every further repeat (at least 5 splits). It stops when
    one algorithm is the best, or when all that may be the best are practically equal, with a probability of 99 % before 25
    splits and 97.5 % from then on. Repeated looks find chance differences, so 95 % at each look would not be enough.

    `--score validated` holds out a tenth of every client's training samples (change it with
    `--set evaluate.validation=0.2`) and scores each run by the round that is best on them. As it changes the training, it
    must be chosen before the runs start.

    With `-a local` the output also shows which clients gain from the federation, on their own test samples. With a natural
    partition or `--fixed partition`, `--leave-one-out` repeats the comparison without each client; together with
    `--resume` it does so for a finished comparison.
    """
    options = passed_on(locals(), "algorithm", "out", "leave_out", "report", "runtime", "address", "dry_run")
    from fedarena.experiments.compare import compare as compare_algorithms
    from fedarena.experiments.compare import dry_run as preview_comparison
    from fedarena.models.compiled import report_missing_kernels

    if not experiment and resume is None:
        raise typer.BadParameter("name an experiment file or a data set, e.g. `fedarena compare digits -a ...`")
    source: Any = one_source(experiment)
    options |= changes.table | {"overrides": changes.overrides, "leave_one_out": leave_out or leave_one_out}
    if dry_run:
        preview = preview_comparison(source, algorithm or [], **options)
        print_result(preview, preview.as_dict() if json_ else None, json_)
        return
    report_missing_kernels()
    places: dict[str, Any] = {"out": out, "runtime": runtime, "address": address, "report": report}
    result: Any = compare_algorithms(source, algorithm or [], progress=not quiet, **places, **options)
    for note in result.notes:
        LOGGER.info("note: %s", note)
    if json_:
        print_json(result.as_dict())
    else:
        _print_comparison(result, report)
    if len(result.labels) < 2:
        raise typer.Exit(1)


def _print_comparison(result: Any, report: Path | None) -> None:
    from fedarena.reports.suite_tables import show_suite
    from fedarena.reports.terminal_tables import show_comparison
    from fedarena.results.suite import SuiteComparison

    if isinstance(result, SuiteComparison):
        show_suite(result)
        print(result.dir)
    else:
        show_comparison(result)
        print(result.dir)
        if result.plan.sweep and result.dir is not None:
            print(result.dir / "tradeoff.png")
    if report is not None:
        print(report)
