"""Collect the runs of a report from folders: a comparison, or runs that can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedarena.algorithms.tree_algorithm import TreeAlgorithm
from fedarena.common.grouping import group_by_key
from fedarena.config.comparison_plan import OWN_PARTS, PARTS, Plan
from fedarena.config.errors import BadValue
from fedarena.config.limits import check_path
from fedarena.config.toml_text import flat_table
from fedarena.engine.setup import partition_data
from fedarena.results.comparison import Comparison
from fedarena.results.run import Run
from fedarena.results.run_folder import read_facts
from fedarena.results.run_loading import load_run
from fedarena.statistics.metric_registry import all_metrics

SPLIT = ("seed", "folds", "fold", "fold_seed", "partition_seed", "start_seed", "schedule_seed")
SAME = ("data_sha256", "partition_sha256", "model_sha256")  # the same in all runs of a split
MAX_NAMED = 3


def collect_runs(paths: Sequence[str | Path]) -> Comparison:
    """Load a comparison, or runs taken together; `why_no_verdict` returns whether they allow a verdict."""
    folders = [check_path(path, "the folder of a run") for path in paths]
    if not folders:
        raise BadValue("no run is named", remedy="give the folder of a comparison, or those of runs")
    for folder in folders:
        if not folder.is_dir():
            raise BadValue(f"there is no folder {folder}", remedy="give the folder of a comparison, or those of runs")
    holds = [(folder / "comparison.json").exists() for folder in folders]
    if holds == [True]:
        return Comparison.load(folders[0])
    if any(holds):
        raise BadValue(
            f"{folders[holds.index(True)]} is a comparison of its own",
            remedy="give one comparison by itself, or runs only",
        )
    return combine_runs([load_run(folder) for folder in dict.fromkeys(folders)])


def combine_runs(runs: Sequence[Run]) -> Comparison:
    """Return runs as a comparison, grouped by algorithm and settings; training on pooled samples is the reference."""
    by_label = group_by_key(zip(_labels(runs), runs, strict=True))
    grouped = {label: sorted(group, key=_split) for label, group in by_label.items()}
    pooled = [label for label, group in grouped.items() if group[0].experiment.algorithm.name == "centralized"]
    tables = {label: group[0].experiment.as_table() for label, group in grouped.items()}
    plan = Plan(
        experiment=runs[0].experiment.as_table(),
        contestants={label: {part: table[part] for part in OWN_PARTS} for label, table in tables.items()},
        reference=pooled[0] if len(pooled) == 1 and len(grouped) > 1 else None,
        folds=runs[0].experiment.folds,
        **_protocol(runs),
        **_scoring(runs),
        versions={} if runs[0].dir is None else read_facts(runs[0].dir),
    )
    return Comparison(plan, grouped)


def _scoring(runs: Sequence[Run]) -> dict[str, Any]:
    """Return how runs are scored, as `compare` does by default."""
    own = any(run.experiment.algorithm.made.personal for run in runs) and all(run.own_metrics for run in runs)
    metric = runs[0].measured.metric
    rope = all_metrics()[metric].rope
    return {"score": "final", "metric": metric, "evaluate_on": "own" if own else "common", "rope": rope}


def _protocol(runs: Sequence[Run]) -> dict[str, Any]:
    """Return how the runs were repeated, as a plan states it; runs without own seeds are of the first protocol."""
    experiments = [run.experiment for run in runs]
    seeds = {part: {getattr(exp, f"{part}_seed") for exp in experiments} for part in PARTS}
    first = experiments[0]
    if first.fold_seed is None and all(values == {None} for values in seeds.values()):
        return {"repeats": len({exp.seed for exp in experiments})}
    given = {part: values for part, values in seeds.items() if values != {None}}
    test = None if first.folds or first.fold_seed is None else partition_data(first)
    return {
        "protocol": "independent",
        "repeats": len({exp.fold_seed if first.folds else exp.seed for exp in experiments}),
        "fixed": (
            *(part for part, values in given.items() if len(values) == 1),
            *(["test"] * (first.fold_seed is None)),
        ),
        "per_repeat": tuple(part for part, values in given.items() if len(values) > 1),
        "test_share": None if test is None else len(test[1].test) / len(test[0].x),
    }


def why_no_verdict(result: Comparison) -> str | None:
    """Return why there is no verdict, in a sentence; None if the scores are pairs and there are enough of them."""
    labels, runs = result.labels, result.runs
    if len(labels) < 2:
        return f"Only one algorithm has results: {', '.join(labels)}."
    swept = [key.partition(".")[0] for key in result.plan.sweep.values() if isinstance(key, str)]
    differing = _differing([run for label in labels for run in runs[label]], (*OWN_PARTS, *SPLIT, *swept))
    if differing:
        more = f" and {len(differing) - MAX_NAMED} more" if len(differing) > MAX_NAMED else ""
        return f"The runs are of different experiments: they differ in {', '.join(differing[:MAX_NAMED])}{more}."
    splits = {label: [_split(run) for run in runs[label]] for label in labels}
    for label in labels:
        if len(set(splits[label])) < len(splits[label]):
            return f"Some runs of {label} are of one and the same split."
        if splits[label] != splits[labels[0]]:
            return f"The runs are no pairs: {labels[0]} and {label} were not run on the same splits."
    if len(splits[labels[0]]) < 2:
        return "One split says nothing about chance: run them on more folds or seeds."
    here, all_of_it = len(splits[labels[0]]), len(result.plan.splits)
    if result.plan.folds and here < all_of_it:
        return f"The cross-validation is not complete: {here} of its {all_of_it} splits are here."
    return _other_rows(result)


def _other_rows(result: Comparison) -> str | None:
    """Return why runs of a split are no pairs: other samples or other initial weights; None if they are pairs."""
    first, *others = result.labels
    for number, run in enumerate(result.runs[first]):
        for label in others:
            other = result.runs[label][number]
            if run.dir is None or other.dir is None:
                continue
            mine, theirs = read_facts(run.dir), read_facts(other.dir)
            has_forest = any(isinstance(one.experiment.algorithm.made, TreeAlgorithm) for one in (run, other))
            keys = [key for key in SAME if not (has_forest and key == "model_sha256")]  # a forest begins without trees
            if any(mine.get(key) != theirs.get(key) for key in keys):
                return f"The runs are no pairs: {first} and {label} had other rows or other initial weights."
    return None


def split_names(runs: Sequence[Run]) -> list[str]:
    """Return the repeat and fold, or the seed, of each run in words; what is the same for all is left out."""
    repeats = list(dict.fromkeys(_repeat(run) for run in runs))
    names = []
    for run in runs:
        exp = run.experiment
        seeded = exp.fold_seed is not None
        repeat = f"repeat {repeats.index(_repeat(run))}" if seeded else f"seed {exp.seed}"
        fold = [] if exp.fold is None else [f"fold {exp.fold}"]
        names.append(", ".join([*([repeat] if len(repeats) > 1 or not fold else []), *fold]))
    return names


def _repeat(run: Run) -> int:
    """Return the seed that the folds of a repeat have in common."""
    exp = run.experiment
    return exp.seed if exp.fold_seed is None else exp.fold_seed


def _split(run: Run) -> tuple[int, int, int, int]:
    return _repeat(run), run.experiment.folds or 0, run.experiment.fold or 0, run.experiment.seed


def _labels(runs: Sequence[Run]) -> list[str]:
    """Return the algorithm of each run, with the settings in which runs of that algorithm differ."""
    labels = []
    for run in runs:
        name = run.experiment.algorithm.name
        alike = [other for other in runs if other.experiment.algorithm.name == name]
        mine = flat_table(run.experiment.as_table())
        settings = [f"{key.removeprefix('algorithm.')}={mine.get(key)}" for key in _differing(alike, SPLIT)]
        labels.append(f"{name}:{','.join(settings)}" if settings else name)
    return labels


def _differing(runs: Sequence[Run], aside: Sequence[str]) -> list[str]:
    """Return the keys whose values are not the same in all runs."""
    tables = [flat_table(run.experiment.as_table()) for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table if key.partition(".")[0] not in aside)
    return [key for key in keys if len({str(table.get(key)) for table in tables}) > 1]
