"""Several federations: read from files, blocks or a grid, compared on one pool of workers, in one folder that resumes."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedarena.common.folder_lock import hold_folder, interruptible, wait_until_released
from fedarena.config.errors import BadValue, CannotWrite, ResumeMismatch, quoted
from fedarena.config.experiment import COMPONENTS, Experiment, read_toml, resolve_paths, with_settings
from fedarena.config.limits import check_path
from fedarena.config.seeds import derived_seed
from fedarena.engine.setup import open_context
from fedarena.experiments import run
from fedarena.experiments.contestants import LONGEST
from fedarena.experiments.live_table import ComparisonProgress
from fedarena.experiments.run_comparison import check_places, make_plan, named_in_errors, open_all_cells, run_cells
from fedarena.experiments.runtime_options import RuntimeOptions, SideBySide
from fedarena.experiments.search import check_numbers
from fedarena.experiments.tune import run_tuning
from fedarena.results import run_folder
from fedarena.results.comparison import Plan, folder_name
from fedarena.results.run_folder import as_json, write_text
from fedarena.results.run_status import ComparisonCell, comparison_cells
from fedarena.results.suite import SuiteComparison, has_units
from fedarena.results.suite_plan import RESULT, SuitePlan, holds_suite
from fedarena.runtimes.cleanup import temporary_folder
from fedarena.runtimes.run_task import one_thread
from fedarena.statistics.hierarchical import LEAST_FEDERATIONS
from fedarena.statistics.metric_registry import CLASSES, all_metrics

MOST_FEDERATIONS = 100
RATIO_ROPE = 0.01  # of metrics with units: a share of the value
Federations = dict[str, tuple[Experiment, int]]  # name -> experiment with its own seed, and the seed as it was given
ONE_FEDERATION = {"sweep": "--sweep", "until_decided": "--until-decided", "leave_one_out": "--leave-one-out"}
BLOCKS = ("federation", "grid")  # keys that make a file a suite


@dataclass(frozen=True)
class Source:
    """One federation as it was given: what `Experiment.make` reads, a name if it has one, and what it says itself."""

    experiment: Any
    name: str = ""
    said: dict[str, Any] | None = None  # dotted keys that may tell it from the others


def is_suite(source: Any, resume: Any = None) -> bool:
    """Return whether this asks for several federations: a list, a file with blocks or a grid, or the folder of a suite."""
    if source is None:
        return holds_suite(resume)
    if isinstance(source, list):
        return True
    return _suite_table(source) is not None


def compare_suite(
    source: Any = None,
    algorithms: Iterable[Any] | Mapping[str, Any] = (),
    *,
    out: run.Out = None,
    resume: str | Path | None = None,
    runtime: SideBySide = "processes",
    workers: int | None = None,
    address: str | None = None,
    report: str | Path | None = None,
    progress: bool = False,
    **asked: Any,
) -> SuiteComparison:
    """Compare algorithms on several federations and judge the next federation like them; see `compare` for the rest."""
    check_numbers(workers=(workers, 1))
    place = RuntimeOptions(runtime, workers, address)
    place.check(SideBySide)
    check_places(out, resume, report)
    suite = plan_suite(source, algorithms, resume=resume, **asked)
    all_cells = sum(len(plan.splits) * len(plan.contestants) for plan in suite.plans.values())
    place = place.with_useful_workers(all_cells, f"it has {all_cells} runs")
    devices = {str(plan.experiment["device"]) for plan in suite.plans.values()}
    device = next((name for name in sorted(devices) if name != "cpu"), "cpu")
    with place.ready(device) as nodes, _folder(suite, out, resume) as root:
        for name, plan in suite.plans.items():
            if plan.tuning and not plan.tuned:
                found = run_tuning(plan, suite.folder(root, name), place.workers, progress, nodes)
                found.write(suite.folder(root, name))
                suite = suite.with_plan(name, found)
        everyone = _cells(suite, root)
        run_cells(
            _title(suite, len(everyone)),
            list(everyone),
            lambda cell: suite.plans[everyone[cell][0]].cell(everyone[cell][1], cell.split),
            place.workers,
            ComparisonProgress(progress),
            nodes,
        )
        result = SuiteComparison.of(suite, root)
        if resume is None and out is False:
            result = _without_folders(result)
        else:
            told = {key: value for key, value in result.as_dict().items() if key != "federations"}
            write_text(root / RESULT, as_json({**told, "federations": list(result.federations)}) + "\n")
        if report is not None:
            from fedarena.reports.suite_report import write_suite_report

            write_suite_report(result, Path(report))
        return result


# Before any work


def plan_suite(
    source: Any = None,
    algorithms: Iterable[Any] | Mapping[str, Any] = (),
    *,
    resume: str | Path | None = None,
    overrides: Sequence[str] = (),
    **asked: Any,
) -> SuitePlan:
    """Return the plans of all federations, checked as far as can be before a run; or those of the folder to resume."""
    for key, option in ONE_FEDERATION.items():
        if asked.get(key):
            raise BadValue(
                f"{option} works on one federation, and this is a suite",
                remedy=f"leave out {option}, or compare one federation",
                where=option,
            )
    how, settings = _divided(asked)
    rope = how.get("rope")
    if resume is not None:
        before = SuitePlan.read(check_path(resume, "--resume"))
        sources = None if source is None else _experiments(source, overrides, settings)
        suite = _resumed(before, Path(resume), sources, algorithms, how, overrides, settings)
        suite = _with_rope(suite, rope)
    else:
        experiments = _experiments(source, overrides, settings)
        plans = {}
        for name, (experiment, _) in experiments.items():
            with named_in_errors(name):
                plans[name] = make_plan(experiment, algorithms, **_own_rope(how, experiment.evaluate.metric))
        suite = SuitePlan(plans, {name: seed for name, (_, seed) in experiments.items()})
        _check_alike(suite)
        suite = replace(suite, rope=_rope(suite, rope))
    tasks: dict[str, str] = {}
    for name, plan in suite.plans.items():
        with named_in_errors(name):
            open_all_cells(plan)
            with one_thread():
                task = open_context(plan.cell(next(iter(plan.contestants)), plan.splits[0])).task_name
            tasks[name] = "classification" if task in CLASSES else task
    _check_same("task", tasks, "compare federations of one task at a time")
    return suite


def _divided(asked: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide what was asked into arguments of a comparison and settings of the experiments (keywords from Python)."""
    known = inspect.signature(make_plan).parameters
    settings = {key: value for key, value in asked.items() if key not in known}
    return {key: value for key, value in asked.items() if key in known}, settings


