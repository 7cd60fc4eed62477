"""Median, trimmed mean and Krum: the centres by hand, and one false client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import on_blobs

import fedarena as fa
from fedarena.algorithms import Krum, Median, TrimmedMean
from fedarena.algorithms.base import Reply


def test_robust_centres_by_hand() -> None:
    deltas = np.array([[1.0, 9.0], [2.0, 1.0], [3.0, 2.0], [4.0, 3.0], [100.0, -50.0]])
    assert Median().centre(deltas).tolist() == [3.0, 2.0]
    assert TrimmedMean(share=0.2).centre(deltas).tolist() == [3.0, 2.0]
    assert TrimmedMean(share=0.0).centre(deltas).tolist() == [22.0, -7.0]
    assert Krum(attackers=1).centre(deltas).tolist() == [3.0, 2.0]


@pytest.mark.parametrize("algorithm", [Median(), TrimmedMean(share=0.2), Krum(attackers=1)])
def test_one_malicious_client_moves_the_mean_and_not_the_robust_aggregates(algorithm: Any) -> None:
    """One of ten clients sends a thousand times its step, backwards."""

    def lying(kind: Any) -> Any:
        class Lying(type(kind)):  # type: ignore[misc]
            def client(self, got: Any, kept: Any, work: Any) -> Reply:
                reply = super().client(got, kept, work)
                if work.client == 0:
                    payload = type(reply.send)(-1000 * reply.send.delta)
                    return Reply(payload, weight=reply.weight)
                return reply

        return Lying(**vars(kind))

    settings = {"clients": 10, "rounds": 8}
    assert on_blobs(lying(fa.FedAvg()), **settings).final.accuracy < 0.8
    assert on_blobs(lying(algorithm), **settings).final.accuracy > 0.9
