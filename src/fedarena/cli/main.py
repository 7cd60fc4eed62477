"""The same doors from a terminal; no logic of its own. Results go to stdout, progress and messages to stderr."""

from __future__ import annotations

import contextlib
import signal
import sys
import warnings
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
import typer.core

from fedarena.cli.federation import mount as mount_federation
from fedarena.cli.vertical import app as vertical_app
from fedarena.config.errors import CannotWrite, FedarenaError


class CommandGroup(typer.core.TyperGroup):
    """All commands end alike: a user's mistake is one message and exit code 2, Ctrl-C is 130 and says how to go on."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse what no shell can type, and no file can be called."""
        if any("\0" in arg for arg in args):
            raise typer.BadParameter("an argument holds a NUL byte: leave it out")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed."""
        try:
            return super().invoke(ctx)
        except FedarenaError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt as stopped:
            print("\n".join(["\ninterrupted", *getattr(stopped, "__notes__", [])]), file=sys.stderr)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Which federated-learning algorithm suits your federation? Start with `fedarena run digits`.",
)
data_app = typer.Typer(no_args_is_help=True, help="Get data sets and look at how they are dealt to clients.")
app.add_typer(data_app, name="data")
app.add_typer(vertical_app, name="vertical")

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change a key: `--set local.lr=0.05`. May be repeated.")]
File = Annotated[Path | None, typer.Option("--file", help="A Python file of yours that registers components.")]
Workers = Annotated[
    int | None, typer.Option(help="Worker processes, at most four a core; as many as cores by default.")
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Ray cluster: `auto`, HOST:PORT or ray://HOST:PORT; one on this machine by default. Needs `fedarena[ray]`."
    ),
]


class RuntimeChoice(StrEnum):
    """Where clients run."""

    serial = "serial"
    processes = "processes"
    ray = "ray"


class PoolRuntimeChoice(StrEnum):
    """Where whole runs are made."""

    processes = "processes"
    ray = "ray"


class SearchMethodChoice(StrEnum):
    """How a search chooses what to try."""

    tpe = "tpe"
    random = "random"
    grid = "grid"


class TuningScopeChoice(Enum):
    """How often a comparison is tuned."""

    split = "split"
    repeat = "repeat"
    once = "once"


class ScoreChoice(StrEnum):
    """Which accuracy of a run counts."""

    best = "best"
    final = "final"


class FigureFormatChoice(StrEnum):
    """What figures are written as."""

    pdf = "pdf"
    png = "png"


class TableFormatChoice(StrEnum):
    """What tables are written as."""

    latex = "latex"
    markdown = "markdown"


class ListChoice(StrEnum):
    """What can be listed."""

    algorithms = "algorithms"
    partitions = "partitions"
    models = "models"
    datasets = "datasets"
    metrics = "metrics"
    papers = "papers"


class SizeChoice(StrEnum):
    """How much of a published table or figure is run."""

    smoke = "smoke"
    small = "small"
    full = "full"


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        import fedarena

        print(fedarena.__version__)
        raise typer.Exit


@app.command()
def run(
    experiment: Annotated[
        str | None,
        typer.Argument(help="An experiment file, a data set's name, or a CSV or Parquet file.", show_default=False),
    ] = None,
    set_: Set = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; the next free one under runs/ by default.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    from_intact: Annotated[
        bool,
        typer.Option(
            "--from-intact", help="With --resume: if files of the newest round are damaged, use the last intact round."
        ),
    ] = False,
    runtime: Annotated[RuntimeChoice, typer.Option(help="Where clients run.")] = RuntimeChoice.processes,
    workers: Workers = None,
    address: Address = None,
    file: File = None,
    track: Annotated[
        str | None, typer.Option(help="Also tell MLflow: a server's address, or a folder. Needs `fedarena[track]`.")
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run one experiment.

    `fedarena run digits`

    `fedarena run exp.toml --set local.lr=0.05 --set algorithm.name=fedsgd`

    `fedarena run hospital.csv --set data.label=diagnosis --set data.client=site --set partition=natural`

    `fedarena run digits --file mine.py --set algorithm=mine`

    `fedarena run exp.toml --runtime ray --address auto`

    `fedarena run --resume runs/digits-fedavg-seed0`
    """
    from fedarena import api

    _load(file)
    if experiment is None and resume is None:
        raise typer.BadParameter("name an experiment file or a data set, e.g. `fedarena run digits`")
    result = api.run(
        experiment,
        out=out,
        resume=resume,
        from_intact=from_intact,
        runtime=runtime.value,
        workers=workers,
        address=address,
        overrides=set_ or [],
        progress=not quiet,
        track=track,
    )
    for note in dict.fromkeys(result.notes):
        _say(f"note: {note}", quiet)
    if json_:
        _print_json(result.summary())
    else:
        print(result)


