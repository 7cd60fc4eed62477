"""Build the plan of a comparison from the options of `compare`, and check all of it before anything runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedarena.config.comparison_plan import PARTS, Plan, Score, Split, View, finite_table
from fedarena.config.errors import BadValue, ResumeMismatch, check_known, located_at, quoted
from fedarena.config.experiment import Experiment
from fedarena.config.registry import name_of
from fedarena.data.folds import has_own_folds
from fedarena.engine.attackers import can_be_attacked
from fedarena.engine.context import ExperimentContext
from fedarena.engine.setup import open_context, partition_data
from fedarena.experiments.contestants import Contestants, contestants
from fedarena.experiments.left_out_clients import LeaveOneOut, check_left_out, with_left_out
from fedarena.experiments.option_checks import check_numbers
from fedarena.experiments.search_space import Method
from fedarena.experiments.split_options import Names, Splitting
from fedarena.experiments.sweep import Sweep, with_sweep
from fedarena.experiments.task_metric import metric_of, rope_of
from fedarena.experiments.tune import Per, with_tuning
from fedarena.experiments.until_decided import at_first_look, check_limit, continued, with_limit
from fedarena.experiments.validated_score import check_rescoring, with_validation
from fedarena.results.plan_file import read_plan
from fedarena.results.run_folder import versions
from fedarena.results.scoring import SCORES, VIEWS, Scoring
from fedarena.runtimes.single_thread import one_thread
from fedarena.statistics.metric_registry import all_metrics, find_metric


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `compare` that determine its plan."""

    folds: int | None = None
    repeats: int | None = None
    seeds: int | None = None
    fixed: Names = ()
    per_repeat: Names = ()
    until_decided: bool = False
    at_most: int | None = None
    score: Score | None = None
    metric: str | None = None
    evaluate_on: View | None = None
    rope: float | None = None
    threshold: float | None = None
    baseline: bool = True
    tune: int | None = None
    tune_per: Per | None = None
    tune_method: Method | None = None
    spaces: Mapping[str, Any] | str | Path | None = None
    sweep: Sweep | None = None
    leave_one_out: LeaveOneOut = False
    overrides: Sequence[str] = ()

    @property
    def criteria(self) -> dict[str, Any]:
        """How scores are compared, as far as it is given."""
        given = {key: getattr(self, key) for key in ("score", "metric", "evaluate_on", "rope", "threshold")}
        return {key: value for key, value in given.items() if value is not None}


