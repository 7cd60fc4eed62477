"""The compiled kernels on images, against autograd in double precision: every layer, odd sizes, every batch size."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from fedarena.models.compiled import BUILDS, KernelRows, library
from fedarena.models.task import Task
from fedarena.models.zoo.cifar_report import allconvnet, cnnnet, lenet5_mod
from fedarena.models.zoo.lenet import lenet, lenet5
from fedarena.models.zoo.mcmahan import cnn_mcmahan, cnn_mcmahan_cifar
from fedarena.models.zoo.niid_bench import simple_cnn

ABLE = [name for name in BUILDS.get(torch.backends.cpu.get_cpu_capability(), ()) if library(name) is not None]
pytestmark = pytest.mark.skipif(not ABLE, reason="no kernels were built for this processor")

TOLERANCE = 2e-5  # of the largest number in a parameter: float32 against float64, through several layers
THREAD = 2e-6  # a maximum or a sign that hangs by less may fall either way in float32
Shape = tuple[int, int, int]


@pytest.fixture(params=ABLE)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One after the other, all builds."""
    monkeypatch.setenv("FEDARENA_KERNELS", request.param)
    return str(request.param)


def floats(x: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(x.numpy(), np.float32)


def flat(tensors: Any) -> NDArray[np.float64]:
    """Parameters, or their gradients, in the order of a task: convolutions channels-last."""
    parts = [(t.permute(0, 2, 3, 1) if t.dim() == 4 else t).detach().reshape(-1) for t in tensors]
    return torch.cat(parts).double().numpy()


def norms_of(module: nn.Module) -> list[nn.BatchNorm2d]:
    return [m for m in module if isinstance(m, nn.BatchNorm2d)]


def statistics(module: nn.Module) -> NDArray[np.float64]:
    parts = [b.double().numpy() for m in norms_of(module) for b in (m.running_mean, m.running_var)]
    return np.concatenate(parts) if parts else np.empty(0)


@torch.no_grad()
def closest_call(module: nn.Module, x: Tensor) -> float:
    """The least distance of a ReLU's input from its kink, or of a pool's largest number from its second."""
    least = np.inf
    for layer in copy.deepcopy(module).double().train():
        if isinstance(layer, nn.MaxPool2d):
            pairs = [p if isinstance(p, tuple) else (p, p) for p in (layer.kernel_size, layer.stride, layer.padding)]
            kernel, stride, pad = pairs
            room = F.pad(x, (pad[1], pad[1] + stride[1], pad[0], pad[0] + stride[0]), value=-1e9)
            windows = F.unfold(room.flatten(0, 1)[:, None], kernel, stride=stride)
            best, second = (
                windows.topk(min(2, windows.shape[1]), dim=1).values.unbind(1) if kernel != (1, 1) else (x, x)
            )
            gaps = (best - second)[best > second]  # equals are no matter: the first one wins
            least = min(least, float(gaps.min())) if gaps.numel() else least
        elif isinstance(layer, nn.ReLU):
            least = min(least, float(x[x != 0].abs().min())) if x.any() else least
        x = layer(x)
    return least


@dataclass
class Case:
    """A module, and rows on which no decision hangs by a thread."""

    module: nn.Sequential
    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, module: nn.Sequential, shape: Shape, rows: int, classes: int, seed: int = 0) -> Case:
        rng = torch.Generator().manual_seed(seed)
        for _ in range(50):
            x = torch.randn(rows, *shape, generator=rng)
            if closest_call(module, x.double()) > THREAD:
                return cls(module, x, torch.randint(0, classes, (rows,), generator=rng))
        raise AssertionError("every draw hangs by a thread")

    def task(self) -> Task:
        task = Task(copy.deepcopy(self.module), shape=tuple(self.x.shape[1:]))
        assert task.network is not None
        return task


def scramble(module: nn.Sequential) -> nn.Sequential:
    """Norms that do something, of either sign."""
    with torch.no_grad():
        for m in module:
            if isinstance(m, nn.BatchNorm2d | nn.GroupNorm):
                m.weight.normal_()
                m.bias.normal_()
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.normal_()
                m.running_var.uniform_(0.5, 2)
    return module


