"""Equal tuning budgets: before they meet, every algorithm of a comparison gets the same number of trials.

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
from fedarena.config.errors import BadValue, UnknownName, quoted, suggest
from fedarena.experiments.search import check_names, check_numbers
from fedarena.experiments.search_space import Method, Space, own_space, read_tables
from fedarena.experiments.study import HELD_OUT, Search, Study, need_optuna
from fedarena.experiments.trials import run_trials
from fedarena.results.comparison import OWN_PARTS, Plan, Split, folder_name
from fedarena.results.run_folder import as_json, write_text
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
    """The plan, with what is to be tuned in it: all that can be wrong with that shows here.

    `contestants` are as they were given: what was said of one (fedprox:mu=0.1) stays as it is, the rest of its space is
    searched. `spaces` has other spaces, by label or algorithm.
    """
    if trials is None:
        if method or per or spaces:
            raise BadValue("nothing says how much to tune", remedy="add --tune 20, for 20 trials each", where="--tune")
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
        if label not in given and (said := [key for key in own.keys if key not in space.keys]):
            fixed[label] = said
    if not any(chosen.values()):
        raise BadValue("nothing is left to tune: every setting is given", remedy="leave out --tune", where="--tune")
    how = {"trials": trials, "method": method or "tpe", "per": per or "split", "spaces": chosen}
    also = {"given": list(given), "fixed": fixed}  # to say it again as it was said
    return replace(plan, tuning=how | {key: value for key, value in also.items() if value})


def _check_own(space: Space, where: str) -> None:
    """Only what an algorithm has of its own: with other rounds, models or clients for one, scores would be no pairs."""
    for key in space.keys:
        part, dot, _ = key.partition(".")
        if part not in OWN_PARTS or not dot or key in ("algorithm.name", "algorithm.with"):
            raise BadValue(
                f"{key} cannot differ between algorithms",
                remedy="tune settings of the algorithm and local.*; --set changes the rest for all",
                where=f"{where}, {key}",
            )


def _by_label(plan: Plan, spaces: Any) -> dict[str, Space]:
    """A space of one's own for a label, or for all labels of an algorithm."""
    if spaces is None:
        return {}
    where = str(spaces) if isinstance(spaces, str | Path) else "spaces"
    tables = spaces if isinstance(spaces, Mapping) else read_tables(spaces)
    names = {label: plan.cell(label, plan.splits[0]).algorithm.name for label in plan.contestants}
    for name in tables:
        known = [*names, *names.values()]
        if name not in known:
            raise UnknownName(
                f"'{quoted(name)}' is not compared",
                remedy=suggest(name, known, f"a table for each of some of these: {', '.join(names)}"),
                where=where,
            )
    own = {label: tables.get(label, tables.get(name)) for label, name in names.items()}
    return {label: Space.make(table, f"{where}, {label}") for label, table in own.items() if table is not None}


def _rest(space: Space, given: Mapping[str, Any]) -> Space:
    """What is left to search when what was said stays."""
    algorithm = given.get("algorithm")
    if dataclasses.is_dataclass(algorithm) and not isinstance(algorithm, type):
        said = [f.name for f in dataclasses.fields(algorithm) if getattr(algorithm, f.name) != f.default]
    else:
        said = [key for key in algorithm if key != "name"] if isinstance(algorithm, Mapping) else []
    fixed = {f"algorithm.{key}" for key in said} | {f"local.{key}" for key in given.get("local", {})}
    return Space({key: dimension for key, dimension in space.keys.items() if key not in fixed})


def run_tuning(
    plan: Plan, root: Path, workers: int | None = None, progress: bool = False, nodes: ClusterNodes | None = None
) -> Plan:
    """Make all trials, or those that are missing; the plan with what was found, which tuning.json has in full."""
    how = plan.tuning
    home = root / "tuning"
    wait_until_released(sorted(home.glob("*/*")))
    studies = {}
    for label, table in how["spaces"].items():
        for split in plan.splits if table else ():
            source = tuning_split(plan, split, how["per"])
            if (label, source) not in studies:
                studies[label, source] = _study(plan, label, source, home)
    run_trials(list(studies.values()), workers, progress, nodes)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    notes = [tuning_note(plan)]
    for label, table in how["spaces"].items():
        if table:
            best = {split.name: studies[label, tuning_split(plan, split, how["per"])].best for split in plan.splits}
            found[label] = {name: trial.values for name, trial in best.items() if trial is not None}
            notes += _untuned_note(label, [name for name, trial in best.items() if trial is None], len(plan.splits))
    write_text(root / "tuning.json", as_json({**how, "found": _in_full(studies)}))
    return replace(plan, tuned=found, notes=(*plan.notes, *notes))


def tuning_split(plan: Plan, split: Split, per: Per) -> Split:
    """The split whose training rows decide the settings of another."""
    return {"split": split, "repeat": replace(split, fold=split.fold and 0), "once": plan.splits[0]}[per]


def tuning_note(plan: Plan) -> str:
    """How it was tuned, for the record."""
    how = plan.tuning
    where = {"split": "in every split", "repeat": "in every repetition", "once": "once, on the first split"}[how["per"]]
    elsewhere = how["per"] == "once" or (how["per"] == "repeat" and plan.folds is not None)
    seen = (
        f"test rows of other {'folds' if plan.folds else 'splits'} were among the training rows there, so that scores are "
        "a little too good, for all"
        if elsewhere and plan.rho
        else "no test row was looked at"
    )
    share = plan.experiment.get("validate_share") or HELD_OUT
    return (
        f"tuned: {how['trials']} trials ({how['method']}) for every algorithm {where}, "
        f"judged on {share:.0%} of the training rows; {seen}"
    )


def _untuned_note(label: str, splits: list[str], of: int) -> list[str]:
    """Whose trials all failed is compared as it came, and everybody should know."""
    if not splits:
        return []
    where = "" if len(splits) == of else f" in {', '.join(splits)}"
    return [f"{label}: no trial gave a result{where}; it keeps its own settings" + " there" * bool(where)]


def _study(plan: Plan, label: str, split: Split, home: Path) -> Study:
    """Everyone's search of a split has the same seed: equal luck, where they search the same key."""
    how = plan.tuning
    search = Search(plan.cell(label, split), Space.make(how["spaces"][label]), how["method"], plan.splits.index(split))
    title = f"{label} · {split.name}"
    folder = home / f"{folder_name(label)}-{split.name}"
    return Study(search, how["trials"], folder, home / "study.db", f"{label} {split.name} {search.name()}", title)


def _in_full(studies: Mapping[tuple[str, Split], Study]) -> dict[str, dict[str, Any]]:
    """label -> split -> what was chosen, and every trial."""
    told: dict[str, dict[str, Any]] = {}
    for (label, split), study in studies.items():
        best = study.best
        told.setdefault(label, {})[split.name] = {
            "best": None if best is None else best.as_dict(),
            "trials": [trial.as_dict() for trial in study.all],
        }
    return told
