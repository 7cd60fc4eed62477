"""Gains and leaf weights equal those computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedarena.trees.fixed_point import FixedPoint
from fedarena.trees.gain import is_worth_splitting, leaf_weights, may_split, split_gains
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.tree_growth import splitting_parties

HALVES = FixedPoint(g_shift=1, h_shift=1, offset=0, top=(0, 0))  # the integer 3 stands for 1.5


def sums(*pairs: tuple[float, float]) -> np.ndarray:
    return np.array([[[round(2 * g), round(2 * h)]] for g, h in pairs])


def test_gain_is_the_formula_of_the_paper_twice() -> None:
    # left (G, H) = (-3, 2), right (2, 1.5), lambda 1: 9/3 + 4/2.5 - 1/4.5
    found = split_gains(BoostSettings(), HALVES, sums((-3, 2)), np.array([4]), sums((-1, 3.5))[0], 7)
    assert found[0] == pytest.approx(9 / 3 + 4 / 2.5 - 1 / 4.5, rel=1e-6)


def test_a_child_that_is_too_light_or_too_small_is_no_child() -> None:
    left, rows = sums((-3, 2), (-3, 0.5), (0, 3), (-3, 2)), np.array([4, 4, 4, 1])
    found = split_gains(BoostSettings(min_leaf_rows=2), HALVES, left, rows, sums((-1, 3.5))[0], 7)
    assert np.isfinite(found).tolist() == [True, False, False, False]


def test_without_lambda_an_empty_side_is_worth_nothing() -> None:
    settings = BoostSettings(lambda_=0.0, min_child_weight=0.0)
    found = split_gains(settings, HALVES, sums((0, 0), (-1, 3.5)), np.array([0, 7]), sums((-1, 3.5))[0], 7)
    assert found.tolist() == [-math.inf, -math.inf]


def test_sums_beyond_single_precision_are_no_gain_and_hide_none() -> None:
    """Infinity minus infinity is no number, and a number that is none would be the largest of all."""
    huge = FixedPoint(g_shift=-70, h_shift=1, offset=0, top=(0, 0))  # g in units of 2^70: its square overflows
    with np.errstate(all="raise", under="ignore"):
        found = split_gains(BoostSettings(), huge, sums((-3, 2), (0, 2)), np.array([4, 4]), sums((-1, 3.5))[0], 7)
    assert found.tolist() == [-math.inf, -math.inf]


def test_a_split_must_bring_gamma() -> None:
    # the paper subtracts gamma from half of what is compared here
    assert is_worth_splitting(BoostSettings(gamma=1.5), np.float32(3.0))
    assert not is_worth_splitting(BoostSettings(gamma=1.5), np.float32(2.999))
    assert not is_worth_splitting(BoostSettings(), np.float32(1e-6))
    assert not is_worth_splitting(BoostSettings(), np.float32(-np.inf))


def test_leaf_weight_is_the_newton_step_times_the_learning_rate() -> None:
    assert leaf_weights(BoostSettings(lr=0.5), HALVES, sums((-3, 2))[0]).tolist() == [0.5]  # 0.5 * 3 / (2 + 1)
    assert leaf_weights(BoostSettings(min_child_weight=3), HALVES, sums((-3, 2))[0]).tolist() == [0.0]


def test_nodes_too_small_for_two_children_are_not_asked_about() -> None:
    settings = BoostSettings(min_child_weight=1, min_leaf_rows=3)
    assert may_split(settings, HALVES, sums((0, 2))[0], 6)
    assert not may_split(settings, HALVES, sums((0, 1.5))[0], 6)
    assert not may_split(settings, HALVES, sums((0, 2))[0], 5)


def test_turns_of_classes_and_parties() -> None:
    settings = BoostSettings(objective="softmax", classes=3, tree_mode="mix")
    assert [splitting_parties(settings, 2, tree, 0)[0] for tree in range(9)] == [0, 0, 0, 1, 1, 1, 0, 0, 0]
    alone = BoostSettings(objective="softmax", classes=3, first_tree_guest_only=True)
    assert [splitting_parties(alone, 2, tree, 0) for tree in (0, 2, 3)] == [[0], [0], [0, 1]]