@app.command()
def compare(
    experiment: Annotated[
        list[str] | None,
        typer.Argument(
            help="An experiment file, a data set's name, a CSV or Parquet file, or a suite file; three or more compare on "
            "several federations.",
            show_default=False,
        ),
    ] = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", "-a", help="One who takes part: `-a fedprox:mu=0.1`. Two or more."),
    ] = None,
    folds: Annotated[int | None, typer.Option(help="Folds of the cross-validation.  [default: 5]")] = None,
    repeats: Annotated[
        int | None, typer.Option(help="How often it is repeated, with other folds.  [default: 1]")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="So many random divisions into train and test samples, instead of folds.")
    ] = None,
    fixed: Annotated[
        str,
        typer.Option(
            help="What is the same in all splits: any of `partition,start,schedule`, and with --seeds `test`.",
            show_default=False,
        ),
    ] = "",
    per_repeat: Annotated[
        str,
        typer.Option(
            help="What the folds of a repeat share: any of `partition,start,schedule`; 5 repeats or more.",
            show_default=False,
        ),
    ] = "",
    until_decided: Annotated[
        bool, typer.Option("--until-decided", help="Add whole repeats until the comparison is decided.")
    ] = False,
    at_most: Annotated[
        int | None, typer.Option(help="Most splits that --until-decided may come to.  [default: 50]")
    ] = None,
    score: Annotated[
        Literal["final", "best", "validated"] | None,
        typer.Option(
            help="Round that counts; `validated`: chosen on held-out training samples, `best`: on test samples.  "
            "[default: final]"
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Any of `fedarena list metrics`.  [default: accuracy]", show_default=False)
    ] = None,
    evaluate_on: Annotated[
        Literal["common", "own", "own:uniform"] | None,
        typer.Option(help="Whose test samples decide.  [default: common; own where clients keep models]"),
    ] = None,
    rope: Annotated[
        float | None, typer.Option(help="Largest difference that does not matter.  [default: the metric's, 0.01]")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Probability above which a verdict is given.  [default: 0.95]")
    ] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="Also train on all rows in one place, to show beside.")
    ] = True,
    set_: Set = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the comparison; the next free one under runs/ by default.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the comparison in this folder.")] = None,
    tune: Annotated[
        int | None, typer.Option(help="Trials for every algorithm, of its own search space, before they meet.")
    ] = None,
    tune_per: Annotated[
        TuningScopeChoice | None,
        typer.Option(help="Tune in each split, in each repetition, or once.  [default: split]"),
    ] = None,
    tune_method: Annotated[
        SearchMethodChoice | None, typer.Option(help="How trials are chosen.  [default: tpe]")
    ] = None,
    spaces: Annotated[
        Path | None, typer.Option(help="Other search spaces: a TOML file with a table for an algorithm.")
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(help="Everyone at each value of a key of the uplink: `uplink.noise=0,0.5,1,2`.")
    ] = None,
    leave_one_out: Annotated[
        bool,
        typer.Option(
            "--leave-one-out",
            help="Also repeat it without each client in turn (at most 50), and say what the others lose.",
        ),
    ] = False,
    leave_out: Annotated[
        list[str] | None,
        typer.Option("--leave-out", help="Only without this client: `--leave-out Cleveland`. May be repeated."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Also write a report to this HTML file.")] = None,
    runtime: Annotated[PoolRuntimeChoice, typer.Option(help="Where runs are made.")] = PoolRuntimeChoice.processes,
    workers: Workers = None,
    address: Address = None,
    file: File = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be run, how long it takes and how much disk.")
    ] = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare algorithms on the same splits and say which is better, by a Bayesian test.

    `fedarena compare digits -a fedavg -a fedprox:mu=0.1 -a scaffold`

    `fedarena compare exp.toml -a fedavg -a fedavgm:beta=0.9+fedir --folds 5 --repeats 3 --report verdict.html`

    `fedarena compare digits -a fedavg:local.lr=0.05 -a slow=fedavg:local.lr=0.01 --seeds 8`

    `fedarena compare digits -a fedavg -a fednova -a scaffold --until-decided --at-most 50`

    `fedarena compare digits -a fedavg -a fedprox -a scaffold --tune 20`

    `fedarena compare digits -a fedavg -a fedprox --seeds 3 --set uplink.clip=1 --sweep uplink.noise=0,0.5,1,2`

    `fedarena compare hospitals.csv -a fedavg -a local --metric auc --evaluate-on own`

    `fedarena compare digits -a fedavg -a scaffold --score validated`

    `fedarena compare heart_disease -a fedavg -a local --leave-one-out`

    `fedarena compare clinics.toml banks.toml shops.toml -a fedavg -a scaffold --report suite.html`

    `fedarena compare suite.toml -a fedavg -a scaffold`

    `fedarena compare --resume runs/digits-compare`

    With several federations (files, or a suite file with `[[federation]]` blocks or a `[grid]`), each is compared by
    itself, and the verdict is about the next federation like them.

    Every split repeats all that is random: its own test samples, partition, initial weights, client schedule and batch
    order, which all algorithms of the split share. So the conclusion is about federations drawn like this one; with
    `--fixed partition` it is about this partition, with a natural partition about this federation, and with
    `--seeds N --fixed test` about these test samples. `--per-repeat partition,start,schedule` is the protocol of
    Nilsson et al. 2018, whose folds share a partition.

    `--until-decided` looks at 10 splits, then after every further repeat (5 splits or more), and stops when one algorithm
    is the best or all that may be the best are practically equal, with 99 % probability before 25 splits and 97.5 % from
    then on: looking several times finds chance differences, so that 95 % at each look would not be enough.

    `--score validated` holds out a tenth of every client's training samples (`--set evaluate.validation=0.2` changes that)
    and scores every run by the round that is best on them. It changes training, so it is decided before the runs.

    Who takes part is written `NAME[:setting=value,...][+COMPANION[:setting=value,...]]`. A setting `local.*` belongs
    to that algorithm alone, and `slow=` before it gives it a name of its own. The scores are the same for any number
    of workers, and after an interruption with `--resume`.

    With `-a local` the output also says which clients gain by the federation on their own test samples. With a natural
    partition or `--fixed partition`, `--leave-one-out` repeats the comparison without each client; added to `--resume`,
    it does so for a comparison that is finished.
    """
    from fedarena import api
    from fedarena.reports.suite_tables import show_suite
    from fedarena.reports.terminal_tables import show_comparison
    from fedarena.results.suite import SuiteComparison

    _load(file)
    if not experiment and resume is None:
        raise typer.BadParameter("name an experiment file or a data set, e.g. `fedarena compare digits -a ...`")
    source: Any = experiment[0] if experiment and len(experiment) == 1 else experiment or None
    asked: dict[str, Any] = {
        "folds": folds,
        "repeats": repeats,
        "seeds": seeds,
        "fixed": fixed,
        "per_repeat": per_repeat,
        "until_decided": until_decided,
        "at_most": at_most,
        "score": score,
        "metric": metric,
        "evaluate_on": evaluate_on,
        "rope": rope,
        "threshold": threshold,
        "resume": resume,
        "baseline": baseline,
        "tune": tune,
        "tune_per": _value(tune_per),
        "tune_method": _value(tune_method),
        "spaces": spaces,
        "sweep": sweep,
        "leave_one_out": leave_out or leave_one_out,
        "overrides": set_ or [],
    }
    if dry_run:
        from fedarena.experiments.compare import dry_run as planned

        preview = planned(source, algorithm or [], workers=workers, **asked)
        if json_:
            _print_json(preview.as_dict())
        else:
            print(preview)
        return
    result: Any = api.compare(
        source,
        algorithm or [],
        out=out,
        runtime=runtime.value,
        workers=workers,
        address=address,
        report=report,
        progress=not quiet,
        **asked,
    )
    for note in result.notes:
        _say(f"note: {note}", quiet)
    if json_:
        _print_json(result.as_dict())
    else:
        show_suite(result) if isinstance(result, SuiteComparison) else show_comparison(result)
        print(result.dir)
        if not isinstance(result, SuiteComparison) and result.plan.sweep and result.dir is not None:
            print(result.dir / "tradeoff.png")
        if report is not None:
            print(report)
    if len(result.labels) < 2:
        raise typer.Exit(1)


@app.command()
def search(
    experiment: Annotated[
        str | None,
        typer.Argument(help="An experiment file, a data set's name, or a CSV or Parquet file.", show_default=False),
    ] = None,
    space: Annotated[
        Path | None, typer.Option(help="What to try: a TOML file; the algorithm's own space by default.")
    ] = None,
    trials: Annotated[int | None, typer.Option(help="How many, those of earlier calls included.")] = None,
    preset: Annotated[str | None, typer.Option(help="A published search, e.g. `nilsson-fedavg`.")] = None,
    method: Annotated[SearchMethodChoice | None, typer.Option(help="How trials are chosen.  [default: tpe]")] = None,
    seed: Annotated[int, typer.Option(help="Of the search; the experiment's is `--set seed=1`.")] = 0,
    score: Annotated[ScoreChoice, typer.Option(help="Accuracy that counts, on rows held out.")] = ScoreChoice.best,
    ahead: Annotated[int, typer.Option(help="Trials that may be under way at once; part of the result.")] = 4,
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Stop hopeless trials early.")] = True,
    study: Annotated[Path | None, typer.Option(help="SQLite file of the study; in the folder by default.")] = None,
    set_: Set = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the search; one under runs/ that belongs to it by default.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the search in this folder.")] = None,
    runtime: Annotated[PoolRuntimeChoice, typer.Option(help="Where trials are made.")] = PoolRuntimeChoice.processes,
    workers: Workers = None,
    address: Address = None,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for good settings, on rows held out of the training rows; test rows are not looked at.

    `fedarena search digits --trials 20`

    `fedarena search exp.toml --space space.toml --trials 40 --set algorithm=fedprox`

    `fedarena search exp.toml --preset nilsson-fedavg`

    `fedarena search --resume runs/search-digits-fedavg-seed0 --trials 60`

    The same command again goes on where it stopped. Trials are the same for any number of workers.
    """
    from fedarena import api

    _load(file)
    if experiment is None and resume is None:
        raise typer.BadParameter("name an experiment file or a data set, e.g. `fedarena search digits --trials 20`")
    found = api.search(
        experiment,
        space=space,
        trials=trials,
        preset=preset,
        method=_value(method),
        seed=seed,
        score=score.value,
        ahead=ahead,
        prune=prune,
        study=study,
        out=out,
        resume=resume,
        runtime=runtime.value,
        workers=workers,
        address=address,
        progress=not quiet,
        overrides=set_ or [],
    )
    if json_:
        _print_json(found.as_dict())
    else:
        print(found)


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="The folder of a comparison, or those of runs.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="HTML file; report.html in the (first) folder by default.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Also draw figures for a paper into this folder.")] = None,
    form: Annotated[
        FigureFormatChoice, typer.Option("--format", help="What figures are written as.")
    ] = FigureFormatChoice.pdf,
    table: Annotated[TableFormatChoice | None, typer.Option(help="Print the tables, for a paper or a page.")] = None,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make one HTML file of a comparison, or of any runs: verdict, curves, costs, clients, and how to repeat it.

    `fedarena report runs/digits-compare`

    `fedarena report runs/digits-fedavg-seed0 runs/digits-scaffold-seed0 -o both.html`

    `fedarena report runs/digits-compare --figures figures --format png --table latex`

    Runs that differ only in algorithm, local settings and split are judged like a comparison, if all were run on the
    same splits. The file needs no network.
    """
    from fedarena.config.limits import check_paths
    from fedarena.reports import collect_runs, why_no_verdict, write_report
    from fedarena.results.suite_plan import holds_suite

    _load(file)
    check_paths(("--out", out), ("--figures", figures))
    if len(runs) == 1 and holds_suite(runs[0]):
        _report_suite(runs[0], out, figures is not None or table is not None, json_, quiet)
        return
    result = collect_runs(runs)
    path = write_report(result, out or runs[0] / "report.html")
    drawn: list[Path] = []
    if figures is not None:
        from fedarena.reports.paper_figures import write_figures

        drawn = write_figures(result, figures, form.value)
    tables = None
    if table is not None:
        from fedarena.reports.text_tables import text_tables

        tables = text_tables(result, table.value)
    why = why_no_verdict(result)
    if json_:
        told = {"report": str(path), "figures": list(map(str, drawn)), "tables": tables, "algorithms": result.labels}
        _print_json({**told, "verdict": [] if why else result.words, "no_verdict": why})
        return
    _say(f"no verdict: {why}" if why else "\n".join(result.words), quiet)
    if tables is not None:
        print(tables)
    else:
        print("\n".join(map(str, [path, *drawn])))


def _report_suite(folder: Path, out: Path | None, has_extras: bool, json_: bool, quiet: bool) -> None:
    from fedarena import api
    from fedarena.results.suite import SuiteComparison

    if has_extras:
        raise typer.BadParameter("--figures and --table are for one federation: name a folder of FOLDER/federations")
    result = SuiteComparison.load(folder)
    path = api.report(result, out)
    if json_:
        _print_json({"report": str(path), "algorithms": result.labels, "verdict": result.words})
        return
    _say("\n".join(result.words), quiet)
    print(path)


@app.command("list")
def list_(
    kind: Annotated[ListChoice, typer.Argument(help="What to list.")],
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """List what an experiment can name, with settings and defaults, metrics, or the published tables and figures.

    `fedarena list algorithms`

    `fedarena list models --json`

    `fedarena list papers`
    """
    from fedarena.config.registry import components

    _load(file)
    if kind is ListChoice.papers:
        _list_papers(json_)
        return
    if kind is ListChoice.metrics:
        _list_metrics(json_)
        return
    entries = components(kind.value[:-1]).values()  # type: ignore[arg-type]
    if json_:
        _print_json([entry.describe() for entry in entries])
        return
    _print_entries(entries)


def _print_entries(entries: Any) -> None:
    import shutil
    import textwrap

    width = min(shutil.get_terminal_size().columns, 110)
    for entry in entries:
        print(f"{entry.name}" + (f"  ({entry.paper})" if entry.paper else ""))
        print(textwrap.fill(entry.summary, width, initial_indent="    ", subsequent_indent="    "))
        for p in entry.describe()["parameters"]:
            required = entry.parameters[p["name"]].is_required
            default = "required" if required else f"default {'none' if p['default'] is None else p['default']}"
            print(f"      {p['name']}: {p['type']}, {default}")


def _list_metrics(json_: bool) -> None:
    from fedarena.statistics.metric_registry import all_metrics

    metrics = [metric.describe() for metric in all_metrics().values()]
    if json_:
        _print_json(metrics)
        return
    for metric in metrics:
        print(f"{metric['name']}  ({', '.join(metric['tasks'])}; {metric['direction']}, rope {metric['rope']:g})")
        print(f"    {metric['summary']}")


def _list_papers(json_: bool) -> None:
    from fedarena.reproduction.recipe_index import all_recipes

    recipes = [recipe.describe() for recipe in all_recipes()]
    if json_:
        _print_json(recipes)
        return
    width = max(len(recipe["name"]) for recipe in recipes)
    for recipe in recipes:
        print(f"{recipe['name']:{width}}  {recipe['summary']}")
        print(f"{'':{width}}  {recipe['paper']}")


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="A published table or figure, an id of `fedarena list papers`.", show_default=False),
    ] = None,
    size: Annotated[
        SizeChoice | None, typer.Option(help="Does it work, does the order hold, or as published.  [default: small]")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, one after the other.")] = False,
    only: Annotated[str | None, typer.Option(help="Cells to run now, as a pattern: `--only 'C=0.1 B=10 *'`.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder; one under runs/papers/ that belongs to it by default.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the reproduction in this folder.")] = None,
    save: Annotated[Path | None, typer.Option(help="Also write the result file into this folder.")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write a page about the result files of --save (papers/results) instead.")
    ] = None,
    judge: Annotated[
        Path | None, typer.Option(help="Judge this result file anew, by its recipe as it is now; nothing is run.")
    ] = None,
    workers: Workers = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a published table or figure anew: published and measured side by side, and whether they agree.

    `fedarena reproduce N-F2`

    `fedarena reproduce N-T1 --size small --save papers/results`

    `fedarena reproduce P-ROC --size full --only "C=0.1 B=10 *"`

    `fedarena reproduce --all --size smoke`

    `fedarena reproduce --page docs/reproduced.md`

    The same command again goes on where it stopped. A smaller run than the published one never `agrees`, its `ordering
    agrees`.
    """
    from fedarena import api
    from fedarena.reproduction.result import show_reproduction, show_verdicts

    asks_for_runs = any((name, everything, size, only, out, resume, workers))
    if page is not None:
        from fedarena.reproduction.reproduce import write_page

        if asks_for_runs or judge:
            raise typer.BadParameter("--page goes with --save and --json")
        _print_json({"page": str(write_page(page, save))}) if json_ else print(write_page(page, save))
        return
    if judge is not None:
        from fedarena.reproduction.reproduce import judge_again

        if asks_for_runs or save:
            raise typer.BadParameter("--judge goes with --json")
        result = judge_again(judge)
        _print_json(result.as_dict()) if json_ else show_reproduction(result)
        if result.failures:
            raise typer.Exit(1)
        return
    chosen: dict[str, Any] = {"size": _value(size), "workers": workers, "save": save, "progress": not quiet}
    if everything:
        if name or only or resume:
            raise typer.BadParameter("--all goes with --size, --out, --save and --workers")
        results = api.reproduce_all(**chosen, out=out)
        _print_json([r.as_dict() for r in results]) if json_ else show_verdicts(results)
    else:
        results = [api.reproduce(name, only=only, out=out, resume=resume, **chosen)]
        if json_:
            _print_json(results[0].as_dict())
        else:
            show_reproduction(results[0])
            print("\n".join(str(path) for path in (results[0].figure, results[0].dir) if path is not None))
    if any(result.failures for result in results):
        raise typer.Exit(1)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="A data set of `fedarena list datasets`.")],
    folder: Annotated[Path | None, typer.Option(help="Where to put it; the user's cache folder by default.")] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fetch a data set, check it and keep it for later runs.

    `fedarena data get mnist`
    """
    from fedarena.common.progress import DownloadProgress
    from fedarena.data.download import download_dataset

    with DownloadProgress(name, silent=quiet) as watch:
        path = download_dataset(name, folder=folder, progress=watch, say=lambda text: _say(text, quiet))
    if json_:
        _print_json({"name": name, "path": str(path)})
    else:
        print(path)


@data_app.command("show")
def data_show(
    experiment: Annotated[str, typer.Argument(help="An experiment file or a data set's name.")],
    plot: Annotated[Path | None, typer.Option(help="Draw it to this PNG.")] = None,
    set_: Set = None,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show who owns which rows: sizes, classes, distances from the whole.

    `fedarena data show digits --plot partition.png`

    `fedarena data show exp.toml --set partition.beta=0.1`
    """
    from fedarena.config.experiment import Experiment
    from fedarena.config.limits import check_paths
    from fedarena.data.partition_statistics import statistics
    from fedarena.engine.setup import partition_data
    from fedarena.reports.terminal_tables import show_partition

    _load(file)
    check_paths(("--plot", plot))
    exp = Experiment.make(experiment, set_ or [])
    data, partition = partition_data(exp)
    facts = statistics(data, partition)
    if plot is not None:
        from fedarena.reports.partition_plots import plot_partition

        try:
            plot_partition(data, partition, plot)
        except (OSError, ValueError) as error:
            raise CannotWrite(f"cannot draw {plot}: {error}", remedy="name a PNG in a folder that is there") from None
        _say(f"drawn: {plot}", quiet)
    for note in partition.notes:
        _say(f"note: {note}", quiet)
    if json_:
        _print_json({"partition": exp.partition.name, "sha256": partition.fingerprint(), **facts.as_dict()})
    else:
        show_partition(exp, facts)


