"""AFL: against a loop in numpy, the projection by hand, and weights that stay uniform where losses are equal."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_qfedavg import FULL, UnweightedFedAvg, trained
from tests.support.federations import Quadratic, quadratics
from tests.support.quadratic_federations import federation, solve

import fedarena as fa
from fedarena.algorithms import AFL
from fedarena.algorithms.afl import AFLState, AFLUpdate, project
from fedarena.algorithms.base import Cohort
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.loop import TrainingLoop
from fedarena.engine.setup import open_context
from fedarena.runtimes.serial import SerialRuntime

ROUNDS = 8


def projected(point: np.ndarray) -> np.ndarray:
    """Return the nearest point of the simplex: the threshold is found by bisection."""
    low, high = point.min() - 1, point.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(point - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(point - (low + high) / 2, 0)


def reference(centres: np.ndarray, curvatures: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Descent on w by local training, ascent on lambda by the losses at the same w."""
    w, chances = np.zeros(3), np.full(len(centres), 1 / len(centres))
    for _ in range(ROUNDS):
        losses = 0.5 * (curvatures * (w - centres) ** 2).sum(axis=1)
        models = np.stack([trained(w, a, h) for a, h in zip(centres, curvatures, strict=True)])
        w = w - (chances[:, None] * (w - models)).sum(axis=0)
        chances = projected(chances + rate * losses)
    return w, chances


def last_state(data: Any, algorithm: AFL, folder: Path, **settings: Any) -> Any:
    experiment = Experiment.make(
        data, model=lambda: Quadratic(3), algorithm=algorithm, partition="natural", dtype="float64", **settings
    )
    context = open_context(experiment)
    loop = TrainingLoop(context, SerialRuntime(context), CheckpointStore(folder, context.algorithm))
    list(loop.rounds())
    return loop.state


@pytest.mark.parametrize("rate", [0.0, 0.001, 0.02])
def test_it_is_the_loop_of_the_paper(rate: float, tmp_path: Path) -> None:
    data, centres, curvatures = federation(5)
    state = last_state(data, AFL(weight_lr=rate), tmp_path, rounds=ROUNDS, local=FULL)
    w, chances = reference(centres, curvatures, rate)
    np.testing.assert_allclose(state.w, w, rtol=0, atol=1e-10)
    np.testing.assert_allclose(state.weights / 5, chances, rtol=0, atol=1e-10)
    assert rate == 0 or np.ptp(chances) > 0.01
    assert rate < 0.02 or (chances == 0).any()  # the projection has cut a client off


def test_projection_by_hand() -> None:
    """Of (2, 1, 0) onto the simplex: (1, 0, 0); of (0.8, 0.6, -1): 0.2 are too many, divided by two."""
    assert project(np.array([2.0, 1.0, 0.0]), 1.0).tolist() == [1.0, 0.0, 0.0]
    np.testing.assert_allclose(project(np.array([0.8, 0.6, -1.0]), 1.0), [0.6, 0.4, 0.0], atol=1e-15)
    inside = np.array([0.25, 0.5, 0.25])
    assert project(inside, 1.0).tolist() == inside.tolist()


def cohort(answered: tuple[int, ...], population: int) -> Cohort:
    return Cohort(tuple(range(population)), answered, population, 1, 1, 0.1)


def test_equal_losses_keep_the_weights_uniform_to_the_bit() -> None:
    algorithm, state = AFL(weight_lr=0.7), AFLState(np.zeros(2), np.ones(7))
    for loss in (0.1, 2.3, 1e6):
        state = algorithm.server(state, AFLUpdate(np.ones(2), [loss] * 7), cohort(tuple(range(7)), 7))  # type: ignore[arg-type]
    assert state.weights.tolist() == [1.0] * 7


def test_a_client_without_an_answer_keeps_its_weight() -> None:
    """Those that answered share what they had together; two thirds of 0.3 x 3 move from client 0 to client 2."""
    state = AFLState(np.zeros(2), np.array([1.5, 1.0, 0.5]))
    after = AFL(weight_lr=0.1).server(state, AFLUpdate(np.ones(2), [1.0, 3.0]), cohort((0, 2), 3))  # type: ignore[arg-type]
    np.testing.assert_allclose(after.weights, [1.2, 1.0, 0.8], atol=1e-15)
    nothing = AFLState(np.zeros(2), np.array([0.0, 3.0]))
    update = AFLUpdate(np.full(2, np.nan), [1.0])  # type: ignore[arg-type]
    assert AFL().server(nothing, update, cohort((0,), 2)) is nothing


@pytest.mark.slow
def test_without_ascent_it_is_the_unweighted_mean_to_the_bit() -> None:
    data, _, _ = federation(5)
    plain, still = (solve(data, one, 3, local=FULL) for one in (UnweightedFedAvg(), AFL(weight_lr=0.0)))
    assert np.array_equal(plain, still)


@pytest.mark.slow
def test_the_largest_loss_becomes_as_small_as_it_can() -> None:
    """Of (w - 1)^2 / 2 three times and (w - 9)^2 / 2 the maximum is least at w = 5."""
    data = quadratics(np.array([[1.0], [1.0], [1.0], [9.0]]), np.ones((4, 1)), [4] * 4)
    run = fa.run(data, model=lambda: Quadratic(1), algorithm=AFL(weight_lr=0.01), partition="natural", dtype="float64",
                 rounds=150, local={"lr": 0.2, "epochs": 1, "batch": math.inf}, out=False, runtime="serial",
                 evaluate={"every": 150})  # fmt: skip
    assert run.state["w"][0].item() == pytest.approx(5.0, abs=1e-3)


def test_it_needs_each_loss_by_itself() -> None:
    data, _, _ = federation(3)
    with pytest.raises(BadValue, match="afl must see each update by itself"):
        solve(data, AFL(), 1, uplink="mean_only")


