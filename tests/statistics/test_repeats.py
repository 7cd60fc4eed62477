"""A random effect per repeat: what the folds of a repeat share counts once, and coverage is at least what it claims."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.support.benchmark_scripts import script

from fedarena.config import comparison_plan
from fedarena.config.errors import BadValue
from fedarena.statistics import repeats
from fedarena.statistics.bayes import posterior, verdict
from fedarena.statistics.joint import joint_posterior
from fedarena.statistics.repeats import repeat_posterior
from fedarena.statistics.sequential import look

NAMES = np.repeat(np.arange(6), 5).tolist()


def differences(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 0.02 + 0.01 * rng.standard_normal(6)[NAMES] + 0.01 * rng.standard_normal(30)


def test_scale_by_hand() -> None:
    """d = (1, 3), (5, 7): repeat means 2 and 6, s_R^2 = 8, s_w^2 = 2; scale^2 = 8 / 2 + rho / (1 - rho) 2 = 6."""
    known = repeat_posterior([0.0] * 4, [1, 3, 5, 7], [0, 0, 1, 1], rho=0.5)
    assert (known.mean, known.scale, known.df) == (4, pytest.approx(math.sqrt(6)), 1)


def test_without_overlap_it_is_the_t_test_of_repeat_means() -> None:
    d = differences()
    means = d.reshape(6, 5).mean(axis=1)
    known, expected = repeat_posterior(np.zeros(30), d, NAMES, 0.0), posterior(np.zeros(6), means)
    assert (known.mean, known.scale, known.df) == pytest.approx((expected.mean, expected.scale, expected.df))


def test_repeats_of_one_split_are_splits() -> None:
    d = differences()[:8]
    known, expected = repeat_posterior(np.zeros(8), d, list(range(8)), 0.2), posterior(np.zeros(8), d, 0.2)
    assert (known.mean, known.scale, known.df) == pytest.approx((expected.mean, expected.scale, expected.df))


def test_order_of_splits_and_names_of_repeats_change_nothing() -> None:
    d = differences()
    order = np.random.default_rng(1).permutation(30)
    one = repeat_posterior(np.zeros(30), d, NAMES, 0.2)
    other = repeat_posterior(np.zeros(30), d[order], (100 - np.array(NAMES)[order]).tolist(), 0.2)
    assert (one.mean, one.scale, one.df) == pytest.approx((other.mean, other.scale, other.df))


def test_a_dropped_split_leaves_its_repeat_its_weight() -> None:
    known = repeat_posterior([0.0] * 3, [1, 3, 8], [0, 0, 1])
    assert known.mean == 5


def test_joint_posterior_has_the_same_pairs() -> None:
    d = differences()
    x = np.column_stack([np.zeros(30), d, -d])
    gaps = joint_posterior(x, 0.2, NAMES).gaps()
    regions = repeat_posterior(x[:, 2], x[:, 1], NAMES, 0.2).regions(0.01)
    difference = gaps[:, 2] - gaps[:, 1]
    assert np.mean(difference < -0.01) == pytest.approx(regions.left, abs=1e-3)
    assert np.mean(difference > 0.01) == pytest.approx(regions.right, abs=1e-3)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_fewer_than_five_repeats_decide_nothing(count: int) -> None:
    names = np.repeat(np.arange(count), 5).tolist()
    found = look({"a": [0.0] * len(names), "b": [0.9] * len(names)}, 0.2, repeats=names)
    assert not found.decided
    assert found.reason == ("5 splits: the first look is at 10" if count == 1 else f"{count} repeats: the first look is at 5")


def test_five_repeats_can_decide() -> None:
    rng = np.random.default_rng(0)
    names = np.repeat(np.arange(5), 5).tolist()
    zeros, noise = np.zeros(25), 0.002 * rng.standard_normal(25)
    for scores, sign in ((noise + 0.1, "+"), (noise - 0.1, "-"), (noise, "="), (10 * noise + 0.01, "?")):
        worse, equal, better = repeat_posterior(zeros, scores, names, 0.2).regions(0.01)
        assert verdict(better, equal, worse) == sign


def test_refused() -> None:
    with pytest.raises(BadValue, match="2 repeats for 3 splits"):
        repeat_posterior([0, 0, 0], [1, 2, 3], [0, 1])
    with pytest.raises(BadValue, match="needs 2 repeats"):
        repeat_posterior([0, 0, 0], [1, 2, 3], [0, 0, 0])
    with pytest.raises(BadValue, match="not paired"):
        repeat_posterior([0, 0], [1, 2, 3], [0, 0, 1])


@pytest.mark.parametrize(("repeats", "effect"), [(2, 2.0), (5, 0.0), (5, 1.0)])
def test_intervals_cover_at_least_as_often_as_they_claim(repeats: int, effect: float) -> None:
    """500 comparisons; four standard errors of 90 % are 0.054. With few repeats, ignoring the effect covers too little."""
    fitted, ignored = script("simulated_scores").repeat_coverage(500, repeats=repeats, effect=effect)
    assert fitted > 0.9 - 0.054
    if repeats == 2:
        assert ignored < 0.8


def test_plans_and_statistics_need_the_same_number_of_repeats() -> None:
    assert comparison_plan.LEAST_REPEATS == repeats.LEAST_REPEATS