def separate_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide the keywords of `compare` into options of its plan and settings of the experiment."""
    known = [field.name for field in fields(PlanOptions)]
    options = {key: value for key, value in given.items() if key in known}
    return options, {key: value for key, value in given.items() if key not in known}


def make_plan(
    source: Any = None,
    algorithms: Iterable[Any] | Mapping[str, Any] = (),
    *,
    resume: str | Path | None = None,
    **given: Any,
) -> Plan:
    """Return the plan that the options of `compare` request, or that of the folder to resume."""
    known, settings = separate_options(given)
    options = PlanOptions(**known)
    check_numbers(folds=(options.folds, 2), repeats=(options.repeats, 1), seeds=(options.seeds, 2))
    until_decided, at_most = options.until_decided, options.at_most
    check_limit(until_decided, at_most)
    splitting = Splitting.from_options(options.folds, options.repeats, options.seeds, options.fixed, options.per_repeat)
    _check_criteria(options)
    check_rescoring(options.score, resume)
    unchanged = BadValue("a resumed comparison stays as it was", remedy="leave out all but --resume", where="--resume")
    if resume is not None and (source is None) != (not algorithms):
        raise unchanged
    if resume is not None and source is None and not algorithms:
        plan = continued(_with_criteria(read_plan(Path(resume)), options.criteria), until_decided, at_most)
        without = not options.baseline and plan.reference is not None
        changes = (
            options.overrides,
            options.tune,
            options.tune_per,
            options.tune_method,
            options.spaces,
            options.sweep,
        )
        if any((*changes, settings, splitting, without)):
            raise unchanged
        return with_left_out(plan, options.leave_one_out)
    experiment = with_validation(Experiment.make(source, options.overrides, **settings), options.score)
    if options.metric is not None:
        experiment = experiment.with_(evaluate={"metric": options.metric})
    if options.sweep is not None and options.tune is not None:
        raise BadValue("a sweep cannot be tuned", remedy="leave out --tune or --sweep", where="--sweep")
    entered, swept = (contestants(algorithms), {}) if options.sweep is None else with_sweep(algorithms, options.sweep)
    plan = replace(_plan(experiment, entered, options.baseline, splitting, options.criteria), sweep=swept)
    plan = with_tuning(plan, options.tune, entered, options.tune_method, options.tune_per, options.spaces)
    if resume is None:
        return with_left_out(with_limit(plan, splitting, until_decided, at_most), options.leave_one_out)
    before = continued(read_plan(Path(resume)), until_decided, at_most)
    plan = with_limit(plan, splitting, until_decided, before.at_most if until_decided else None)
    plan = _with_criteria(_same_plan(plan, before, Path(resume)), options.criteria)
    return with_left_out(plan, options.leave_one_out)


def build_plan(experiment: Experiment, contestants: dict[str, dict[str, Any]], **options: Any) -> Plan:
    """Return the plan of these contestants as complete, plain tables; `options` are other fields of the plan.

    Objects that no file can name are kept in `own`. Folds, clients and test samples follow from data and partition.
    """
    own: dict[str, Any] = {}
    tables = {}
    for label, table in contestants.items():
        cell = experiment.with_(**table)
        if cell.select is not None and not cell.algorithm.made.communicates:  # a baseline has no clients to select
            table = {**table, "select": "none"}
        if cell.attack is not None and not can_be_attacked(cell.algorithm.made):
            table = {**table, "attack": "none"}
        complete = cell.as_table()
        tables[label] = {key: _same_keys(complete[key], value) for key, value in table.items()}
        if cell.algorithm.own:
            own[f"algorithm {label}"] = cell.algorithm
    common = {k: v for k, v in experiment.as_table().items() if k not in ("algorithm", "folds", "fold")}
    own |= {key: part for key, part in experiment.python_parts.items() if key != "algorithm"}
    plan = Plan(finite_table(common), finite_table(tables), own=own, **{"protocol": "independent", **options})
    return plan if plan.protocol == "shared" else _with_data(plan, experiment)


def _with_data(plan: Plan, experiment: Experiment) -> Plan:
    """Complete what follows from data and partition: their own folds, clients that are not drawn, the test share."""
    partitioner, own_folds = experiment.partition.made, has_own_folds(experiment.partition.made)
    seeded = {part for part in PARTS if getattr(experiment, f"{part}_seed") is not None}
    fixed = [name for name in (*PARTS, "test") if name in seeded or name in plan.fixed]
    requested = {*plan.per_repeat, *(["partition"] if own_folds and plan.folds else [])}
    drawn = [part for part in PARTS if part != "partition" or getattr(partitioner, "seeded", True)]
    share = None
    if not plan.folds and own_folds:
        share = 1 / partitioner.folds
    elif not plan.folds and "test" not in fixed:
        data = experiment.data.made.load(experiment.seed_for("split"))
        share = 1 - data.n_train / len(data.x)
    shared = tuple(part for part in drawn if part in requested and part not in fixed)
    return replace(plan, fixed=tuple(fixed), per_repeat=shared, test_share=share)


def _same_keys(complete: Any, given: Any) -> Any:
    """Return a component in full, and of other tables only the keys that differ between contestants."""
    if isinstance(given, str) and given == "none":
        return given
    if isinstance(given, Mapping) and "name" not in complete:
        return {key: complete.get(key) for key in given}
    return complete


def _with_criteria(plan: Plan, criteria: Mapping[str, Any]) -> Plan:
    """Change how known scores are compared, and note it: choosing the criterion after the scores is not a fair test."""
    changed: dict[str, Any] = {key: new for key, new in criteria.items() if getattr(plan, key) != new}
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


def _check_criteria(options: PlanOptions) -> None:
    rope, threshold = options.rope, options.threshold
    if rope is not None and not 0 <= rope < math.inf:
        raise BadValue(
            f"rope = {rope}", remedy="give the largest difference that does not matter, e.g. 0.01", where="--rope"
        )
    if threshold is not None and not 0.5 <= threshold < 1:
        raise BadValue(
            f"threshold = {threshold}", remedy="give a probability from 0.5 to below 1, e.g. 0.95", where="--threshold"
        )
    for key, known in {"score": SCORES, "metric": all_metrics(), "evaluate_on": VIEWS}.items():
        value, option = getattr(options, key), f"--{key.replace('_', '-')}"
        if value is not None:
            check_known(value, known, f"{option} {quoted(value)}", f"give one of: {', '.join(known)}", option)


def _plan(
    experiment: Experiment, named: Contestants, baseline: bool, splitting: Splitting, criteria: dict[str, Any]
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
    metric = metric_of(experiment).name
    scoring: dict[str, Any] = {"score": "final", "metric": metric, "evaluate_on": _view(experiment, named), **criteria}
    Scoring(scoring["score"], metric, scoring["evaluate_on"]).check()
    return build_plan(
        experiment,
        named,
        reference=reference,
        versions=versions(),
        **splitting.of_plan,
        **{"rope": rope_of(experiment, all_metrics()[metric]), **scoring},
    )


def _view(experiment: Experiment, named: Contestants) -> View:
    """Return which test samples count: the clients' own as soon as an algorithm gives clients their own models."""
    made = [experiment.with_(**table).algorithm.made for table in named.values()]
    return "own" if any(one.personal for one in made) else "common"