def _own_rope(how: dict[str, Any], metric: str | None) -> dict[str, Any]:
    """Return what one federation is asked: the rope of metrics with units is a share, and only judges over federations."""
    chosen = how.get("metric") or metric or "accuracy"
    known = isinstance(chosen, str) and _has_units(chosen)
    return {key: value for key, value in how.items() if not (known and key == "rope")}


def _has_units(metric: str) -> bool:
    return metric in all_metrics() and has_units(metric)


def _rope(suite: SuitePlan, asked: float | None) -> float:
    if has_units(suite.first.metric):
        if asked is not None and not 0 <= asked < 1:
            raise BadValue(
                f"rope = {asked}", remedy="give a share of the metric that does not matter, e.g. 0.01", where="--rope"
            )
        return RATIO_ROPE if asked is None else asked
    return suite.first.rope


def _with_rope(suite: SuitePlan, asked: float | None) -> SuitePlan:
    """Change the rope of a resumed suite, and note it: choosing it after the scores is not a fair test."""
    if asked is None or suite.rope == asked:
        return suite
    note = f"rope was {suite.rope} at first, and became {asked} later"
    return replace(suite, rope=_rope(suite, asked), notes=(*suite.notes, note))


def _resumed(
    before: SuitePlan,
    root: Path,
    sources: Federations | None,
    algorithms: Any,
    how: dict[str, Any],
    overrides: Sequence[str],
    settings: Mapping[str, Any],
) -> SuitePlan:
    """Return the suite of the folder, if the same federations are asked for, or none."""
    if sources is not None and list(sources) != list(before.plans):
        raise ResumeMismatch(
            f"{root} compares other federations: {', '.join(before.plans)}",
            remedy=f"resume it as it was: fedarena compare --resume {root}",
            where="--resume",
        )
    before.complete(root)
    suite = before
    for name, plan in before.plans.items():
        folder = before.folder(root, name)
        source = {} if sources is None else {"source": sources[name][0], "algorithms": algorithms}
        if sources is None and (algorithms or overrides or settings):
            raise BadValue(
                "a resumed comparison stays as it was", remedy="leave out all but --resume", where="--resume"
            )
        with named_in_errors(name):
            judged = make_plan(resume=folder, **source, **_own_rope(how, plan.metric))
        suite = suite.with_plan(name, judged)
    return suite


def _check_alike(suite: SuitePlan) -> None:
    """Refuse federations whose scores are of different kinds."""
    metrics = {name: plan.metric for name, plan in suite.plans.items()}
    _check_same("metric", metrics, "name one for all: --metric NAME")
    views = {name: plan.evaluate_on for name, plan in suite.plans.items()}
    _check_same("view", views, "name one for all: --evaluate-on NAME")


