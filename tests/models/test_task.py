"""A model as one flat vector, and the two ways to its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedarena.config.errors import BadValue, ModelMismatch
from fedarena.config.registry import find
from fedarena.data.dataset import PADDING
from fedarena.models.building import build
from fedarena.models.task import Task

STACKS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "logreg": ({}, (1, 28, 28)),
    "mlp_2nn": ({}, (1, 28, 28)),
    "cnn_mcmahan": ({}, (1, 28, 28)),
    "lenet5_mod": ({"norm": "gn"}, (3, 32, 32)),
    "allconvnet": ({"norm": "bn", "channels": 16}, (3, 32, 32)),
    "cnnnet": ({"norm": "bn"}, (3, 32, 32)),
    "cnnnet-gn": ({"norm": "gn"}, (3, 32, 32)),
    "simple_cnn": ({}, (3, 32, 32)),
    "lenet": ({}, (1, 28, 28)),
}


def make(name: str, fast: bool, dtype: str = "float64") -> tuple[Task, tuple[int, ...]]:
    settings, shape = STACKS[name]
    return build(
        find("model", name.partition("-")[0]).build(settings), shape, 10, seed=1, dtype=dtype, fast=fast
    ), shape


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_tape_and_autograd_give_the_same_gradient(name: str, rows: int) -> None:
    """At every batch size: remainders are where fast paths go wrong. In float64, so that rounding cannot hide an error."""
    fast, shape = make(name, fast=True)
    slow, _ = make(name, fast=False)
    assert (fast.path, slow.path) == ("tape", "autograd")
    x, y = torch.rand(rows, *shape, dtype=torch.float64), torch.randint(0, 10, (rows,))
    results = []
    for task in (fast, slow):
        task.module.train()
        g = torch.zeros_like(task.flat)
        loss = task.accumulate(task.batch_layout(x), y, task.views(g), 2.0)
        results.append((loss, g, task.buffers()))
    (loss_a, g_a, buffers_a), (loss_b, g_b, buffers_b) = results
    assert loss_a == pytest.approx(loss_b, rel=1e-12)
    torch.testing.assert_close(g_a, g_b, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(buffers_a.values, buffers_b.values, rtol=1e-12)
    assert np.array_equal(buffers_a.counters, buffers_b.counters)


@pytest.mark.parametrize("name", ["mlp_2nn", "cnn_mcmahan", "cnnnet"])
def test_tape_and_autograd_agree_after_a_round_in_float32(name: str) -> None:
    """Five steps of SGD into the weights themselves; float32 drifts, ReLUs flip: 1e-4 is stated and kept."""
    torch.manual_seed(0)
    after = []
    _, shape = STACKS[name]
    batches = [(torch.rand(10, *shape), torch.randint(0, 10, (10,))) for _ in range(5)]
    for fast in (True, False):
        task, _ = make(name, fast, "float32")
        task.module.train()
        for x, y in batches:
            task.accumulate(task.batch_layout(x), y, task.weights, -0.05)
        after.append(task.flat)
    torch.testing.assert_close(*after, rtol=0, atol=1e-4)


def test_dropout_on_the_tape_scales_what_it_keeps() -> None:
    """With one input and a linear output the gradient of the weight is mask/keep * d: zero or doubled."""
    task = Task(nn.Sequential(nn.Dropout(0.5), nn.Linear(400, 2, bias=False)))
    assert task.path == "tape"
    task.load(np.zeros(800, np.float32))
    g = torch.zeros(800)
    torch.manual_seed(0)
    task.accumulate(torch.ones(1, 400), torch.tensor([0]), task.views(g), 1.0)
    assert set(g.abs().tolist()) == {0.0, 1.0}  # softmax of equal logits is 1/2; 1/2 * 1/keep = 1
    assert 300 < (g != 0).sum() < 500


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)),
        nn.Sequential(nn.Sequential(nn.Linear(4, 2))),
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2).requires_grad_(False)),
        nn.Sequential(shared := nn.Linear(4, 4), shared, nn.Linear(4, 2)),
    ],
)
def test_what_the_tape_does_not_know_takes_the_general_path(module: nn.Module) -> None:
    task = Task(module)
    assert task.path == "autograd"
    assert task.accumulate(torch.rand(3, 4), torch.tensor([0, 1, 0]), task.views(torch.zeros(task.size)), 1.0) > 0


@pytest.mark.parametrize("name", STACKS)
def test_flat_vector_is_the_parameters(name: str) -> None:
    """Flatten and unflatten are the identity; a view changes with the vector; order is that of registration."""
    task, _ = make(name, True, "float32")
    w = np.random.default_rng(0).standard_normal(task.size).astype(np.float32)
    task.load(w)
    assert np.array_equal(task.vector(), w)
    assert task.names == [n for n, _ in task.module.named_parameters()]
    assert task.size == sum(p.numel() for p in task.module.parameters())
    first = next(task.module.parameters())
    before = first.detach().clone()
    task.flat.add_(1.0)
    assert torch.equal(first.detach(), before + 1.0)


def test_exported_state_has_torchs_layout_and_loads_again() -> None:
    task, shape = make("cnnnet", True, "float32")
    other, _ = make("cnnnet", True, "float32")
    other.load(np.zeros(other.size, np.float32))
    other.module.load_state_dict(task.state())
    assert np.array_equal(task.vector(), other.vector())
    assert all(v.is_contiguous() for v in task.state().values())
    fresh = find("model", "cnnnet").build({"norm": "bn"})(shape, 10)
    fresh.load_state_dict(task.state())
    x = torch.rand(4, *shape)
    torch.testing.assert_close(fresh.eval()(x), task.module.eval()(x))


def test_buffers_are_loaded_so_that_nothing_leaks_between_clients() -> None:
    task, shape = make("cnnnet", True, "float32")
    start = task.buffers()
    task.module.train()
    task.accumulate(torch.rand(5, *shape), torch.zeros(5, dtype=torch.int64), task.views(torch.zeros(task.size)), 1.0)
    assert not np.array_equal(task.buffers().values, start.values)
    task.load_buffers(start)
    assert np.array_equal(task.buffers().values, start.values)
    assert np.array_equal(task.buffers().counters, start.counters)


class Fixed(nn.Module):
    """Answers with given logits."""

    def __init__(self, logits: list[list[float]]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits[: len(x)]


def test_ties_go_to_the_lowest_class_and_nonfinite_is_wrong() -> None:
    logits = [[1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [float("nan"), 0.0, 0.0], [float("inf"), 0.0, 0.0]]
    scores = Task(Fixed(logits)).predict(torch.zeros(4, 1), torch.tensor([0, 1, 0, 0]))
    assert scores.right.tolist() == [1, 1, 0, 0]
    scores = Task(Fixed(logits)).predict(torch.zeros(4, 1), torch.tensor([1, 2, 0, 0]))
    assert scores.right.tolist() == [0, 0, 0, 0]


def test_sequences_count_labelled_positions_only() -> None:
    logits = torch.zeros(2, 3, 4)
    logits[..., 2] = 5.0
    task = Task(Fixed(logits.tolist()))
    y = torch.tensor([[2, 2, PADDING], [2, 1, PADDING]])
    scores = task.predict(torch.zeros(2, 3, dtype=torch.int64), y)
    assert scores.right.tolist() == [2, 1]
    assert scores.count.tolist() == [2, 2]


def test_frozen_parameters_are_not_in_the_vector() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    task = Task(net, freeze=("0.*",))
    assert task.size == 12
    before = net[0].weight.detach().clone()
    task.accumulate(torch.rand(3, 4), torch.tensor([0, 1, 0]), task.weights, -0.5)
    assert torch.equal(net[0].weight, before)
    with pytest.raises(BadValue, match="no parameter fits"):
        Task(nn.Linear(2, 2), freeze=("body.*",))
    with pytest.raises(BadValue, match="left to train"):
        Task(nn.Linear(2, 2), freeze=("*",))


def test_the_same_seed_gives_the_same_weights_and_leaves_torchs_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    a, b = (build(find("model", "mlp_2nn").build({}), (4,), 3, seed=9) for _ in range(2))
    assert np.array_equal(a.vector(), b.vector())
    assert torch.equal(before, torch.random.get_rng_state())
    c = build(find("model", "mlp_2nn").build({}), (4,), 3, seed=9, init="glorot")
    assert not np.array_equal(a.vector(), c.vector())


def test_mismatches_are_reported_before_training() -> None:
    with pytest.raises(ModelMismatch, match=r"two rows is \(2, 7\); 3 classes need \(2, 3\)"):
        build(lambda: nn.Linear(4, 7), (4,), 3, seed=0)
    with pytest.raises(ModelMismatch, match=r"cannot take rows of shape \(5,\)"):
        build(lambda: nn.Linear(4, 3), (5,), 3, seed=0)
    with pytest.raises(ModelMismatch, match="not a torch"):
        build(lambda: "net", (5,), 3, seed=0)


def test_a_ready_module_keeps_its_weights_and_is_not_touched() -> None:
    net = nn.Linear(4, 3)
    before = net.weight.detach().clone()
    task = build(net, (4,), 3, seed=0)
    assert torch.equal(task.module.weight, before)
    task.flat.zero_()
    assert torch.equal(net.weight, before)


def test_watched_or_reparametrised_layers_take_the_general_path() -> None:
    """The tape would walk past a hook, and past a weight that is made of others."""
    hooked = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    hooked[0].register_forward_hook(lambda module, given, out: 2 * out)
    spectral = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    for module in (hooked, spectral, nn.Sequential(nn.Linear(4, 2), nn.ELU(-0.5))):
        assert Task(module).path == "autograd"


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(15, 2)),  # rows of rows
        nn.Sequential(nn.Flatten(), nn.Linear(18, 4), nn.Dropout(1.0), nn.Linear(4, 2)),
        nn.Sequential(nn.Flatten(), nn.Linear(18, 4, bias=False), nn.ELU(0.5), nn.Linear(4, 2)),
    ],
)
def test_unusual_stacks_on_the_tape_are_right(module: nn.Module) -> None:
    import copy

    x, y = torch.rand(5, 3, 6, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1])
    results = []
    for fast in (True, False):
        task = Task(copy.deepcopy(module), dtype="float64", fast=fast)
        task.module.train()
        g = torch.zeros_like(task.flat)
        results.append((task.accumulate(x, y, task.views(g), 1.0), g, task.path))
    assert [path for _, _, path in results] == ["tape", "autograd"]
    assert results[0][0] == pytest.approx(results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-9, atol=1e-12)


def test_manual_seed_gives_the_weights_of_a_script() -> None:
    """`init = "manual_seed"`: torch.manual_seed(seed), then the model."""
    from fedarena.config.experiment import Experiment
    from fedarena.engine.setup import open_context

    for keys, seed in (({"seed": 42}, 42), ({"seed": 1, "start_seed": 7}, 7)):
        context = open_context(Experiment.make("digits", model="logreg", init="manual_seed", **keys))
        torch.manual_seed(seed)
        layer = nn.Linear(64, 10)
        expected = torch.cat([layer.weight.detach().ravel(), layer.bias.detach()]).numpy()
        assert (context.initial == expected).all()
