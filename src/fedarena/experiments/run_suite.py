"""Run a comparison on several federations, on one pool of workers, in one folder that can be resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedarena.common.folder_lock import hold_folder, wait_until_released
from fedarena.common.formatting import as_json
from fedarena.config.comparison_plan import Plan
from fedarena.config.errors import BadValue, ResumeMismatch, located_at
from fedarena.config.limits import check_path
from fedarena.engine.setup import open_context
from fedarena.experiments import run
from fedarena.experiments.federations import Federations, read_federations
from fedarena.experiments.live_table import ComparisonProgress
from fedarena.experiments.plan import check_cells, make_plan, separate_options
from fedarena.experiments.run_comparison import ComparisonJob, new_folder, run_cells
from fedarena.experiments.task_folder import locked_folder
from fedarena.experiments.tune import run_tuning
from fedarena.results.json_files import write_text
from fedarena.results.plan_file import write_plan
from fedarena.results.run_status import ComparisonCell, comparison_cells
from fedarena.results.suite import SuiteComparison
from fedarena.results.suite_plan import FILE, RESULT, SuitePlan
from fedarena.runtimes.single_thread import one_thread
from fedarena.statistics.metric_registry import CLASSES, all_metrics

RATIO_ROPE = 0.01  # of metrics with units: a share of the value
ONE_FEDERATION = {"sweep": "--sweep", "until_decided": "--until-decided", "leave_one_out": "--leave-one-out"}


def compare_suite(source: Any, algorithms: Any, job: ComparisonJob, **options: Any) -> SuiteComparison:
    """Compare algorithms on several federations and predict the next federation like them."""
    suite, place = plan_suite(source, algorithms, resume=job.resume, **options), job.place
    all_cells = sum(len(plan.splits) * len(plan.contestants) for plan in suite.plans.values())
    place = place.with_useful_workers(all_cells, f"it has {all_cells} runs")
    devices = {str(plan.experiment["device"]) for plan in suite.plans.values()}
    device = next((name for name in sorted(devices) if name != "cpu"), "cpu")
    with place.ready(device) as nodes, _suite_folder(suite, job.out, job.resume) as root:
        for name, plan in suite.plans.items():
            if plan.tuning and not plan.tuned:
                found = run_tuning(plan, suite.folder(root, name), place.workers, job.progress, nodes)
                write_plan(found, suite.folder(root, name))
                suite = suite.with_plan(name, found)
        cells = _cells(suite, root)
        run_cells(
            _title(suite, len(cells)),
            list(cells),
            lambda cell: suite.plans[cells[cell][0]].cell(cells[cell][1], cell.split),
            place.workers,
            ComparisonProgress(job.progress),
            nodes,
        )
        result = SuiteComparison.of(suite, root)
        if job.is_temporary:
            result = result.without_folders()
        else:
            table = {key: value for key, value in result.as_dict().items() if key != "federations"}
            write_text(root / RESULT, as_json({**table, "federations": list(result.federations)}) + "\n")
        if job.report is not None:
            from fedarena.reports.suite_report import write_suite_report

            write_suite_report(result, Path(job.report))
        return result


# Before any work


def plan_suite(
    source: Any = None,
    algorithms: Iterable[Any] | Mapping[str, Any] = (),
    *,
    resume: str | Path | None = None,
    overrides: Sequence[str] = (),
    **options: Any,
) -> SuitePlan:
    """Return the plans of all federations, checked as far as can be before a run; or those of the folder to resume."""
    for key, option in ONE_FEDERATION.items():
        if options.get(key):
            raise BadValue(
                f"{option} works on one federation, and this is a suite",
                remedy=f"leave out {option}, or compare one federation",
                where=option,
            )
    criteria, settings = separate_options(options)
    rope = criteria.get("rope")
    if resume is not None:
        before = SuitePlan.read(check_path(resume, "--resume"))
        sources = None if source is None else read_federations(source, overrides, settings)
        suite = _resumed(before, Path(resume), sources, algorithms, criteria, overrides, settings)
        suite = _with_rope(suite, rope)
    else:
        experiments = read_federations(source, overrides, settings)
        plans = {}
        for name, (experiment, _) in experiments.items():
            with located_at(name):
                plans[name] = make_plan(experiment, algorithms, **_own_rope(criteria, experiment.evaluate.metric))
        suite = SuitePlan(plans, {name: seed for name, (_, seed) in experiments.items()})
        _check_alike(suite)
        suite = replace(suite, rope=_rope(suite, rope))
    tasks: dict[str, str] = {}
    for name, plan in suite.plans.items():
        with located_at(name):
            check_cells(plan)
            with one_thread():
                task = open_context(plan.cell(next(iter(plan.contestants)), plan.splits[0])).task_name
            tasks[name] = "classification" if task in CLASSES else task
    _check_same("task", tasks, "compare federations of one task at a time")
    return suite


def _own_rope(criteria: dict[str, Any], metric: str | None) -> dict[str, Any]:
    """Return the options of one federation: the rope of metrics with units is a share that applies over federations."""
    chosen = criteria.get("metric") or metric or "accuracy"
    known = all_metrics().get(chosen) if isinstance(chosen, str) else None
    drop = known is not None and known.has_units
    return {key: value for key, value in criteria.items() if not (drop and key == "rope")}


def _rope(suite: SuitePlan, given: float | None) -> float:
    if all_metrics()[suite.first.metric].has_units:
        if given is not None and not 0 <= given < 1:
            raise BadValue(
                f"rope = {given}", remedy="give a share of the metric that does not matter, e.g. 0.01", where="--rope"
            )
        return RATIO_ROPE if given is None else given
    return suite.first.rope


def _with_rope(suite: SuitePlan, given: float | None) -> SuitePlan:
    """Change the rope of a resumed suite, and note it: choosing it after the scores is not a fair test."""
    if given is None or suite.rope == given:
        return suite
    note = f"rope was {suite.rope} at first, and became {given} later"
    return replace(suite, rope=_rope(suite, given), notes=(*suite.notes, note))


def _resumed(
    before: SuitePlan,
    root: Path,
    sources: Federations | None,
    algorithms: Any,
    criteria: dict[str, Any],
    overrides: Sequence[str],
    settings: Mapping[str, Any],
) -> SuitePlan:
    """Return the suite of the folder; raise if other federations are requested."""
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
        with located_at(name):
            resumed = make_plan(resume=folder, **source, **_own_rope(criteria, plan.metric))
        suite = suite.with_plan(name, resumed)
    return suite


def _check_alike(suite: SuitePlan) -> None:
    """Raise if the scores of federations are of different kinds."""
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


# The folder


@contextlib.contextmanager
def _suite_folder(suite: SuitePlan, out: run.Out, resume: str | Path | None) -> Iterator[Path]:
    """Yield the suite's folder and those of its federations, locked by this process and with all plans in them."""
    create = lambda out: new_folder(suite.first, out, "suite", "suite", FILE)
    with (
        locked_folder("compare", out, resume, create, lambda root: ()) as root,
        contextlib.ExitStack() as stack,
    ):
        suite.write(root)
        for name, plan in suite.plans.items():
            folder = suite.folder(root, name)
            stack.enter_context(hold_folder(folder))
            wait_until_released(cell.folder for cell in comparison_cells(plan, folder))
        yield root


def _cells(suite: SuitePlan, root: Path) -> dict[ComparisonCell, tuple[str, str]]:
    """Return all cells in the order they are run, federation by federation, each with its federation and label."""
    found = {}
    for name, plan in suite.plans.items():
        for cell in comparison_cells(plan, suite.folder(root, name)):
            found[ComparisonCell(f"{name} · {cell.label}", cell.split, cell.folder)] = name, cell.label
    return found


def _title(suite: SuitePlan, runs: int) -> str:
    plan: Plan = suite.first
    labels = [label for label in plan.contestants if label != plan.reference]
    return f"{', '.join(labels)} · {len(suite.plans)} federations · {runs} runs"