def _check_same(what: str, values: Mapping[str, str], remedy: str) -> None:
    first = next(iter(values))
    other = next((name for name in values if values[name] != values[first]), None)
    if other is not None:
        raise BadValue(
            f"the federations differ in {what}: {first} has '{values[first]}', {other} has '{values[other]}'",
            remedy=remedy,
            where=other,
        )


# The federations


def _experiments(source: Any, overrides: Sequence[str], settings: Mapping[str, Any]) -> Federations:
    """Return every federation's experiment by name, each with a seed of its own, and the seed that was given.

    The model over federations takes their scores as independent: with one seed, federations of one data set would have the
    same folds, and an error in them would count as many times as there are federations.
    """
    sources = _sources(source)
    if len(sources) < LEAST_FEDERATIONS:
        raise BadValue(
            f"{len(sources)} federation{'s' * (len(sources) != 1)} cannot show how federations differ",
            remedy=f"give at least {LEAST_FEDERATIONS}, or compare on one",
            where="federations",
        )
    if len(sources) > MOST_FEDERATIONS:
        raise _too_many(len(sources))
    made = []
    for position, one in enumerate(sources):
        with named_in_errors(one.name or f"federation {position + 1}"):
            made.append(Experiment.make(one.experiment, overrides, **settings))
    found: dict[str, Experiment] = {}
    folders: dict[str, str] = {}
    for name, experiment in zip(_names(sources, made), made, strict=True):
        _check_name(name, folders)
        found[name] = experiment
    _check_different(found)
    return {name: (exp.with_(seed=derived_seed(exp.seed, "federation", name)), exp.seed) for name, exp in found.items()}


def _too_many(count: int) -> BadValue:
    return BadValue(f"{count} federations are too many", remedy=f"give at most {MOST_FEDERATIONS}", where="federations")


def _suite_table(source: Any) -> dict[str, Any] | None:
    """Return the table of a suite file; None for everything else."""
    is_file = isinstance(source, str | Path) and str(source).endswith(".toml")
    if not is_file or "\0" in str(source) or not Path(source).is_file():
        return None
    with contextlib.suppress(BadValue):  # the ordinary way reports what is wrong with it
        table = read_toml(Path(source))
        return table if any(key in table for key in BLOCKS) else None
    return None


def _sources(source: Any) -> list[Source]:
    """Return the federations of a list, or of a suite file."""
    if isinstance(source, list):
        return [_source(one) for one in source]
    table = _suite_table(source)
    assert table is not None
    folder = Path(source).parent
    blocks, grid = table.pop("federation", None), table.pop("grid", None)
    where = str(source)
    if blocks is not None and grid is not None:
        raise BadValue("both [[federation]] and [grid] are given", remedy="keep one of them", where=where)
    if grid is not None:
        chosen = _grid(grid, where)
    elif isinstance(blocks, list) and all(isinstance(block, dict) for block in blocks):
        chosen = blocks
    else:
        raise BadValue(
            "federation is not a list of tables", remedy="write a block [[federation]] for each", where=where
        )
    found = []
    for block in chosen:
        own = dict(block)
        name = str(own.pop("name", ""))
        resolve_paths(own, folder)
        found.append(Source(with_settings(table, own), name, _flat(own)))
    return found


