"""Several federations: the grid agrees with a sampler and with closed forms, shrinks, and covers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from tests.support.benchmark_scripts import script

from fedarena.config.errors import BadValue
from fedarena.statistics.bayes import Posterior, posterior
from fedarena.statistics.hierarchical import Estimate, Hierarchy, hierarchy, shrunk_gains


def drawn(seed: int, federations: int, df: int, scale: float, tau: float) -> list[Posterior]:
    rng = np.random.default_rng(seed)
    scales = scale * np.exp(0.7 * rng.standard_normal(federations))
    d = rng.normal(0.01, tau, federations) + scales * rng.standard_t(df, federations)
    return [Posterior(float(mean), float(s), df) for mean, s in zip(d, scales, strict=True)]


def estimates(found: Hierarchy) -> list[Estimate]:
    return [found.next, found.average, *found.federations]


def numbers(found: Hierarchy) -> np.ndarray:
    return np.array([[e.mean, *e.interval, *e.regions] for e in estimates(found)])


def gibbs(known: list[Posterior], draws: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A sampler of the same model that shares no code: mu0, tau, and the differences of all federations.

    Student's t is a normal with a gamma precision, the half-Cauchy a mixture of inverse gammas (Makalic & Schmidt 2016).
    """
    rng = np.random.default_rng(seed)
    d, s, df = (np.array([getattr(p, name) for p in known]) for name in ("mean", "scale", "df"))
    size = max(float(d.std(ddof=1)), float(np.median(s)))
    chains = 200
    mu0, tau2, helper = np.full(chains, d.mean()), np.full(chains, size**2), np.ones(chains)
    w = np.ones((chains, len(d)))
    kept = []
    for step in range(500 + draws // chains):
        precision = w / s**2 + 1 / tau2[:, None]
        centre = (w * d / s**2 + (mu0 / tau2)[:, None]) / precision
        delta = centre + rng.standard_normal(centre.shape) / np.sqrt(precision)
        w = rng.gamma((df + 1) / 2, 1 / (df / 2 + (d - delta) ** 2 / (2 * s**2)))
        mu0 = delta.mean(axis=1) + np.sqrt(tau2 / len(d)) * rng.standard_normal(chains)
        squares = ((delta - mu0[:, None]) ** 2).sum(axis=1) / 2
        tau2 = (1 / helper + squares) / rng.gamma((len(d) + 1) / 2, 1, chains)
        helper = (1 / size**2 + 1 / tau2) / rng.gamma(1, 1, chains)
        if step >= 500:
            kept.append(np.column_stack([mu0, np.sqrt(tau2), delta]))
    sample = np.concatenate(kept)
    return sample[:, 0], sample[:, 1], sample[:, 2:]


@pytest.mark.slow
@pytest.mark.parametrize(("federations", "df", "scale", "tau"), [(3, 4, 0.01, 0.02), (8, 9, 0.01, 0.01)])
def test_equal_to_a_sampler(federations: int, df: int, scale: float, tau: float) -> None:
    known = drawn(federations, federations, df, scale, tau)
    found = hierarchy(known, rope=0.01)
    mu0, taus, delta = gibbs(known, 400_000)
    following = mu0 + taus * np.random.default_rng(1).standard_normal(len(mu0))
    for estimate, sample in zip(estimates(found), [following, mu0, *delta.T], strict=True):
        regions = np.mean(sample < -0.01), np.mean(np.abs(sample) <= 0.01), np.mean(sample > 0.01)
        assert estimate.regions == pytest.approx(regions, abs=0.01)
        low, high = np.quantile(sample, [0.05, 0.95])
        assert estimate.interval == pytest.approx((low, high), abs=0.03 * (high - low))
    assert found.tau == pytest.approx(np.median(taus), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("federations", "df", "scale", "tau"),
    [(3, 1, 0.01, 0.02), (3, 4, 0.001, 0.03), (5, 9, 0.01, 0.01), (6, 4, 0.02, 0.0), (4, 49, 0.003, 0.02)],
)
def test_equal_to_a_finer_grid(federations: int, df: int, scale: float, tau: float) -> None:
    known = drawn(7, federations, df, scale, tau)
    assert np.allclose(numbers(hierarchy(known)), numbers(hierarchy(known, fineness=2)), rtol=0, atol=1e-4)


def test_exact_means_by_quadrature() -> None:
    """Without error in d_j, mu0 given tau is normal and tau has a closed density."""
    d = np.array([0.01, 0.03, 0.02, 0.06])
    size = float(d.std(ddof=1))
    found = hierarchy([Posterior(float(x), 0.0, 4) for x in d], rope=0.01)
    tau = np.exp(np.linspace(math.log(size) - 8, math.log(size) + 10, 4001))
    density = tau**-3.0 * np.exp(-3 * size**2 / (2 * tau**2)) / (1 + (tau / size) ** 2) * tau
    weight = density / density.sum()
    average = float(weight @ stats.norm.sf(0.01, d.mean(), tau / 2))
    following = float(weight @ stats.norm.sf(0.01, d.mean(), tau * math.sqrt(1.25)))
    assert found.average.mean == pytest.approx(d.mean(), abs=1e-9)
    assert found.average.regions.right == pytest.approx(average, abs=1e-5)
    assert found.next.regions.right == pytest.approx(following, abs=1e-5)
    assert [e.mean for e in found.federations] == d.tolist()


def test_swapping_the_algorithms_swaps_the_regions() -> None:
    known = drawn(2, 5, 9, 0.01, 0.02)
    swapped = hierarchy([Posterior(-p.mean, p.scale, p.df) for p in known])
    for one, other in zip(estimates(hierarchy(known)), estimates(swapped), strict=True):
        assert one.mean == pytest.approx(-other.mean, abs=1e-9)
        assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]), abs=1e-6)
        assert one.regions == pytest.approx(other.regions[::-1], abs=1e-5)


