"""The kinds of cells of a recipe: a training run, the statistics of a federation, a posterior, or vertical boosting.

A run has an ordinary run folder. The others write facts.json, which holds numbers that are the same each time.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.common.files import writing
from fedarena.common.formatting import as_json
from fedarena.config.comparison_plan import Split, finite_table
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment, with_settings
from fedarena.data.partition_statistics import statistics
from fedarena.data.published_files import reading
from fedarena.engine.setup import open_context
from fedarena.experiments.task_folder import run_in_folder
from fedarena.reproduction.recipes import Kind, Table
from fedarena.reproduction.result import written
from fedarena.results.json_files import write_text
from fedarena.results.run_integrity import mark_slim
from fedarena.results.run_loading import load_run
from fedarena.statistics.bayes import Posterior

Facts = dict[str, float]
SCORES = ("best_accuracy", "final_accuracy", "final_loss", "rounds", "uploads", "bytes_up", "bytes_down")
NEEDED = {"posterior": ("mean", "scale", "df", "rope"), "boost": ("data", "rows", "test_share", "cipher")}
RESULT = {"run": "result.json", "open": "facts.json", "posterior": "facts.json", "boost": "facts.json"}


def cell_settings(kind: Kind, layers: Sequence[Table], split: Split) -> Table:
    """Return the complete settings of a cell, as JSON reads them back."""
    if kind in ("run", "open"):
        complete: Table = finite_table(cell_experiment(layers, split).as_table())
        return complete
    table: Table = {}
    for layer in layers:
        table |= layer
    return {**table, "seed": split.repeat}


def cell_experiment(layers: Sequence[Table], split: Split) -> Experiment:
    """Return the experiment of a split from layers of settings, of which later ones replace earlier ones."""
    table: Table = {"seed": split.repeat}
    for layer in layers:
        table = with_settings(table, layer)
    return Experiment.make(with_settings(table, {} if split.fold is None else {"fold": split.fold}))


def run_cell(kind: Kind, table: Table, folder: Path) -> None:
    """Run a cell in its folder, or resume it."""
    if kind == "run":
        run_in_folder(Experiment.make(table), folder)
        mark_slim(folder)  # only a resume would need the client states, which may be a hundred times the model
        shutil.rmtree(folder / "checkpoint" / "clients", ignore_errors=True)
        return
    began = time.perf_counter()
    found = FACTS[kind](table)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failure.txt").unlink(missing_ok=True)
    write_text(folder / "facts.json", as_json({"facts": found, "seconds": time.perf_counter() - began}))


def check_cell(kind: Kind, table: Table) -> None:
    """Raise if a setting, data or a package that the cell needs is missing."""
    for key in NEEDED.get(kind, ()):
        if key not in table:
            raise BadValue(f"a recipe of kind {kind} has no {key}", remedy=f"set {key} under experiment", where=key)
    if kind == "boost":
        from fedarena.vertical.party_tables import load_table
        from fedarena.vertical.pooled_check import need_xgboost

        load_table(table["data"])
        need_xgboost()


def cell_scores(kind: Kind, folder: Path) -> tuple[dict[str, Any], str | None]:
    """Return the scores of a finished cell as a result file holds them, and the hash of its weights."""
    if kind != "run":
        return {name: written(value) for name, value in read_facts(folder)[0].items()}, None
    summary = load_run(folder).summary()
    return {name: written(summary[name]) for name in SCORES}, summary["weights_sha256"]


def read_facts(folder: Path) -> tuple[Facts, float]:
    """Return the numbers of facts.json, and the seconds they took."""
    with reading(folder, remedy="remove the folder of this cell"):
        table = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        return {name: math.nan if v is None else float(v) for name, v in table["facts"].items()}, table["seconds"]


# Facts


def _opened(table: Table) -> Facts:
    """Return the statistics of a federation before its first round, and the size of the model."""
    context = open_context(Experiment.make(table))
    data, partition = context.data, context.owners
    stats = statistics(data, partition)
    counts = stats.counts[partition.population] if stats.counts is not None else np.zeros((0, 0), np.int64)
    held = (counts > 0).sum(axis=1)
    owned = np.bincount(partition.train_rows, minlength=data.n_train)
    return {
        "parameters": float(context.task.size),
        "clients": float(stats.clients),
        "rows_min": float(stats.rows_min),
        "rows_max": float(stats.rows_max),
        "rows_range": float(stats.rows_max - stats.rows_min),
        "unused": float(stats.unused),
        "classes_min": float(held.min(initial=data.classes)),
        "classes_max": float(held.max(initial=0)),
        "l1": math.nan if stats.l1 is None else stats.l1,
        "entropy": math.nan if stats.label_entropy is None else stats.label_entropy,
        "dealt_twice": float((owned > 1).sum()),
        "unaccounted": float((owned == 0).sum() - stats.unused) if partition.test.min() >= data.n_train else math.nan,
    }


def _posterior(table: Table) -> Facts:
    """Return the three areas of a known posterior."""
    known = Posterior(table["mean"], table["scale"], table["df"])
    left, rope, right = known.regions(table["rope"])
    return {"left": left, "rope": rope, "right": right}


def _boosted(table: Table) -> Facts:
    """Return the scores of vertical boosting on held-out samples, and of pooled data where both should be equal."""
    from fedarena.trees.objectives import check_labels, check_weights, scores
    from fedarena.vertical.party_tables import load_table, split_columns
    from fedarena.vertical.pooled_check import check_pooled
    from fedarena.vertical.simulation import simulate
    from fedarena.vertical.training_task import complete_settings, training_rows

    how = dict(table)
    data, most, share, cipher = (how.pop(key) for key in ("data", "rows", "test_share", "cipher"))
    whole = load_table(data)
    some = whole.take(np.arange(min(most, len(whole)))) if most else whole
    assert some.y is not None
    chosen = complete_settings(how, some)
    tables = [some.x[:, own] for own in split_columns(some).values()]
    training = training_rows(len(some), share, chosen.seed)
    trained = simulate(tables, some.y, chosen, training=training, cipher=cipher)
    if chosen.goss:  # samples are drawn, so the trees differ by design
        labels, weights = check_labels(some.y, chosen, training), check_weights(None, len(some))
        return scores(chosen, trained.margins[~training], labels[~training], weights[~training])
    check = check_pooled(trained, tables, some.y, training=training)
    return {
        "auc": check.value,
        "pooled": check.pooled,
        "lost": check.pooled - check.value,
        "other_splits": float(check.splits - check.equal),
    }


FACTS: Mapping[str, Callable[[Table], Facts]] = {"open": _opened, "posterior": _posterior, "boost": _boosted}