def _grid(grid: Any, where: str) -> list[dict[str, Any]]:
    """Return every combination of the values of a grid."""
    if not isinstance(grid, dict) or not grid:
        raise BadValue("the grid names no key", remedy='write e.g. "partition.beta" = [0.1, 1, 10]', where=where)
    axes: dict[str, list[Any]] = {}
    for key, values in _axes(grid):
        if not isinstance(values, list) or not values:
            raise BadValue(
                f"grid.{quoted(key)} is not a list of values",
                remedy=f"write {quoted(key)} = [FIRST, SECOND, ...]",
                where=where,
            )
        axes[key] = values
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MOST_FEDERATIONS:
        raise _too_many(count)
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _axes(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a grid with their values; [grid.partition] beta = ... is "partition.beta"."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _axes(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _source(one: Any) -> Source:
    """Return one federation of a list: a file, a data set's name, a table (its key "name" names it) or an experiment."""
    if isinstance(one, Mapping) and "name" in one:
        table = {key: value for key, value in one.items() if key != "name"}
        return Source(table, str(one["name"]))
    if isinstance(one, str | Path):
        is_file = str(one).endswith((".toml", ".csv", ".parquet"))
        return Source(one, Path(one).stem if is_file else str(one))
    return Source(one)


def _names(sources: Sequence[Source], made: Sequence[Experiment]) -> list[str]:
    """Return the names of all federations; one without a name is called by what tells it from the others."""
    flat = [_flat(exp.as_table()) if one.said is None else one.said for one, exp in zip(sources, made, strict=True)]
    keys = dict.fromkeys(key for table in flat for key in table)
    telling = [key for key in keys if len({str(table.get(key)) for table in flat}) > 1 and key != "seed"] or ["seed"]
    names = []
    for one, table, experiment in zip(sources, flat, made, strict=True):
        told = [_told(key, table[key]) for key in telling if key in table]
        names.append(one.name or ",".join(told) or experiment.data.name)
    return names


def _told(key: str, value: Any) -> str:
    """Return a setting as part of a name: a component by its name alone, others as key=value."""
    if key in COMPONENTS or key.endswith(".name"):
        return str(value)
    return f"{key.rpartition('.')[2]}={value}"


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    return flat


def _check_name(name: str, folders: dict[str, str]) -> None:
    """Refuse a name that no folder can have, or that another federation has."""
    folder = folder_name(name).casefold()
    if not re.match(r"\w", name) or len(folder.encode()) > LONGEST:
        raise BadValue(
            f"'{quoted(name)}' cannot be the name of a federation",
            remedy=f'give it a name that begins with a letter, of at most {LONGEST} bytes: name = "..."',
            where="federations",
        )
    if folder in folders:
        alike = f"'{name}' twice" if name == folders[folder] else f"'{folders[folder]}' and '{name}'"
        raise BadValue(
            f"the federations {quoted(alike)} cannot be told apart",
            remedy='give each a name of its own: other file names, or name = "..." in its [[federation]] block',
            where="federations",
        )
    folders[folder] = name


def _check_different(found: Mapping[str, Experiment]) -> None:
    """Refuse a federation that is given twice: a copy says nothing about the next federation."""
    seen: dict[str, str] = {}
    for name, experiment in found.items():
        if any(getattr(experiment, key).own for key in COMPONENTS):
            continue
        text = experiment.to_toml()
        if text in seen:
            raise BadValue(
                f"the federations '{seen[text]}' and '{name}' are the same experiment",
                remedy="leave one out; a copy says nothing about the next federation",
                where="federations",
            )
        seen[text] = name


# The folder


@contextlib.contextmanager
def _folder(suite: SuitePlan, out: run.Out, resume: str | Path | None) -> Iterator[Path]:
    """Yield the suite's folder, locked by this process and with all plans in it."""
    with contextlib.ExitStack() as stack:
        if resume is not None:
            root = Path(resume)
        elif out is False:
            root = stack.enter_context(temporary_folder())
        else:
            root = _new_folder(suite, out)
        if resume is not None or out is not False:
            stack.enter_context(interruptible("compare", root))
        stack.enter_context(hold_folder(root))
        suite.write(root)
        for name, plan in suite.plans.items():
            folder = suite.folder(root, name)
            stack.enter_context(hold_folder(folder))
            wait_until_released(cell.folder for cell in comparison_cells(plan, folder))
        yield root


def _new_folder(suite: SuitePlan, out: str | Path | None) -> Path:
    if out is None:
        return run_folder.free_folder("suite-compare")
    if holds_suite(out):
        raise CannotWrite(
            f"{out} is there already and holds a suite",
            remedy=f"continue it: fedarena compare --resume {out}, or choose another folder",
            where="--out",
        )
    plan = suite.first
    return run_folder.new_folder(plan.cell(next(iter(plan.contestants)), plan.splits[0]), out)


def _cells(suite: SuitePlan, root: Path) -> dict[ComparisonCell, tuple[str, str]]:
    """Return all cells in the order they are run, federation by federation, each with its federation and label."""
    found = {}
    for name, plan in suite.plans.items():
        for cell in comparison_cells(plan, suite.folder(root, name)):
            found[ComparisonCell(f"{name} · {cell.label}", cell.split, cell.folder)] = name, cell.label
    return found


def _title(suite: SuitePlan, runs: int) -> str:
    plan: Plan = suite.first
    judged = [label for label in plan.contestants if label != plan.reference]
    return f"{', '.join(judged)} · {len(suite.plans)} federations · {runs} runs"


def _without_folders(result: SuiteComparison) -> SuiteComparison:
    """Return the result without folders, which are removed."""
    kept = {}
    for name, one in result.federations.items():
        runs = {label: [replace(run, dir=None) for run in runs] for label, runs in one.runs.items()}
        kept[name] = replace(one, runs=runs, dir=None)
    return replace(result, federations=kept, dir=None)