@app.command()
def verify(
    run: Annotated[Path, typer.Argument(help="A run folder, or a result file of `fedarena reproduce`.")],
    row: Annotated[
        int | None, typer.Option(min=1, help="Of a result file: which of its runs; the quickest by default.")
    ] = None,
    runtime: Annotated[RuntimeChoice, typer.Option(help="Where clients run.")] = RuntimeChoice.processes,
    workers: Workers = None,
    address: Address = None,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run it once more and compare bit by bit, and check every file of its folder. Exit code 1 if anything differs.

    `fedarena verify runs/digits-fedavg-seed0`

    `fedarena verify papers/results/N-T3-small.json --row 2`
    """
    from fedarena import api

    _load(file)
    if run.suffix == ".json":
        _verify_result(run, row, json_)
        return
    verdict = api.verify(run, runtime=runtime.value, workers=workers, address=address, progress=not quiet)
    if json_:
        _print_json(
            {"same": verdict.same, "differences": verdict.differences, "weights_sha256": verdict.again.weights_sha256}
        )
    elif verdict.same:
        rounds = len(verdict.run.records)
        print(f"the same bits: {rounds} round{'s' * (rounds != 1)}, weights sha256 {verdict.again.weights_sha256[:16]}")
    else:
        print("\n".join(["not the same:", *verdict.differences[:10]]))
    if not verdict.same:
        raise typer.Exit(1)


def _verify_result(file: Path, row: int | None, json_: bool) -> None:
    from fedarena.reproduction.reproduce import verify_row

    found = verify_row(file, row)
    if json_:
        told = {"differences": found.differences, "rounded": found.rounded, "other_versions": found.other_versions}
        _print_json({"same": not found.differences, "run": found.name, **told})
    elif found.differences:
        print("\n".join([f"not the same: {found.name}", *found.differences[:10], *found.other_versions]))
    elif found.rounded:
        print("\n".join([f"the same bits of all weights: {found.name}", *found.rounded, *found.other_versions]))
    else:
        print(f"the same bits: {found.name}")
    if found.differences:
        raise typer.Exit(1)


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="An algorithm, partition, model or data set.")],
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the contract tests on a component, yours or ours. Exit code 1 if it breaks one.

    `fedarena check fedavg`

    `fedarena check mine --file mine.py`
    """
    from fedarena.experiments.component_checks import check_component

    report = check_component(name, file)
    if json_:
        _print_json(report)
    else:
        for truth in report["held"]:
            print(f"  holds   {truth}")
        for truth in report["broken"]:
            print(f"  BROKEN  {truth}")
    if report["broken"]:
        raise typer.Exit(1)


@app.command()
def bench(
    name: Annotated[
        list[str] | None,
        typer.Argument(help="Works (W1 ... W8) or suites (rounds, population, vertical, scale); all works by default."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 if a promise is not kept.")] = False,
    turns: Annotated[
        int, typer.Option("--turns", "--rounds", min=1, help="Timed turns of each design; the median counts.")
    ] = 3,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure speed against plain PyTorch loops, side by side in one run, on made-up data.

    `fedarena bench`

    `fedarena bench W1 W2 --check`

    `fedarena bench population`

    `fedarena bench scale --json`
    """
    from fedarena.bench import measure, missed_targets, print_tables
    from fedarena.common.logs import show_messages

    show_messages(quiet)
    measured = measure(name, turns)
    if json_:
        _print_json([row for rows in measured.values() for row in rows])
    else:
        print_tables(measured)
    if check and (missed := missed_targets(measured)):
        for message in missed:
            _say(message, False)
        raise typer.Exit(1)


@app.command()
def ui(
    folder: Annotated[
        Path, typer.Argument(help="Where runs and comparisons are; their folders may lie deeper.")
    ] = Path("runs"),
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; the first free one from 8765 by default.")
    ] = None,
    open_: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open it in a browser; where there is a screen by default.")
    ] = None,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show runs and comparisons on a web page, live, for this machine only. Ctrl-C ends it.

    `fedarena ui`

    `fedarena ui runs/digits-compare --port 9000 --no-open`
    """
    from fedarena.config.limits import check_path
    from fedarena.ui.server import open_server, serve

    _load(file)
    server = open_server(check_path(folder, "FOLDER"), port)
    with contextlib.suppress(KeyboardInterrupt):  # its normal end
        if json_:
            _print_json({"url": server.address, "folder": str(folder), "port": server.server_port})
        else:
            print(server.address)
        sys.stdout.flush()
        _say(f"showing {folder}; Ctrl-C ends it", quiet)
        serve(server, open_)
    _say("\ngoodbye", quiet)


mount_federation(app)


def _value(choice: Enum | None) -> Any:
    return None if choice is None else choice.value


def _load(file: Path | None) -> None:
    if file is not None:
        from fedarena.config.registry import load_file

        load_file(file)


def _print_json(value: Any) -> None:
    from fedarena.results.run_folder import as_json

    print(as_json(value))


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr)


def _interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """The command."""
    signal.signal(signal.SIGTERM, _interrupt)  # a polite kill saves and explains like Ctrl-C
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"  # not where in our code it arose
    app()
