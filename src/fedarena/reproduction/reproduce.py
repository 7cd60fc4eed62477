"""Reproduce a published table or figure: run its cells in parallel, in one folder that can be resumed, and compare.

The folder holds reproduction.json (the plan), cells/CELL/SPLIT/ (run folders), figure.png and ID-SIZE.json, the result with
every score, the experiments and the verdict. The same command again resumes it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedarena.common.folder_lock import hold_folder, interruptible, wait_until_released
from fedarena.common.formatting import as_json, format_duration
from fedarena.config.errors import BadValue, CannotWrite, located_at
from fedarena.config.experiment import Experiment
from fedarena.config.limits import check_path, check_paths
from fedarena.engine.setup import open_context
from fedarena.experiments import time_estimate
from fedarena.experiments.option_checks import check_numbers
from fedarena.experiments.task_folder import Problem, record_failure, run_catching_errors
from fedarena.reproduction import cells
from fedarena.reproduction.collect import collect_reproduction, judge_file_again
from fedarena.reproduction.plan import PLAN, ReproductionJob, ReproductionPlan
from fedarena.reproduction.recipe_index import all_recipes, recipes_folder
from fedarena.reproduction.recipes import Size, Table
from fedarena.reproduction.result import Reproduction, read_result
from fedarena.reproduction.results_page import reproduced_page
from fedarena.reproduction.score_sheet import label
from fedarena.results.json_files import write_text
from fedarena.results.run_folder import need_room, room_for, versions
from fedarena.results.run_status import read_status
from fedarena.runtimes.cleanup import temporary_folder
from fedarena.runtimes.process_pool import ProcessPool
from fedarena.runtimes.single_thread import one_thread
from fedarena.runtimes.worker_count import limit_workers, usable_cores

LOSS, ACCURACY = 1e-6, 5e-4  # tolerances of rounding between processors: relative, and absolute
TICK = 60.0  # seconds between two empty results of the pool
KEPT, TABLES = 1, 1 << 18  # models and bytes of tables that a finished run leaves on disk


def reproduce(
    name: str | None = None,
    size: Size | None = None,
    *,
    only: str | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    save: str | Path | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> Reproduction:
    """Reproduce a published table or figure, or resume it, and report whether it agrees.

    `name` is an id of `fedarena list papers`; `size` is smoke (a quick test), small (the default) or full (as published).
    `only` is a pattern of cells to run now; cells that were run before count too. The folder is `out`, or one under
    `runs/papers/` for this recipe and size. `save` is a folder into which the result file is copied.

    >>> import fedarena as fa
    >>> fa.reproduce("N-F2").verdict
    'agrees'
    """
    check_numbers(workers=(workers, 1))
    if out is not None and resume is not None:
        raise BadValue("a resumed reproduction stays in its folder", remedy="leave out --out", where="--out")
    check_paths(("--out", out), ("--resume", resume), ("--save", save))
    plan = ReproductionPlan.make(name, size, only, resume)
    root = Path(resume or out or default_folder(plan))
    if workers is not None:
        jobs = max(len(plan.requested), 1)
        workers = limit_workers(workers, jobs, f"it has {jobs} run{'s' * (jobs != 1)}")
    check_reproduction(plan, root, workers)
    for folder, option in ((root, "--out"), (save, "--save")):
        if folder is not None:
            need_folder(Path(folder), option)
    with interruptible("reproduce", root), hold_folder(root):
        wait_until_released(root / job.name for job in plan.requested)
        write_text(root / PLAN, as_json(plan.as_dict(plan.check_resume(root))))
        _run_jobs(plan, root, workers, progress)
        result = collect_reproduction(plan, root)
        result.write(root)
        if save is not None:
            result.write(Path(save))
        return result


def reproduce_all(
    size: Size | None = None,
    *,
    out: str | Path | None = None,
    save: str | Path | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> list[Reproduction]:
    """Reproduce all recipes one after the other; all of them are checked before the first begins."""
    check_paths(("--out", out), ("--save", save))
    plans = [ReproductionPlan(recipe, size or "small") for recipe in all_recipes()]
    for plan in plans:
        check_reproduction(plan)
    if save is not None:
        need_folder(Path(save), "--save")
    found = []
    for plan in plans:
        folder = None if out is None else Path(out) / default_folder(plan).name
        more: Table = {"out": folder, "save": save, "workers": workers, "progress": progress}
        found.append(reproduce(plan.recipe.id, plan.size, **more))
        if progress:
            _print(str(found[-1]))
    return found


def default_folder(plan: ReproductionPlan) -> Path:
    """Return the folder of a recipe and size, so that the same command resumes it and parts add up."""
    return Path("runs") / "papers" / f"{plan.recipe.id.lower()}-{plan.size}"


# Before any work


def check_reproduction(plan: ReproductionPlan, root: Path | None = None, workers: int | None = None) -> None:
    """Raise if data are missing, the folder belongs to something else, or the disk has too little space."""
    if root is not None:
        plan.check_resume(root)
    needed, most = 0, 0
    with one_thread():  # before workers are forked, nothing here may start threads of its own
        for job, many in _representatives(plan.requested):
            with located_at(f"{plan.recipe.id} {label(job.made_by)}"):
                kept, room = _disk_bytes(job)
            needed, most = needed + many * kept, max(most, room)
    if root is not None and not all(job.is_done(root) for job in plan.requested):
        existing = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
        need_room(existing, needed + (workers or usable_cores()) * most, f"{plan.recipe.id} at size {plan.size}")


def need_folder(folder: Path, option: str) -> None:
    """Create a folder if it does not exist; raise if that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if folder.is_file() else error.strerror
        raise CannotWrite(f"cannot write {folder}: {why}", remedy=f"choose another folder with {option}") from None


