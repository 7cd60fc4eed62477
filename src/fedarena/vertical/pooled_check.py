"""The same trees from pooled data: XGBoost `hist` on the same bins, compared split by split.

Only where all tables are in one place, as in a simulation, can that be asked. It is what "lossless" means: no split is
another, and no margin, because the parties did not show each other their columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedarena.common.optional_imports import import_optional
from fedarena.config.errors import BadValue
from fedarena.vertical.bins import checked_columns, make_bins
from fedarena.vertical.model import joined
from fedarena.vertical.objective import checked_labels, checked_weights, objective_of, scores
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.simulation import SimulatedModel

if TYPE_CHECKING:
    import xgboost

Place = tuple[int, int, bool]  # pooled column, last bin on the left, missing values to the left
LOSSY = "the trees are then not those of pooled boosting"


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
        """All of them, in all trees."""
        return self.equal == self.splits


def pooled_codes(tables: Sequence[NDArray[Any]], settings: BoostSettings, training: NDArray[np.bool_]) -> NDArray[Any]:
    """All parties' columns side by side, the guest's first, as bin numbers; NaN is missing."""
    parts = []
    for table in tables:
        x = checked_columns(table, None, "a party")
        bins = make_bins(x, training, settings.bins, settings.min_bin_count)
        codes = bins.codes(x).T
        missing = codes >= bins.counts
        gaps = np.count_nonzero(missing[training], axis=0)
        rare = (gaps > 0) & (gaps < settings.min_bin_count)
        codes = np.where(missing & rare, bins.counts - 1, codes)  # too few to be told apart from the last bin
        parts.append(np.where(missing & ~rare, np.nan, codes).astype(np.float32))
    return np.concatenate(parts, axis=1)


def pooled_xgboost(
    codes: NDArray[Any],
    y: NDArray[Any],
    settings: BoostSettings,
    weights: NDArray[Any] | None = None,
    training: NDArray[np.bool_] | None = None,
) -> tuple[xgboost.Booster, NDArray[np.float32]]:
    """XGBoost's trees on these codes, and its margins of all rows [rows, outputs]."""
    refuse_lossy(settings)
    xgboost = need_xgboost()
    used = np.ones(len(codes), bool) if training is None else training
    labels, w = checked_labels(y, settings, used), checked_weights(weights, len(codes))
    start = objective_of(settings).start(labels[used], w[used])
    rows = xgboost.DMatrix(codes[used], labels[used], weight=None if weights is None else w[used])
    booster = xgboost.train(_parameters(settings, start), rows, num_boost_round=settings.trees)
    margins = booster.predict(xgboost.DMatrix(codes), output_margin=True)
    return booster, np.asarray(margins, np.float32).reshape(len(codes), -1)


def need_xgboost() -> Any:
    """Return the module XGBoost, or raise `MissingDependency`."""
    return import_optional(
        "xgboost",
        needed_by="the comparison with pooled data",
        install="xgboost",
        alternative="xgboost-cpu, which is smaller",
    )


def refuse_lossy(settings: BoostSettings) -> None:
    for name, on in {
        "goss": settings.goss,
        "first_tree_guest_only": settings.first_tree_guest_only,
        f"tree_mode {settings.tree_mode}": settings.tree_mode != "normal",
        "min_leaf_rows": settings.min_leaf_rows > 1,
        "early_stopping_rounds": settings.early_stopping_rounds is not None,
    }.items():
        if on:
            raise BadValue(
                f"{name} cannot be compared with pooled XGBoost: {LOSSY}", remedy="leave it out to compare", where=name
            )
    if settings.multi_output and settings.min_child_weight > 0:
        raise BadValue(
            "XGBoost's releases do not agree on what min_child_weight means for a tree with several outputs",
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


def xgboost_places(booster: xgboost.Booster, bins: Sequence[int]) -> list[list[Place | None]]:
    """For each tree the split of each node in order of depth-first visits, None for a leaf."""
    content = json.loads(bytes(booster.save_raw("json")))
    found: list[list[Place | None]] = []
    for tree in content["learner"]["gradient_booster"]["model"]["trees"]:
        nodes: list[Place | None] = []

        def visit(i: int, tree: dict[str, Any] = tree, nodes: list[Place | None] = nodes) -> None:
            if tree["left_children"][i] < 0:
                nodes.append(None)
                return
            column = tree["split_indices"][i]
            last = min(int(np.ceil(tree["split_conditions"][i])) - 1, bins[column] - 1)  # codes below it go left
            nodes.append((column, max(last, -1), bool(tree["default_left"][i])))
            visit(tree["left_children"][i])
            visit(tree["right_children"][i])

        visit(0)
        found.append(nodes)
    return found


def own_places(model: SimulatedModel, columns: Sequence[int]) -> list[list[Place | None]]:
    """The same of a simulated training; `columns` are the numbers of columns of each party, the guest's first."""
    first = np.concatenate([[0], np.cumsum(columns)])
    found: list[list[Place | None]] = []
    for tree, splits in zip(model.guest.trees, joined(model.guest, model.hosts), strict=True):
        nodes: list[Place | None] = []
        waiting = [0]
        while waiting:
            i = waiting.pop()
            if (known := splits[i]) is None:
                nodes.append(None)
                continue
            owner, split = known
            nodes.append((int(first[owner]) + split.column, split.bin, split.missing_left))
            waiting += [tree.nodes[i].right, tree.nodes[i].left]
        found.append(nodes)
    return found


def check_pooled(
    model: SimulatedModel,
    tables: Sequence[NDArray[Any]],
    y: NDArray[Any],
    weights: NDArray[Any] | None = None,
    training: NDArray[np.bool_] | None = None,
) -> PooledCheck:
    """Train XGBoost on the pooled bins, and compare every split, margin and the score."""
    settings = model.guest.settings
    used = np.ones(len(y), bool) if training is None else training
    codes = pooled_codes(tables, settings, used)
    booster, margins = pooled_xgboost(codes, y, settings, weights, training)
    bins = [int(np.nanmax(c, initial=-1)) + 1 for c in codes[used].T]
    theirs, ours = xgboost_places(booster, bins), own_places(model, [t.shape[1] for t in tables])
    pairs = [(a, b) for s, t in zip(ours, theirs, strict=True) for a, b in _side_by_side(s, t)]
    splits = [(a, b) for a, b in pairs if a is not None or b is not None]
    judged = used if used.all() else ~used
    labels, w = checked_labels(y, settings, used), checked_weights(weights, len(y))
    mine, pooled = (scores(settings, m[judged], labels[judged], w[judged]) for m in (model.margins, margins))
    metric = next(iter(mine))
    return PooledCheck(
        splits=len(splits),
        equal=sum(a == b for a, b in splits),
        margin_difference=float(np.abs(model.margins - margins).max()),
        metric=metric,
        value=mine[metric],
        pooled=pooled[metric],
    )


def _side_by_side(ours: list[Place | None], theirs: list[Place | None]) -> list[tuple[Place | None, Place | None]]:
    """Node by node; trees of unlike shape are compared as far as they go, and what is left over is unequal."""
    longest = max(len(ours), len(theirs))
    filler: list[Place | None] = [(-1, -1, False)]
    mine = ours + filler * (longest - len(ours))
    other = theirs + filler * (longest - len(theirs))
    return list(zip(mine, other, strict=True))
