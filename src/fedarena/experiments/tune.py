"""Equal tuning budgets: before the comparison, every algorithm gets the same number of trials.

The folder of a comparison then also holds tuning.json (every trial, and what was chosen) and tuning/study.db (an Optuna
study for each algorithm and split).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fedarena.common.folder_lock import wait_until_released
from fedarena.common.formatting import as_json
from fedarena.config.comparison_plan import OWN_PARTS, Plan, Split, folder_name
from fedarena.config.errors import BadValue, check_known, quoted
from fedarena.experiments.option_checks import check_names, check_numbers
from fedarena.experiments.search_space import Method, Space, own_space, read_tables
from fedarena.experiments.study import Search, Study, held_out_text, need_optuna
from fedarena.experiments.trials import run_trials
from fedarena.results.json_files import write_text
from fedarena.runtimes.ray_nodes import ClusterNodes

Per = Literal["split", "repeat", "once"]


def with_tuning(
    plan: Plan,
    trials: int | None,
    contestants: Mapping[str, Any],
    method: Method | None = None,
    per: Per | None = None,
    spaces: Mapping[str, Any] | str | Path | None = None,
) -> Plan:
    """Return the plan with its tuning options, all of them checked.

    Settings that the user gave in `contestants` (fedprox:mu=0.1) stay as they are; the rest of the space is searched.
    `spaces` has other spaces, by label or algorithm.
    """
    if trials is None:
        if method or per or spaces:
            raise BadValue(
                "the number of trials is not given", remedy="add --tune 20, for 20 trials each", where="--tune"
            )
        return plan
    need_optuna()
    check_numbers(tune=(trials, 1))
    check_names(tune_method=(method, Method), tune_per=(per, Per))
    given = _by_label(plan, spaces)
    chosen, fixed = {}, {}
    for label in plan.contestants:
        experiment = plan.cell(label, plan.splits[0])
        own = own_space(experiment)
        space = given.get(label) or _rest(own, contestants.get(label, {}))
        _check_own(space, f"the search space of {label}")
        space.check(experiment, f"the search space of {label}")
        if method == "grid":
            _ = space.grid
        chosen[label] = space.as_table()
        if label not in given and (set_by_user := [key for key in own.keys if key not in space.keys]):
            fixed[label] = set_by_user
    if not any(chosen.values()):
        raise BadValue("nothing is left to tune: every setting is given", remedy="leave out --tune", where="--tune")
    tuning: dict[str, Any] = {"trials": trials, "method": method or "tpe", "per": per or "split", "spaces": chosen}
    if plan.evaluate_on != "common":
        tuning["evaluate_on"] = plan.evaluate_on
    origin = {"given": list(given), "fixed": fixed}  # to print the command that made this plan
    return replace(plan, tuning=tuning | {key: value for key, value in origin.items() if value})


def _check_own(space: Space, where: str) -> None:
    """Raise for keys that all contestants share: with other rounds, models or clients, scores would not be paired."""
    for key in space.keys:
        part, dot, _ = key.partition(".")
        if part not in OWN_PARTS or not dot or key in ("algorithm.name", "algorithm.with"):
            raise BadValue(
                f"{key} cannot differ between algorithms",
                remedy="tune settings of the algorithm and local.*; --set changes the rest for all",
                where=f"{where}, {key}",
            )


def _by_label(plan: Plan, spaces: Any) -> dict[str, Space]:
    """Return the spaces that the user gave, by label; a space of an algorithm applies to all its labels."""
    if spaces is None:
        return {}
    where = str(spaces) if isinstance(spaces, str | Path) else "spaces"
    tables = spaces if isinstance(spaces, Mapping) else read_tables(spaces)
    names = {label: plan.cell(label, plan.splits[0]).algorithm.name for label in plan.contestants}
    for name in tables:
        more = f"give tables for any of these: {', '.join(names)}"
        check_known(name, [*names, *names.values()], f"'{quoted(name)}' is not compared", more, where)
    own = {label: tables.get(label, tables.get(name)) for label, name in names.items()}
    return {label: Space.make(table, f"{where}, {label}") for label, table in own.items() if table is not None}


def _rest(space: Space, given: Mapping[str, Any]) -> Space:
    """Return the space without the keys that the user set."""
    algorithm = given.get("algorithm")
    if dataclasses.is_dataclass(algorithm) and not isinstance(algorithm, type):
        keys = [f.name for f in dataclasses.fields(algorithm) if getattr(algorithm, f.name) != f.default]
    else:
        keys = [key for key in algorithm if key != "name"] if isinstance(algorithm, Mapping) else []
    fixed = {f"algorithm.{key}" for key in keys} | {f"local.{key}" for key in given.get("local", {})}
    return Space({key: dimension for key, dimension in space.keys.items() if key not in fixed})


def run_tuning(
    plan: Plan, root: Path, workers: int | None = None, progress: bool = False, nodes: ClusterNodes | None = None
) -> Plan:
    """Run the missing trials, write tuning.json, and return the plan with the settings that were found."""
    tuning = plan.tuning
    home = root / "tuning"
    wait_until_released(sorted(home.glob("*/*")))
    studies = {}
    for label, table in tuning["spaces"].items():
        for split in plan.splits if table else ():
            source = tuning_split(plan, split, tuning["per"])
            if (label, source) not in studies:
                studies[label, source] = _study(plan, label, source, home)
    run_trials(list(studies.values()), workers, progress, nodes)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    notes = [tuning_note(plan)]
    for label, table in tuning["spaces"].items():
        if table:
            best = {split.name: studies[label, tuning_split(plan, split, tuning["per"])].best for split in plan.splits}
            found[label] = {name: trial.values for name, trial in best.items() if trial is not None}
            notes += _untuned_note(label, [name for name, trial in best.items() if trial is None], len(plan.splits))
    write_text(root / "tuning.json", as_json({**tuning, "found": _all_trials(studies)}))
    return replace(plan, tuned=found, notes=(*plan.notes, *notes))


def tuning_split(plan: Plan, split: Split, per: Per) -> Split:
    """Return the split whose training samples choose the settings of this one."""
    return {"split": split, "repeat": replace(split, fold=split.fold and 0), "once": plan.splits[0]}[per]


def tuning_note(plan: Plan) -> str:
    """Return the note that says how the plan was tuned."""
    tuning = plan.tuning
    where = {"split": "in every split", "repeat": "in every repetition", "once": "once, on the first split"}[
        tuning["per"]
    ]
    elsewhere = tuning["per"] == "once" or (tuning["per"] == "repeat" and plan.folds is not None)
    seen = (
        f"test samples of other {'folds' if plan.folds else 'splits'} were among the training samples there, so all scores "
        "are slightly optimistic"
        if elsewhere and plan.rho
        else "no test sample was used"
    )
    held_out = held_out_text(plan.experiment.get("validate_share"), tuning.get("evaluate_on", "common"))
    return (
        f"tuned: {tuning['trials']} trials ({tuning['method']}) for every algorithm {where}, "
        f"evaluated on {held_out}; {seen}"
    )


def _untuned_note(label: str, splits: list[str], of: int) -> list[str]:
    """Return a note for an algorithm whose trials all failed in some splits, and which kept its settings there."""
    if not splits:
        return []
    where = "" if len(splits) == of else f" in {', '.join(splits)}"
    return [f"{label}: no trial gave a result{where}; it keeps its own settings" + " there" * bool(where)]


def _study(plan: Plan, label: str, split: Split, home: Path) -> Study:
    """Return the study of a label on a split; all labels have the same seed there, so shared keys get equal trials."""
    tuning = plan.tuning
    search = Search(
        plan.cell(label, split),
        Space.make(tuning["spaces"][label]),
        tuning["method"],
        plan.splits.index(split),
        evaluate_on=tuning.get("evaluate_on", "common"),
    )
    title = f"{label} · {split.name}"
    folder = home / f"{folder_name(label)}-{split.name}"
    return Study(search, tuning["trials"], folder, home / "study.db", f"{label} {split.name} {search.name()}", title)


def _all_trials(studies: Mapping[tuple[str, Split], Study]) -> dict[str, dict[str, Any]]:
    """Return label -> split -> the best trial, and every trial."""
    tables: dict[str, dict[str, Any]] = {}
    for (label, split), study in studies.items():
        best = study.best
        tables.setdefault(label, {})[split.name] = {
            "best": None if best is None else best.as_dict(),
            "trials": [trial.as_dict() for trial in study.all],
        }
    return tables
