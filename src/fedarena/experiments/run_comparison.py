"""Run a comparison: every contestant on every split, in parallel, in one folder that can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedarena.common.files import free_folder
from fedarena.config.comparison_plan import Plan, Score, View
from fedarena.config.errors import CannotWrite
from fedarena.config.experiment import Experiment
from fedarena.experiments import run
from fedarena.experiments.left_out_clients import LeaveOneOut
from fedarena.experiments.live_table import ComparisonProgress
from fedarena.experiments.plan import check_cells, make_plan
from fedarena.experiments.runtime_options import RuntimeOptions, SideBySide
from fedarena.experiments.search_space import Method
from fedarena.experiments.split_options import Names
from fedarena.experiments.sweep import Sweep
from fedarena.experiments.task_folder import locked_folder, record_failure, run_catching_errors, run_in_folder
from fedarena.experiments.tune import Per, run_tuning
from fedarena.experiments.until_decided import at_limit, run_until_decided
from fedarena.results import run_folder
from fedarena.results.comparison import Comparison
from fedarena.results.plan_file import FILE, write_plan
from fedarena.results.run_status import ComparisonCell, all_cells, left_out_cells
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.run_pool import embed_data, open_pool

TICK = 0.25  # seconds between two updates of the table


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
    """Compare algorithms on the same splits by a Bayesian test.

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
    (0.95) probability. The folder is `out`, or the next free name under `runs/`; `out=False` saves none. `baseline` also
    trains on all samples in one place and shows the result beside the others. `tune` gives every algorithm this many trials
    of its own search space, or of `spaces`, on samples held out of the training samples. `runtime="ray"` makes the runs on
    the Ray cluster at `address`, or on one that is started here for the purpose. `sweep` runs every algorithm at each value
    of a key of the uplink ("uplink.noise=0,0.5,1"), and draws what that costs. `leave_one_out` repeats the comparison
    without each client in turn, or without each client that it names, and reports what the others lose; the clients must
    be the same in all splits.
    A list of at least three sources, or a file with `[[federation]]` blocks or a `[grid]`, is a suite: each federation is
    compared by itself, and the result is a `SuiteComparison` about the next federation like them.

    >>> import fedarena as fa
    >>> duel = fa.compare("digits", ["fedavg", fa.FedProx(mu=0.1)], seeds=2, rounds=2, model="logreg", out=False)
    >>> [len(scores) for scores in duel.scores().values()]
    [2, 2]
    """
    place = RuntimeOptions(runtime, workers, address)
    place.check(SideBySide)
    run.check_folders("comparison", out, resume, report)
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
    check_cells(at_limit(plan))
    runs = len(plan.splits) * len(plan.contestants)
    trials = 0 if plan.tuned else runs * plan.tuning.get("trials", 0)
    runs += len(left_out_cells(plan, Path()))
    work = f"{trials} trials" if trials > runs else f"{runs} runs"
    place = place.with_useful_workers(max(runs, trials), f"it has {work}")
    cell_folders = lambda root: [cell.folder for cell in all_cells(plan, root)]
    with (
        place.ready(plan.experiment["device"]) as nodes,
        locked_folder("compare", out, resume, lambda out: _new_folder(plan, out), cell_folders) as root,
    ):
        write_plan(plan, root)  # first: a folder that has it can be resumed
        if plan.tuning and not plan.tuned:
            plan = run_tuning(plan, root, place.workers, progress, nodes)
            write_plan(plan, root)
        view = ComparisonProgress(progress)
        plan = run_until_decided(
            plan, root, lambda plan, begun: _run_cells(plan, root, place.workers, view, nodes, begun), view.report_look
        )
        result = Comparison.of(plan, root)
        if plan.sweep:
            from fedarena.reports.paper_figures import write_tradeoff

            write_tradeoff(result, root / "tradeoff.png")
        if resume is None and out is False:
            result = result.without_folders()
        if report is not None:
            from fedarena.reports import write_report

            write_report(result, Path(report))
        return result


def _new_folder(plan: Plan, out: str | Path | None) -> Path:
    if out is None:
        return free_folder(f"{plan.experiment['data']['name']}-compare")
    if (Path(out) / FILE).exists():
        raise CannotWrite(
            f"{out} exists already and holds a comparison",
            remedy=f"resume it: fedarena compare --resume {out}, or choose another folder",
            where="--out",
        )
    return run_folder.new_folder(plan.cell(next(iter(plan.contestants)), plan.splits[0]), out)


def _run_cells(
    plan: Plan, root: Path, workers: int | None, view: ComparisonProgress, nodes: ClusterNodes | None, begun: int = 0
) -> None:
    """Run every cell that has no result yet, split by split, so that a part of the plan is a smaller comparison.

    Cells of the first `begun` repeats were run before, and those of them that failed are not run again.
    """

    def experiment_of(cell: ComparisonCell) -> Experiment:
        return plan.cell(cell.label, cell.split, cell.without)

    run_cells(plan, all_cells(plan, root), experiment_of, workers, view, nodes, begun)


def run_cells(
    title: Plan | str,
    cells: Sequence[ComparisonCell],
    experiment_of: Callable[[ComparisonCell], Experiment],
    workers: int | None,
    view: ComparisonProgress,
    nodes: ClusterNodes | None,
    begun: int = 0,
) -> None:
    """Run the cells that have no result yet, from repeat `begun` on, in order, on one pool of workers."""
    todo = [c for c in cells if c.split.repeat >= begun and not (c.folder / "result.json").exists()]
    work = [experiment_of(cell) for cell in todo]
    if nodes is not None:
        work = embed_data(work)
    pool = open_pool(lambda position, folder: _run_cell(work[position], folder), workers, nodes)
    try:
        view.start(title, cells)  # first: tasks start as soon as they are submitted
        for position, cell in enumerate(todo):
            pool.submit(position, folder=cell.folder)
        for ended in pool.results(TICK):
            if ended is not None:
                position, problem = ended
                record_failure(todo[position].folder, problem)
                view.finish_cell(todo[position])
            view.update([todo[position] for position in pool.running])
    finally:
        pool.close()
        view.stop()


def _run_cell(experiment: Experiment, folder: Path) -> str | CannotWrite | None:
    """Run or resume one cell in a worker, and return its error as a value."""
    return run_catching_errors(lambda: run_in_folder(experiment, folder))
