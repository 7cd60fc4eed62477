"""Gradients of single samples, clipped and summed: against Opacus, against each other, and what they never exceed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedarena.config.settings_tables import LocalPrivacy
from fedarena.models.private_task import PrivateTask
from fedarena.models.task import Task

SAMPLES, CLASSES = 12, 3


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 7, bias=False), nn.Linear(7, CLASSES)
    )


def cnn() -> nn.Module:
    """Channels-last weights of convolutions, and layers without a hand-written form."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 2),
        nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


class Recurrent(nn.Module):
    """A model that torch cannot map over samples."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(8, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x.flatten(1, 2))[0][:, -1])  # type: ignore[no-any-return]


class OwnLoss(nn.Module):
    """A model with a loss of its own, a mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, CLASSES)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return ((self.out(x.flatten(1)) - y.unsqueeze(1)) ** 2).mean()


def private(make: Any, clip: float = 1.0, noise: float = 0.0, dtype: str = "float32") -> PrivateTask:
    torch.manual_seed(0)
    return PrivateTask(Task(make(), dtype=dtype), LocalPrivacy(clip=clip, noise=noise))


def batch(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 1, 8, 8, generator=rng, dtype=dtype)
    return x, torch.arange(SAMPLES) % CLASSES


def one_by_one(task: PrivateTask, x: Tensor, y: Tensor) -> Tensor:
    """Return the sum by the definition: a loss and a backward pass for each sample."""
    total = torch.zeros_like(task.flat)
    for i in range(len(y)):
        task.module.zero_grad()
        task._loss(x[i : i + 1], y[i : i + 1]).backward()
        g = torch.cat([view.reshape(-1) for view in (p.grad for p in task.module.parameters())])
        total += min(1.0, task.privacy.clip / (float(g.norm()) + 1e-6)) * g
    return total


def flat(task: PrivateTask, total: Tensor) -> Tensor:
    """Return a vector of the task in the order of torch's parameters; convolutions lie in channels-last order."""
    return torch.cat([view.reshape(-1) for view in task.views(total)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("clip", [0.3, 2.0, 100.0])
@pytest.mark.parametrize("make", [mlp, cnn])
def test_clipped_sums_are_those_of_opacus(make: Any, clip: float) -> None:
    """The gradients of Opacus's hooks, clipped and summed by its optimizer, on the same batch."""
    pytest.importorskip("opacus")
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    task, (x, y) = private(make, clip), batch()
    contiguous = make()  # with other strides, such as those of the task's views, Opacus is wrong
    contiguous.load_state_dict(task.state())
    model = GradSampleModule(contiguous)
    parameters = list(model.parameters())
    optimizer = DPOptimizer(
        torch.optim.SGD(parameters, 1.0), noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=SAMPLES
    )
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.clip_and_accumulate()
    theirs = torch.cat([p.summed_grad.reshape(-1) for p in parameters])
    assert torch.allclose(flat(task, task.clipped_sum(x, y)), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("make", [mlp, cnn, Recurrent, OwnLoss])
def test_all_ways_give_the_definition(make: Any) -> None:
    """Linear layers by one pass, others mapped over samples, recurrent ones sample by sample."""
    task, (x, y) = private(make, 0.5, dtype="float64"), batch(torch.float64)
    expected = one_by_one(task, x, y)
    assert torch.allclose(flat(task, task.clipped_sum(x, y)), expected, rtol=1e-9, atol=1e-12)
    assert (task._linear is not None, task._can_map) == {
        mlp: (True, None), cnn: (False, True), Recurrent: (False, False), OwnLoss: (False, True),
    }[make]  # fmt: skip
    task._linear = None
    for task._can_map in (True, False) if make is not Recurrent else (False,):
        assert torch.allclose(flat(task, task.clipped_sum(x, y)), expected, rtol=1e-9, atol=1e-12)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e4), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_no_sample_moves_the_sum_by_more_than_the_clip(clip: float, scale: float, seed: int) -> None:
    task = private(mlp, clip, dtype="float64")
    x = scale * torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert float(task.clipped_sum(x, torch.tensor([seed % CLASSES])).norm()) <= clip * (1 + 1e-12)


@pytest.mark.parametrize("linear", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_sample_whose_gradient_is_not_finite_counts_as_zero(linear: bool) -> None:
    """An update that is not finite would be dropped, and so reveal the sample."""
    task, (x, y) = private(mlp), batch()
    if not linear:
        task._linear = None
    others = task.clipped_sum(x[1:], y[1:])
    x[0] = math.inf
    assert torch.allclose(task.clipped_sum(x, y), others, rtol=1e-5, atol=1e-7)


def test_noise_has_the_deviation_of_the_settings_and_an_empty_batch_is_noise_alone() -> None:
    """The variance of N normal numbers has a relative deviation of sqrt(2 / N), their mean one of 1 / sqrt(N)."""
    task, (x, y) = private(mlp, clip=0.5, noise=3.0), batch()
    task.begin(np.random.default_rng(0), expected=4.0)
    draws = torch.zeros(60, task.size)
    for row in draws:
        assert math.isnan(task.accumulate(x[:0], y[:0], task.views(row), 1.0))
    sigma, count = 0.5 * 3.0 / 4.0, draws.numel()
    assert abs(float(draws.double().var()) / sigma**2 - 1) < 5 * math.sqrt(2 / count)
    assert abs(float(draws.double().mean())) < 5 * sigma / math.sqrt(count)
    assert not torch.equal(draws[0], draws[1])


def test_without_clip_and_noise_it_is_the_gradient_of_the_mean_loss() -> None:
    task, (x, y) = private(mlp, clip=math.inf, dtype="float64"), batch(torch.float64)
    task.begin(np.random.default_rng(0), expected=SAMPLES)
    ours, plain = torch.zeros_like(task.flat), torch.zeros_like(task.flat)
    task.accumulate(x, y, task.views(ours), 1.0)
    Task.accumulate(task, x, y, task.views(plain), 1.0)
    assert torch.allclose(ours, plain, rtol=1e-12, atol=1e-15)
