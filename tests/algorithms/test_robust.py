"""Robust aggregation: the centres by hand, and both sides of their breakdown points."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

import fedarena as fa
from fedarena.algorithms import (
    Bulyan,
    CenteredClip,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormBound,
    TrimmedMean,
)
from fedarena.algorithms.robust import RobustAggregation
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment

CLIENTS, FALSE = 15, 3
HONEST = np.random.default_rng(0).standard_normal((CLIENTS, 6))
TOLERANT: dict[str, RobustAggregation] = {
    "median": Median(),
    "trimmed_mean": TrimmedMean(share=0.2),
    "krum": Krum(attackers=FALSE),
    "multikrum": MultiKrum(attackers=FALSE),
    "bulyan": Bulyan(attackers=FALSE),
    "geometric_median": GeometricMedian(),
    "norm_bound": NormBound(),
    "centered_clip": CenteredClip(),
}
# the fewest false updates of 15 that may carry any of them away, where those are as large as one likes
BREAKS = {"trimmed_mean": 4, "multikrum": 4}


def test_robust_centres_by_hand() -> None:
    deltas = np.array([[1.0, 9.0], [2.0, 1.0], [3.0, 2.0], [4.0, 3.0], [100.0, -50.0]])
    assert Median().centre(deltas).tolist() == [3.0, 2.0]
    assert TrimmedMean(share=0.2).centre(deltas).tolist() == [3.0, 2.0]
    assert TrimmedMean(share=0.0).centre(deltas).tolist() == [22.0, -7.0]
    assert Krum(attackers=1).centre(deltas).tolist() == [3.0, 2.0]
    assert MultiKrum(attackers=1, keep=3).centre(deltas).tolist() == [3.0, 2.0]  # of clients 1, 2 and 3
    assert MultiKrum(attackers=1, keep=5).centre(deltas).tolist() == [22.0, -7.0]


def test_bulyan_by_hand() -> None:
    """Of seven steps and f = 1, five are chosen (100 and 9 are left), then the 3 nearest their median 2 are averaged."""
    deltas = np.array([[0.0], [1.0], [2.0], [3.0], [5.0], [9.0], [100.0]])
    assert Bulyan(attackers=1).chosen(deltas) == [0, 1, 2, 3, 4]
    assert Bulyan(attackers=1).centre(deltas).tolist() == [2.0]
    assert Bulyan().tolerated(7) == 1
    assert [Bulyan().tolerated(n) for n in (1, 3, 6, 11, 15)] == [0, 0, 0, 2, 3]


def test_norm_bound_by_hand() -> None:
    """Lengths 5, 10 and 50 with median 10: the last step is shortened to a fifth."""
    deltas = np.array([[3.0, 4.0], [6.0, 8.0], [30.0, 40.0]])
    np.testing.assert_allclose(NormBound().centre(deltas), [5.0, 20 / 3], rtol=1e-15)
    np.testing.assert_allclose(NormBound(bound=5.0).centre(deltas), [3.0, 4.0], rtol=1e-15)


def test_centered_clip_by_hand() -> None:
    """From v = 0 with radius 1: (1 + 1 - 1) / 3, then differences of 2/3, 1 and -1."""
    deltas = np.array([[1.0], [2.0], [-30.0]])
    np.testing.assert_allclose(CenteredClip(radius=1.0, iterations=1).centre(deltas), [1 / 3], rtol=1e-15)
    np.testing.assert_allclose(CenteredClip(radius=1.0, iterations=2).centre(deltas), [1 / 3 + 2 / 9], rtol=1e-15)
    from_two = CenteredClip(radius=1.0, iterations=1).centre(deltas, np.array([2.0]))
    np.testing.assert_allclose(from_two, [2 - 2 / 3], rtol=1e-15)


@pytest.mark.parametrize("false", [0, 5])
def test_the_geometric_median_is_the_minimiser_of_the_sum_of_distances(false: int) -> None:
    steps = np.concatenate([HONEST[false:], 50 + HONEST[:false]])
    total = lambda v: np.linalg.norm(steps - v, axis=1).sum()
    best = minimize(total, np.median(steps, axis=0), method="BFGS", options={"gtol": 1e-9})
    found = GeometricMedian(iterations=1000, smoothing=1e-12).centre(steps)
    assert total(found) <= best.fun * (1 + 1e-9)
    np.testing.assert_allclose(found, best.x, atol=1e-3)


@pytest.mark.parametrize("name", TOLERANT)
def test_the_order_of_clients_does_not_matter(name: str) -> None:
    order = np.random.default_rng(1).permutation(CLIENTS)
    found, other = TOLERANT[name].centre(HONEST), TOLERANT[name].centre(HONEST[order])
    np.testing.assert_allclose(other, found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", TOLERANT)
def test_equal_steps_are_their_own_centre(name: str) -> None:
    """A radius or bound of the median length lets steps of this length through, from the centre zero."""
    step = HONEST[0].astype(np.float32)
    found = TOLERANT[name].centre(np.tile(step, (CLIENTS, 1)))
    np.testing.assert_allclose(found, step, rtol=1e-6)
    assert found.dtype == np.float32


@pytest.mark.parametrize("large", [1e3, 1e9])
@pytest.mark.parametrize("name", TOLERANT)
def test_false_steps_within_the_breakdown_point_do_not_carry_the_centre_away(name: str, large: float) -> None:
    """However large three false steps of fifteen are, the centre stays as near the honest mean as honest steps are."""
    honest = HONEST[FALSE:]
    found = TOLERANT[name].centre(np.concatenate([np.full((FALSE, 6), large), honest]))
    radius = np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    assert np.linalg.norm(found - honest.mean(axis=0)) <= radius


@pytest.mark.parametrize("name", TOLERANT)
def test_beyond_the_breakdown_point_false_steps_decide(name: str) -> None:
    """As many false steps as the page names move the centre further than any honest step lies."""
    false = BREAKS.get(name, CLIENTS // 2 + 1 if name not in ("krum", "bulyan") else CLIENTS - FALSE - 1)
    steps = np.concatenate([np.full((false, 6), 1e6), HONEST[false:]])
    assert np.linalg.norm(TOLERANT[name].centre(steps)) > 1e4


@pytest.mark.parametrize(("clients", "attackers"), [(15, 4), (10, 2), (2, None)])
def test_bulyan_refuses_too_few_clients_before_the_start(clients: int, attackers: int | None) -> None:
    settings = {"model": "logreg", "clients": clients, "partition": "iid", "rounds": 1, "out": False}
    with pytest.raises(BadValue, match=f"needs {4 * (attackers or 0) + 3} clients in a round, and it has {clients}"):
        fa.run("digits", algorithm=Bulyan(attackers=attackers), **settings)


def test_noise_has_the_deviation_that_it_promises() -> None:
    """noise x bound / m on each of 650 weights: five standard errors of a deviation are 5 / sqrt(2 x 650)."""
    settings: dict[str, Any] = {"model": "logreg", "clients": 5, "partition": "iid", "rounds": 1, "out": False}
    runs = [
        fa.run("digits", algorithm=NormBound(bound=0.1, noise=noise), runtime="serial", **settings)
        for noise in (0.0, 2.0)
    ]
    plain, noisy = (np.concatenate([v.numpy().ravel() for v in run.state.values()]) for run in runs)
    assert np.std(noisy - plain) / (2.0 * 0.1 / 5) == pytest.approx(1, abs=5 / np.sqrt(2 * len(plain)))


def test_the_former_name_of_a_setting_is_read() -> None:
    """`liars` was the name of `attackers` before version 0.3."""
    experiment = Experiment.make("digits", algorithm={"name": "krum", "liars": 2})
    assert experiment.algorithm.settings == {"attackers": 2}
    assert Experiment.make("digits", algorithm="krum:liars=2") == experiment


# On digits, fifteen alike clients


FULL: dict[str, Any] = {
    "model": "logreg", "clients": CLIENTS, "partition": "iid", "rounds": 20, "evaluate": {"every": 20},
    "local": {"lr": 0.3, "epochs": 3, "batch": 16},
}  # fmt: skip
# algorithm -> the attack of its page and the attackers that it does not bear
ON_DIGITS = {
    "median": ("sign_flip", 8),
    "trimmed_mean": ("sign_flip", 4),
    "krum:attackers=6": ("ipm", 8),
    "multikrum:attackers=3": ("sign_flip", 4),
    "bulyan:attackers=3": ("ipm", 7),
    "geometric_median": ("sign_flip", 8),
    "norm_bound": ("sign_flip", 8),
    "centered_clip": ("sign_flip", 8),
}


@cache
def accuracy(algorithm: str, attack: str, attackers: int) -> float:
    """Return the final accuracy under an attack by so many of the clients."""
    given = {"name": attack, "share": attackers / CLIENTS, **({"scale": 10.0} if attack == "sign_flip" else {})}
    return (
        fa.run("digits", algorithm=algorithm, attack=given, out=False, runtime="serial", **FULL).final.accuracy or 0.0
    )


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ON_DIGITS)
def test_a_fifth_of_attackers_costs_a_defence_three_points_at_most(algorithm: str) -> None:
    """Ten times the opposite update, from 3 of 15 clients: FedAvg predicts by chance, which is a tenth."""
    assert accuracy("fedavg", "sign_flip", 0) > 0.9
    assert accuracy("fedavg", "sign_flip", 3) < 0.2
    assert accuracy(algorithm, "sign_flip", 0) - accuracy(algorithm, "sign_flip", 3) <= 0.03


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ON_DIGITS)
def test_beyond_its_breakdown_point_a_defence_fails(algorithm: str) -> None:
    attack, attackers = ON_DIGITS[algorithm]
    assert accuracy(algorithm, attack, attackers) < 0.5
