"""A published table or figure, run anew: cell by cell over cores, in one folder that resumes, judged and shown.

The folder holds reproduction.json (what is run), cells/CELL/SPLIT/ (run folders), figure.png and ID-SIZE.json, the result:
every score, the experiments, the verdict. The same command again goes on where it stopped.
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
from fedarena.common.formatting import format_duration
from fedarena.config.errors import BadValue, CannotWrite, located_at
from fedarena.config.experiment import Experiment
from fedarena.config.limits import check_path, check_paths
from fedarena.engine.setup import open_context
from fedarena.experiments import time_estimate
from fedarena.experiments.search import check_numbers
from fedarena.experiments.task_folder import Problem, record_failure, run_catching_errors
from fedarena.reproduction import cells
from fedarena.reproduction.agreement import label
from fedarena.reproduction.collect import collect_reproduction, judge_file_again
from fedarena.reproduction.plan import PLAN, ReproductionJob, ReproductionPlan
from fedarena.reproduction.recipe_index import all_recipes, recipes_folder
from fedarena.reproduction.recipes import Size, Table
from fedarena.reproduction.result import Reproduction, read_result
from fedarena.reproduction.results_page import reproduced_page
from fedarena.results import run_folder
from fedarena.results.run_status import read_status
from fedarena.runtimes.cleanup import temporary_folder
from fedarena.runtimes.process_pool import ProcessPool
from fedarena.runtimes.run_task import one_thread
from fedarena.runtimes.worker_count import limit_workers, usable_cores

LOSS, ACCURACY = 1e-6, 5e-4  # as far as the same weights may be apart on the same rows: of itself, and in all
TICK = 60.0  # seconds; nothing is done at a tick
KEPT, TABLES = 1, 1 << 18  # models that a finished run keeps on disk, and bytes of its tables


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
    """Run a published table or figure anew, or go on with it, and judge whether it agrees.

    `name` is an id of `fedarena list papers`; `size` is smoke (does it work?), small (the default) or full (as published).
    `only` is a pattern of cells to run now; those that were run before count too. The folder is `out`, or one under
    `runs/papers/` that belongs to it. `save` is a folder that also gets the result file.

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
        jobs = max(len(plan.asked), 1)
        workers = limit_workers(workers, jobs, f"it has {jobs} run{'s' * (jobs != 1)}")
    check_reproduction(plan, root, workers)
    for place, option in ((root, "--out"), (save, "--save")):
        if place is not None:
            need_folder(Path(place), option)
    with interruptible("reproduce", root), hold_folder(root):
        wait_until_released(root / job.name for job in plan.asked)
        run_folder.write_text(root / PLAN, run_folder.as_json(plan.as_dict(plan.check_resume(root))))
        _work(plan, root, workers, progress)
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
    """Every recipe, one after the other; what can be wrong with any of them shows before the first begins."""
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
            _say(str(found[-1]))
    return found


def default_folder(plan: ReproductionPlan) -> Path:
    """The same for the same recipe and size, so that the same command goes on, and parts add up."""
    return Path("runs") / "papers" / f"{plan.recipe.id.lower()}-{plan.size}"


# Before any work


def check_reproduction(plan: ReproductionPlan, root: Path | None = None, workers: int | None = None) -> None:
    """Data that are missing, a folder of something else, too little room: all that can be wrong shows here."""
    if root is not None:
        plan.check_resume(root)
    needed, most = 0, 0
    with one_thread():  # before workers are forked, nothing here may start threads of its own
        for job, many in _unlike(plan.asked):
            with located_at(f"{plan.recipe.id} {label(job.made_by)}"):
                kept, room = _opened(job)
            needed, most = needed + many * kept, max(most, room)
    if root is not None and not all(job.is_done(root) for job in plan.asked):
        there = next(place for place in (root, *root.absolute().parents) if place.exists())
        run_folder.need_room(
            there, needed + (workers or usable_cores()) * most, f"{plan.recipe.id} at size {plan.size}"
        )