def gradient_and_loss(task: Task, x: Tensor, y: Tensor) -> tuple[NDArray[Any], float, NDArray[Any]]:
    """What a step of the kernels computes: without momentum the velocity is the gradient."""
    velocity, after = np.zeros(task.size, np.float32), np.empty(task.size, np.float32)
    values = task.buffers().values
    task.network.load(task.vector(), velocity=velocity)
    task.network.load_buffers(values)
    (loss,) = task.network.train(KernelRows(floats(x), y.numpy()), np.arange(len(x)), [len(x)], np.ones(1))
    task.network.save(after, velocity)
    task.network.save_buffers(values)
    np.testing.assert_allclose(after, task.vector() - velocity, rtol=1e-6, atol=1e-7)
    return velocity, loss, values


def check_gradient(case: Case, tolerance: float = TOLERANCE) -> None:
    task = case.task()
    found, loss, buffers = gradient_and_loss(task, case.x, case.y)
    exact = copy.deepcopy(case.module).double().train()
    wanted = F.cross_entropy(exact(case.x.double()), case.y)
    gradients = torch.autograd.grad(wanted, list(exact.parameters()))
    assert loss == pytest.approx(wanted.item(), rel=1e-5, abs=1e-6)
    start = 0
    whole = max(float(g.abs().max()) for g in gradients)
    for (name, _), g in zip(exact.named_parameters(), gradients, strict=True):
        part = found[start : start + g.numel()]
        start += g.numel()
        # What a norm takes away again has no gradient, or hardly one: it is measured by the others.
        scale = max(float(g.abs().max()), 0.05 * whole)
        np.testing.assert_allclose(part, flat([g]), rtol=0, atol=tolerance * scale, err_msg=name)
    np.testing.assert_allclose(buffers, statistics(exact), rtol=1e-5, atol=1e-6)


def classifier(body: list[nn.Module], shape: Shape, *widths: int) -> nn.Sequential:
    """The body with fully connected ReLU layers on top."""
    with torch.no_grad():
        inputs = copy.deepcopy(nn.Sequential(*body)).eval()(torch.zeros(1, *shape)).numel()
    layers: list[nn.Module] = []
    for outputs in widths:
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*body, nn.Flatten(), *layers[:-1])


def conv_pool_act(shape: Shape, *, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    body = [nn.Conv2d(shape[0], 20, 5, padding=2), nn.MaxPool2d(2), act(), nn.Conv2d(20, 33, 3), nn.MaxPool2d(2), act()]
    return classifier(body, shape, 17, 4)


def batch_norms(shape: Shape) -> nn.Sequential:
    body: list[nn.Module] = []
    inside = shape[0]
    for outside in (16, 7, 34):
        body += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.MaxPool2d(2), nn.ELU()]
        inside = outside
    return classifier(body, shape, 9, 4)


def group_norms(shape: Shape) -> nn.Sequential:
    first = [nn.Conv2d(shape[0], 16, 3, padding=1), nn.GroupNorm(8, 16), nn.ELU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(16, 21, 3, bias=False), nn.GroupNorm(3, 21), nn.ReLU()]
    third = [nn.Conv2d(21, 5, 3), nn.GroupNorm(1, 5), nn.MaxPool2d(2), nn.ReLU()]
    return classifier([*first, *second, *third], shape, 4)


