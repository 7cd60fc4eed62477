"""Growing a level: the best candidates of the kernels are those of numpy, and rows keep their places in trees."""

from __future__ import annotations

import numpy as np
import pytest

from fedarena.trees.boosted_rows import BoostedRows
from fedarena.trees.boosting import Boosting
from fedarena.trees.cut_table import CutPoints
from fedarena.trees.forest import Forest
from fedarena.trees.growth import CandidateSums, best_splits, find_candidates
from fedarena.trees.row_growth import RowGrowth

RNG = np.random.default_rng(3)
X = np.where(RNG.random((300, 4)) < 0.1, np.nan, RNG.normal(size=(300, 4)).round(1)).astype(np.float32)
LABELS = (np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 1]) > 0).astype(np.float64)


def boosting(**settings: float) -> Boosting:
    given = {"depth": 4, "lr": 0.3, "lambda_": 1.0, "gamma": 0.0, "min_child_weight": 1.0, **settings}
    return Boosting("logistic", 2, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernels", ["", "off"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"lambda_": 0.0, "min_child_weight": 0.0}, {"min_child_weight": 9.0}, {"min_child_weight": 1e9}],
)
def test_the_best_candidate_is_the_first_with_the_largest_gain(
    kernels: str, settings: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDARENA_KERNELS", kernels)
    of, table = boosting(**settings), CutPoints.of_rows(X, 8).table
    point = of.point(len(X))
    rows, nodes = BoostedRows(X, LABELS), np.arange(3)
    integers = rows.integers(Forest.empty("logistic", 1, 4, 0.0).vector, of, point)[0]
    sums = np.zeros((3, table.width, 2), np.int64)
    for row, (codes, pair) in enumerate(zip(table.codes(X), integers, strict=True)):
        sums[row % 3, table.first + codes] += pair
    totals = table.totals(sums)
    best, gains, left = find_candidates(of, point, table, sums, totals)
    offered = table.left_sums(sums)
    offers = {0: CandidateSums(offered[:, :, None], np.zeros(offered.shape[:2], np.int64))}
    expected = best_splits(of, point, totals[:, None], 0 * nodes, nodes, offers)
    assert (settings == {"min_child_weight": 1e9}) == (not expected)
    assert [node for node in nodes.tolist() if gains[node] > 1e-6] == list(expected)
    for node, split in expected.items():
        assert (best[node], gains[node]) == (split.tied[0], split.gain)
        assert left[node].tolist() == split.sums[0, 0].tolist()


@pytest.mark.parametrize("kernels", ["", "off"])
def test_columns_of_one_value_split_nothing(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDARENA_KERNELS", kernels)
    of, table = boosting(), CutPoints.of_rows(np.ones((10, 2), np.float32), 8).table
    sums = np.full((2, table.width, 2), 1 << 50)
    _, gains, left = find_candidates(of, of.point(10), table, sums, table.totals(sums))
    assert gains.tolist() == [-np.inf, -np.inf]
    assert not left.any()


def test_rows_that_follow_a_tree_as_it_grows_have_the_gradients_of_rows_that_see_it_complete() -> None:
    of, table = boosting(), CutPoints.of_rows(X, 8).table
    point, forest = of.point(len(X)), Forest.empty("logistic", 1, 4, 0.0)
    followed = BoostedRows(X, LABELS)
    for _ in range(3):
        growth, integers = RowGrowth(of, point, table), followed.integers(forest.vector, of, point)
        while len(growth.build):
            growth.advance(followed.sums(table, integers, growth.trees, growth.depth, growth.build))
        forest = forest.with_trees(growth.result())
        assert (forest.trees[-1, :, 0] >= 0).sum() > 3
        new = BoostedRows(X, LABELS).integers(forest.vector, of, point)
        assert np.array_equal(followed.integers(forest.vector, of, point), new)