def need_folder(folder: Path, option: str) -> None:
    """It is there, or is made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if folder.is_file() else error.strerror
        raise CannotWrite(f"cannot write {folder}: {why}", remedy=f"choose another folder with {option}") from None


def _unlike(jobs: list[ReproductionJob]) -> Iterator[tuple[ReproductionJob, int]]:
    """Enough jobs to have seen each data set, partition, model and algorithm once; and how many each stands for."""
    seen: set[str] = set()
    chosen: dict[int, int] = {}
    for place, job in enumerate(jobs):
        parts = {f"{key} {job.table[key]}" for key in ("data", "partition", "model", "algorithm") if key in job.table}
        if not chosen or not parts <= seen:
            chosen[place] = 0
            seen |= parts
        chosen[max(chosen)] += 1
    yield from ((jobs[place], many) for place, many in chosen.items())


def _opened(job: ReproductionJob) -> tuple[int, int]:
    """Bytes that it keeps, and those that it needs while under way; what is wrong with it shows."""
    if job.kind not in ("run", "open"):
        cells.check_cell(job.kind, job.table)
        return 0, 0
    site = open_context(Experiment.make(job.table))
    return (KEPT * site.initial.nbytes + TABLES, run_folder.room_for(site)) if job.kind == "run" else (0, 0)


# The work


def _work(plan: ReproductionPlan, root: Path, workers: int | None, progress: bool) -> None:
    """Every job that has no result yet; what fails says why in its folder, and the others go on."""
    todo = [job for job in plan.asked if not job.is_done(root)]
    hands = min(workers or usable_cores(), max(len(todo), 1))
    if progress:
        _begin(plan, todo, hands)

    def do(place: int) -> Problem:
        return run_catching_errors(lambda: cells.run_cell(todo[place].kind, todo[place].table, root / todo[place].name))

    crew, began = ProcessPool(do, workers), time.monotonic()
    try:
        for place in range(len(todo)):
            crew.submit(place)
        ended = 0
        for news in crew.results(TICK):
            if news is not None:
                place, problem = news
                record_failure(root / todo[place].name, problem)
                ended += 1
                if progress:
                    left = (time.monotonic() - began) / ended * (len(todo) - ended)
                    _say(
                        f"{ended:>{len(str(len(todo)))}}/{len(todo)}  {_outcome_line(todo[place], root, problem)}{_eta(left)}"
                    )
    finally:
        crew.close()


def _begin(plan: ReproductionPlan, todo: list[ReproductionJob], hands: int) -> None:
    """The title and, before work for days, how many."""
    done = len(plan.asked) - len(todo)
    before = f", {done} of them done before" if done else ""
    count = len(plan.asked)
    _say(f"{plan.recipe.id} · {plan.recipe.title} · {plan.size} · {count} run{'s' * (count != 1)}{before}")
    if plan.size == "full" and plan.recipe.kind == "run" and todo:
        with one_thread():
            seconds = time_estimate.estimate_seconds(Experiment.make(job.table) for job in todo)
        _say(f"about {format_duration(seconds / hands)} on {hands} cores like these; Ctrl-C keeps what is done")


def _outcome_line(job: ReproductionJob, root: Path, problem: Any) -> str:
    """How a job ended, in a line."""
    name = f"{label(job.made_by)}  {job.split.name}"
    if problem is not None:
        return f"{name}  failed: {(root / job.name / 'failure.txt').read_text(encoding='utf-8').strip()}"
    if job.kind != "run":
        return name
    seen = read_status(root / job.name)
    return f"{name}  best {seen.best or 0.0:.4f}  final {seen.accuracy or 0.0:.4f}"


def _eta(left: float) -> str:
    return f"  {format_duration(left)} left" if left >= 1 else ""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# What is kept of it


@dataclass(frozen=True)
class RowVerification:
    """A run of a result file, made once more: what was not the same, and what is but for rounding."""

    name: str
    differences: list[str]
    rounded: list[str]  # numbers that the test rows say of the same weights, where others added them up
    other_versions: list[str]  # what may have made either


def verify_row(file: str | Path, row: int | None = None) -> RowVerification:
    """Make one run of a result file again, the quickest or number `row`, and compare it bit by bit.

    Weights and all that is counted must be the same. What the test rows say of these weights may have been added up by
    another processor, or another version: a loss may be off by a millionth, an accuracy by a few rows in ten thousand.
    """
    table = read_result(check_path(file, "the result file"))
    runs = table["runs"]
    if not runs:
        raise BadValue(f"{file} has no runs", remedy="give a result that has", where=str(file))
    if not 1 <= (row or 1) <= len(runs):
        raise BadValue(f"row = {row} of {len(runs)} runs", remedy=f"give 1 to {len(runs)}", where="--row")
    then = runs[row - 1] if row else min(runs, key=lambda run: run["seconds"])
    settings, kind = {**table["common"], **then["settings"]}, table["kind"]
    with temporary_folder() as place:
        cells.run_cell(kind, settings, place / "again")
        now, sha = cells.cell_scores(kind, place / "again")
    here, before = run_folder.versions(), then["scores"]
    versions = [f"{n} {made} then, {here.get(n)} now" for n, made in table["versions"].items() if made != here.get(n)]
    told = {name: f"{name}: {before.get(name)} then, {now[name]} now" for name in now}
    other = [name for name in now if now[name] != before.get(name) and not _has_none(name, before.get(name), now[name])]
    rounded = [name for name in other if versions and _is_rounding(name, before.get(name), now[name])]
    differences = [told[name] for name in other if name not in rounded]
    if sha != then["weights_sha256"]:
        differences.append(f"weights: sha256 {(then['weights_sha256'] or '')[:16]} then, {(sha or '')[:16]} now")
    name = f"{table['id']} {then['cell']} {then['split']}"
    return RowVerification(name, differences, [told[name] for name in rounded], versions)


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
    """Judge a result file by its recipe as it is now: other words, tolerances or checks, the same measurements."""
    result = judge_file_again(check_path(file, "--judge"))
    run_folder.write_text(Path(file), run_folder.as_json(result.as_dict()) + "\n")
    return result


def write_page(page: str | Path, save: str | Path | None = None) -> Path:
    """The page about what could and could not be reproduced, from the result files of a folder and nothing else."""
    check_paths(("--page", page), ("--save", save))
    place = Path(save) if save is not None else recipes_folder() / "results"
    found = sorted(place.glob("*.json"))
    if not found:
        raise BadValue(
            f"{place} holds no result files", remedy="`fedarena reproduce ID --save FOLDER` writes them", where="--save"
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
    run_folder.write_text(Path(page), reproduced_page(results, known))
    return Path(page)
