"""The statistic: equal to a second implementation, to a published figure, and right as often as it says."""

from __future__ import annotations

import math
from collections import Counter

import baycomp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from fedarena.config.errors import BadValue
from fedarena.statistics.bayes import Posterior, posterior, verdict

FOLDS, REPEATS = 5, 3
N, RHO = FOLDS * REPEATS, 1 / FOLDS
SETS = 600  # simulated score sets; four standard errors of a rate p are 4 sqrt(p (1 - p) / SETS)


@pytest.mark.parametrize("seed", range(100))
def test_equal_to_baycomp(seed: int) -> None:
    rng = np.random.default_rng(seed)
    repeats, folds = int(rng.integers(1, 6)), int(rng.integers(2, 11))
    a = rng.uniform(0.6, 0.9, repeats * folds)
    b = a + rng.normal(rng.normal(0, 0.02), rng.uniform(0.001, 0.05), len(a))
    rope = float(rng.choice([0.0, 0.005, 0.01, 0.05]))
    ours = posterior(a, b, rho=1 / folds).regions(rope)
    theirs = baycomp.two_on_single(a, b, rope, runs=repeats)
    if rope == 0:  # then they give two numbers: nothing lies between
        theirs = (theirs[0], 0.0, theirs[1])
    assert np.allclose(ours, theirs, rtol=0, atol=1e-12)


def test_figure_2_of_nilsson_et_al() -> None:
    assert np.round(Posterior(-0.00689, 0.009898, 14).regions(0.01), 3).tolist() == [0.379, 0.566, 0.055]


def test_scale_and_degrees_by_hand() -> None:
    """d = (1, 2, 3) / 100, s^2 = 1e-4; 3 scores of 3 folds: scale^2 = (1/3 + (1/3) / (2/3)) s^2 = 5/6 s^2."""
    known = posterior([0.5, 0.5, 0.5], [0.51, 0.52, 0.53], rho=1 / 3)
    assert known.mean == pytest.approx(0.02)
    assert known.scale == pytest.approx(math.sqrt(5 / 6) * 0.01)
    assert known.df == 2
    assert posterior([0.5] * 3, [0.51, 0.52, 0.53]).scale == pytest.approx(math.sqrt(1 / 3) * 0.01)


scores = arrays(np.float64, 8, elements=st.floats(0, 1, width=32))


@pytest.mark.slow
@given(scores, scores, st.floats(0, 0.1), st.sampled_from([0.0, 0.1, 0.5]))
def test_swapping_swaps(a: np.ndarray, b: np.ndarray, rope: float, rho: float) -> None:
    one, other = posterior(a, b, rho).regions(rope), posterior(b, a, rho).regions(rope)
    assert np.allclose(one, other[::-1], atol=1e-9)
    assert sum(one) == pytest.approx(1, abs=1e-12)
    signs = verdict(one.right, one.rope, one.left), verdict(other.right, other.rope, other.left)
    assert signs in {("+", "-"), ("-", "+"), ("=", "="), ("?", "?")}


@pytest.mark.slow
@given(scores, st.floats(-0.5, 0.5, width=16))
def test_no_variance_is_a_point(a: np.ndarray, shift: float) -> None:
    """Differences that are all the same but for rounding leave no doubt."""
    known = posterior(a, a + shift, rho=0.2)
    assert known.scale == 0
    expected = (shift < -0.01, abs(shift) <= 0.01, shift > 0.01)
    assert known.regions(0.01) == tuple(map(float, expected))
    assert known.interval() == (known.mean, known.mean)


@pytest.mark.parametrize(("n", "rho", "samples"), [(5, 0.2, 360), (10, 0.0, 100), (200, 0.1, 20)])
def test_equal_accuracies_leave_the_doubt_of_the_rule_of_three(n: int, rho: float, samples: int) -> None:
    """The interval ends where N samples without a difference would be seen with a probability of one in twenty."""
    known = posterior([0.9] * n, [0.9] * n, rho, samples)
    low, high = known.interval(0.9)
    independent = samples / (1 / n + rho / (1 - rho))
    assert low == -high
    assert (1 - high) ** independent == pytest.approx(0.05)
    assert known.regions(0.01) == (0, 1, 0)  # as baycomp: the interval alone depends on the samples
    other = posterior([0.9] * n, [0.9] * (n - 1) + [0.8], rho, samples)
    assert other.interval() == posterior([0.9] * n, [0.9] * (n - 1) + [0.8], rho).interval()


def test_a_point_on_the_border_is_equal() -> None:
    assert Posterior(0.01, 0.0, 4).regions(0.01) == (0, 1, 0)
    assert Posterior(-0.01, 0.0, 4).regions(0.01) == (0, 1, 0)
    assert Posterior(0.0, 0.0, 4).regions(0.0) == (0, 1, 0)


def test_without_a_rope_there_are_two_answers() -> None:
    left, equal, right = posterior([0.5, 0.6, 0.7], [0.5, 0.7, 0.7], 0.2).regions(0.0)
    assert equal == pytest.approx(0, abs=1e-15)
    assert left + right == pytest.approx(1)


