"""Compare the trees of a simulation with XGBoost `hist` on the pooled columns in the same bins, split by split.

This is possible only where all tables are in one place, as in a simulation. It shows what "lossless" means: every split
and every margin is the same as if the parties had pooled their columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedarena.common.optional_imports import import_optional
from fedarena.config.errors import BadValue
from fedarena.trees.bins import check_columns, make_bins
from fedarena.trees.objectives import check_labels, check_weights, make_objective, scores
from fedarena.vertical.model import join_models
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.simulation import SimulatedModel

if TYPE_CHECKING:
    import xgboost

PooledSplit = tuple[int, int, bool]  # pooled column, last bin on the left, missing values to the left
DepthFirst = list[PooledSplit | None]  # the nodes of a tree in depth-first order, None for a leaf


@dataclass(frozen=True)
class PooledCheck:
    """How the trees of the parties compare with those of pooled data."""

    splits: int
    equal: int
    margin_difference: float
    metric: str
    value: float
    pooled: float

    @property
    def splits_equal(self) -> bool:
        """Return whether all splits of all trees are equal."""
        return self.equal == self.splits


def pooled_codes(tables: Sequence[NDArray[Any]], settings: BoostSettings, training: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the columns of all parties side by side, the guest's first, as bin codes; NaN is missing."""
    parts = []
    for table in tables:
        x = check_columns(table, None, "a party")
        bins = make_bins(x, training, settings.bins, settings.min_bin_count)
        codes = bins.codes(x).T
        missing = codes >= bins.counts
        missing_rows = np.count_nonzero(missing[training], axis=0)
        rare = (missing_rows > 0) & (missing_rows < settings.min_bin_count)
        codes = np.where(missing & rare, bins.counts - 1, codes)  # too few for a bin of their own
        parts.append(np.where(missing & ~rare, np.nan, codes).astype(np.float32))
    return np.concatenate(parts, axis=1)


def need_xgboost() -> Any:
    """Return the module XGBoost, or raise `MissingDependency`."""
    return import_optional(
        "xgboost",
        needed_by="the comparison with pooled data",
        install="xgboost",
        alternative="xgboost-cpu, which is smaller",
    )


def refuse_lossy(settings: BoostSettings) -> None:
    """Refuse settings with which the trees are not those of pooled boosting."""
    for name, on in {
        "goss": settings.goss,
        "first_tree_guest_only": settings.first_tree_guest_only,
        f"tree_mode {settings.tree_mode}": settings.tree_mode != "normal",
        "min_leaf_rows": settings.min_leaf_rows > 1,
        "early_stopping_rounds": settings.early_stopping_rounds is not None,
    }.items():
        if on:
            raise BadValue(
                f"{name} cannot be compared with pooled XGBoost: it changes the trees",
                remedy="leave it out to compare",
                where=name,
            )
    if settings.multi_output and settings.min_child_weight > 0:
        raise BadValue(
            "min_child_weight of a tree with several outputs differs between releases of XGBoost",
            remedy="set min_child_weight = 0 to compare",
            where="min_child_weight",
        )


def _parameters(settings: BoostSettings, start: float) -> dict[str, Any]:
    objective: dict[str, Any] = {
        "logistic": {"objective": "binary:logistic", "base_score": 0.5},
        "softmax": {"objective": "multi:softprob", "num_class": settings.classes, "base_score": 0.0},
        "squared_error": {"objective": "reg:squarederror", "base_score": start},
    }[settings.objective]
    if settings.multi_output:
        objective["multi_strategy"] = "multi_output_tree"
    return {
        **objective,
        "tree_method": "hist",
        "max_depth": settings.depth,
        "max_bin": max(256, settings.bins + 1),
        "eta": settings.lr,
        "lambda": settings.lambda_,
        "gamma": 2 * settings.gamma,  # XGBoost leaves out the paper's factor 1/2
        "min_child_weight": settings.min_child_weight,
        "nthread": 2,
        "verbosity": 1,
    }