def all_convolutions(shape: Shape) -> nn.Sequential:
    layers: list[nn.Module] = []
    inside = shape[0]
    for outside, kernel, stride in [(12, 3, 1), (12, 3, 2), (24, 3, 1), (24, 3, 2), (18, 1, 1), (5, 1, 1)]:
        layers += [nn.Conv2d(inside, outside, kernel, stride), nn.BatchNorm2d(outside), nn.ReLU()]
        inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def large_kernels(shape: Shape) -> nn.Sequential:
    stem = [nn.Conv2d(shape[0], 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.MaxPool2d(3, 2, 1), nn.ReLU()]
    tail = [nn.Conv2d(16, 20, (3, 5), (2, 1), (1, 0)), nn.ELU(0.7), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*stem, *tail, nn.Flatten(), nn.Linear(20, 6))


def hanging_pools(shape: Shape) -> nn.Sequential:
    first = [nn.Conv2d(shape[0], 8, 5, padding=2), nn.MaxPool2d(3, 2, ceil_mode=True), nn.ReLU()]
    second = [nn.Conv2d(8, 16, 3, padding=1), nn.MaxPool2d((3, 2), (2, 3), (0, 1), ceil_mode=True), nn.ELU()]
    return classifier([*first, *second], shape, 6)


def unusual_order(shape: Shape) -> nn.Sequential:
    """Norm first, activations before norms and twice, strides beyond the kernel, padding beyond it too."""
    first = [nn.BatchNorm2d(shape[0]), nn.Conv2d(shape[0], 9, 3, padding=2), nn.ReLU(), nn.BatchNorm2d(9)]
    second = [nn.MaxPool2d(2), nn.ELU(), nn.ReLU(), nn.Conv2d(9, 8, 2, 3, 1), nn.Conv2d(8, 6, 1, 2), nn.GroupNorm(2, 6)]
    third = [nn.ELU(), nn.Conv2d(6, 4, 2, padding=3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.ELU()]
    return nn.Sequential(*first, *second, *third, nn.Flatten(), nn.Linear(4, 3))


def pool_first(shape: Shape) -> nn.Sequential:
    layers = [
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(shape[0], 4, 3, padding=5),
        nn.MaxPool2d(3, 3),
        nn.Flatten(),
        nn.ELU(),
    ]
    with torch.no_grad():
        inputs = nn.Sequential(*layers)(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*layers, nn.Linear(inputs, 3))


def thin_strides(shape: Shape) -> nn.Sequential:
    """Few channels, whose phases read zeros beside the image, some further out than others."""
    body = [nn.Conv2d(shape[0], 3, 3), nn.ELU(), nn.Conv2d(3, 2, 5, 2), nn.ELU(), nn.Conv2d(2, 3, 4, 3, 1)]
    return classifier(body, shape, 3)


NETWORKS: dict[str, tuple[Callable[[Shape], nn.Sequential], Shape]] = {
    "convolution, pool, activation": (conv_pool_act, (1, 17, 14)),
    "batch norms": (batch_norms, (3, 13, 10)),
    "group norms": (group_norms, (2, 12, 15)),
    "all convolutions": (all_convolutions, (3, 19, 18)),
    "large kernels": (large_kernels, (3, 22, 19)),
    "hanging pools": (hanging_pools, (3, 11, 13)),
    "unusual order": (unusual_order, (5, 12, 11)),
    "pool first": (pool_first, (3, 12, 9)),
    "thin strides": (thin_strides, (2, 14, 15)),
}


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_every_layer_in_every_place(name: str, rows: int, kernels: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    check_gradient(Case.of(scramble(make(shape)), shape, rows, 3, seed=rows))


@pytest.mark.parametrize("rows", [*range(1, 21), 64])
def test_gradients_at_every_batch_size(rows: int, kernels: str) -> None:
    torch.manual_seed(rows)
    for make in (conv_pool_act, batch_norms):
        check_gradient(Case.of(make((3, 10, 8)), (3, 10, 8), rows, 4, seed=rows))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(ABLE or ["none"]))
def test_any_convolution(data: st.DataObject, name: str) -> None:
    """Two of them, so that the second one's gradient of the input counts; every kernel, stride and padding."""
    pair = lambda low, high: data.draw(st.tuples(st.integers(low, high), st.integers(low, high)))
    sizes = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 19), st.integers(1, 35)))
    height, width = pair(1, 17)
    kernel, stride, pad = pair(1, 7), pair(1, 3), pair(0, 4)
    # torch wants a kernel that fits
    pad = (max(pad[0], kernel[0] - height), max(pad[1], kernel[1] - width))
    torch.manual_seed(0)
    shape = (sizes[0], height, width)
    body = [
        nn.Conv2d(sizes[0], sizes[1], 3, padding=1, bias=data.draw(st.booleans())),
        nn.ELU(),
        nn.Conv2d(sizes[1], sizes[2], kernel, stride, pad, bias=data.draw(st.booleans())),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDARENA_KERNELS", name)
        check_gradient(Case.of(classifier(body, shape, 3), shape, data.draw(st.integers(1, 3)), 3))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data(), name=st.sampled_from(ABLE or ["none"]))
