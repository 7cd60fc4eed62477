"""Run a comparison: every contestant on every split, in parallel, in one folder that can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedarena.common.files import free_folder
from fedarena.config.comparison_plan import Plan
from fedarena.config.errors import CannotWrite
from fedarena.config.experiment import Experiment
from fedarena.experiments import run
from fedarena.experiments.live_table import ComparisonProgress
from fedarena.experiments.plan import check_cells, make_plan
from fedarena.experiments.runtime_options import RuntimeOptions
from fedarena.experiments.task_folder import locked_folder, record_failure, run_catching_errors, run_in_folder
from fedarena.experiments.tune import run_tuning
from fedarena.experiments.until_decided import at_limit, run_until_decided
from fedarena.results import run_folder
from fedarena.results.comparison import Comparison
from fedarena.results.plan_file import FILE, write_plan
from fedarena.results.run_status import ComparisonCell, all_cells, left_out_cells
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.run_pool import embed_data, open_pool

TICK = 0.25  # seconds between two updates of the table


@dataclass(frozen=True)
class ComparisonJob:
    """The options of `compare` that do not change its plan: where it runs and is saved, and what it shows."""

    place: RuntimeOptions
    out: run.Out = None
    resume: str | Path | None = None
    report: str | Path | None = None
    progress: bool = False

    @property
    def is_temporary(self) -> bool:
        """Whether the folder is removed at the end."""
        return self.resume is None and self.out is False


def compare_federation(source: Any, algorithms: Any, job: ComparisonJob, **options: Any) -> Comparison:
    """Compare algorithms on one federation."""
    plan, place = make_plan(source, algorithms, resume=job.resume, **options), job.place
    check_cells(at_limit(plan))
    runs = len(plan.splits) * len(plan.contestants)
    trials = 0 if plan.tuned else runs * plan.tuning.get("trials", 0)
    runs += len(left_out_cells(plan, Path()))
    work = f"{trials} trials" if trials > runs else f"{runs} runs"
    place = place.with_useful_workers(max(runs, trials), f"it has {work}")
    create = lambda out: new_folder(plan, out, plan.experiment["data"]["name"])
    cell_folders = lambda root: [cell.folder for cell in all_cells(plan, root)]
    with (
        place.ready(plan.experiment["device"]) as nodes,
        locked_folder("compare", job.out, job.resume, create, cell_folders) as root,
    ):
        write_plan(plan, root)  # first: a folder that has it can be resumed
        if plan.tuning and not plan.tuned:
            plan = run_tuning(plan, root, place.workers, job.progress, nodes)
            write_plan(plan, root)
        view = ComparisonProgress(job.progress)
        plan = run_until_decided(
            plan, root, lambda plan, begun: _run_cells(plan, root, place.workers, view, nodes, begun), view.report_look
        )
        result = Comparison.of(plan, root)
        if plan.sweep:
            from fedarena.reports.paper_figures import write_tradeoff

            write_tradeoff(result, root / "tradeoff.png")
        if job.is_temporary:
            result = result.without_folders()
        if job.report is not None:
            from fedarena.reports import write_report

            write_report(result, Path(job.report))
        return result


def new_folder(plan: Plan, out: str | Path | None, stem: str, kind: str = "comparison", file: str = FILE) -> Path:
    """Return a new folder for a comparison or a suite whose plan is in `file`, with `plan` as its first one."""
    if out is None:
        return free_folder(f"{stem}-compare")
    if (Path(out) / file).exists():
        raise CannotWrite(
            f"{out} exists already and holds a {kind}",
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
