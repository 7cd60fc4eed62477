"""A loss or a training loop of an algorithm's author gives the bits of the built-in one where both compute the same."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedarena as fa
from fedarena.algorithms.base import Anchor
from fedarena.engine.client import ClientState, ClientWork
from fedarena.engine.own_loss import Batch, LossContext
from fedarena.engine.setup import open_context

EXAMPLES = Path(__file__).parents[2] / "examples"


def net() -> nn.Module:
    """A model with BatchNorm and dropout: statistics and random numbers must not depend on the path."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 10)
    )


def cross_entropy(module: nn.Module, batch: Batch, context: LossContext) -> Tensor:
    x, y = batch
    return F.cross_entropy(module(x), y)


def work_of(client: int = 0, **settings: Any) -> ClientWork:
    """Return one client's work in round 3 of an experiment."""
    given = {"model": "logreg", "clients": 5, "partition": "iid", **settings}
    context = open_context(fa.Experiment.make("digits", **given))
    torch.manual_seed(0)
    return ClientWork(context, client, 3, ClientState())


def moved(work: ClientWork) -> np.ndarray:
    """Return a point near the initial weights."""
    return work.context.initial + np.float32(0.01)


ADJUSTS: dict[str, Any] = {
    "none": lambda work: None,
    "pull": lambda work: fa.Pull(0.5, moved(work), 0.01 * moved(work)),
    "anchor": lambda work: Anchor(moved(work), 0.1 * moved(work)),
    "function": lambda work: lambda w, g: g + 0.1 * w,
}
LOCALS: dict[str, Any] = {
    "plain": {},
    "momentum": {"momentum": 0.9, "epochs": 2},
    "decays": {"weight_decay": 0.01, "decay": 0.1},
    "clip": {"clip": 0.5, "momentum": 0.5},
}


@pytest.mark.slow
@pytest.mark.parametrize("adjust", ADJUSTS)
@pytest.mark.parametrize("local", LOCALS)
def test_a_loss_that_is_cross_entropy_gives_the_bits_of_autograd(local: str, adjust: str) -> None:
    results = []
    for fast, loss in ((False, None), (True, cross_entropy)):
        work = work_of(model=net if local == "momentum" else "logreg", fast=fast, local=LOCALS[local])
        out = work.train(work.context.initial, adjust=ADJUSTS[adjust](work), loss=loss)
        buffers = work.task.buffers()
        facts = (out.steps, out.lr_sum, out.effective_steps, out.losses, work.steps, work.samples, work.last_loss)
        results.append((out.w.tobytes(), buffers.values.tobytes(), buffers.counters.tobytes(), facts))
        assert work.task.own_loss is None
    assert results[0] == results[1]


def test_a_loop_by_hand_gives_the_bits_of_train() -> None:
    local = {"decay": 0.05, "batch": 16}
    usual, own = work_of(fast=False, local=local), work_of(local=local)
    out = usual.train(usual.context.initial)
    module = own.load(own.context.initial)
    for x, y in own.batches():
        module.zero_grad()
        F.cross_entropy(module(x), y).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                assert parameter.grad is not None
                parameter.add_(parameter.grad, alpha=-own.lr)
    assert own.weights.tobytes() == out.w.tobytes()
    assert (own.steps, own.samples) == (usual.steps, usual.samples)


def test_batches_that_are_not_used_are_not_counted() -> None:
    work = work_of(local={"batch": 10})
    for number, _ in enumerate(work.batches()):
        if number == 2:
            break
    assert (work.steps, work.samples) == (3, 30)


def test_the_context_names_the_step_and_has_the_model_of_the_start() -> None:
    work, seen = work_of(client=2, model=net, local={"batch": 50}), []
    w = moved(work)

    def loss(module: nn.Module, batch: Batch, context: LossContext) -> Tensor:
        value = cross_entropy(module, batch, context)
        start = torch.cat([p.flatten() for p in context.start.parameters()]).numpy()
        seen.append((context.client, context.round, context.step, np.array_equal(start, w)))
        assert not context.start.training
        assert not any(p.requires_grad for p in context.start.parameters())
        assert not any(b.any() for name, b in context.start.named_buffers() if "mean" in name)  # before the first batch
        return value

    out = work.train(w, loss=loss)
    assert seen == [(2, 3, step, True) for step in range(out.steps)]