def test_interval_and_density_belong_to_the_regions() -> None:
    known = Posterior(0.01, 0.02, 9)
    low, high = known.interval(0.9)
    assert known.regions(0)[2] == pytest.approx(stats.t.sf(-0.5, 9))
    grid = np.linspace(low, high, 4001)
    assert np.trapezoid(known.density(grid), grid) == pytest.approx(0.9, abs=1e-6)


@pytest.mark.parametrize(
    ("a", "b", "rho", "message"),
    [
        ([0.5], [0.6], 0.0, "1 splits are too few"),
        ([], [], 0.0, "0 splits"),
        ([0.5, 0.6], [0.5, 0.6, 0.7], 0.0, "not paired"),
        ([[0.5, 0.6]], [[0.5, 0.6]], 0.0, "not paired"),
        ([0.5, math.nan], [0.5, 0.6], 0.0, "not finite"),
        ([0.5, 0.6], [0.5, math.inf], 0.0, "not finite"),
        ([0.5, 0.6], [0.5, 0.6], 1.0, "rho = 1"),
        ([0.5, 0.6], [0.5, 0.6], -0.1, "rho = -0.1"),
    ],
)
def test_refused(a: list[float], b: list[float], rho: float, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        posterior(a, b, rho)


def test_a_negative_rope_is_refused() -> None:
    with pytest.raises(BadValue, match="rope"):
        Posterior(0, 1, 3).regions(-0.01)


def test_a_verdict_needs_more_than_the_threshold() -> None:
    assert [verdict(*p) for p in ((0.96, 0.04, 0), (0.01, 0.98, 0.01), (0, 0.04, 0.96), (0.5, 0.3, 0.2))] == [*"+=-?"]
    assert verdict(0.95, 0.05, 0) == "?"
    assert verdict(0.9, 0.05, 0.05, threshold=0.85) == "+"


# Calibration. Scores of cross-validation are modelled as differences with a common part,
#     d_j = delta + sigma (sqrt(rho) z_0 + sqrt(1 - rho) z_j),     z standard normal, so that corr(d_i, d_j) = rho.
# Then mean(d) - delta has the variance sigma^2 (1 - rho) (1/n + rho / (1 - rho)), and s^2 / (sigma^2 (1 - rho)) is
# chi^2_{n-1} / (n - 1), independent of it: their ratio is exactly Student's t, and all rates below follow.


def signs(delta: float, sigma: float, rho_used: float, rope: float = 0.01, seed: int = 0) -> Counter[str]:
    """Verdicts over many simulated comparisons."""
    rng = np.random.default_rng(seed)
    output: Counter[str] = Counter()
    for _ in range(SETS):
        common, own = rng.standard_normal(), rng.standard_normal(N)
        d = delta + sigma * (math.sqrt(RHO) * common + math.sqrt(1 - RHO) * own)
        worse, equal, better = posterior(np.zeros(N), d, rho_used).regions(rope)
        output[verdict(better, equal, worse)] += 1
    return output


def near(count: int, expected: float) -> bool:
    return abs(count / SETS - expected) < 4 * math.sqrt(expected * (1 - expected) / SETS)


def test_at_the_edge_it_errs_one_time_in_twenty() -> None:
    """A true difference of just the rope is called better as often as 0.95 allows: 5 %."""
    assert near(signs(0.01, 0.02, RHO)["+"], 0.05)
    assert near(signs(-0.01, 0.02, RHO, seed=1)["-"], 0.05)


def test_without_a_difference_it_hardly_ever_sees_one() -> None:
    """At zero, with no rope, each side errs in 5 % of cases; a rope only makes it rarer."""
    output = signs(0.0, 0.02, RHO, rope=0.0, seed=2)
    assert near(output["+"], 0.05)
    assert near(output["-"], 0.05)
    output = signs(0.0, 0.02, RHO, seed=2)
    assert output["+"] + output["-"] < 0.05 * SETS


def test_ignoring_the_correlation_would_break_it() -> None:
    """With rho = 0 the scale is too small by sqrt(1 + n rho / (1 - rho)) = 2.18: 22 % errors instead of 5."""
    too_small = math.sqrt(1 + N * RHO / (1 - RHO))
    expected = float(stats.t.sf(stats.t.ppf(0.95, N - 1) / too_small, N - 1))
    assert expected == pytest.approx(0.216, abs=0.001)
    assert near(signs(0.01, 0.02, 0.0)["+"], expected)


def test_a_planted_difference_is_found() -> None:
    """3 points apart, noise of 1 point: (0.03 - rope) is 3.97 standard errors, the power of a noncentral t."""
    error = 0.01 * math.sqrt((1 - RHO) / N + RHO)
    power = float(stats.nct.sf(stats.t.ppf(0.95, N - 1), N - 1, 0.02 / error))
    assert power > 0.97
    output = signs(0.03, 0.01, RHO, seed=3)
    assert near(output["+"], power)
    assert output["-"] == output["="] == 0


def test_planted_equality_is_called_equal() -> None:
    """No difference, noise of 0.4 points: the rope ends five standard errors away on both sides."""
    output = signs(0.0, 0.004, RHO, seed=4)
    assert output["="] > 0.99 * SETS
    assert output["+"] == output["-"] == 0