def xgboost_splits(booster: xgboost.Booster, bins: Sequence[int]) -> list[DepthFirst]:
    """Return the splits of each tree of XGBoost; `bins` are the numbers of bins of the columns."""
    content = json.loads(bytes(booster.save_raw("json")))
    found = []
    for tree in content["learner"]["gradient_booster"]["model"]["trees"]:
        splits: DepthFirst = []
        for i, left in enumerate(tree["left_children"]):
            if left < 0:
                splits.append(None)
                continue
            column, condition = tree["split_indices"][i], tree["split_conditions"][i]
            last = min(int(np.ceil(condition)) - 1, bins[column] - 1)  # codes below the condition go left
            splits.append((column, max(last, -1), bool(tree["default_left"][i])))
        found.append(_depth_first(splits, tree["left_children"], tree["right_children"]))
    return found


def model_splits(model: SimulatedModel, columns: Sequence[int]) -> list[DepthFirst]:
    """Return the splits of each tree of a simulation; `columns` are the numbers of columns, the guest's first."""
    first = np.concatenate([[0], np.cumsum(columns)])
    found = []
    for tree, known in zip(model.guest.trees, join_models(model.guest, model.hosts), strict=True):
        splits: DepthFirst = [
            node and (int(first[node[0]]) + node[1].column, node[1].bin, node[1].missing_left) for node in known
        ]
        found.append(_depth_first(splits, [n.left for n in tree.nodes], [n.right for n in tree.nodes]))
    return found


def _depth_first(splits: DepthFirst, left: Sequence[int], right: Sequence[int]) -> DepthFirst:
    """Return the nodes of a tree that are reached from its root, in depth-first order."""
    found: DepthFirst = []
    waiting = [0]
    while waiting:
        i = waiting.pop()
        found.append(splits[i])
        if splits[i] is not None:
            waiting += [right[i], left[i]]
    return found


def check_pooled(
    model: SimulatedModel,
    tables: Sequence[NDArray[Any]],
    y: NDArray[Any],
    weights: NDArray[Any] | None = None,
    training: NDArray[np.bool_] | None = None,
) -> PooledCheck:
    """Train XGBoost on the pooled bins, and compare every split, every margin and the metric."""
    settings = model.guest.settings
    refuse_lossy(settings)
    xgboost = need_xgboost()
    used = np.ones(len(y), bool) if training is None else training
    labels, w = check_labels(y, settings, used), check_weights(weights, len(y))
    codes = pooled_codes(tables, settings, used)
    matrix = xgboost.DMatrix(codes[used], labels[used], weight=None if weights is None else w[used])
    start = make_objective(settings).start(labels[used], w[used])
    booster = xgboost.train(_parameters(settings, start), matrix, num_boost_round=settings.trees)
    predicted = booster.predict(xgboost.DMatrix(codes), output_margin=True)
    margins = np.asarray(predicted, np.float32).reshape(len(codes), -1)
    bins = [int(np.nanmax(c, initial=-1)) + 1 for c in codes[used].T]
    theirs, ours = xgboost_splits(booster, bins), model_splits(model, [t.shape[1] for t in tables])
    no_node = (-1, -1, False)  # trees of different shape: the nodes of the larger one are unequal
    pairs = [pair for s, t in zip(ours, theirs, strict=True) for pair in zip_longest(s, t, fillvalue=no_node)]
    splits = [(a, b) for a, b in pairs if a is not None or b is not None]
    rows = used if used.all() else ~used
    mine, pooled = (scores(settings, m[rows], labels[rows], w[rows]) for m in (model.margins, margins))
    metric = next(iter(mine))
    return PooledCheck(
        splits=len(splits),
        equal=sum(a == b for a, b in splits),
        margin_difference=float(np.abs(model.margins - margins).max()),
        metric=metric,
        value=mine[metric],
        pooled=pooled[metric],
    )
