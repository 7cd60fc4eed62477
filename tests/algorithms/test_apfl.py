"""APFL: exact statements (docs/reference/algorithms.md#apfl)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_ditto import BLOBS, QUADRATICS, with_batch_norm
from tests.algorithms.test_fedavg import small_net
from tests.support.federations import blobs, quadratics
from tests.support.trainings import same_bits, trained

from fedarena.algorithms import APFL

GENERIC: dict[str, Any] = {**BLOBS, "fast": False}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [APFL(alpha=0.0), APFL(alpha=0.3), APFL(alpha=1.0), APFL(adapt=True)])
@pytest.mark.parametrize("model", [small_net, with_batch_norm])
def test_the_shared_model_is_that_of_fedavg_for_every_alpha(algorithm: APFL, model: Any, tmp_path: Path) -> None:
    """Weights, dropout and BatchNorm statistics: the second gradient of a step leaves no trace."""
    settings = {**GENERIC, "model": model}
    mixed, average = (trained(blobs(), a, tmp_path, **settings) for a in (algorithm, "fedavg"))
    assert same_bits(mixed.state.w, average.state.w)
    assert same_bits(mixed.buffers.values, average.buffers.values)


def test_without_a_part_of_its_own_the_mixture_is_the_shared_model(tmp_path: Path) -> None:
    end = trained(blobs(), APFL(alpha=0.0), tmp_path, **GENERIC)
    assert same_bits(end.own, [end.state.w] * len(end.own))


@pytest.mark.slow
def test_with_no_shared_part_own_models_are_local_training(tmp_path: Path) -> None:
    mixed, alone = (trained(blobs(), a, tmp_path, **GENERIC) for a in (APFL(alpha=1.0), "local"))
    assert same_bits(mixed.own, alone.own)


def test_the_mixture_has_one_optimum_for_every_alpha_between(tmp_path: Path) -> None:
    """The mixture of a client with curvature 1 ends at its own optimum a_k, wherever w is: v makes up for it."""
    centres = np.array([[1.0, -2.0], [3.0, 0.5]])
    local = {"lr": 1.0, "epochs": 1, "batch": float("inf")}
    data = quadratics(centres, np.ones_like(centres), [5, 5])
    end = trained(data, APFL(alpha=0.8), tmp_path, rounds=25, local=local, **QUADRATICS)
    np.testing.assert_allclose(end.state.w, centres.mean(axis=0), atol=1e-10)
    np.testing.assert_allclose(np.stack(end.own), centres, atol=1e-8)


def test_alpha_follows_the_derivative_of_the_loss(tmp_path: Path) -> None:
    """One step of alpha from its start, on F(w) = |w - a|^2 / 2: alpha - eta <mixture - a, v - w>, kept in [0, 1]."""
    a, lr = np.array([[2.0, -1.0], [0.0, 3.0]]), 0.1
    local = {"lr": lr, "epochs": 1, "batch": float("inf")}
    data = quadratics(a, np.ones_like(a), [5, 5])
    end = trained(data, APFL(alpha=0.5, adapt=True), tmp_path, rounds=2, local=local, **QUADRATICS)
    w1, v1 = lr * a.mean(axis=0), 0.5 * lr * a  # in the first step v = w, and alpha stays
    mixture = (w1 + v1) / 2
    expected = 0.5 - lr * ((mixture - a) * (v1 - w1)).sum(axis=1)
    np.testing.assert_allclose([own.alpha for own in end.kept], expected, atol=1e-12)
