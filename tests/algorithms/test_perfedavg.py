"""Per-FedAvg: exact statements (docs/reference/algorithms.md#per-fedavg); inner rate 0 is in test_limits.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_ditto import BLOBS, CURVATURES, QUADRATICS, ROWS, with_batch_norm
from tests.algorithms.test_fedavg import CENTRES
from tests.support.federations import blobs, optimum, quadratics
from tests.support.trainings import same_bits, trained

from fedarena.algorithms import PerFedAvg
from fedarena.config.experiment import Experiment
from fedarena.engine.client import ClientState, ClientWork
from fedarena.engine.setup import open_context

LOCAL = {"lr": 1.0, "epochs": 1, "batch": float("inf")}


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_the_optimum_of_quadratics_is_that_after_one_step(variant: str, tmp_path: Path) -> None:
    """After a step h (w - a) becomes h (1 - alpha h) (w - a); the derivative of the step is 1 - alpha h once more."""
    alpha = 0.2
    end = trained(
        quadratics(CENTRES, CURVATURES, ROWS), PerFedAvg(inner_lr=alpha, variant=variant), tmp_path, rounds=25,
        local=LOCAL, **QUADRATICS,
    )  # fmt: skip
    shrinks = 1 - alpha * CURVATURES
    w = optimum(CENTRES, CURVATURES * shrinks ** (1 if variant == "fo" else 2), np.array(ROWS))
    np.testing.assert_allclose(end.state.w, w, atol=1e-9)
    np.testing.assert_allclose(np.stack(end.own), w - alpha * CURVATURES * (w - CENTRES), atol=1e-9)


@pytest.mark.slow
def test_evaluation_steps_leave_no_trace(tmp_path: Path) -> None:
    """A run that evaluates once, and one that evaluates every round, end with the same model."""
    often, once = (trained(blobs(), "perfedavg", tmp_path, evaluate={"every": e}, **BLOBS) for e in (1, 3))
    assert same_bits(often.state.w, once.state.w)
    assert same_bits(often.own, once.own)
    assert not same_bits(often.own[0], often.state.w)


@pytest.mark.slow
def test_inner_batches_have_a_stream_of_their_own(tmp_path: Path) -> None:
    """Inner rates that change nothing but the point of the gradient keep the order of the outer batches."""
    none, tiny = (trained(blobs(), PerFedAvg(inner_lr=a), tmp_path, **{**BLOBS, "fast": False}) for a in (0.0, 1e-7))
    assert 0 < np.abs(none.state.w - tiny.state.w).max() < 1e-4


def test_batches_of_a_step() -> None:
    """Outer batches come in the usual order, inner ones are other samples in every step, and all drop out alike."""
    context = open_context(Experiment.make(blobs(), **{**BLOBS, "model": with_batch_norm, "fast": False}))
    inner: list[bytes] = []
    outer: list[bytes] = []

    def gradient(w: Any, batch: Any) -> Any:
        other = batch.another()
        outer.append(batch.x.numpy().tobytes())
        inner.append(other.x.numpy().tobytes())
        assert len(other.y) == len(batch.y)
        g = batch.gradient(w)
        assert same_bits(batch.gradient(w), g)
        return g

    ours = ClientWork(context, 0, 0, ClientState()).train(context.initial, gradient=gradient)
    usual = [x.numpy().tobytes() for epoch in range(2) for x, _ in _work_in_epoch(context, epoch)]
    assert outer == usual
    assert len({*inner, *outer}) == 2 * ours.steps


def _work_in_epoch(context: Any, epoch: int) -> Any:
    """Return the batches of one epoch of client 0 in round 0."""
    work = ClientWork(context, 0, 0, ClientState())
    return [list(work.batches()) for _ in range(epoch + 1)][-1]


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_inner_batches_leave_dropout_and_statistics_to_the_outer_ones(variant: str, tmp_path: Path) -> None:
    """With an inner rate of 0 not a bit differs from FedAvg, though other batches went through the model."""
    settings = {**BLOBS, "model": with_batch_norm, "fast": False}
    ours, average = (trained(blobs(), a, tmp_path, **settings) for a in (PerFedAvg(0.0, variant), "fedavg"))  # type: ignore[arg-type]
    assert same_bits(ours.state.w, average.state.w)
    assert same_bits(ours.buffers.values, average.buffers.values)
