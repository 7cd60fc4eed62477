"""How many splits would decide: the number decides and one fewer does not, or the floor keeps it open for ever."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedarena.statistics.bayes import Posterior, posterior, verdict
from fedarena.statistics.more_splits import Outlook, more_repeats, more_splits


def sign_with(count: int, mean: float, sd: float, rho: float) -> str:
    left, equal, right = Posterior(mean, math.sqrt(1 / count + rho / (1 - rho)) * sd, count - 1).regions(0.01)
    return verdict(right, equal, left)


@pytest.mark.parametrize("seed", range(30))
def test_it_is_the_smallest_number_that_decides(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, rho = int(rng.integers(3, 12)), float(rng.choice([0.0, 0.05, 0.2]))
    d = rng.normal(rng.uniform(-0.03, 0.03), 0.02, n)
    further, sign = more_splits(np.zeros(n), d, rho)
    mean, sd = float(d.mean()), float(d.std(ddof=1))
    if further is None:
        assert sign == "?"
        assert sign_with(10**9, mean, sd, rho) == "?"
    else:
        assert sign_with(n + further, mean, sd, rho) == sign != "?"
        assert further == 0 or sign_with(n + further - 1, mean, sd, rho) == "?"


def test_decided_pairs_need_no_more() -> None:
    assert more_splits([0.5] * 5, [0.6] * 5, 0.2) == Outlook(0, "+")
    assert more_splits([0.5] * 5, [0.5] * 5, 0.2) == Outlook(0, "=")


def test_the_floor_is_where_the_normal_distribution_says() -> None:
    """With endless splits the posterior is normal with sd sqrt(rho / (1 - rho)): above 1.645 of it, it decides."""
    d = np.array([-1.0, 1.0] * 5) * 0.01
    sd = float(d.std(ddof=1))
    border = 0.01 + stats.norm.ppf(0.95) * math.sqrt(0.25) * sd
    assert more_splits(np.zeros(10), d + border * 0.999, 0.2).further is None
    assert more_splits(np.zeros(10), d + border * 1.001, 0.2).further is not None


def test_a_mean_on_the_border_is_never_decided() -> None:
    assert more_splits([0.0, 0.0], [0.0, 0.5], rope=0.25) == Outlook(None, "?")


def test_both_directions() -> None:
    a, b = [0.80, 0.82, 0.81, 0.83], [0.83, 0.82, 0.84, 0.86]
    assert posterior(a, b).regions().right < 0.95
    one, other = more_splits(a, b), more_splits(b, a)
    assert one.further == other.further
    assert (one.sign, other.sign) == ("+", "-")


def test_repeats_below_five_are_first_completed() -> None:
    names = [0, 0, 1, 1, 2, 2]
    assert more_repeats([0.0] * 6, [0.5] * 6, names, 0.5) == Outlook(2, "+")


def test_further_repeats_shrink_only_what_repeats_differ_in() -> None:
    """Means of repeats 1 apart, folds 2 apart: R -> infinity leaves sqrt(rho / (1 - rho) s_w^2)."""
    names = np.repeat(np.arange(6), 2).tolist()
    d = np.array([[r - 1, r + 1] for r in (-1.0, 1.0) * 3]).ravel() * 0.01
    floor = math.sqrt(0.25 * 2e-4)  # s_w^2 = 2 in units of 0.01
    border = 0.01 + stats.norm.ppf(0.95) * floor
    assert more_repeats(np.zeros(12), d + border * 0.999, names, 0.2).further is None
    assert more_repeats(np.zeros(12), d + border * 1.01, names, 0.2).further is not None
    assert more_repeats(np.zeros(12), d + border * 0.999, names, 0.0).further is not None
