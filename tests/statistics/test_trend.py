"""A line over a setting: exact without noise, equal to an independent computation with it, honest with three federations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedarena.config.errors import BadValue
from fedarena.statistics.bayes import Posterior
from fedarena.statistics.trend import fit_trend


def test_without_noise_the_line_is_recovered_and_changes_where_it_leaves_the_rope() -> None:
    x = np.array([0.1, 1.0, 10.0, 100.0])
    d = 0.03 - 0.02 * np.log10(x)  # 0.05, 0.03, 0.01, -0.01
    line = fit_trend([Posterior(v, 0.0, 4) for v in d], x, rope=0.005)
    assert line.logarithmic
    assert np.allclose(line.mean, 0.03 - 0.02 * np.log10(line.x), atol=1e-9)
    assert [(c.before, c.after) for c in line.changes] == [("right", "rope"), ("rope", "left")]
    step = 1000 ** (1 / 80)  # from one point of the grid to the next
    for change, true in zip(line.changes, (10 ** (0.025 / 0.02), 10 ** (0.035 / 0.02)), strict=True):
        assert true / step < change.at < true * step


def test_the_same_difference_everywhere_is_a_level_without_width() -> None:
    line = fit_trend([Posterior(0.02, 0.0, 4)] * 3, [1, 2, 3])
    assert np.allclose([line.mean, line.low, line.high], 0.02)
    assert line.changes == []
    assert not line.logarithmic


@pytest.mark.slow
def test_the_band_agrees_with_importance_sampling_through_the_restricted_likelihood() -> None:
    """The marginal likelihood of tau under flat priors is the density of the contrasts that no line changes."""
    rng = np.random.default_rng(1)
    x, d, s, df = np.array([1.0, 2, 3, 5]), np.array([0.03, 0.00, 0.02, -0.02]), np.array([0.01, 0.02, 0.01, 0.015]), 4
    known = [Posterior(float(m), float(v), df) for m, v in zip(d, s, strict=True)]
    found = fit_trend(known, x, rope=0.01, points=5)
    variance = (s * stats.t.ppf(0.95, df) / stats.norm.ppf(0.95)) ** 2
    size = max(d.std(ddof=1), np.median(np.sqrt(variance)))
    tau = np.abs(size * rng.standard_cauchy(20_000))
    design = np.stack([np.ones(4), x], axis=1)
    contrasts = np.linalg.svd(design)[0][:, 2:]
    total = variance + np.minimum(tau, 1e3)[:, None] ** 2  # the diagonal of the covariance, for each tau
    inner = np.einsum("ik,ti,il->tkl", contrasts, total, contrasts)
    off = contrasts.T @ d
    square = np.einsum("k,tkl,l->t", off, np.linalg.inv(inner), off)
    weight = np.where(tau < 1e3, np.exp(-square / 2) / np.sqrt(np.linalg.det(inner)), 0.0)  # but for a constant factor
    scatter = np.linalg.inv(np.einsum("ik,ti,il->tkl", design, 1 / total, design))
    mean = np.einsum("tkl,il,ti->tk", scatter, design, d / total)
    lines = mean + np.einsum("tkl,tl->tk", np.linalg.cholesky(scatter), rng.standard_normal((len(tau), 2)))
    draws = lines @ np.stack([np.ones(5), found.x])
    for point in range(5):
        order = np.argsort(draws[:, point])
        share = np.cumsum(weight[order]) / weight.sum()
        low, high = (draws[order, point][np.searchsorted(share, q)] for q in (0.05, 0.95))
        assert found.low[point] == pytest.approx(low, abs=0.003)  # about three standard errors of 20,000 draws
        assert found.high[point] == pytest.approx(high, abs=0.003)
        better = weight[draws[:, point] > 0.01].sum() / weight.sum()
        assert found.regions[point].right == pytest.approx(better, abs=0.015)


@pytest.mark.slow
def test_the_band_covers_the_line() -> None:
    rng = np.random.default_rng(2)
    x, inside = np.array([1.0, 2, 3, 4, 5, 6]), 0
    for _ in range(200):
        true = 0.02 - 0.01 * x
        mean = true + rng.normal(0, 0.01, 6)  # federations differ from the line
        scale = 0.005 * np.sqrt(rng.chisquare(9, 6) / 9)
        known = [Posterior(m, s, 9) for m, s in zip(mean + rng.normal(0, 0.005, 6), scale, strict=True)]
        line = fit_trend(known, x, points=3)
        inside += line.low[1] <= 0.02 - 0.01 * line.x[1] <= line.high[1]
    assert inside >= 160  # 0.9 of 200, less more than four standard errors


@pytest.mark.parametrize("values", [[1, 1, 2], [1, 2], [1, 2, float("nan")]])
def test_too_few_values_are_refused(values: list[float]) -> None:
    with pytest.raises(BadValue):
        fit_trend([Posterior(0.0, 0.01, 4)] * len(values), values)
