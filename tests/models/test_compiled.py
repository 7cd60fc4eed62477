"""The compiled kernels against torch: every size, every correction, every build that this machine can run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedarena as fa
from fedarena.engine.client import GRADIENT_ROWS
from fedarena.models.compiled import BUILDS, CompiledNetwork, KernelRows, library
from fedarena.models.losses import find_loss
from fedarena.models.tape import Tape
from fedarena.models.task import Task

ABLE = [name for name in BUILDS.get(torch.backends.cpu.get_cpu_capability(), ()) if library(name) is not None]
pytestmark = pytest.mark.skipif(not ABLE, reason="no kernels were built for this processor")

TOLERANCE = 2e-5  # of the largest change: float32 against float64, sums of up to a thousand products


@pytest.fixture(params=ABLE)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One after the other, all builds."""
    monkeypatch.setenv("FEDARENA_KERNELS", request.param)
    return str(request.param)


def stack(sizes: list[int], act: type[nn.Module] = nn.ReLU, bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (inside, outside) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(inside, outside, bias=bias)] + ([act()] if i < len(sizes) - 2 else [])
    return nn.Sequential(*layers)


class Reference:
    """The same steps with autograd in double precision: momentum, decay, spring, shift and what is beside."""

    def __init__(self, module: nn.Module, **rule: Any) -> None:
        self.module, self.rule = module.double(), rule
        self.parameters = list(self.module.parameters())
        self.u = np.zeros(sum(p.numel() for p in self.parameters))

    @property
    def w(self) -> np.ndarray:
        return np.concatenate([p.detach().numpy().ravel() for p in self.parameters])

    def load(self, w: np.ndarray) -> None:
        start = 0
        for p in self.parameters:
            p.data.copy_(torch.tensor(w[start : start + p.numel()]).view(p.shape))
            start += p.numel()

    def gradient(self, x: np.ndarray, y: np.ndarray, class_weights: np.ndarray | None) -> tuple[np.ndarray, float]:
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float64)
        loss = nn.functional.cross_entropy(self.module(torch.tensor(x, dtype=torch.float64)), torch.tensor(y), weights)
        parts = torch.autograd.grad(loss, self.parameters)
        return np.concatenate([p.numpy().ravel() for p in parts]), float(loss.detach())

    def step(self, x: np.ndarray, y: np.ndarray, rate: float, class_weights: np.ndarray | None = None) -> float:
        w = self.w
        g, loss = self.gradient(x, y, class_weights)
        if (anchor := self.rule.get("anchor")) is not None:
            self.load(anchor)
            g = g - self.gradient(x, y, class_weights)[0]
        g = g + self.rule.get("decay", 0.0) * w + self.rule.get("shift", 0.0)
        g = g + self.rule.get("mu", 0.0) * (w - self.rule.get("centre", 0.0))
        self.u = self.rule.get("momentum", 0.0) * self.u + g
        self.load(w - rate * (self.u + self.rule.get("beside", 0.0)))
        return loss


def compare(module: nn.Sequential, sizes: list[int], rates: list[float], seed: int = 0, **rule: Any) -> None:
    """A few steps on random rows, in random order, by the kernels and by the reference."""
    rng = np.random.default_rng(seed)
    task = Task(module)
    assert task.network is not None
    w = task.vector()
    rows, classes = sum(sizes), module[-1].out_features
    x = rng.standard_normal((rows + 3, module[1].in_features)).astype(np.float32)
    y, order = rng.integers(0, classes, rows + 3), rng.permutation(rows + 3)[:rows]
    weights = rng.random(classes) if rule.pop("weighted", False) else None
    for name in ("centre", "shift", "beside", "anchor"):
        if rule.get(name):
            rule[name] = (0.1 * rng.standard_normal(len(w))).astype(np.float32)
    velocity = np.zeros_like(w) if rule.get("momentum") else None
    task.network.load(w, velocity=velocity, **rule)
    losses = task.network.train(KernelRows(x, y), order, sizes, np.array(rates), weights)
    after = np.empty_like(w)
    task.network.save(after, velocity)
    reference = Reference(module, **rule)
    reference.load(w)
    start = 0
    for size, rate, loss in zip(sizes, rates, losses, strict=True):
        at = order[start : start + size]
        assert loss == pytest.approx(reference.step(x[at], y[at], rate, weights), rel=1e-5, abs=1e-6)
        start += size
    moved = np.abs(reference.w - w).max()
    rounding = len(sizes) * np.spacing(np.abs(w).max()) / 2  # of the weights themselves, at every step
    np.testing.assert_allclose(after, reference.w, rtol=0, atol=TOLERANCE * moved + rounding)
    if velocity is not None:
        np.testing.assert_allclose(velocity, reference.u, rtol=0, atol=TOLERANCE * np.abs(reference.u).max())