def _representatives(jobs: list[ReproductionJob]) -> Iterator[tuple[ReproductionJob, int]]:
    """Yield jobs that cover each data set, partition, model and algorithm, and how many jobs each represents."""
    seen: set[str] = set()
    chosen: dict[int, int] = {}
    for place, job in enumerate(jobs):
        parts = {f"{key} {job.table[key]}" for key in ("data", "partition", "model", "algorithm") if key in job.table}
        if not chosen or not parts <= seen:
            chosen[place] = 0
            seen |= parts
        chosen[max(chosen)] += 1
    yield from ((jobs[place], many) for place, many in chosen.items())


def _disk_bytes(job: ReproductionJob) -> tuple[int, int]:
    """Return the bytes that a job leaves on disk and those that it needs while it runs; raise if it cannot run."""
    if job.kind not in ("run", "open"):
        cells.check_cell(job.kind, job.table)
        return 0, 0
    context = open_context(Experiment.make(job.table))
    return (KEPT * context.initial.nbytes + TABLES, room_for(context)) if job.kind == "run" else (0, 0)


# The work


def _run_jobs(plan: ReproductionPlan, root: Path, workers: int | None, progress: bool) -> None:
    """Run every job that has no result yet; failures are recorded in their folders, and the others continue."""
    todo = [job for job in plan.requested if not job.is_done(root)]
    workers_used = min(workers or usable_cores(), max(len(todo), 1))
    if progress:
        _begin(plan, todo, workers_used)

    def run_job(index: int) -> Problem:
        job = todo[index]
        return run_catching_errors(lambda: cells.run_cell(job.kind, job.table, root / job.name))

    pool, began = ProcessPool(run_job, workers), time.monotonic()
    try:
        for index in range(len(todo)):
            pool.submit(index)
        ended = 0
        for result in pool.results(TICK):
            if result is not None:
                index, problem = result
                record_failure(root / todo[index].name, problem)
                ended += 1
                if progress:
                    left = (time.monotonic() - began) / ended * (len(todo) - ended)
                    line = _outcome_line(todo[index], root, problem)
                    eta = f"  {format_duration(left)} left" if left >= 1 else ""
                    _print(f"{ended:>{len(str(len(todo)))}}/{len(todo)}  {line}{eta}")
    finally:
        pool.close()


def _begin(plan: ReproductionPlan, todo: list[ReproductionJob], workers_used: int) -> None:
    """Print the title and, for runs of the published size, the estimated time."""
    done = len(plan.requested) - len(todo)
    before = f", {done} of them done before" if done else ""
    count = len(plan.requested)
    _print(f"{plan.recipe.id} · {plan.recipe.title} · {plan.size} · {count} run{'s' * (count != 1)}{before}")
    if plan.size == "full" and plan.recipe.kind == "run" and todo:
        with one_thread():
            seconds = time_estimate.estimate_seconds(Experiment.make(job.table) for job in todo)
        _print(
            f"about {format_duration(seconds / workers_used)} on {workers_used} cores like these; Ctrl-C saves what is done"
        )