def test_unit_of_the_metric_cancels() -> None:
    known = drawn(3, 5, 9, 0.01, 0.02)
    one = numbers(hierarchy(known, rope=0.01))
    other = numbers(hierarchy([Posterior(100 * p.mean, 100 * p.scale, p.df) for p in known], rope=1.0))
    assert np.allclose(100 * one[:, :3], other[:, :3], atol=1e-5)
    assert np.allclose(one[:, 3:], other[:, 3:], atol=1e-6)


def test_federations_are_shrunk_and_the_next_is_least_certain() -> None:
    known = [Posterior(mean, 0.02, 9) for mean in (0.01, 0.02, 0.03, -0.01, 0.017, 0.005)]
    found = hierarchy(known)
    middle = found.average.mean
    for estimate, alone in zip(found.federations, known, strict=True):
        assert abs(estimate.mean - middle) < abs(alone.mean - middle)
        assert np.ptp(estimate.interval) < np.ptp(alone.interval())
    assert np.ptp(found.next.interval) > np.ptp(found.average.interval)
    assert all(sum(e.regions) == pytest.approx(1) for e in estimates(found))


def test_precise_federations_are_left_where_they_are() -> None:
    known = [Posterior(mean, 1e-5, 9) for mean in (0.0, 0.02, 0.05, 0.09)]
    for estimate, alone in zip(hierarchy(known).federations, known, strict=True):
        assert estimate.mean == pytest.approx(alone.mean, abs=1e-7)
        assert estimate.interval == pytest.approx(alone.interval(), abs=1e-7)


def test_no_spread_anywhere_is_certain() -> None:
    found = hierarchy([Posterior(0.02, 0.0, 4)] * 3)
    assert found.tau == 0
    for estimate in estimates(found):
        assert estimate.interval == pytest.approx((0.02, 0.02))
        assert estimate.regions == (0, 0, 1)


def test_one_federation_without_spread_stays() -> None:
    found = hierarchy([Posterior(0.02, 0.0, 4), Posterior(0.03, 0.01, 4), Posterior(0.00, 0.01, 4)])
    assert found.federations[0].mean == 0.02
    assert np.isfinite(numbers(found)).all()


def test_two_federations_are_refused() -> None:
    with pytest.raises(BadValue, match="2 federations"):
        hierarchy([Posterior(0.0, 0.1, 4)] * 2)
    with pytest.raises(BadValue, match="rope"):
        hierarchy([Posterior(0.0, 0.1, 4)] * 3, rope=-0.1)


@pytest.mark.slow
def test_coverage_on_simulated_suites() -> None:
    """40 suites; four standard errors of 90 % are 0.190 for one interval a suite, 0.095 for four."""
    found = script("simulated_scores").suite_coverage(40, federations=4, tau=0.01)
    assert found.next > 0.9 - 0.190
    assert found.average > 0.9 - 0.190
    assert found.federations > 0.9 - 0.095


def test_gains_of_clients_are_those_of_federations() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal([0.05, 0.02, 0.0, -0.03], 0.01, (10, 4))
    known = [posterior(np.zeros(10), column, 0.2) for column in x.T]
    assert shrunk_gains(x, 0.2) == list(hierarchy(known).federations)
    gains = [client.regions.right for client in shrunk_gains(x, 0.2)]
    assert gains == sorted(gains, reverse=True)


def test_clients_with_missing_splits() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(0.02, 0.01, (8, 4))
    x[5:, 2] = math.nan
    known = [posterior(np.zeros(len(c)), c, 0.2) for c in (x[:, 0], x[:, 1], x[:5, 2], x[:, 3])]
    assert shrunk_gains(x, 0.2) == list(hierarchy(known).federations)
    x[1:, 2] = math.nan
    with pytest.raises(BadValue, match="client 2"):
        shrunk_gains(x, 0.2)


def test_two_clients_are_not_shrunk() -> None:
    x = np.array([[0.01, 0.05], [0.02, 0.07], [0.00, 0.06]])
    alone = posterior(np.zeros(3), x[:, 1], 0.2)
    assert shrunk_gains(x, 0.2)[1] == Estimate(alone.mean, alone.interval(), alone.regions())
    with pytest.raises(BadValue, match="shape"):
        shrunk_gains([0.1, 0.2])