@pytest.mark.slow
@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    batches=st.lists(st.integers(1, 23), min_size=1, max_size=3),
    act=st.sampled_from([nn.ReLU, nn.ELU]),
    bias=st.booleans(),
    name=st.sampled_from(ABLE or ["none"]),
)
def test_any_stack_and_any_batch(sizes: list[int], batches: list[int], act: Any, bias: bool, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDARENA_KERNELS", name)
        torch.manual_seed(0)
        compare(stack([*sizes[:-1], sizes[-1] + 1], act, bias), batches, [0.05] * len(batches))


@pytest.mark.parametrize("batch", [*range(1, 21), 64])
def test_the_network_of_the_papers_at_every_batch_size(batch: int, build: str) -> None:
    torch.manual_seed(batch)
    compare(stack([784, 200, 200, 10]), [batch, batch, max(batch - 3, 1)], [0.1, 0.05, 0.2], seed=batch)


@pytest.mark.parametrize(
    "rule",
    [
        {"momentum": 0.9},
        {"decay": 0.3},
        {"mu": 0.4, "centre": True},
        {"shift": True},
        {"anchor": True, "shift": True},
        {"weighted": True},
        {"momentum": 0.9, "decay": 0.1, "mu": 0.2, "centre": True, "shift": True, "beside": True},
        {"anchor": True, "momentum": 0.5, "weighted": True},
    ],
    ids=lambda rule: " ".join(rule),
)
def test_every_correction(rule: dict[str, Any], build: str) -> None:
    torch.manual_seed(1)
    compare(stack([30, 21, 6], nn.ELU), [5, 7, 3], [0.1, 0.2, 0.1], **rule)


def test_the_same_bits_every_time(build: str) -> None:
    """Whatever the working memory held before: a larger batch, another network's numbers."""
    torch.manual_seed(2)
    task = Task(stack([50, 17, 4]))
    w, rng = task.vector(), np.random.default_rng(0)
    x, y = rng.standard_normal((40, 50)).astype(np.float32), rng.integers(0, 4, 40)
    results = []
    for between in (5, 40, 1):
        task.network.load(w)
        task.network.train(KernelRows(x, y), np.arange(40), [8] * 5, np.full(5, 0.1))
        results.append(np.empty_like(w))
        task.network.save(results[-1])
        task.network.load(-w)
        task.network.train(KernelRows(x, y), np.arange(between), [between], np.full(1, 9.0))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


@pytest.mark.parametrize("act", [nn.ReLU, nn.ELU])
def test_what_is_not_a_number_is_not_hidden(act: Any, build: str) -> None:
    task = Task(stack([8, 8, 3], act))
    x = np.ones((4, 8), np.float32)
    x[2, 5] = np.nan
    task.network.load(task.vector())
    loss = task.network.train(KernelRows(x, np.zeros(4, np.int64)), np.arange(4), [4], np.array([0.1]))
    after = np.empty(task.size, np.float32)
    task.network.save(after)
    assert np.isnan(loss[0])
    assert np.isnan(after).any()


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 2), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)),
    ],
    ids=["unknown layer", "activated logits", "dropout before an activation", "nothing kept", "dropped logits"],
)
def test_what_the_kernels_do_not_know_goes_another_way(module: nn.Sequential) -> None:
    task = Task(module)
    assert task.network is None
    assert task.path in ("tape", "autograd")


def test_double_precision_goes_another_way() -> None:
    assert Task(stack([4, 3]), dtype="float64").network is None


def test_they_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Task(stack([4, 3])).path.startswith("compiled")
    monkeypatch.setenv("FEDARENA_KERNELS", "off")
    assert Task(stack([4, 3])).path == "tape"
    module = stack([4, 3])
    tape = Tape.of(module, Task(module).weights, find_loss("classification"))
    assert tape is not None
    assert CompiledNetwork.of(tape) is None


