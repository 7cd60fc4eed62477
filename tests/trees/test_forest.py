"""A forest is one vector, and margins follow it as it grows."""

from __future__ import annotations

import numpy as np
import pytest

from fedarena.trees.forest import LARGEST, Forest, MarginCache, empty_trees
from fedarena.trees.kernels import descend


def stump(column: int, value: float, missing_left: bool, left: float, right: float) -> np.ndarray:
    trees = empty_trees(1, 2)
    trees[0, 0] = column, value, missing_left, 0
    trees[0, 1, 3], trees[0, 2, 3] = left, right
    return trees


X = np.array([[1, 5], [2, np.nan], [3, -5]], np.float32)


@pytest.mark.parametrize("kernels", ["", "off"])
def test_missing_values_go_where_the_split_says(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDARENA_KERNELS", kernels)
    forest = Forest.empty("squared_error", 1, 2, base=0.5).with_trees(stump(1, 0.0, True, -1, 1))
    assert forest.margins(X)[:, 0].tolist() == [1.5, -0.5, -0.5]
    only_missing = forest.with_trees(stump(1, -LARGEST, True, 10, 0)).margins(X)
    assert only_missing[:, 0].tolist() == [1.5, 9.5, -0.5]
    node = np.zeros(3, np.int32)
    descend(X, stump(0, 2.0, False, 0, 0)[0], node, 2)
    assert node.tolist() == [1, 1, 2]


def test_a_vector_leads_back_to_the_forest() -> None:
    forest = Forest.empty("softmax", 3, 2, base=0.25, label_bound=2.0).with_trees(stump(0, 1.0, False, 1, 2))
    again = Forest.of(forest.vector)
    assert np.array_equal(again.vector, forest.vector)
    assert (again.objective, again.outputs, again.depth) == ("softmax", 3, 2)


def test_margins_are_extended_or_computed_again() -> None:
    first = Forest.empty("squared_error", 1, 2, base=0.0).with_trees(stump(0, 1.5, False, 1, 2))
    longer = first.with_trees(stump(1, 0.0, True, 4, 8))
    other = first.with_trees(stump(1, 0.0, False, 4, 8))
    cache = MarginCache(X)
    for forest in (first, longer, longer, first, other):
        assert np.array_equal(cache.margins(forest), forest.margins(X))
