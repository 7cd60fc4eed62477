"""The losses of the tasks: gradients by hand, in the kernels and by autograd agree, and known optima are reached."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedarena.config.errors import BadValue, UnknownName
from fedarena.models.compiled import KernelRows, library
from fedarena.models.losses import LOSSES, Cox, CrossEntropy, find_loss
from fedarena.models.task import Task

BY_HAND = {name: loss for losses in LOSSES.values() for name, loss in losses.items() if loss.kernel is not None}
OUTPUTS = {"cross_entropy": 4, "binary_cross_entropy": 3}


def labels_for(name: str, rows: int, rng: np.random.Generator) -> torch.Tensor:
    if name == "cross_entropy":
        return torch.from_numpy(rng.integers(0, 4, rows))
    if name == "binary_cross_entropy":
        return torch.from_numpy(rng.integers(0, 2, (rows, 3)).astype(np.float32))
    return torch.from_numpy(rng.normal(0, 2, rows).astype(np.float32))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", BY_HAND)
def test_gradients_by_hand_are_those_of_autograd(name, weighted):
    rng = np.random.default_rng(1)
    outputs = torch.from_numpy(rng.normal(0, 2, (7, OUTPUTS.get(name, 1)))).requires_grad_()
    y = labels_for(name, 7, rng)
    y = y if y.dtype == torch.int64 else y.double()
    weights = torch.from_numpy(rng.dirichlet(np.ones(7))) if weighted else None
    loss = BY_HAND[name].mean(outputs, y, weights)
    (expected,) = torch.autograd.grad(loss, outputs)
    value, gradient = BY_HAND[name].value_and_gradient(outputs.detach(), y, weights)
    assert value == pytest.approx(float(loss), rel=1e-12)
    assert torch.allclose(gradient, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.skipif(library() is None, reason="the kernels are not built for this processor")
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", BY_HAND)
def test_kernels_train_as_the_tape_does(name, weighted, layers):
    rng = np.random.default_rng(2)
    x, y = torch.from_numpy(rng.normal(size=(12, 5)).astype(np.float32)), labels_for(name, 12, rng)
    outputs = OUTPUTS.get(name, 1)
    torch.manual_seed(0)
    hidden = [nn.Linear(5, 6), nn.ReLU()] if layers == 2 else []
    task = Task(nn.Sequential(*hidden, nn.Linear(6 if hidden else 5, outputs)), loss=BY_HAND[name], shape=(5,))
    assert task.network is not None
    assert task._tape is not None
    weights = rng.uniform(0.5, 2, 12).astype(np.float32) if weighted else None
    task.network.load(task.initial)
    source = KernelRows(x.numpy(), np.ascontiguousarray(y.numpy()), weights=weights)
    losses = task.network.train(source, np.arange(12), [4] * 3, np.full(3, 0.1))
    after = np.empty(task.size, np.float32)
    task.network.save(after)
    expected = []
    for rows in np.split(np.arange(12), 3):
        parts = None if weights is None else torch.from_numpy(weights[rows] / weights[rows].sum())
        expected.append(task._tape.accumulate(x[rows], y[rows], task.weights, -0.1, parts))
    assert losses == pytest.approx(expected, rel=1e-5)
    assert np.allclose(after, task.vector(), rtol=1e-5, atol=1e-6)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_cox_by_definition(rows, seed):
    """Breslow's sum over all samples that are not before an event, ties included."""
    rng = np.random.default_rng(seed)
    risk, time, event = rng.normal(size=rows), rng.integers(0, 5, rows), rng.integers(0, 2, rows)
    found = Cox().values(
        torch.from_numpy(risk)[:, None], torch.from_numpy(np.column_stack([time, event]).astype(float))
    )
    for i in range(rows):
        at_risk = np.log(np.exp(risk[time >= time[i]]).sum()) if event[i] else risk[i]
        assert float(found[i]) == pytest.approx(at_risk - risk[i], abs=1e-9)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_cox_in_order_by_definition(rows, seed):
    """FLamby sorts by descending time and sums up to each place; ties keep the order of the batch."""
    rng = np.random.default_rng(seed)
    risk, time, event = rng.normal(size=rows), rng.integers(0, 5, rows), rng.integers(0, 2, rows)
    y = torch.from_numpy(np.column_stack([time, event]).astype(float))
    found = Cox("order").values(torch.from_numpy(risk)[:, None], y).numpy()
    order = np.argsort(-time, kind="stable")
    sums = np.log(np.cumsum(np.exp(risk[order])))
    assert found[order] == pytest.approx(event[order] * (sums - risk[order]), abs=1e-9)


def test_ties_make_the_difference():
    y = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    risk = torch.tensor([[0.0], [0.0]])
    assert Cox().values(risk, y).tolist() == pytest.approx([np.log(2)] * 2)
    assert Cox("order").values(risk, y).tolist() == pytest.approx([0.0, np.log(2)])


def test_a_loss_belongs_to_a_task():
    assert isinstance(find_loss("classification"), CrossEntropy)
    assert find_loss("regression", "huber") is LOSSES["regression"]["huber"]
    with pytest.raises(BadValue, match="for the task 'regression', not for 'survival'"):
        find_loss("survival", "huber")
    with pytest.raises(UnknownName, match="no loss is called 'hubber'"):
        find_loss("regression", "hubber")