def test_any_pool(data: st.DataObject, name: str) -> None:
    pair = lambda low, high: data.draw(st.tuples(st.integers(low, high), st.integers(low, high)))
    height, width = pair(4, 13)
    kernel, stride = pair(1, 4), pair(1, 4)
    pad = (data.draw(st.integers(0, kernel[0] // 2)), data.draw(st.integers(0, kernel[1] // 2)))
    pool = nn.MaxPool2d(kernel, stride, pad, ceil_mode=data.draw(st.booleans()))
    channels = data.draw(st.integers(1, 18))
    norm = data.draw(st.sampled_from([nn.Identity(), nn.BatchNorm2d(channels), nn.GroupNorm(1, channels)]))
    torch.manual_seed(1)
    body = [nn.Conv2d(2, channels, 3, padding=1), *([] if isinstance(norm, nn.Identity) else [norm]), pool, nn.ELU()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDARENA_KERNELS", name)
        check_gradient(Case.of(scramble(classifier(body, (2, height, width), 3)), (2, height, width), 3, 3))


ZOO: dict[str, tuple[nn.Module, Shape]] = {
    "cnn_mcmahan": (cnn_mcmahan, (1, 28, 28)),
    "cnn_mcmahan_cifar": (lambda shape, classes: cnn_mcmahan_cifar(shape, classes, lrn=False), (3, 24, 24)),
    "cnnnet bn": (lambda shape, classes: cnnnet(shape, classes, norm="bn"), (3, 32, 32)),
    "cnnnet gn": (lambda shape, classes: cnnnet(shape, classes, norm="gn"), (3, 32, 32)),
    "lenet": (lenet, (1, 28, 28)),
    "lenet5": (lenet5, (1, 28, 28)),
    "lenet5_mod": (lenet5_mod, (3, 32, 32)),
    "allconvnet": (lambda shape, classes: allconvnet(shape, classes, channels=16), (3, 32, 32)),
    "simple_cnn": (simple_cnn, (3, 32, 32)),
}


@pytest.mark.parametrize("name", ZOO)
def test_the_networks_of_the_zoo(name: str, kernels: str) -> None:
    make, shape = ZOO[name]
    torch.manual_seed(0)
    check_gradient(Case.of(make(shape, 10), shape, 3, 10))


def logits_of(task: Task, x: Tensor) -> NDArray[np.float32]:
    return task.network.logits(task.vector(), task.buffers().values, x.numpy())


@pytest.mark.parametrize("rows", [1, 5, 64, 131])
@pytest.mark.parametrize("name", NETWORKS)
def test_logits_are_those_of_the_module_in_evaluation_mode(name: str, rows: int, kernels: str) -> None:
    """Batch norms go by what they remember, and remember nothing of it; any number of rows, in pieces."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    task = Task(scramble(make(shape)), shape=shape)
    x = torch.randn(rows, *shape)
    before = task.buffers().values
    found = logits_of(task, x)
    with torch.no_grad():
        exact = copy.deepcopy(task.module).double().eval()(x.double()).numpy()
    np.testing.assert_allclose(found, exact, rtol=0, atol=TOLERANCE * np.abs(exact).max())
    assert (task.buffers().values == before).all()
    assert (logits_of(task, x.flip(0)) == found[::-1]).all(), "a row's logits depend on its company"


@pytest.mark.parametrize("make", [conv_pool_act, batch_norms])
def test_evaluation_leaves_nothing_behind_in_the_norms(make: Callable[[Shape], nn.Sequential], kernels: str) -> None:
    torch.manual_seed(0)
    shape = (3, 13, 10)
    case = Case.of(scramble(make(shape)), shape, 7, 4)
    task = case.task()
    first = gradient_and_loss(task, case.x, case.y)
    logits_of(task, torch.randn(90, *shape))
    for one, again in zip(first, gradient_and_loss(task, case.x, case.y), strict=True):
        np.testing.assert_array_equal(one, again)


RULES: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9, "decay": 0.1},
    {"mu": 0.4, "centre": True, "shift": True},
    {"momentum": 0.5, "decay": 0.1, "mu": 0.2, "centre": True, "shift": True, "beside": True, "weighted": True},
    {"anchor": True, "shift": True, "weighted": True},
]


STEPS = [
    pytest.param(name, rule, id=f"{name}: {' '.join(rule) or 'plain'}")
    for name in ("convolution, pool, activation", "batch norms", "group norms")
    for rule in RULES
    if not (name == "batch norms" and "anchor" in rule)
]


@pytest.mark.parametrize(("name", "rule"), STEPS)
def test_several_steps_with_every_correction(name: str, rule: dict[str, Any], kernels: str) -> None:
    """Batches of different sizes, rows in any order, and what batch norm remembers of them."""
    make, shape = NETWORKS[name]
    torch.manual_seed(3)
    sizes, rates, rng = [4, 7, 3], [0.1, 0.02, 0.05], np.random.default_rng(0)
    case = Case.of(scramble(make(shape)), shape, 20, 4)
    task, order = case.task(), rng.permutation(20)[: sum(sizes)]
    w, rule = task.vector(), dict(rule)
    weights = rng.random(4) if rule.pop("weighted", False) else None
    for vector in ("centre", "shift", "beside", "anchor"):
        if rule.get(vector):
            rule[vector] = (0.05 * rng.standard_normal(task.size)).astype(np.float32)
    velocity = np.zeros_like(w) if rule.get("momentum") else None
    values, after = task.buffers().values, np.empty_like(w)
    task.network.load(w, velocity=velocity, **rule)
    task.network.load_buffers(values)
    losses = task.network.train(KernelRows(floats(case.x), case.y.numpy()), order, sizes, np.array(rates), weights)
    task.network.save(after, velocity)
    task.network.save_buffers(values)
    exact, wanted, u, statistic = reference_steps(case, order, sizes, rates, weights, rule)
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    np.testing.assert_allclose(after, exact, rtol=0, atol=1e-4 * np.abs(exact - w).max())
    np.testing.assert_allclose(values, statistic, rtol=1e-4, atol=1e-5)
    if velocity is not None:
        np.testing.assert_allclose(velocity, u, rtol=0, atol=1e-4 * np.abs(u).max())


def reference_steps(
    case: Case, order: Any, sizes: Any, rates: Any, weights: Any, rule: dict[str, Any]
) -> tuple[Any, ...]:
    """The same steps, in double precision, on a flat vector."""
    task = Task(copy.deepcopy(case.module), dtype="float64", fast=False)
    w, losses, start, u = task.vector(), [], 0, np.zeros(task.size)
    importance = None if weights is None else torch.tensor(weights)
    task.module.train()

    def gradient(w: Any, at: Any) -> tuple[NDArray[np.float64], float]:
        task.load(w)
        loss = F.cross_entropy(task.module(case.x[at].double()), case.y[at], importance)
        return flat(torch.autograd.grad(loss, list(task.module.parameters()))), loss.item()

    for size, rate in zip(sizes, rates, strict=True):
        at = order[start : start + size]
        start += size
        g, loss = gradient(w, at)
        losses.append(loss)
        if "anchor" in rule:
            g = g - gradient(rule["anchor"], at)[0]
        g = g + rule.get("decay", 0) * w + rule.get("mu", 0) * (w - rule.get("centre", 0)) + rule.get("shift", 0)
        u = rule.get("momentum", 0) * u + g
        w = w - rate * (u + rule.get("beside", 0))
    return w, losses, u, task.buffers().values


def test_the_same_bits_every_time(kernels: str) -> None:
    """Whatever the working memory held before: another batch size, other weights, numbers that are none."""
    torch.manual_seed(2)
    for make in (conv_pool_act, batch_norms, group_norms):
        case = Case.of(scramble(make((2, 12, 12))), (2, 12, 12), 24, 4)
        task = case.task()
        results = []
        for between in (3, 24, 1):
            results.append(gradient_and_loss(task, case.x[:8], case.y[:8]))
            task.network.load(np.full(task.size, np.nan, np.float32))
            rows = KernelRows(floats(case.x), case.y.numpy())
            task.network.train(rows, np.arange(between), [between], np.ones(1))
        fresh = gradient_and_loss(case.task(), case.x[:8], case.y[:8])
        for velocity, loss, buffers in results:
            assert np.array_equal(velocity, fresh[0])
            assert loss == fresh[1]
            assert np.array_equal(buffers, fresh[2])


@pytest.mark.parametrize(
    "body",
    [
        [nn.ReLU()],
        [nn.ELU()],
        [nn.MaxPool2d(2)],
        [nn.MaxPool2d(3, 2, 1), nn.ReLU()],
        [nn.BatchNorm2d(3), nn.ReLU()],
        [nn.GroupNorm(1, 3), nn.MaxPool2d(2), nn.ELU()],
        [nn.ReLU(), nn.AdaptiveAvgPool2d(1)],
    ],
    ids=lambda body: " ".join(type(layer).__name__ for layer in body),
)
@pytest.mark.parametrize("place", [(0, 0), (3, 4), (5, 5)])
def test_what_is_not_a_number_is_not_hidden(body: list[nn.Module], place: tuple[int, int], kernels: str) -> None:
    module = classifier([nn.Conv2d(2, 3, 1), *copy.deepcopy(body)], (2, 6, 6), 3)
    case = Case(module, torch.ones(4, 2, 6, 6), torch.zeros(4, dtype=torch.int64))
    case.x[2, 1, place[0], place[1]] = torch.nan
    task = case.task()
    task.network.load(task.vector())
    task.network.load_buffers(task.buffers().values)
    loss = task.network.train(KernelRows(floats(case.x), case.y.numpy()), np.arange(4), [4], np.array([0.1]))
    after = np.empty(task.size, np.float32)
    task.network.save(after)
    assert np.isnan(loss[0])
    assert np.isnan(after).any()


def test_batch_norm_far_from_zero_keeps_its_variance(kernels: str) -> None:
    """A sum of squares in float32 would lose it: 3000^2 has eight digits of its own."""
    module = nn.Sequential(
        nn.BatchNorm2d(2, momentum=1.0), nn.Conv2d(2, 3, 3), nn.ELU(), nn.Flatten(), nn.Linear(48, 3)
    )
    x = 3000 + torch.randn(8, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    task = Task(module, shape=(2, 6, 6))
    _, _, buffers = gradient_and_loss(task, x, torch.zeros(8, dtype=torch.int64))
    np.testing.assert_allclose(buffers[2:], x.double().var((0, 2, 3)).numpy(), rtol=1e-4)


def test_a_batch_norm_over_one_number_is_refused_as_in_torch(kernels: str) -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))
    task = Task(module, shape=(1, 3, 3))
    x, y = torch.randn(3, 1, 3, 3), np.zeros(3, np.int64)
    task.network.load(task.vector())
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        task.network.train(KernelRows(floats(x), y), np.arange(3), [2, 1], np.array([0.1, 0.1]))


# Dropout draws from torch's own random numbers: with the same seed the same is dropped.


def dropping(shape: Shape) -> nn.Sequential:
    """A pool whose slopes are known by its outputs, and a layer whose slopes are, both below a dropout."""
    body = [nn.Conv2d(shape[0], 7, 3, padding=1), nn.BatchNorm2d(7), nn.MaxPool2d(2), nn.ELU(), nn.Flatten()]
    inputs = 7 * (shape[1] // 2) * (shape[2] // 2)
    top = [nn.Linear(inputs, 19), nn.ELU(), nn.Dropout(0.6), nn.Linear(19, 9), nn.ELU(), nn.Linear(9, 4)]
    return nn.Sequential(*body, nn.Dropout(0.25), *top)


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 33])
def test_the_same_is_dropped_as_by_torch(kernels: str, rows: int) -> None:
    torch.manual_seed(3)
    shape = (3, 10, 6)
    case = Case.of(scramble(dropping(shape)), shape, rows, 4)
    task, exact = case.task(), copy.deepcopy(case.module).double().train()
    torch.manual_seed(rows)
    found, loss, _ = gradient_and_loss(task, case.x, case.y)
    after = torch.rand(1)
    torch.manual_seed(rows)
    wanted = F.cross_entropy(exact(case.x.double()), case.y)
    assert after == torch.rand(1)  # as many numbers were drawn
    wanted_gradient = flat(torch.autograd.grad(wanted, list(exact.parameters())))
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    np.testing.assert_allclose(found, wanted_gradient, rtol=0, atol=TOLERANCE * np.abs(wanted_gradient).max())


def test_nothing_is_dropped_in_evaluation(kernels: str) -> None:
    torch.manual_seed(0)
    shape = (3, 10, 6)
    task = Task(scramble(dropping(shape)), shape=shape)
    x = torch.randn(9, *shape)
    with torch.no_grad():
        exact = copy.deepcopy(task.module).double().eval()(x.double()).numpy()
    np.testing.assert_allclose(logits_of(task, x), exact, rtol=0, atol=TOLERANCE * np.abs(exact).max())


def test_every_step_drops_something_else_as_on_the_tape(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three batches in one call, with momentum, as three steps by torch's layers."""
    torch.manual_seed(3)
    shape, sizes = (3, 10, 6), [8, 5, 2]
    case = Case.of(scramble(dropping(shape)), shape, sum(sizes), 4)
    task = case.task()
    velocity, after = np.zeros(task.size, np.float32), np.empty(task.size, np.float32)
    task.network.load(task.vector(), velocity=velocity, momentum=0.9)
    task.network.load_buffers(task.buffers().values)
    torch.manual_seed(5)
    task.network.train(KernelRows(floats(case.x), case.y.numpy()), np.arange(sum(sizes)), sizes, np.full(3, 0.1))
    task.network.save(after, velocity)
    monkeypatch.setenv("FEDARENA_KERNELS", "off")
    slow = Task(copy.deepcopy(case.module), shape=shape)
    assert slow.path == "tape"
    slow.module.train()
    torch.manual_seed(5)
    u = torch.zeros(slow.size)
    for x, y in zip(case.x.split(sizes), case.y.split(sizes), strict=True):
        u.mul_(0.9)
        slow.accumulate(slow.batch_layout(x), y, slow.views(u), 1.0)
        slow.flat.sub_(u, alpha=0.1)
    np.testing.assert_allclose(after, slow.vector(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ([nn.Conv2d(2, 4, 3, dilation=2), nn.Flatten(), nn.Linear(16, 2)], (2, 6, 6)),
        ([nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 2)], (2, 6, 6)),
        ([nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(144, 2)], (2, 6, 6)),
        ([nn.Conv2d(2, 4, 3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 2)], (2, 6, 6)),
        ([nn.Conv2d(2, 4, 3), nn.Linear(4, 2), nn.Flatten()], (2, 6, 6)),
        ([nn.Conv2d(2, 4, 3), nn.Flatten()], (2, 3, 4)),
        ([nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 2), nn.ReLU()], (2, 6, 6)),
    ],
    ids=[
        "dilation",
        "groups",
        "padding mode",
        "dropped pixels",
        "linear over columns",
        "pixels as logits",
        "activated logits",
    ],
)
def test_what_the_kernels_do_not_know_goes_another_way(layers: list[nn.Module], shape: Shape) -> None:
    assert Task(nn.Sequential(*layers), shape=shape).network is None


def test_batch_norms_have_no_anchor(kernels: str) -> None:
    """They would have to remember the statistics of two batches."""
    shape = (1, 12, 12)
    assert Case.of(conv_pool_act(shape), shape, 1, 2).task().network.can_anchor
    assert Case.of(group_norms(shape), shape, 1, 2).task().network.can_anchor
    assert not Case.of(batch_norms(shape), shape, 1, 2).task().network.can_anchor


def test_what_is_dropped_has_no_anchor(kernels: str) -> None:
    """It is not the same at both."""
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)))
    assert task.network is not None
    assert not task.network.can_anchor