def _name(algorithm: Any) -> str:
    if isinstance(algorithm, Mapping):
        return str(algorithm["name"])
    return algorithm if isinstance(algorithm, str) else name_of(algorithm)


def _same_plan(plan: Plan, before: Plan, root: Path) -> Plan:
    """Return the plan of the folder, or raise if it contains other runs than the requested plan."""
    if before.protocol == "shared" and not plan.fixed:  # begun before splits had their own seeds
        plan = replace(plan, protocol="shared", per_repeat=())
    first = at_first_look(before)
    same = ("experiment", "contestants", "reference", "folds", "repeats", "tuning", "protocol", "fixed", "per_repeat")
    for key in ("at_most", *same):
        found = _difference(key, getattr(first, key), getattr(plan, key))
        if found:
            raise ResumeMismatch(
                f"{root} compares something else: {found}",
                remedy=f"resume it as it was: fedarena compare --resume {root}",
                where="--resume",
            )
    return replace(before, own=plan.own)


def _difference(key: str, old: Any, new: Any) -> str:
    """Return the first setting that differs, as a clause; empty if none does."""
    if isinstance(old, dict) and isinstance(new, dict):
        inner = (_difference(f"{key}.{k}", old.get(k), new.get(k)) for k in {**old, **new})
        return next(filter(None, inner), "")
    return "" if old == new else f"its {key.removeprefix('experiment.')} is {old}, not {new}"


def check_common_score(context: ExperimentContext) -> None:
    """Refuse to judge an algorithm by common test samples whose server has no complete model."""
    if context.has_personal_models and context.common_score == "none":
        name = context.experiment.algorithm.name
        raise BadValue(
            f"{name} has no complete common model, a part of each client's model is its own",
            remedy=f"use --evaluate-on own, which judges each client's model on its own test samples, or leave {name} out",
            where="--evaluate-on",
        )


def check_cells(plan: Plan) -> None:
    """Open every split, and every contestant with each number of clients, so that mistakes show before anything runs."""
    first = next(iter(plan.contestants))
    with one_thread():  # before workers are forked, nothing here may start threads of its own
        populations: dict[int, Split] = {}
        tests: set[tuple[str, bytes]] = set()
        for split in plan.splits:
            with located_at(split.name):
                data, partition = partition_data(plan.cell(first, split))
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
                with located_at(label):
                    context = open_context(plan.cell(label, split))
                    find_metric(plan.metric, context.task_name, "--metric")
                    if plan.evaluate_on == "common":
                        check_common_score(context)
        check_left_out(plan)
