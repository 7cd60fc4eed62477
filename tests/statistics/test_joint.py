"""The joint posterior: its pairs are the pairwise posterior, and its probabilities depend on nothing but the scores."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from fedarena.config.errors import BadValue
from fedarena.statistics.bayes import posterior
from fedarena.statistics.joint import DRAWS, best_set, joint_posterior, rank

RHO = 0.2


def drawn(seed: int, n: int, p: int) -> np.ndarray:
    """Scores whose splits differ more than their algorithms."""
    rng = np.random.default_rng(seed)
    return rng.normal(0.8, 0.03, (n, 1)) + rng.normal(0, 0.01, p) + rng.normal(0, 0.01, (n, p))


def named(x: np.ndarray) -> dict[str, np.ndarray]:
    return {f"a{i:02}": column for i, column in enumerate(x.T)}


@pytest.mark.parametrize(("n", "p"), [(2, 3), (5, 8), (15, 2), (15, 8), (40, 5)])
def test_every_pair_has_the_pairwise_posterior(n: int, p: int) -> None:
    x = drawn(n + p, n, p)
    known = joint_posterior(x, RHO)
    gaps = known.gaps()
    assert len(gaps) >= 100_000
    for a, b in combinations(range(p), 2):
        expected = posterior(x[:, a], x[:, b], RHO)
        pair = known.pair(a, b)
        assert pair.df == expected.df
        assert (pair.mean, pair.scale) == pytest.approx((expected.mean, expected.scale), rel=1e-9)
        difference = gaps[:, a] - gaps[:, b]
        for rope in (0.0, 0.01):
            regions = expected.regions(rope)
            assert np.mean(difference < -rope) == pytest.approx(regions.left, abs=1e-3)
            assert np.mean(difference > rope) == pytest.approx(regions.right, abs=1e-3)


def test_draws_have_the_location_and_scale_of_the_multivariate_t() -> None:
    """The covariance of a multivariate t is df / (df - 2) times its scale matrix (1/n + rho / (1 - rho)) S."""
    x = drawn(3, 20, 4)
    draws = joint_posterior(x, RHO).sample()
    assert np.allclose(draws.mean(axis=0), x.mean(axis=0), atol=1e-9)
    scale = (1 / 20 + 0.25) * np.cov(x, rowvar=False)
    assert np.allclose(np.cov(draws, rowvar=False), scale * 19 / 17, rtol=5e-3, atol=1e-8)


def test_two_candidates_by_the_t_distribution() -> None:
    """P(best) is a tail of Student's t, and the loss of the first E[max(d, 0)]; losses differ by the mean difference."""
    x = drawn(4, 10, 2)
    known = posterior(x[:, 0], x[:, 1], RHO)
    found = rank(named(x), RHO, rope=0.01).standings
    assert found["a01"].p_best == pytest.approx(known.regions(0.0).right, abs=2e-4)
    assert found["a00"].p_near_best == pytest.approx(1 - known.regions(0.01).right, abs=2e-4)
    t = stats.t(known.df, known.mean, known.scale)
    assert found["a00"].expected_loss == pytest.approx(t.expect(lambda d: max(d, 0.0)), abs=1e-5)
    assert found["a00"].expected_loss - found["a01"].expected_loss == pytest.approx(known.mean, abs=1e-9)


def test_three_equal_independent_algorithms_have_a_third_each() -> None:
    """Orthogonal scores of equal mean and variance: the posterior is the same under every exchange of algorithms."""
    x = np.array([[1, 1, 1], [-1, 1, -1], [1, -1, -1], [-1, -1, 1]]) * 0.01 + 0.8
    found = rank(named(x), rope=0.01).standings
    assert [s.p_best for s in found.values()] == pytest.approx([1 / 3] * 3, abs=1e-3)


@pytest.mark.slow
def test_same_seed_same_numbers_and_other_seeds_agree() -> None:
    scores = named(drawn(5, 15, 6))
    one, again, other = rank(scores, RHO), rank(scores, RHO), rank(scores, RHO, seed=1)
    assert one == again
    assert one != other
    for label, standing in one.standings.items():
        assert standing == pytest.approx(other.standings[label], abs=3e-3)


@pytest.mark.slow
def test_order_of_algorithms_and_splits_changes_nothing() -> None:
    x = drawn(6, 15, 5)
    scores = named(x)
    backwards = rank(dict(reversed(scores.items())), RHO)
    shuffled = rank(named(x[np.random.default_rng(0).permutation(15)]), RHO)
    one = rank(scores, RHO)
    for other in (backwards, shuffled):
        assert other.best_set == one.best_set
        assert list(other.standings) == list(one.standings)
        for label, standing in one.standings.items():
            assert standing == pytest.approx(other.standings[label], abs=2e-5)


def test_shift_and_unit_of_scores_cancel() -> None:
    x = drawn(7, 12, 4)
    one, moved = rank(named(x), RHO), rank(named(100 * x + 5), RHO, rope=1.0)
    for label, standing in one.standings.items():
        other = moved.standings[label]
        assert standing[1:3] == pytest.approx(other[1:3], abs=2e-5)
        assert 100 * standing.expected_loss == pytest.approx(other.expected_loss, rel=1e-4)


@pytest.mark.slow
def test_identical_scores_share_the_probability_to_be_best() -> None:
    x = drawn(9, 10, 2)
    twice = rank(named(np.column_stack([x, x[:, 0]])), RHO)
    once = rank(named(x), RHO)
    assert twice.standings["a00"][1:] == twice.standings["a02"][1:]
    assert 2 * twice.standings["a00"].p_best == pytest.approx(once.standings["a00"].p_best, abs=1e-3)
    rounded = rank(named(np.column_stack([x, (x[:, 0] + 0.7) - 0.7])), RHO)
    assert rounded.standings["a00"].p_best == rounded.standings["a02"].p_best


