"""XGBoost on pooled rows in given bins, and a forest of histboost in the same form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.trees.cut_table import CutTable
from fedarena.trees.forest import COLUMN, LARGEST, MISSING_LEFT, THRESHOLD, Forest
from fedarena.vertical.pooled_check import DepthFirst, xgboost_splits


def pooled_splits(
    table: CutTable, x: NDArray[np.float32], y: NDArray[Any], trees: int, **parameters: Any
) -> tuple[list[DepthFirst], NDArray[np.float32]]:
    """Train XGBoost `hist` on the bins of these rows; return the splits of every tree and the margins of the rows."""
    import xgboost

    codes = table.codes(x).astype(np.float32)
    codes[codes >= table.bins.counts] = np.nan
    matrix = xgboost.DMatrix(codes, y)
    settings = {"tree_method": "hist", "max_bin": 512, "nthread": 1, **parameters}
    booster = xgboost.train(settings, matrix, num_boost_round=trees)
    bins = [int(np.nanmax(c, initial=-1)) + 1 for c in codes.T]
    margins = np.asarray(booster.predict(matrix, output_margin=True), np.float32).reshape(len(x), -1)
    return xgboost_splits(booster, bins), margins


def forest_splits(table: CutTable, forest: Forest) -> list[DepthFirst]:
    """Return the splits of every tree of a forest, depth first, as (column, last bin on the left, missing to the left)."""
    return [_depth_first(table, tree, 0) for tree in forest.trees]


def _depth_first(table: CutTable, tree: NDArray[np.float32], node: int) -> DepthFirst:
    column = int(tree[node, COLUMN])
    if column < 0:
        return [None]
    value, cuts = float(tree[node, THRESHOLD]), table.bins.cuts[column]
    last = -1 if value == -LARGEST else len(cuts) if value == LARGEST else int(np.searchsorted(cuts, value))
    below = [_depth_first(table, tree, child) for child in (2 * node + 1, 2 * node + 2)]
    return [(column, last, bool(tree[node, MISSING_LEFT])), *below[0], *below[1]]
