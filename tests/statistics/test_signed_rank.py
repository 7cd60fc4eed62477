"""The Bayesian signed-rank test equals baycomp's, and mean ranks those of scipy."""

from __future__ import annotations

import math

import baycomp
import numpy as np
import pytest
from scipy import stats

from fedarena.config.errors import BadValue
from fedarena.statistics.signed_rank import mean_ranks, signed_rank


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_equal_to_baycomp(seed: int) -> None:
    """20 000 draws of theirs: four standard errors of a difference are at most 0.016."""
    rng = np.random.default_rng(seed)
    federations = int(rng.integers(3, 20))
    a = rng.uniform(0.6, 0.9, federations)
    b = a + rng.normal(rng.normal(0, 0.01), 0.02, federations)
    if seed % 2:
        theirs = baycomp.SignedRankTest.probs(a, b, 0.01, nsamples=20_000, random_state=seed)
        assert signed_rank(a, b, 0.01) == pytest.approx(theirs, abs=0.016)
    else:
        left, right = baycomp.SignedRankTest.probs(a, b, 0, nsamples=20_000, random_state=seed)
        assert signed_rank(a, b, 0.0) == pytest.approx((left, 0.0, right), abs=0.016)


def test_by_hand_for_two_federations() -> None:
    """Both far to the right: pairs with the prior observation at 0 count half a difference, still right of the rope.

    Only the pair (prior, prior) lies in the rope: it wins if w0^2 > 1/2, and w0 ~ Beta(1/2, 2).
    """
    found = signed_rank([0.0, 0.0], [1.0, 1.0], 0.1, draws=400_000)
    assert found.rope == pytest.approx(stats.beta.sf(math.sqrt(0.5), 0.5, 2), abs=2e-3)
    assert found.left == 0


def test_swapping_swaps() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(0.8, 0.02, (2, 9))
    assert signed_rank(a, b) == pytest.approx(signed_rank(b, a)[::-1], abs=1e-9)


def test_equal_scores_are_equal() -> None:
    assert signed_rank([0.7, 0.8, 0.9], [0.7, 0.8, 0.9], 0.01) == (0, 1, 0)
    assert signed_rank([0.7, 0.8, 0.9], [0.7, 0.8, 0.9], 0.0) == (0.5, 0, 0.5)


def test_same_seed_same_numbers() -> None:
    a, b = [0.7, 0.8, 0.9], [0.72, 0.79, 0.93]
    assert signed_rank(a, b, seed=1) == signed_rank(a, b, seed=1) != signed_rank(a, b, seed=2)


@pytest.mark.parametrize(
    ("a", "b", "how", "message"),
    [
        ([0.5], [0.6], {}, "too few"),
        ([0.5, 0.6], [0.6], {}, "not paired"),
        ([0.5, math.nan], [0.6, 0.6], {}, "not finite"),
        ([0.5, 0.6], [0.6, 0.6], {"rope": -1.0}, "rope"),
    ],
)
def test_refused(a: list[float], b: list[float], how: dict[str, float], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        signed_rank(a, b, **how)


def test_mean_ranks_with_ties() -> None:
    x = np.random.default_rng(0).integers(0, 4, (30, 6)).astype(float)
    assert np.allclose(mean_ranks(x), stats.rankdata(-x, axis=1).mean(axis=0))
    assert mean_ranks(x).sum() == pytest.approx(6 * 7 / 2)
    with pytest.raises(BadValue, match="finite"):
        mean_ranks([[0.5, math.nan]])
    with pytest.raises(BadValue, match="shape"):
        mean_ranks([0.5, 0.6])
