"""LoAdaBoost: retraining by the median loss, and its caps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import on_blobs
from tests.support.federations import Quadratic, quadratics

import fedarena as fa
from fedarena.algorithms import LoAdaBoost
from fedarena.algorithms.base import Reply


def efforts(**settings: Any) -> tuple[fa.Run, list[float]]:
    """A run, and the epochs that every client made."""
    seen: list[float] = []

    class Spy(LoAdaBoost):
        def client(self, got: Any, kept: Any, work: Any) -> Reply:
            reply = super().client(got, kept, work)
            seen.append(reply.send.epochs)
            return reply

    local = {"lr": 0.05, "epochs": 10, "batch": 16}
    return on_blobs(Spy(**settings), local=local, rounds=2), seen


def test_loadaboost_without_retraining_is_fedavg_with_half_the_epochs() -> None:
    """L_med = +inf in round 0: bitwise FedAvg with E/2."""
    local = {"lr": 0.05, "epochs": 10, "batch": 16}
    boosted = on_blobs("loadaboost", local=local, rounds=1)
    assert boosted.weights_sha256 == on_blobs(local={**local, "epochs": 5}, rounds=1).weights_sha256


def test_loadaboost_retrains_to_the_cap_and_may_overshoot_it() -> None:
    """E = 10, L_med = -inf: 5, 10, 14, 17 >= 15."""
    assert efforts(initial_median=-math.inf)[1][:4] == [17, 17, 17, 17]
    assert efforts(initial_median=-math.inf, hard_cap=True)[1][:4] == [15, 15, 15, 15]
    assert efforts(initial_median=-math.inf, trial_start=1)[1][:4] == [15, 15, 15, 15]  # 5 + 4 + 3 + 2 + 1


def test_loadaboost_mean_epochs_are_in_the_record() -> None:
    """Rows seen in a round, over the rows of those who took part, are the mean epochs of a client, by rows."""
    run, epochs = efforts(initial_median=-math.inf)
    seen = np.diff([0, *(r.samples for r in run.records)]) / 192  # four clients of 48 rows
    assert seen.tolist() == [np.mean(epochs[:4]), np.mean(epochs[4:])]
    assert seen[0] == 17 > seen[1]


def test_loadaboost_directions() -> None:
    """Above: those worse than the last median train on; below: the others; no client in round 0 either way."""
    for direction in ("above", "below"):
        _, epochs = efforts(direction=direction)
        assert epochs[:4] == [5, 5, 5, 5]
        assert len(epochs) == 8
    assert efforts(direction="below", initial_median=math.inf)[1][:4] == [17, 17, 17, 17]


@pytest.mark.parametrize(("half", "epochs"), [("floor", 2), ("ceil", 3), ("round", 2), ("fractional", 2.5)])
def test_loadaboost_half_of_five(half: Any, epochs: float) -> None:
    """Half epochs (docs/reference/algorithms.md#a-20): half of an epoch's batches."""
    run = on_blobs(LoAdaBoost(half=half), local={"lr": 0.05, "epochs": 5, "batch": 8}, rounds=1)
    steps = {2: 4 * 2 * 6, 3: 4 * 3 * 6, 2.5: 4 * (2 * 6 + 3)}[epochs]  # four clients of 48 rows: 6 batches an epoch
    assert run.records[0].steps == steps


def test_loadaboost_equal_losses_retrain_no_client() -> None:
    """Strict inequality, both ways: at the optimum every loss is 0, and so is the median of the round before."""
    for direction in ("above", "below"):
        seen: list[float] = []

        class Spy(LoAdaBoost):
            def client(self, got: Any, kept: Any, work: Any, seen: list[float] = seen) -> Reply:
                reply = super().client(got, kept, work)
                seen.append(reply.send.epochs)
                return reply

        fa.run(quadratics(np.zeros((2, 2)), np.ones((2, 2)), [5, 5]), model=lambda: Quadratic(2), partition="natural",
               algorithm=Spy(direction=direction), rounds=3, local={"lr": 0.1, "epochs": 4}, out=False,
               runtime="serial")  # fmt: skip
        assert seen == [2] * 6
