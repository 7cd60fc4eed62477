"""Epsilon against closed forms, and against another theory."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm

from fedarena.config.errors import MissingDependency
from fedarena.privacy import accountant
from fedarena.privacy.accountant import epsilon, need_accountant, usual_delta

dp = pytest.importorskip("dp_accounting")


@pytest.mark.parametrize(
    ("clients", "asked", "noise", "rounds"),
    [(10**5, 10**2, 1.0, 10**4), (10**5, 10**2, 1.0, 10**6), (10**6, 10**3, 1.0, 10**6), (10**6, 10**3, 3.0, 10**6)],
)
def test_coins_by_the_sum_over_who_is_in(clients: int, asked: int, noise: float, rounds: int) -> None:
    """Renyi's divergence of whole order a is a binomial sum (Mironov, Talwar, Zhang 2019, section 3.3); to epsilon by
    Canonne, Kamath, Steinke 2020, proposition 12. Orders in between may only make it a little smaller."""
    q, delta = asked / clients, usual_delta(clients)

    def bound(a: int) -> float:
        terms = [
            math.comb(a, k) * (1 - q) ** (a - k) * q**k * math.exp(k * (k - 1) / 2 / noise**2) for k in range(a + 1)
        ]
        spent = rounds * math.log(math.fsum(terms)) / (a - 1)
        return spent + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1)

    expected = min(bound(a) for a in range(2, 33))
    assert 0.97 * expected < epsilon({("poisson", asked, noise): rounds}, clients, delta) < 1.0001 * expected


def test_everyone_is_the_gaussian_mechanism() -> None:
    """Balle and Wang 2018: T releases are one with noise z / sqrt(T), whose delta is known; a bound stays close above."""
    for noise, times in ((4.0, 1), (10.0, 25), (1.0, 10)):
        reported = epsilon({("everyone", 10, noise): times}, 10, 1e-3)
        sigma = noise / math.sqrt(times)

        def delta(e: float, sigma: float = sigma) -> float:
            return float(norm.cdf(0.5 / sigma - e * sigma) - math.exp(e) * norm.cdf(-0.5 / sigma - e * sigma))

        assert delta(reported) < 1e-3 < delta(0.8 * reported)


@pytest.mark.slow
def test_coins_against_an_exact_accountant() -> None:
    """Privacy loss distributions, another theory of the same library, are exact up to their grid."""
    pld = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL)
    pld.compose(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 1000)
    exact = pld.get_epsilon(1e-5)
    assert exact < epsilon({("poisson", 100, 1.0): 1000}, 10_000, 1e-5) < 1.25 * exact


@pytest.mark.slow
def test_a_fixed_number_never_costs_more_than_everyone() -> None:
    for asked in (1, 50, 500, 999):
        fixed = epsilon({("fixed", asked, 1.0): 10}, 1000, 1e-4)
        assert fixed <= epsilon({("everyone", 1000, 1.0): 10}, 1000, 1e-4)
    few = epsilon({("fixed", 1, 1.0): 10}, 1000, 1e-4)
    assert epsilon({("poisson", 1, 1.0): 10}, 1000, 1e-4) < few < epsilon({("fixed", 50, 1.0): 10}, 1000, 1e-4)


def test_releases_add_up() -> None:
    one = {("everyone", 10, 2.0): 6}
    assert epsilon({("everyone", 10, 2.0): 4, ("everyone", 9, 2.0): 2}, 10, 0.01) == pytest.approx(
        epsilon(one, 10, 0.01)
    )
    assert epsilon({}, 10, 0.01) == 0
    assert epsilon({**one, ("fixed", 3, 2.0): 5}, 10, 0.01) > epsilon(one, 10, 0.01)


def test_without_the_library_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    need_accountant("uplink.noise")
    monkeypatch.setattr(accountant, "find_spec", lambda name: None)
    with pytest.raises(
        MissingDependency, match=r"local.privacy.noise needs the package dp-accounting[\s\S]*fedarena\[privacy\]"
    ):
        need_accountant("local.privacy.noise")
