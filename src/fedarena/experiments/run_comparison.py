"""Algorithms against each other: every contestant on every split, side by side over cores, in one folder that resumes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedarena.common.folder_lock import hold_folder, interruptible, wait_until_released
from fedarena.config.errors import BadValue, CannotWrite, FedarenaError, ResumeMismatch, UnknownName, quoted, suggest
from fedarena.config.experiment import Experiment
from fedarena.config.limits import check_paths
from fedarena.config.registry import name_of
from fedarena.engine.setup import open_context, partition_data
from fedarena.experiments import run
from fedarena.experiments.contestants import Contestants, contestants
from fedarena.experiments.leave_one_out import LeaveOneOut, open_left_out, with_left_out
from fedarena.experiments.live_table import ComparisonProgress
from fedarena.experiments.runtime_options import RuntimeOptions, SideBySide
from fedarena.experiments.search import check_numbers
from fedarena.experiments.search_space import Method
from fedarena.experiments.split_options import Names, Splitting
from fedarena.experiments.sweep import Sweep, with_sweep
from fedarena.experiments.task_folder import Problem, record_failure, run_catching_errors, run_in_folder
from fedarena.experiments.tune import Per, run_tuning, with_tuning
from fedarena.experiments.until_decided import (
    at_first_look,
    at_limit,
    check_limit,
    continued,
    play_until_decided,
    with_limit,
)
from fedarena.experiments.validated_score import check_rescoring, with_validation
from fedarena.results import run_folder, tradeoff_points
from fedarena.results.comparison import Comparison, Plan, Split
from fedarena.results.run_status import ComparisonCell, all_cells, left_out_cells
from fedarena.results.scoring import SCORES, VIEWS, Score, Scoring, View
from fedarena.runtimes.cleanup import temporary_folder
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.run_pool import embed_data, open_pool
from fedarena.runtimes.run_task import one_thread
from fedarena.statistics.metric_registry import all_metrics, find_metric

TICK = 0.25  # seconds between two looks at the folders


def compare(
    source: Any = None,
    algorithms: Iterable[Any] | Mapping[str, Any] = (),
    *,
    folds: int | None = None,
    repeats: int | None = None,
    seeds: int | None = None,
    fixed: Names = (),
    per_repeat: Names = (),
    until_decided: bool = False,
    at_most: int | None = None,
    score: Score | None = None,
    metric: str | None = None,
    evaluate_on: View | None = None,
    rope: float | None = None,
    threshold: float | None = None,
    out: run.Out = None,
    resume: str | Path | None = None,
    runtime: SideBySide = "processes",
    workers: int | None = None,
    address: str | None = None,
    baseline: bool = True,
    tune: int | None = None,
    tune_per: Per | None = None,
    tune_method: Method | None = None,
    spaces: Mapping[str, Any] | str | Path | None = None,
    sweep: Sweep | None = None,
    leave_one_out: LeaveOneOut = False,
    report: str | Path | None = None,
    progress: bool = False,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Comparison:
    """Compare algorithms on the same splits, and judge by a Bayesian test.

    `algorithms` are texts such as "fedprox:mu=0.1", tables with a name, or objects; a mapping gives them labels. Every
    split repeats all that is random: test samples, partition, initial weights, client schedule and batch order, which all
    algorithms share within it. Scores come from cross-validation (`folds` 5, `repeats` 1), or from `seeds` random
    divisions of the samples. `fixed` names what is the same in all splits ("partition", "start", "schedule", or with
    `seeds` "test"), `per_repeat` what the folds of a repeat share. `until_decided` adds whole repeats, or seeds five at a
    time, until the best algorithm is known or those that may be the best are practically equal, with `at_most` splits (50);
    `repeats` or `seeds` is then the number before the first look.
    The `score` of a run is that of its last round ("final"), of the "validated" one, chosen on samples held out of clients'
    training samples (`evaluate.validation`, 0.1 of them), or of its "best" one on test samples, which is optimistic;
    `metric` is any of `fedarena list metrics`; `evaluate_on` the "common" test samples, or each client's "own" (the default
    as soon as local training or a personalised algorithm takes part; "own:uniform" weighs clients alike).
    Two are practically equal within `rope` (that of the metric: 0.01 for accuracy); a verdict needs more than `threshold`
    (0.95) probability. The folder is `out`, or the next free name under `runs/`; `out=False` keeps none. `baseline` also
    trains on all rows in one place, to be shown beside. `tune` gives everyone so many trials of its own search space, or of
    `spaces`, on rows held out of the training rows. `runtime="ray"` makes the runs on the Ray cluster at `address`, or on
    one that is started here for the purpose. `sweep` lets everyone take part at each value of a key of the uplink
    ("uplink.noise=0,0.5,1"), and draws what that costs. `leave_one_out` repeats all of it without each client in turn, or
    without each of those that it names, and judges what the others lose; the clients must be the same in all splits.
    A list of at least three sources, or a file with `[[federation]]` blocks or a `[grid]`, is a suite: each federation is
    compared by itself, and the result is a `SuiteComparison` about the next federation like them.

    >>> import fedarena as fa
    >>> duel = fa.compare("digits", ["fedavg", fa.FedProx(mu=0.1)], seeds=2, rounds=2, model="logreg", out=False)
    >>> [len(scores) for scores in duel.scores().values()]
    [2, 2]
    """
    check_numbers(workers=(workers, 1))
    place = RuntimeOptions(runtime, workers, address)
    place.check(SideBySide)
    check_places(out, resume, report)
    plan = make_plan(
        source,
        algorithms,
        folds=folds,
        repeats=repeats,
        seeds=seeds,
        fixed=fixed,
        per_repeat=per_repeat,
        until_decided=until_decided,
        at_most=at_most,
        score=score,
        metric=metric,
        evaluate_on=evaluate_on,
        rope=rope,
        threshold=threshold,
        resume=resume,
        baseline=baseline,
        tune=tune,
        tune_per=tune_per,
        tune_method=tune_method,
        spaces=spaces,
        sweep=sweep,
        leave_one_out=leave_one_out,
        overrides=overrides,
        **settings,
    )
    open_all_cells(at_limit(plan))
    runs = len(plan.splits) * len(plan.contestants)
    trials = 0 if plan.tuned else runs * plan.tuning.get("trials", 0)
    runs += len(left_out_cells(plan, Path()))
    work = f"{trials} trials" if trials > runs else f"{runs} runs"
    place = place.with_useful_workers(max(runs, trials), f"it has {work}")
    with place.ready(plan.experiment["device"]) as nodes, _folder(plan, out, resume) as root:
        if plan.tuning and not plan.tuned:
            plan = run_tuning(plan, root, place.workers, progress, nodes)
            plan.write(root)
        view = ComparisonProgress(progress)
        plan = play_until_decided(
            plan, root, lambda plan, begun: _run_cells(plan, root, place.workers, view, nodes, begun), view.report_look
        )
        result = Comparison.of(plan, root)
        if plan.sweep:
            tradeoff_points.write(result, root / "tradeoff.png")
        if resume is None and out is False:
            result = _without_folders(result)
        if report is not None:
            from fedarena.reports import write_report

            write_report(result, Path(report))
        return result


# Before any work


def make_plan(
    source: Any = None,
    algorithms: Iterable[Any] | Mapping[str, Any] = (),
    *,
    folds: int | None = None,
    repeats: int | None = None,
    seeds: int | None = None,
    fixed: Names = (),
    per_repeat: Names = (),
    until_decided: bool = False,
    at_most: int | None = None,
    score: Score | None = None,
    metric: str | None = None,
    evaluate_on: View | None = None,
    rope: float | None = None,
    threshold: float | None = None,
    resume: str | Path | None = None,
    baseline: bool = True,
    tune: int | None = None,
    tune_per: Per | None = None,
    tune_method: Method | None = None,
    spaces: Mapping[str, Any] | str | Path | None = None,
    sweep: Sweep | None = None,
    leave_one_out: LeaveOneOut = False,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Plan:
    """The plan that these arguments of `compare` ask for, or that of the folder to resume."""
    check_numbers(folds=(folds, 2), repeats=(repeats, 1), seeds=(seeds, 2))
    check_limit(until_decided, at_most)
    splitting = Splitting.asked(folds, repeats, seeds, fixed, per_repeat)
    _check_judging(rope, threshold, score, metric, evaluate_on)
    check_rescoring(score, resume)
    asked = {"score": score, "metric": metric, "evaluate_on": evaluate_on, "rope": rope, "threshold": threshold}
    judging: dict[str, Any] = {k: v for k, v in asked.items() if v is not None}
    unchanged = BadValue("a resumed comparison stays as it was", remedy="leave out all but --resume", where="--resume")
    if resume is not None and (source is None) != (not algorithms):
        raise unchanged
    if resume is not None and source is None and not algorithms:
        plan = continued(_with_judging(Plan.read(Path(resume)), judging), until_decided, at_most)
        without = not baseline and plan.reference is not None
        if any((overrides, settings, splitting, tune, tune_per, tune_method, spaces, without, sweep)):
            raise unchanged
        return with_left_out(plan, leave_one_out)
    experiment = with_validation(Experiment.make(source, overrides, **settings), score)
    if metric is not None:
        experiment = experiment.with_(evaluate={"metric": metric})
    if sweep is not None and tune is not None:
        raise BadValue("a sweep is not tuned", remedy="leave out --tune or --sweep", where="--sweep")
    entered, what = (contestants(algorithms), {}) if sweep is None else with_sweep(algorithms, sweep)
    plan = replace(_plan(experiment, entered, baseline, splitting, judging), sweep=what)
    plan = with_tuning(plan, tune, entered, tune_method, tune_per, spaces)
    if resume is None:
        return with_left_out(with_limit(plan, splitting, until_decided, at_most), leave_one_out)
    before = continued(Plan.read(Path(resume)), until_decided, at_most)
    plan = with_limit(plan, splitting, until_decided, before.at_most if until_decided else None)
    plan = _with_judging(_same_plan(plan, before, Path(resume)), judging)
    return with_left_out(plan, leave_one_out)


def _without_folders(result: Comparison) -> Comparison:
    """Return a comparison whose folder is about to be removed."""
    runs = {label: [replace(run, dir=None) for run in runs] for label, runs in result.runs.items()}
    without = {
        client: {label: [replace(run, dir=None) for run in runs] for label, runs in by_label.items()}
        for client, by_label in result.without.items()
    }
    return replace(result, runs=runs, without=without, dir=None)


def _with_judging(plan: Plan, judging: Mapping[str, Any]) -> Plan:
    """Change how known scores are judged, and note it: choosing the judgement after the scores is not a fair test."""
    changed: dict[str, Any] = {key: new for key, new in judging.items() if getattr(plan, key) != new}
    if changed and plan.at_most is not None:
        key = next(iter(changed))
        raise BadValue(
            f"the looks of this comparison are made with {key} = {getattr(plan, key)}, which cannot change",
            remedy=f"leave out --{key.replace('_', '-')}, or compare again in a new folder",
            where="--resume",
        )
    notes = [f"{key} was {getattr(plan, key)} at first, and became {new} later" for key, new in changed.items()]
    plan = replace(plan, **changed, notes=(*plan.notes, *notes))
    Scoring(plan.score, plan.metric, plan.evaluate_on).check()
    return plan


def _check_judging(
    rope: float | None, threshold: float | None, score: str | None, metric: str | None, evaluate_on: str | None
) -> None:
    if rope is not None and not 0 <= rope < math.inf:
        raise BadValue(
            f"rope = {rope}", remedy="give the largest difference that does not matter, e.g. 0.01", where="--rope"
        )
    if threshold is not None and not 0.5 <= threshold < 1:
        raise BadValue(
            f"threshold = {threshold}", remedy="give a probability from 0.5 to below 1, e.g. 0.95", where="--threshold"
        )
    named = {"--score": (score, SCORES), "--metric": (metric, all_metrics()), "--evaluate-on": (evaluate_on, VIEWS)}
    for option, (value, known) in named.items():
        if value is not None and value not in known:
            raise UnknownName(
                f"{option} {quoted(value)}",
                remedy=suggest(str(value), known, f"give one of: {', '.join(known)}"),
                where=option,
            )


def check_places(out: Any, resume: Any, report: Any) -> None:
    if out is True:
        raise BadValue("out = True", remedy="give a folder, or False to keep nothing", where="--out")
    if out and resume is not None:
        raise BadValue("a resumed comparison stays in its folder", remedy="leave out --out", where="--out")
    check_paths(("--out", out), ("--resume", resume), ("--report", report))
    if report is not None and not Path(report).absolute().parent.is_dir():
        raise CannotWrite(f"there is no folder for {report}", remedy="make it, or choose another", where="--report")


def _plan(
    experiment: Experiment,
    named: Contestants,
    baseline: bool,
    splitting: Splitting,
    judging: dict[str, Any],
) -> Plan:
    splitting.check_experiment(experiment)
    reference = None
    if baseline and not any(_name(table["algorithm"]) == "centralized" for table in named.values()):
        reference = "centralized"
        if reference in map(str.casefold, named):
            raise BadValue(
                "'centralized' is the name of the baseline", remedy="choose another, or --no-baseline", where="-a"
            )
        named = {**named, reference: {"algorithm": reference}}
    metric = experiment.evaluate.metric or "accuracy"
    scoring: dict[str, Any] = {"score": "final", "metric": metric, "evaluate_on": _view(experiment, named), **judging}
    Scoring(scoring["score"], metric, scoring["evaluate_on"]).check()
    return Plan.make(
        experiment,
        named,
        reference=reference,
        versions=run_folder.versions(),
        **splitting.of_plan,
        **{"rope": all_metrics()[metric].rope, **scoring},
    )


def _view(experiment: Experiment, named: Contestants) -> View:
    """Return whose test samples decide: clients' own as soon as an algorithm gives clients models of their own."""
    made = [experiment.with_(**table).algorithm.made for table in named.values()]
    return "own" if any(one.personal for one in made) else "common"


