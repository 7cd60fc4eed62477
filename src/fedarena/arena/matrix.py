"""Algorithms against each other: every contestant on every split, side by side over cores, in one folder that resumes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedarena.arena import single
from fedarena.arena.alone import alone, interruptible, wait_until_left
from fedarena.arena.attempts import Problem, attempt, note, run_in
from fedarena.arena.away import open_crew, with_rows
from fedarena.arena.contestants import Contestants, contestants
from fedarena.arena.live import Unseen, watcher
from fedarena.arena.place import Place, SideBySide
from fedarena.arena.search import check_numbers
from fedarena.arena.spaces import Method
from fedarena.arena.sweep import Sweep, swept
from fedarena.arena.tune import Per, tuned, with_tuning
from fedarena.engine.federation import deal, open_site
from fedarena.errors import BadValue, CannotWrite, FedarenaError, ResumeMismatch
from fedarena.registry import name_of
from fedarena.results import folder as files
from fedarena.results import tradeoff
from fedarena.results.comparison import Comparison, Plan, Split
from fedarena.results.watch import cells
from fedarena.runtime.leftovers import temporary_folder
from fedarena.runtime.nodes import Nodes
from fedarena.runtime.one_job import one_thread
from fedarena.spec import Experiment

MOST = 1000  # folds, repeats or seeds: nobody means more
TICK = 0.25  # seconds between two looks at the folders


def compare(
    source: Any = None,
    algorithms: Iterable[Any] | Mapping[str, Any] = (),
    *,
    folds: int | None = None,
    repeats: int | None = None,
    seeds: int | None = None,
    rope: float | None = None,
    threshold: float | None = None,
    out: single.Out = None,
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
    report: str | Path | None = None,
    progress: bool = False,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Comparison:
    """Compare algorithms on the same folds, partitions, schedules and initial weights, and judge by a Bayesian test.

    `algorithms` are texts such as "fedprox:mu=0.1", tables with a name, or objects; a mapping gives them labels. Scores
    come from cross-validation (`folds` 5, `repeats` 1), or from `seeds` independent repetitions. Two are practically
    equal within `rope` (0.01); a verdict needs more than `threshold` (0.95) probability. The folder is `out`, or the next
    free name under `runs/`; `out=False` keeps none. `baseline` also trains on all rows in one place, to be shown beside.
    `tune` gives everyone so many trials of its own search space, or of `spaces`, on rows held out of the training rows.
    `runtime="ray"` makes the runs on the Ray cluster at `address`, or on one that is started here for the purpose.
    `sweep` lets everyone take part at each value of a key of the uplink ("uplink.noise=0,0.5,1"), and draws what that costs.

    >>> import fedarena as fa
    >>> duel = fa.compare("digits", ["fedavg", fa.FedProx(mu=0.1)], seeds=2, rounds=2, model="logreg", out=False)
    >>> [len(scores) for scores in duel.scores().values()]
    [2, 2]
    """
    check_numbers(folds=(folds, 2), repeats=(repeats, 1), seeds=(seeds, 2), workers=(workers, 1))
    place = Place(runtime, workers, address)
    place.check(SideBySide)
    _check_splits(folds, repeats, seeds)
    _check_judging(rope, threshold)
    _check_places(out, resume, report)
    if resume is not None and (source is None) != (not algorithms):
        raise BadValue("a resumed comparison stays as it was", remedy="leave out all but --resume", where="--resume")
    judging: dict[str, Any] = {k: v for k, v in (("rope", rope), ("threshold", threshold)) if v is not None}
    if resume is not None and source is None and not algorithms:
        plan = _judged_anew(Plan.read(Path(resume)), judging)
        without = not baseline and plan.reference is not None
        asked = (overrides, settings, folds, repeats, seeds, tune, tune_per, tune_method, spaces, without, sweep)
        if any(asked):
            raise BadValue(
                "a resumed comparison stays as it was", remedy="leave out all but --resume", where="--resume"
            )
    else:
        experiment = Experiment.make(source, overrides, **settings)
        if sweep is not None and tune is not None:
            raise BadValue("a sweep is not tuned", remedy="leave out --tune or --sweep", where="--sweep")
        entered, what = (contestants(algorithms), {}) if sweep is None else swept(algorithms, sweep)
        plan = replace(_plan(experiment, entered, baseline, folds, repeats, seeds, judging), sweep=what)
        plan = with_tuning(plan, tune, entered, tune_method, tune_per, spaces)
        if resume is not None:
            plan = _judged_anew(_same_plan(plan, Path(resume)), judging)
    _open_all(plan)
    all_cells = len(plan.splits) * len(plan.contestants)
    trials = 0 if plan.tuned else all_cells * plan.tuning.get("trials", 0)
    work = f"{trials} trials" if trials > all_cells else f"{all_cells} runs"
    place = place.fitted(max(all_cells, trials), f"it has {work}")
    with place.ready(plan.experiment["device"]) as nodes, _folder(plan, out, resume) as root:
        if plan.tuning and not plan.tuned:
            plan = tuned(plan, root, place.workers, progress, nodes)
            plan.write(root)
        _play(plan, root, place.workers, watcher(progress), nodes)
        result = Comparison.of(plan, root)
        if plan.sweep:
            tradeoff.write(result, root / "tradeoff.png")
        if resume is None and out is False:
            runs = {label: [replace(run, dir=None) for run in runs] for label, runs in result.runs.items()}
            result = replace(result, runs=runs, dir=None)
        if report is not None:
            from fedarena.results.report import write_report

            write_report(result, Path(report))
        return result


# Before any work


def _judged_anew(plan: Plan, judging: Mapping[str, float]) -> Plan:
    """Another rope or threshold for scores that are known already may be had, but not in silence."""
    changed: dict[str, Any] = {key: new for key, new in judging.items() if getattr(plan, key) != new}
    told = [f"{key} was {getattr(plan, key):g} at first, and became {new:g} later" for key, new in changed.items()]
    return replace(plan, **changed, notes=(*plan.notes, *told))


def _check_splits(folds: int | None, repeats: int | None, seeds: int | None) -> None:
    for name, count in (("folds", folds), ("repeats", repeats), ("seeds", seeds)):
        if count is not None and count > MOST:
            raise BadValue(f"{name} = {count}", remedy=f"give at most {MOST}: each of them is a run", where=f"--{name}")
    if seeds is not None and (folds is not None or repeats is not None):
        raise BadValue(
            "folds and seeds exclude each other", remedy="give --folds and --repeats, or --seeds", where="--seeds"
        )


def _check_judging(rope: float | None, threshold: float | None) -> None:
    if rope is not None and not 0 <= rope < 1:
        raise BadValue(
            f"rope = {rope}", remedy="give the largest difference that does not matter, e.g. 0.01", where="--rope"
        )
    if threshold is not None and not 0.5 <= threshold < 1:
        raise BadValue(
            f"threshold = {threshold}", remedy="give a probability from 0.5 to below 1, e.g. 0.95", where="--threshold"
        )


def _check_places(out: Any, resume: Any, report: Any) -> None:
    if out is True:
        raise BadValue("out = True", remedy="give a folder, or False to keep nothing", where="--out")
    if out and resume is not None:
        raise BadValue("a resumed comparison stays in its folder", remedy="leave out --out", where="--out")
    if report is not None and not Path(report).absolute().parent.is_dir():
        raise CannotWrite(f"there is no folder for {report}", remedy="make it, or choose another", where="--report")


def _plan(
    experiment: Experiment,
    named: Contestants,
    baseline: bool,
    folds: int | None,
    repeats: int | None,
    seeds: int | None,
    judging: dict[str, Any],
) -> Plan:
    if experiment.folds is not None:
        raise BadValue(
            "the experiment holds out a fold itself",
            remedy="leave folds and fold out of it: --folds does it",
            where="folds",
        )
    reference = None
    if baseline and not any(_name(table["algorithm"]) == "centralized" for table in named.values()):
        reference = "centralized"
        if reference in map(str.casefold, named):
            raise BadValue(
                "'centralized' is the name of the baseline", remedy="choose another, or --no-baseline", where="-a"
            )
        named = {**named, reference: {"algorithm": reference}}
    return Plan.make(
        experiment,
        named,
        reference=reference,
        folds=None if seeds else folds or 5,
        repeats=seeds or repeats or 1,
        versions=files.versions(),
        **judging,
    )


def _name(algorithm: Any) -> str:
    if isinstance(algorithm, Mapping):
        return str(algorithm["name"])
    return algorithm if isinstance(algorithm, str) else name_of(algorithm)


def _same_plan(plan: Plan, root: Path) -> Plan:
    """The plan of the folder, if it asks for the same runs."""
    before = Plan.read(root)
    for key in ("experiment", "contestants", "reference", "folds", "repeats", "tuning"):
        found = _difference(key, getattr(before, key), getattr(plan, key))
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


def _open_all(plan: Plan) -> None:
    """Every split, and every contestant with each number of clients that have rows: what can be wrong shows here."""
    anyone = next(iter(plan.contestants))
    with one_thread():  # before workers are forked, nothing here may start threads of its own
        populations: dict[int, Split] = {}
        for split in plan.splits:
            _, partition = deal(plan.cell(anyone, split))
            populations.setdefault(len(partition.population), split)
        for split in populations.values():
            for label in plan.contestants:
                with _named_in_errors(label):
                    open_site(plan.cell(label, split))


@contextlib.contextmanager
def _named_in_errors(label: str) -> Iterator[None]:
    """Of several contestants, which one is it?"""
    try:
        yield
    except FedarenaError as error:
        raise type(error)(
            error.what, remedy=error.remedy, where=f"{label}: {error.where}" if error.where else label
        ) from None


# The folder


@contextlib.contextmanager
def _folder(plan: Plan, out: single.Out, resume: str | Path | None) -> Iterator[Path]:
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
        stack.enter_context(alone(root))
        wait_until_left(cell.folder for cell in cells(plan, root))
        plan.write(root)  # first: a folder that has it can be resumed
        yield root


def _new_folder(plan: Plan, out: str | Path | None) -> Path:
    if out is None:
        return files.free_folder(f"{plan.experiment['data']['name']}-compare")
    if (Path(out) / "comparison.json").exists():
        raise CannotWrite(
            f"{out} is there already and holds a comparison",
            remedy=f"go on with it: fedarena compare --resume {out}, or choose another folder",
            where="--out",
        )
    return files.new_folder(plan.cell(next(iter(plan.contestants)), plan.splits[0]), out)


# The work


def _play(plan: Plan, root: Path, workers: int | None, view: Unseen, nodes: Nodes | None) -> None:
    """Run every cell that has no result yet, those of a split together: half a matrix is then a smaller comparison."""
    everyone = cells(plan, root)
    todo = [cell for cell in everyone if not (cell.folder / "result.json").exists()]
    work = [plan.cell(cell.label, cell.split) for cell in todo]
    if nodes is not None:
        work = with_rows(work)
    crew = open_crew(lambda position, folder: _run(work[position], folder), workers, nodes)
    try:
        for position, cell in enumerate(todo):
            crew.give(position, cell.folder)
        view.start(plan, everyone)
        for news in crew.results(TICK):
            if news is not None:
                position, problem = news
                note(todo[position].folder, problem)
                view.over(todo[position])
            view.look([todo[position] for position in crew.running])
    finally:
        crew.close()
        view.stop()


def _run(experiment: Experiment, folder: Path) -> Problem:
    """One cell, in a worker: begun, or gone on with."""
    return attempt(lambda: run_in(experiment, folder))
