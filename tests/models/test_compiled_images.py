"""The compiled kernels on images against autograd in double precision: layers in every order the zoo has, odd sizes,
every size of batch in use, BatchNorm's running statistics included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.test_compiled import ABLE
from torch import nn

from fedarena.models.compiled import Source
from fedarena.models.task import Task, build
from fedarena.registry import find

pytestmark = pytest.mark.skipif(not ABLE, reason="no kernels were built for this processor")

Make = Callable[[], nn.Sequential]


@pytest.fixture(params=ABLE)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FEDARENA_KERNELS", request.param)
    return str(request.param)


def rows_like(shape: tuple[int, ...], count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.standard_normal((count, *shape)), dtype=torch.float32), torch.tensor(
        rng.integers(0, 4, count)
    )


def one_step(make: Make, shape: tuple[int, ...], batches: list[int], momentum: float = 0.0, decay: float = 0.0) -> None:
    """Steps by the kernels, and by torch in double precision from the same start. A step is far below any kink."""
    torch.manual_seed(5)
    module = make()
    task = Task(module, shape=shape)
    assert task.network is not None
    twin = make().double()
    twin.load_state_dict({k: v.double() if v.is_floating_point() else v for k, v in task.state().items()})
    x, y = rows_like(shape, sum(batches), 1)
    velocity = np.zeros(task.size, np.float32) if momentum else None
    task.network.load(task.vector(), velocity=velocity, momentum=momentum, decay=decay)
    before, buffers = task.vector(), task.buffers().values
    if task.has_batchnorm:
        task.network.load_buffers(buffers)
    losses = task.network.train(Source(x.numpy(), y.numpy()), np.arange(len(y)), batches, np.full(len(batches), 0.01))
    after = np.empty_like(before)
    task.network.save(after, velocity)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.01, momentum=momentum, weight_decay=decay)
    twin.train()
    start, expected = 0, []
    for size in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(twin(x[start : start + size].double()), y[start : start + size])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        expected.append(float(loss.detach()))
        start += size
    np.testing.assert_allclose(losses, expected, rtol=2e-5, atol=1e-6)
    their = Task(twin, dtype="float64", fast=False)
    moved = np.abs(their.vector() - before).max()
    np.testing.assert_allclose(after, their.vector(), rtol=0, atol=5e-5 * moved)
    if task.has_batchnorm:
        task.network.save_buffers(buffers)
        np.testing.assert_allclose(buffers, their.buffers().values, rtol=1e-5, atol=1e-6)


def head(channels: int, side: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(channels * side * side, 4)]


STACKS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "3x3": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), *head(8, 6)), (3, 6, 6)),
    "5x5 without padding": (lambda: nn.Sequential(nn.Conv2d(2, 6, 5), nn.ELU(), *head(6, 5)), (2, 9, 9)),
    "odd channels": (
        lambda: nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.Conv2d(5, 17, 3), nn.ReLU(), *head(17, 7)),
        (1, 11, 11),
    ),
    "1x1 and no bias": (lambda: nn.Sequential(nn.Conv2d(7, 20, 1, bias=False), nn.ELU(0.7), *head(20, 5)), (7, 5, 5)),
    "7x7": (lambda: nn.Sequential(nn.Conv2d(3, 9, 7, padding=3), nn.ReLU(), *head(9, 8)), (3, 8, 8)),
    "stride 2": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), *head(8, 4)),
        (3, 17, 17),
    ),
    "pool before activation": (
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.MaxPool2d(2), nn.ELU(), *head(16, 5)),
        (3, 10, 10),
    ),
    "pool of an odd side": (
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), *head(16, 4)),
        (3, 9, 9),
    ),
    "pool 3 stride 2 padding 1": (
        lambda: nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.MaxPool2d(3, 2, 1), nn.ReLU(), *head(8, 5)),
        (2, 9, 9),
    ),
    "batch norm": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.MaxPool2d(2), nn.ELU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.MaxPool2d(2), nn.ELU(), *head(32, 3),
        ),
        (3, 12, 12),
    ),
    "group norm": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(16, 12, 3), nn.GroupNorm(3, 12), nn.ReLU(), *head(12, 3),
        ),
        (3, 10, 10),
    ),
    "global mean": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ),
        (3, 7, 7),
    ),
    "two hidden layers": (
        lambda: nn.Sequential(nn.Conv2d(1, 8, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 21),
                              nn.ReLU(), nn.Linear(21, 11), nn.ELU(), nn.Linear(11, 4)),
        (1, 12, 12),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STACKS)
def test_every_layer(name: str, kernels: str) -> None:
    one_step(*STACKS[name], batches=[6, 3])
    one_step(*STACKS[name], batches=[5, 5, 2], momentum=0.9, decay=0.01)


@pytest.mark.parametrize("batch", [*range(2, 21), 33, 64])
@pytest.mark.parametrize("name", ["batch norm", "pool before activation", "odd channels"])
def test_every_size_of_batch(name: str, batch: int, kernels: str) -> None:
    one_step(*STACKS[name], batches=[batch])


@pytest.mark.parametrize(
    ("name", "settings", "shape"),
    [
        ("cnn_mcmahan", {}, (1, 28, 28)),
        ("cnnnet", {"norm": "bn"}, (3, 32, 32)),
        ("cnnnet", {"norm": "gn"}, (3, 32, 32)),
        ("lenet5_mod", {}, (3, 32, 32)),
        ("lenet5", {}, (1, 28, 28)),
        ("simple_cnn", {}, (3, 32, 32)),
    ],
    ids=str,
)
def test_networks_of_the_papers(name: str, settings: dict[str, Any], shape: tuple[int, ...], kernels: str) -> None:
    one_step(lambda: find("model", name).build(settings)(shape, 4), shape, batches=[10])  # type: ignore[no-any-return]


def test_the_same_bits_whatever_came_before(kernels: str) -> None:
    """A larger batch, other weights: working memory leaves no trace."""
    torch.manual_seed(0)
    make, shape = STACKS["batch norm"]
    task = Task(make(), shape=shape)
    x, y = rows_like(shape, 40, 3)
    rows, w, found = Source(x.numpy(), y.numpy()), task.vector(), []
    for between in (7, 40, 2):
        task.network.load(w)
        task.network.load_buffers(task.buffers().values)
        task.network.train(rows, np.arange(40), [8] * 5, np.full(5, 0.05))
        found.append(np.empty_like(w))
        task.network.save(found[-1])
        task.network.load(-w)
        task.network.train(rows, np.arange(between), [between], np.ones(1))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_what_is_not_a_number_is_not_hidden(kernels: str) -> None:
    make, shape = STACKS["pool before activation"]
    task = Task(make(), shape=shape)
    x, y = rows_like(shape, 4, 0)
    x[1, 0, 3, 3] = float("nan")
    task.network.load(task.vector())
    losses = task.network.train(Source(x.numpy(), y.numpy()), np.arange(4), [4], np.ones(1))
    assert np.isnan(losses[0])


def test_a_batch_of_one_value_has_no_variance(kernels: str) -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 4), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2))
    task = Task(module, shape=(2, 4, 4))
    assert task.network is not None
    task.network.load(task.vector())
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        task.network.train(
            Source(np.ones((1, 2, 4, 4), np.float32), np.zeros(1, np.int64)), np.arange(1), [1], np.ones(1)
        )


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 6, 3, groups=3),
        nn.Conv2d(3, 6, 3, dilation=2),
        nn.Conv2d(3, 6, 3, padding_mode="circular", padding=1),
    ],
    ids=["groups", "dilation", "circular"],
)
def test_unusual_convolutions_go_another_way(layer: nn.Module) -> None:
    module = nn.Sequential(layer, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2))
    assert build(module, (3, 9, 9), 2, seed=0).network is None