def test_the_module_has_the_weights_of_the_latest_training() -> None:
    work = work_of()
    assert np.array_equal(flat(work.module), work.context.initial)
    out = work.train(moved(work))  # by the kernels, which do not use the module
    assert np.array_equal(flat(work.module), out.w)
    with torch.no_grad():
        next(work.module.parameters()).zero_()
    changed = work.weights
    work.gradient(out.w)
    work.evaluate(out.w)
    assert np.array_equal(flat(work.module), changed)
    work.module(torch.ones(1, 64)).sum().backward()
    assert all(p.grad is None for p in work.load(out.w).parameters())
    assert np.array_equal(flat(work.frozen(changed)), changed)
    assert np.array_equal(flat(work.module), out.w)


def flat(module: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in module.parameters()]).numpy()


def test_a_mask_selects_the_weights_of_named_parameters() -> None:
    work = work_of(model=net)
    sizes = {"1.weight": 512, "1.bias": 8, "2.weight": 8, "2.bias": 8, "5.weight": 80, "5.bias": 10}
    assert np.array_equal(work.mask("5.*"), np.repeat([False, True], [536, 90]))
    assert work.mask("*.bias").sum() == sum(size for name, size in sizes.items() if "bias" in name)
    assert work.mask("1.*", "2.*", "5.*").all()
    with pytest.raises(fa.FedarenaError, match=r"no parameter fits 'head\.\*'"):
        work.mask("head.*")


@pytest.mark.parametrize(
    ("loss", "problem"),
    [
        (lambda m, b, c: F.cross_entropy(m(b.x), b.y, reduction="none"), r"tensor of shape \(\d+,\)"),
        (lambda m, b, c: 0.5, "returned 0.5"),
        (lambda m, b, c: cross_entropy(m, b, c).detach(), "does not depend on the weights"),
    ],
)
def test_a_loss_of_another_kind_is_refused(loss: Any, problem: str) -> None:
    work = work_of()
    with pytest.raises(fa.FedarenaError, match=problem):
        work.train(work.context.initial, loss=loss)


def test_weights_of_classes_are_not_lost_silently() -> None:
    work = work_of()
    work.weigh_classes(np.arange(10.0), normalise=True)
    with pytest.raises(fa.FedarenaError, match="do not reach a loss of your own"):
        work.train(work.context.initial, loss=cross_entropy)


@dataclass(frozen=True)
class Noisy(fa.FedAvg):
    """A loss that draws random numbers and uses the model of the start."""

    def client(self, message: fa.Model, client_state: None, work: fa.Work) -> fa.Reply:
        out = work.train(message.w, loss=self.loss)
        return fa.Reply(fa.Step(message.w - out.w), weight=work.rows)

    def loss(self, module: nn.Module, batch: Batch, context: LossContext) -> Tensor:
        x = batch.x + 0.1 * torch.randn_like(batch.x)
        return F.cross_entropy(module(x), batch.y) + F.mse_loss(module(x), context.start(x))


@pytest.mark.slow
def test_same_bits_for_any_workers_and_after_a_resume(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"algorithm": Noisy(), "model": net, "rounds": 2, "clients": 4}
    first = fa.run("digits", out=False, runtime="serial", **settings)
    assert first.weights_sha256 == fa.run("digits", out=False, workers=2, **settings).weights_sha256
    folder = tmp_path / "r"
    fa.run("digits", out=folder, runtime="serial", on_round=lambda record: record.round == 1, **settings)
    assert fa.run("digits", resume=folder, workers=2, **settings).weights_sha256 == first.weights_sha256


# The loss of an experiment


SMALL: dict[str, Any] = {"model": "logreg", "rounds": 2, "clients": 4, "partition": "iid", "runtime": "serial"}


