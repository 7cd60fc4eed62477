"""Adam as a local optimizer (docs/reference/algorithms.md#adam)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.algorithms.test_fedavg import on_blobs, small_net, weights
from tests.support.federations import blobs

import fedarena as fa
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.config.seeds import stream
from fedarena.config.settings_tables import Local
from fedarena.engine.adam import Adam
from fedarena.engine.setup import open_context

ADAM = {"lr": 0.01, "epochs": 1, "batch": 8, "optimizer": "adam"}


def by_torch(rounds: int, restart: bool, settings: dict[str, object], **options: object) -> np.ndarray:
    """Train one client by torch.optim.Adam, on the same batches; a new optimizer each round where it restarts."""
    context = open_context(Experiment.make(blobs(), **settings))
    net, rows = context.task.module, context.partition.clients[0]
    x, y = torch.tensor(context.data.x[rows]).to(context.task.flat), torch.tensor(context.data.y[rows])
    make = lambda: torch.optim.Adam(net.parameters(), lr=0.01, **options)
    optimizer = make()
    for t in range(rounds):
        optimizer = make() if restart else optimizer
        for batch in np.split(stream(0, "shuffle", t, 0).permutation(len(rows)), range(8, len(rows), 8)):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    return np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_those_of_torch_to_the_bit(dtype: torch.dtype) -> None:
    """For the same gradients: what is left below is the rounding of gradients, which Adam divides by their size."""
    ours, theirs = torch.randn(500, dtype=dtype), torch.nn.Parameter(torch.zeros(500, dtype=dtype))
    theirs.data.copy_(ours)
    adam = Adam(ours, Adam.zero_moments(ours), Local(**ADAM), 0)
    optimizer = torch.optim.Adam([theirs], lr=0.01, foreach=False)
    for _ in range(50):
        theirs.grad = torch.randn(500, dtype=dtype)
        adam.step(theirs.grad.clone(), 0.01)
        optimizer.step()
    assert torch.equal(ours, theirs.data)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("algorithm", "reset"), [("fedavg", True), ("fedavg", False), ("centralized", True)])
def test_one_client_is_torch_adam(algorithm: str, reset: bool, dtype: str) -> None:
    """The moments start again every round, unless they are kept; nothing interrupts the optimizer of `centralized`."""
    settings = {"clients": 1, "partition": "iid", "model": small_net, "dtype": dtype, "rounds": 3,
                "algorithm": algorithm, "local": {**ADAM, "reset_momentum": reset}}  # fmt: skip
    run = fa.run(blobs(), out=False, runtime="serial", **settings)
    expected = by_torch(3, algorithm == "fedavg" and reset, settings)
    assert weights(run) == pytest.approx(expected, abs=1e-6 if dtype == "float32" else 1e-13)


def test_betas_eps_and_weight_decay_are_those_of_torch() -> None:
    local = {**ADAM, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1}
    settings = {"clients": 1, "partition": "iid", "model": small_net, "algorithm": "centralized", "rounds": 2}
    run = fa.run(blobs(), out=False, runtime="serial", local=local, dtype="float64", **settings)
    expected = by_torch(2, False, {**settings, "dtype": "float64"}, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.1)
    assert weights(run) == pytest.approx(expected, abs=1e-13)


def test_local_training_is_one_run_of_adam() -> None:
    """Four rounds of one epoch are not interrupted: the same steps as one round of all the batches, by `local.steps`."""
    many = on_blobs("local", clients=2, rounds=4, local={**ADAM, "epochs": 1})  # 96 samples: 12 batches
    once = on_blobs("local", clients=2, rounds=1, local={"lr": 0.01, "batch": 8, "optimizer": "adam", "steps": 48})
    assert many.weights_sha256 == once.weights_sha256


def test_fedprox_corrects_the_gradient_that_enters_adam() -> None:
    assert on_blobs({"name": "fedprox", "mu": 0.0}, local=ADAM).weights_sha256 == on_blobs(local=ADAM).weights_sha256
    near = on_blobs({"name": "fedprox", "mu": 5.0}, local=ADAM, rounds=1)
    assert near.weights_sha256 != on_blobs(local=ADAM, rounds=1).weights_sha256


def test_the_run_says_which_path_trained(tmp_path: Path) -> None:
    """The kernels know SGD only."""
    for optimizer, path in (("sgd", "compiled"), ("adam", "tape")):
        settings = {"rounds": 1, "local": {"lr": 0.01, "optimizer": optimizer}}
        run = fa.run("digits", model="logreg", out=tmp_path / optimizer, runtime="serial", **settings)
        found = json.loads((run.dir / "versions.json").read_text())["path"]
        assert found.startswith(path) or found == "tape"  # without kernels on this machine
        assert "compiled" not in found or optimizer == "sgd"


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "reset"), [("fedavg", False), ("local", True), ("fedbuff", False)])
def test_same_bits_for_workers_and_after_resume(algorithm: str, reset: bool, tmp_path: Path) -> None:
    settings = {"data": "digits", "model": "logreg", "algorithm": algorithm, "clients": 5, "share": 0.6, "rounds": 4,
                "local": {**ADAM, "reset_momentum": reset}, "dropouts": 0.2}  # fmt: skip
    whole = fa.run(settings, out=False, runtime="serial")
    parallel = fa.run(settings, out=False, runtime="processes", workers=2)
    fa.run(settings, out=tmp_path / "run", runtime="serial", on_round=lambda record: record.round == 2)
    resumed = fa.run(settings, resume=tmp_path / "run", runtime="serial")
    assert whole.weights_sha256 == parallel.weights_sha256 == resumed.weights_sha256


@pytest.mark.parametrize("name", ["fednova", "scaffold", "fsvrg", "fedpage", "fedsgd"])
def test_algorithms_of_sgd_refuse_adam_by_name(name: str) -> None:
    with pytest.raises(BadValue, match=rf"^{name} .*local\.optimizer = 'adam' does not go with it"):
        on_blobs(name, local=ADAM)


def test_settings_of_the_other_optimizer_are_refused() -> None:
    with pytest.raises(BadValue, match=r"local\.momentum is not a setting of local\.optimizer = 'adam'"):
        Experiment.make("digits", local={"optimizer": "adam", "momentum": 0.9})
    with pytest.raises(BadValue, match=r"local\.betas is not a setting of local\.optimizer = 'sgd'"):
        Experiment.make("digits", local={"betas": [0.9, 0.99]})
    exp = Experiment.make("digits", local={"optimizer": "adam", "betas": [0.9, 0.99], "eps": 1e-6})
    assert Experiment.make(exp.as_table()) == exp