def _name(algorithm: Any) -> str:
    if isinstance(algorithm, Mapping):
        return str(algorithm["name"])
    return algorithm if isinstance(algorithm, str) else name_of(algorithm)


def _same_plan(plan: Plan, before: Plan, root: Path) -> Plan:
    """The plan of the folder, if it asks for the same runs."""
    if before.protocol == "shared" and not plan.fixed:  # made before splits had seeds of their own: it goes on so
        plan = replace(plan, protocol="shared", per_repeat=())
    first = at_first_look(before)
    kept = ("experiment", "contestants", "reference", "folds", "repeats", "tuning", "protocol", "fixed", "per_repeat")
    for key in ("at_most", *kept):
        found = _difference(key, getattr(first, key), getattr(plan, key))
        if found:
            raise ResumeMismatch(
                f"{root} compares something else: {found}",
                remedy=f"resume it as it was: fedarena compare --resume {root}",
                where="--resume",
            )
    return replace(before, own=plan.own)


def _difference(key: str, old: Any, new: Any) -> str:
    """The first setting that differs, in words; nothing if none does."""
    if isinstance(old, dict) and isinstance(new, dict):
        inner = (_difference(f"{key}.{k}", old.get(k), new.get(k)) for k in {**old, **new})
        return next(filter(None, inner), "")
    return "" if old == new else f"its {key.removeprefix('experiment.')} is {old}, not {new}"