def test_no_variance_is_certain() -> None:
    base = np.linspace(0.7, 0.9, 8)
    found = rank({"low": base, "high": base + 0.02, "near": base + 0.015}, RHO, rope=0.01)
    assert next(iter(found.standings)) == "high"
    assert found.best_set == ("high",)
    assert found.standings["high"][1:] == (1.0, 1.0, 0.0)
    assert found.standings["near"][1:] == pytest.approx((0.0, 1.0, 0.005))
    assert found.standings["low"][1:] == pytest.approx((0.0, 0.0, 0.02))
    equal = rank({"a": base, "b": base, "c": base}, RHO)
    assert [s.p_best for s in equal.standings.values()] == pytest.approx([1 / 3] * 3)
    assert equal.best_set == ("a", "b", "c")
    constant = rank({"a": [0.5] * 3, "b": [0.6] * 3}, RHO)
    assert constant.best_set == ("b",)


def test_one_algorithm_is_the_best() -> None:
    found = rank({"fedavg": [0.9, 0.8, 0.7]}, RHO)
    assert found.standings["fedavg"][1:] == (1.0, 1.0, 0.0)
    assert (next(iter(found.standings)), found.best_set, found.pairs) == ("fedavg", ("fedavg",), 0)


def test_two_splits_have_no_expected_loss() -> None:
    """One degree of freedom is a Cauchy distribution: it has no mean; P(best) exists."""
    found = rank({"a": [0.8, 0.9], "b": [0.7, 0.6]}, rho=0.5)
    assert all(math.isinf(s.expected_loss) for s in found.standings.values())
    assert next(iter(found.standings)) == "a"
    assert found.standings["a"].p_best == pytest.approx(
        posterior([0.7, 0.6], [0.8, 0.9], 0.5).regions(0).right, abs=1e-3
    )


@pytest.mark.parametrize("n", [5, 15])
def test_no_copy_of_one_algorithm_is_named_the_best(n: int) -> None:
    """15 algorithms that differ by noise alone, 40 times."""
    rng = np.random.default_rng(n)
    for _ in range(40):
        x = rng.normal(0.8, 0.03, (n, 1)) + rng.normal(0, 0.01, (n, 15))
        found = rank(named(x), 1 / 5, draws=2**12)
        assert max(s.p_best for s in found.standings.values()) < 0.95
        assert sum(s.p_best for s in found.standings.values()) == pytest.approx(1)


def test_headline_has_the_smallest_loss_even_where_another_is_more_often_best() -> None:
    """Two steady ones share the probability to be best; a third is far better or far worse."""
    fast, slow, base = np.array([1.0, -1.0] * 6), np.array([1.0, 1.0, -1.0, -1.0] * 3), np.linspace(0.80, 0.82, 12)
    scores = {"one": base + 0.001 * fast, "two": base - 0.001 * fast, "wild": base - 0.005 + 0.05 * slow}
    found = rank(scores, RHO)
    losses = [s.expected_loss for s in found.standings.values()]
    assert losses == sorted(losses)
    assert next(iter(found.standings)) in ("one", "two")
    assert found.best_set[0] == "wild"
    assert all(s.p_near_best >= s.p_best for s in found.standings.values())


def test_smallest_set_with_95_percent() -> None:
    assert best_set({"a": 0.95, "b": 0.05}) == ("a",)
    assert best_set({"a": 0.05, "b": 0.94, "c": 0.01}) == ("b", "a")
    assert best_set({"a": 0.5, "b": 0.3, "c": 0.2}, level=0.8) == ("a", "b")
    assert best_set({str(i): 1 / 20 for i in range(20)}) == tuple(map(str, range(20)))  # equals enter together


def test_more_splits_of_the_same_kind_only_reach_the_floor() -> None:
    """Scores repeated often: the scale matrix tends to rho / (1 - rho) times the covariance."""
    x = drawn(10, 10, 3)
    known = joint_posterior(np.tile(x, (1000, 1)), RHO)
    floor = 0.25 * np.cov(x, rowvar=False, ddof=0)
    assert np.allclose(known.loadings.T @ known.loadings, floor, rtol=1e-3)


@pytest.mark.parametrize(
    ("scores", "rho", "message"),
    [
        ([[0.5, 0.6]], 0.0, "1 splits are too few"),
        ([0.5, 0.6], 0.0, "shape"),
        ([[], []], 0.0, "shape"),
        ([[0.5, math.nan], [0.5, 0.6]], 0.0, "not finite"),
        ([[0.5, 0.6], [0.5, 0.6]], 1.0, "rho = 1"),
    ],
)
def test_refused(scores: list[list[float]], rho: float, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        joint_posterior(scores, rho)


def test_unequal_numbers_of_scores_are_refused() -> None:
    with pytest.raises(BadValue, match=r"a \(2,\), b \(3,\)"):
        rank({"a": [0.5, 0.6], "b": [0.5, 0.6, 0.7]})
    with pytest.raises(BadValue, match="rope"):
        rank({"a": [0.5, 0.6]}, rope=-1)


def test_as_many_draws_as_asked_for() -> None:
    known = joint_posterior(drawn(1, 5, 2))
    assert [len(known.sample(draws)) for draws in (2, 100, 1024)] == [2, 128, 1024]
    assert DRAWS >= 100_000
