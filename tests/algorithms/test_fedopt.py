"""FedAdagrad, FedAdam, FedYogi: two steps of the server by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedarena as fa
from fedarena.algorithms import FedAdagrad, FedAdam, FedYogi


@pytest.mark.parametrize("kind", [FedAdagrad, FedAdam, FedYogi])
def test_adaptive_servers_by_hand(kind: Any) -> None:
    """Two steps with G = (1, -2): the formulas of algorithm 2, number by number."""
    server = kind(server_lr=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3)
    g = np.array([1.0, -2.0])
    state = server.init(np.zeros(2))
    w, m, v = np.zeros(2), np.zeros(2), np.full(2, 1e-6)
    for _ in range(2):
        state = server.server(state, fa.Step(g), None)
        m = 0.9 * m + 0.1 * g
        v = {FedAdagrad: v + g**2, FedAdam: 0.99 * v + 0.01 * g**2,
             FedYogi: v - 0.01 * g**2 * np.sign(v - g**2)}[kind]  # fmt: skip
        w = w - 0.1 * m / (np.sqrt(v) + 1e-3)
        np.testing.assert_allclose(state.w, w, rtol=1e-12)