def open_all_cells(plan: Plan) -> None:
    """Every split, and every contestant with each number of clients that have rows: what can be wrong shows here."""
    anyone = next(iter(plan.contestants))
    with one_thread():  # before workers are forked, nothing here may start threads of its own
        populations: dict[int, Split] = {}
        tests: set[tuple[str, bytes]] = set()
        for split in plan.splits:
            with named_in_errors(split.name):
                data, partition = partition_data(plan.cell(anyone, split))
            populations.setdefault(len(partition.population), split)
            if "test" in plan.fixed:
                tests.add((data.fingerprint(), partition.test.tobytes()))
        if len(tests) > 1:
            raise BadValue(
                "the test samples follow from the seed here, so they cannot stay the same",
                remedy="leave out --fixed test, or give the data set test samples of its own",
                where="--fixed",
            )
        for split in populations.values():
            for label in plan.contestants:
                with named_in_errors(label):
                    find_metric(plan.metric, open_context(plan.cell(label, split)).task_name, "--metric")
        open_left_out(plan)


@contextlib.contextmanager
def named_in_errors(label: str) -> Iterator[None]:
    """Say which contestant or split an error is about."""
    try:
        yield
    except FedarenaError as error:
        raise type(error)(
            error.what, remedy=error.remedy, where=f"{label}: {error.where}" if error.where else label
        ) from None