def smooth(module: nn.Module, batch: Batch, context: LossContext) -> Tensor:
    return F.cross_entropy(module(batch.x), batch.y, label_smoothing=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd", {"name": "scaffold", "option": "i"}, "centralized"])
def test_a_loss_of_the_experiment_that_is_cross_entropy_gives_the_bits_of_autograd(algorithm: Any) -> None:
    usual = fa.run("digits", algorithm=algorithm, fast=False, out=False, **SMALL)
    own = fa.run("digits", algorithm=algorithm, loss=cross_entropy, out=False, **SMALL)
    assert own.weights_sha256 == usual.weights_sha256
    assert own.final.loss == usual.final.loss


@pytest.mark.slow
def test_a_run_records_its_loss_and_needs_it_again(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run = fa.run("digits", loss=smooth, out=folder, **SMALL)
    assert run.weights_sha256 != fa.run("digits", out=False, **SMALL).weights_sha256
    assert 'loss = { name = "smooth", own = true }' in (folder / "experiment.toml").read_text()
    assert '"path": "autograd"' in (folder / "versions.json").read_text()
    loaded = fa.load(folder)  # metrics and predictions need no loss
    assert loaded.summary()["final_accuracy"] == run.summary()["final_accuracy"]
    assert torch.equal(loaded.model().state_dict()["1.weight"], run.state["1.weight"])
    assert fa.verify(folder, loss=smooth, runtime="serial").same
    assert not fa.verify(folder, loss=cross_entropy, runtime="serial").same
    with pytest.raises(fa.FedarenaError, match=r"the loss of this run \('smooth'\) came from Python"):
        fa.verify(folder, runtime="serial")
    with pytest.raises(fa.FedarenaError, match="the loss of this run"):
        fa.run(resume=folder, rounds=3, runtime="serial")
    longer = fa.run("digits", out=False, loss=smooth, **{**SMALL, "rounds": 3, "runtime": "processes", "workers": 2})
    assert fa.run(resume=folder, rounds=3, loss=smooth, workers=2).weights_sha256 == longer.weights_sha256


@pytest.mark.slow
def test_a_comparison_trains_all_algorithms_by_the_loss(tmp_path: Path) -> None:
    settings = {**SMALL, "seeds": 2, "workers": 1, "baseline": False, "out": tmp_path / "c"}
    settings.pop("runtime")
    found = fa.compare("digits", ["fedavg", "fedprox"], loss=smooth, **settings)
    assert {run.experiment.loss.name for runs in found.runs.values() for run in runs} == {"smooth"}  # type: ignore[union-attr]
    assert fa.load(tmp_path / "c").scores() == found.scores()
    assert "smooth" in found.report(tmp_path / "page.html").read_text()


def with_a_loss() -> nn.Module:
    class Own(nn.Linear):
        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self(x.flatten(1)), y)

    return Own(64, 10)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "privacy": ({"local": {"privacy": {"clip": 1.0, "noise": 1.0}}}, "may mix the samples of a batch"),
    "model": ({"model": with_a_loss}, "the model has a method loss"),
    "two arguments": ({"loss": lambda x, y: x}, "does not take three arguments"),
    "a criterion of torch": ({"loss": nn.CrossEntropyLoss()}, "does not take three arguments"),
    "a number": ({"loss": 3}, "the name of a loss"),
    "an unknown name": ({"loss": "hubr"}, "no loss is called 'hubr'"),
    "fedir": ({"algorithm": {"name": "fedavg", "with": ["fedir"]}}, "do not reach a loss of your own"),
    "an algorithm with a loss": ({"algorithm": Noisy()}, "trains by a loss of its own"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_loss_of_the_experiment_cannot_do_is_refused(case: str) -> None:
    settings, problem = REFUSED[case]
    with pytest.raises(fa.FedarenaError, match=problem):
        fa.run("digits", out=False, **{**SMALL, "loss": smooth, **settings})


@pytest.mark.slow
def test_the_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("own_loss")
    found = example.main(rounds=2, seeds=2)
    assert found.labels == ["fedavg", "distilled", "by hand", "own heads"]
    assert min(found.scores()["own heads"]) > max(found.scores()["fedavg"])


@pytest.mark.slow
def test_own_heads_stay_with_their_clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    heads = importlib.import_module("own_loss").OwnHeads()
    run = fa.run("digits", algorithm=heads, rounds=2, clients=4, out=tmp_path / "r", runtime="serial")
    start = open_context(run.experiment).task.state()
    assert torch.equal(run.state["5.weight"], start["5.weight"])  # on the server
    assert not torch.equal(run.state["1.weight"], start["1.weight"])
    own = [run.model(client=client).state_dict()["5.weight"] for client in range(4)]
    assert not any(torch.equal(own[a], own[b]) for a in range(4) for b in range(a))