ALGORITHMS: list[tuple[Any, dict[str, Any]]] = [
    ("fedavg", {}),
    ("fedavg", {"momentum": 0.9, "weight_decay": 0.01, "lr": 0.02}),
    ("fedavg", {"decay": 0.01}),
    ({"name": "fedprox", "mu": 0.5}, {}),
    ("scaffold", {}),
    ("fednova", {"momentum": 0.9, "lr": 0.02}),
    ("feddyn", {}),
    ("fsvrg", {}),
    ("fedpage", {"lr": 0.02}),
    ("fedsgd", {}),
    ("fedsgd", {"weight_decay": 0.01}),
    ({"name": "fedsgd", "with": ["fedir"]}, {}),
    ({"name": "fedavg", "with": ["fedir"]}, {}),
    ({"name": "fedavg", "with": [{"name": "fedvc", "n_vc": 40}]}, {}),
    ("coop", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "local"), ALGORITHMS, ids=str)
def test_a_round_is_the_same_on_either_path(algorithm: Any, local: dict[str, Any]) -> None:
    """Two rounds with the kernels and with autograd: the same up to what float32 loses.

    FSVRG takes a step for every row; a linear model keeps it from being chaos, where a ReLU that flips would not.
    """
    settings: dict[str, Any] = {"rounds": 2, "clients": 4, "partition": {"name": "label_dirichlet", "beta": 0.5}}
    if algorithm == "fsvrg":
        settings["model"] = "logreg"
    runs = [
        fa.run("digits", algorithm=algorithm, local=local, out=False, runtime="serial", fast=fast, **settings)
        for fast in (True, False)
    ]
    ours, theirs = (np.concatenate([v.numpy().ravel() for v in run.state.values()]) for run in runs)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-5)
    a, b = (run.records[-1] for run in runs)
    assert (a.steps, a.samples, a.bytes_up) == (b.steps, b.samples, b.bytes_up)
    assert a.train_loss == (pytest.approx(b.train_loss, rel=1e-4) if b.train_loss is not None else None)


@pytest.mark.slow
@pytest.mark.parametrize("local", [{}, {"weight_decay": 0.01}], ids=str)
@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_a_gradient_over_images_is_the_same_on_either_path(norm: str, local: dict[str, Any]) -> None:
    """FedSGD trains by gradients alone, BatchNorm's statistics included; its clients have several pieces of rows."""
    settings: dict[str, Any] = {"algorithm": "fedsgd", "rounds": 1, "clients": 4, "partition": "iid", "local": local}
    settings |= {"data": {"name": "digits", "like": "cifar10"}, "model": {"name": "lenet5_mod", "norm": norm}}
    runs = [fa.run(settings, out=False, runtime="serial", fast=fast) for fast in (True, False)]
    assert runs[0].records[-1].samples > 4 * 2 * GRADIENT_ROWS
    for name, ours in runs[0].state.items():
        np.testing.assert_allclose(ours.numpy(), runs[1].state[name].numpy(), rtol=1e-4, atol=5e-5, err_msg=name)
    assert runs[0].final.loss == pytest.approx(runs[1].final.loss, rel=1e-4)


@pytest.mark.parametrize("prepare", ["scale", "standardise"])
@pytest.mark.parametrize("channels", [1, 3])
def test_rows_of_bytes_are_read_as_torch_prepares_them(prepare: str, channels: int, build: str) -> None:
    """The data set's own bytes and floats prepared by torch: the same bits, for flat rows and for images."""
    import fedarena as fa
    from fedarena.data.preprocessing import test_batch as prepared_batch
    from fedarena.engine.setup import open_context

    rng = np.random.default_rng(channels)
    x = rng.integers(0, 256, (60, channels, 9, 7), dtype=np.uint8)
    x.reshape(-1)[:256] = np.arange(256)
    y = rng.integers(0, 3, 60)
    for layers in (
        [nn.Flatten(), nn.Linear(channels * 63, 3)],
        [nn.Conv2d(channels, 4, 3), nn.Flatten(), nn.Linear(140, 3)],
    ):
        data = fa.arrays(x, y, x_test=x[:9], y_test=y[:9])
        context = open_context(fa.Experiment.make(data, model=nn.Sequential(*layers), clients=2))
        stats = ((0.4, 0.5, 0.3)[:channels], (0.2, 0.3, 0.25)[:channels])
        context.data = replace(context.data, prepare=prepare, pixel_stats=stats)
        assert context.source is not None
        assert context.source.tables is not None
        prepared = prepared_batch(torch.from_numpy(x), context.data.prepare, context.data.pixel_stats, torch.float32)
        network = context.task.network
        assert network is not None
        found = []
        for source in (context.source, KernelRows(prepared.numpy(), y)):
            network.load(context.initial)
            network.train(source, np.arange(59), [10] * 5 + [9], np.full(6, 0.1))
            found.append(np.empty_like(context.initial))
            network.save(found[-1])
        assert np.array_equal(*found)