# The folder


@contextlib.contextmanager
def _folder(plan: Plan, out: run.Out, resume: str | Path | None) -> Iterator[Path]:
    """The comparison's folder, ours alone and with its plan in it."""
    with contextlib.ExitStack() as stack:
        if resume is not None:
            root = Path(resume)
        elif out is False:
            root = stack.enter_context(temporary_folder())
        else:
            root = _new_folder(plan, out)
        if resume is not None or out is not False:
            stack.enter_context(interruptible("compare", root))
        stack.enter_context(hold_folder(root))
        wait_until_released(cell.folder for cell in all_cells(plan, root))
        plan.write(root)  # first: a folder that has it can be resumed
        yield root


def _new_folder(plan: Plan, out: str | Path | None) -> Path:
    if out is None:
        return run_folder.free_folder(f"{plan.experiment['data']['name']}-compare")
    if (Path(out) / "comparison.json").exists():
        raise CannotWrite(
            f"{out} is there already and holds a comparison",
            remedy=f"go on with it: fedarena compare --resume {out}, or choose another folder",
            where="--out",
        )
    return run_folder.new_folder(plan.cell(next(iter(plan.contestants)), plan.splits[0]), out)


# The work


def _run_cells(
    plan: Plan, root: Path, workers: int | None, view: ComparisonProgress, nodes: ClusterNodes | None, begun: int = 0
) -> None:
    """Run every cell that has no result yet, those of a split together: half a matrix is then a smaller comparison.

    Cells of the first `begun` repeats were run before, and those of them that failed are not tried again.
    """

    def experiment_of(cell: ComparisonCell) -> Experiment:
        return plan.cell(cell.label, cell.split, cell.without)

    run_cells(plan, all_cells(plan, root), experiment_of, workers, view, nodes, begun)


def run_cells(
    title: Plan | str,
    everyone: Sequence[ComparisonCell],
    experiment_of: Callable[[ComparisonCell], Experiment],
    workers: int | None,
    view: ComparisonProgress,
    nodes: ClusterNodes | None,
    begun: int = 0,
) -> None:
    """Run those of the cells that have no result yet, from repeat `begun` on, in their order, on one pool of workers."""
    todo = [c for c in everyone if c.split.repeat >= begun and not (c.folder / "result.json").exists()]
    work = [experiment_of(cell) for cell in todo]
    if nodes is not None:
        work = embed_data(work)
    crew = open_pool(lambda position, folder: _run(work[position], folder), workers, nodes)
    try:
        view.start(title, everyone)
        for position, cell in enumerate(todo):
            crew.submit(position, folder=cell.folder)
        for news in crew.results(TICK):
            if news is not None:
                position, problem = news
                record_failure(todo[position].folder, problem)
                view.finish_cell(todo[position])
            view.update([todo[position] for position in crew.running])
    finally:
        crew.close()
        view.stop()


def _run(experiment: Experiment, folder: Path) -> Problem:
    """One cell, in a worker: begun, or gone on with."""
    return run_catching_errors(lambda: run_in_folder(experiment, folder))