def _outcome_line(job: ReproductionJob, root: Path, problem: Any) -> str:
    """Return a line about a job that ended."""
    name = f"{label(job.made_by)}  {job.split.name}"
    if problem is not None:
        return f"{name}  failed: {(root / job.name / 'failure.txt').read_text(encoding='utf-8').strip()}"
    if job.kind != "run":
        return name
    seen = read_status(root / job.name)
    return f"{name}  best {seen.best or 0.0:.4f}  final {seen.accuracy or 0.0:.4f}"


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# Result files


@dataclass(frozen=True)
class RowVerification:
    """The repetition of one run of a result file: what differs, and what differs only by rounding."""

    name: str
    differences: list[str]
    rounded: list[str]  # metrics of the same weights that another processor or version summed in another order
    other_versions: list[str]  # software and processors that may be the cause


def verify_row(file: str | Path, row: int | None = None) -> RowVerification:
    """Repeat one run of a result file, the quickest or number `row`, and compare it bit by bit.

    Weights and all counts must be the same. Metrics may have been summed by another processor or version: a loss may differ
    by a millionth, an accuracy by a few samples in ten thousand.
    """
    table = read_result(check_path(file, "the result file"))
    runs = table["runs"]
    if not runs:
        raise BadValue(f"{file} has no runs", remedy="give a result that has", where=str(file))
    if not 1 <= (row or 1) <= len(runs):
        raise BadValue(f"row = {row} of {len(runs)} runs", remedy=f"give 1 to {len(runs)}", where="--row")
    then = runs[row - 1] if row else min(runs, key=lambda run: run["seconds"])
    settings, kind = {**table["common"], **then["settings"]}, table["kind"]
    with temporary_folder() as folder:
        cells.run_cell(kind, settings, folder / "again")
        now, sha = cells.cell_scores(kind, folder / "again")
    here, before = versions(), then["scores"]
    other_versions = [
        f"{n} {made} then, {here.get(n)} now" for n, made in table["versions"].items() if made != here.get(n)
    ]
    lines = {name: f"{name}: {before.get(name)} then, {now[name]} now" for name in now}
    other = [name for name in now if now[name] != before.get(name) and not _has_none(name, before.get(name), now[name])]
    rounded = [name for name in other if other_versions and _is_rounding(name, before.get(name), now[name])]
    differences = [lines[name] for name in other if name not in rounded]
    if sha != then["weights_sha256"]:
        differences.append(f"weights: sha256 {(then['weights_sha256'] or '')[:16]} then, {(sha or '')[:16]} now")
    name = f"{table['id']} {then['cell']} {then['split']}"
    return RowVerification(name, differences, [lines[name] for name in rounded], other_versions)


def _has_none(name: str, then: Any, now: Any) -> bool:
    """Return whether there is no accuracy, because there are no classes; result files of 0.2 and before have 0 there."""
    return name in ("best_accuracy", "final_accuracy") and now is None and then == 0


def _is_rounding(name: str, then: Any, now: Any) -> bool:
    if not (isinstance(then, float) and isinstance(now, float)):
        return False
    if name == "final_loss":
        return math.isclose(then, now, rel_tol=LOSS)
    return name in ("best_accuracy", "final_accuracy") and abs(then - now) <= ACCURACY


def judge_again(file: str | Path) -> Reproduction:
    """Compare the measurements of a result file with its current recipe, and write the new verdict into it."""
    result = judge_file_again(check_path(file, "--judge"))
    write_text(Path(file), as_json(result.as_dict()) + "\n")
    return result


def write_page(page: str | Path, save: str | Path | None = None) -> Path:
    """Write the page about what could and could not be reproduced from the result files of a folder."""
    check_paths(("--page", page), ("--save", save))
    folder = Path(save) if save is not None else recipes_folder() / "results"
    found = sorted(folder.glob("*.json"))
    if not found:
        raise BadValue(
            f"{folder} holds no result files",
            remedy="`fedarena reproduce ID --save FOLDER` writes them",
            where="--save",
        )
    known = {recipe.id: recipe.title for recipe in all_recipes()}
    results = [read_result(file) for file in found]
    for file, result in zip(found, results, strict=True):
        if file.name != f"{result['id']}-{result['size']}.json":
            raise BadValue(
                f"{file} is {result['id']} at size {result['size']}",
                remedy="one file for each: remove it",
                where="--save",
            )
    if Path(page).is_dir():
        raise CannotWrite(f"cannot write {page}: it is a folder", remedy="give a file with --page")
    need_folder(Path(page).absolute().parent, "--page")
    write_text(Path(page), reproduced_page(results, known))
    return Path(page)
