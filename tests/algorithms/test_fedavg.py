"""FedAvg and FedSGD: exact statements (docs/reference/algorithms.md#fedavg)."""

import math

import numpy as np
import pytest
import torch
from tests.support.federations import Quadratic, blobs, optimum, quadratics
from torch import nn

import fedarena as fa

CENTRES = np.array([[1.0, -2.0], [3.0, 0.5], [-1.0, 4.0]])
CURVATURES = np.array([[1.0, 0.5], [0.3, 2.0], [2.0, 1.0]])


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def weights(run: fa.Run) -> np.ndarray:
    return np.concatenate([v.numpy().ravel() for v in run.state.values()])


def on_blobs(algorithm: object = "fedavg", **settings: object) -> fa.Run:
    defaults = {"clients": 4, "partition": "iid", "rounds": 3, "local": {"lr": 0.1, "epochs": 2, "batch": 8}}
    return fa.run(
        blobs(), model=small_net, algorithm=algorithm, out=False, runtime="serial", **{**defaults, **settings}
    )


def on_quadratics(rows: list[int], **settings: object) -> np.ndarray:
    run = fa.run(
        quadratics(CENTRES[: len(rows)], CURVATURES[: len(rows)], rows),
        model=lambda: Quadratic(2),
        partition="natural",
        dtype="float64",
        out=False,
        runtime="serial",
        **settings,
    )
    return run.state["w"].numpy()


@pytest.mark.slow
def test_one_client_is_torch_sgd() -> None:
    """The same against torch.optim, with the same shuffles, so that the solver itself is checked by someone else."""
    from fedarena.config.experiment import Experiment
    from fedarena.config.seeds import stream
    from fedarena.engine.setup import open_context

    local = {"lr": 0.1, "epochs": 2, "batch": 8, "momentum": 0.9, "weight_decay": 0.01, "decay": 0.05}
    settings = {"clients": 1, "partition": "iid", "model": small_net, "dtype": "float64", "rounds": 2, "local": local}
    ours = fa.run(blobs(), out=False, runtime="serial", **settings)
    context = open_context(Experiment.make(blobs(), **settings))
    net = context.task.module
    rows = context.partition.clients[0]
    x, y = torch.tensor(context.data.x[rows], dtype=torch.float64), torch.tensor(context.data.y[rows])
    i = 0
    for t in range(2):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)  # reset each round
        rng = stream(0, "shuffle", t, 0)
        for _ in range(2):
            for batch in torch.tensor(rng.permutation(len(rows))).split(8):
                optimizer.param_groups[0]["lr"] = 0.1 / (1 + 0.05 * i)
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
                optimizer.step()
                i += 1
    theirs = np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])
    np.testing.assert_allclose(weights(ours), theirs, rtol=0, atol=1e-9)


def test_identical_clients_average_to_any_of_them() -> None:
    """Same rows, full batches (so the same order): the mean of equal models is that model."""
    three = quadratics(np.tile(CENTRES[:1], (3, 1)), np.tile(CURVATURES[:1], (3, 1)), [5, 5, 5])
    one = quadratics(CENTRES[:1], CURVATURES[:1], [5])
    settings = {"model": lambda: Quadratic(2), "partition": "natural", "rounds": 4, "out": False, "runtime": "serial",
                "local": {"lr": 0.2, "epochs": 3, "batch": math.inf}}  # fmt: skip
    assert np.array_equal(fa.run(three, **settings).state["w"], fa.run(one, **settings).state["w"])


def test_no_epochs_change_nothing() -> None:
    from fedarena.engine.setup import open_context

    run = on_blobs(local={"lr": 0.1, "epochs": 0})
    assert np.array_equal(weights(run), open_context(run.experiment).initial)
    again = on_blobs(local={"lr": 0.1, "epochs": 0}, rounds=1)
    assert run.weights_sha256 == again.weights_sha256
    torch_start = on_blobs(rounds=1).weights_sha256
    assert run.weights_sha256 != torch_start


def test_every_weight_lies_between_the_clients_weights() -> None:
    """A mean is convex: checked on the replies themselves."""
    from fedarena.algorithms import FedAvg

    seen = []

    class Spy(FedAvg):
        def client(self, got, kept, work):  # type: ignore[no-untyped-def]
            reply = super().client(got, kept, work)
            seen.append(got.w - reply.send.delta)
            return reply

    after = weights(on_blobs(Spy(), rounds=1, dtype="float64"))
    low, high = np.min(seen, axis=0), np.max(seen, axis=0)
    assert len(seen) == 4
    assert (after >= low - 1e-12).all()
    assert (after <= high + 1e-12).all()


def test_weights_are_rows() -> None:
    """One full-batch step each on quadratics: w = -eta sum_k p_k h_k (0 - a_k), p_k = n_k / n."""
    rows = [10, 30, 60]
    got = on_quadratics(rows, rounds=1, local={"lr": 0.1, "epochs": 1, "batch": math.inf})
    p = np.array(rows)[:, None] / 100
    np.testing.assert_allclose(got, 0.1 * (p * CURVATURES * CENTRES).sum(axis=0), rtol=1e-12)


@pytest.mark.slow
def test_fedsgd_finds_the_optimum_where_fedavg_is_biased() -> None:
    """Heterogeneous curvature and several local steps: FedAvg settles elsewhere, FedSGD at the optimum."""
    rows = [10, 30, 60]
    target = optimum(CENTRES, CURVATURES, np.array(rows))
    sgd = on_quadratics(rows, algorithm="fedsgd", rounds=80, local={"lr": 0.3})
    avg = on_quadratics(rows, algorithm="fedavg", rounds=80, local={"lr": 0.3, "epochs": 5, "batch": math.inf})
    np.testing.assert_allclose(sgd, target, atol=1e-10)
    assert np.abs(avg - target).max() > 0.05


def test_literal_readings_shrink_the_step() -> None:
    """With `denominator = all` the step is n_S / n of the usual one, with `literal_eta` eta times it.

    See docs/reference/algorithms.md#a-4 and docs/reference/algorithms.md#a-7.
    """
    rows = [10, 30, 60]
    base = {"rounds": 1, "per_round": 1, "local": {"lr": 0.1, "epochs": 1, "batch": math.inf}}
    usual = on_quadratics(rows, **base)
    shrunk = on_quadratics(rows, algorithm=fa.FedAvg(denominator="all"), **base)
    literal = on_quadratics(rows, algorithm=fa.FedAvg(literal_eta=True), **base)
    ratios = shrunk / usual
    assert ratios[0] == pytest.approx(ratios[1])
    assert any(ratios[0] == pytest.approx(n / 100) for n in rows)
    np.testing.assert_allclose(literal, 0.1 * usual, rtol=1e-12)


def test_fedsgd_with_one_client_is_gradient_descent() -> None:
    """w <- w - eta (h (w - a) + lambda w) in closed form."""
    got = on_quadratics([7], algorithm="fedsgd", rounds=6, local={"lr": 0.2, "weight_decay": 0.1})
    w = np.zeros(2)
    for _ in range(6):
        w -= 0.2 * (CURVATURES[0] * (w - CENTRES[0]) + 0.1 * w)
    np.testing.assert_allclose(got, w, rtol=1e-12)


def test_fedsgd_decays_by_rounds_whatever_the_batch() -> None:
    """A round is a step: eta_t = eta / (1 + lambda t), by hand; batch and epochs mean nothing."""
    local = {"lr": 0.2, "decay": 0.5, "batch": 2, "epochs": 7}
    w = np.zeros(2)
    for t in range(4):
        w -= 0.2 / (1 + 0.5 * t) * CURVATURES[0] * (w - CENTRES[0])
    for counter in ("global", "per_client", "round"):
        got = on_quadratics([7], algorithm="fedsgd", rounds=4, local={**local, "decay_counter": counter})
        np.testing.assert_allclose(got, w, rtol=1e-12)


def test_fedsgd_does_not_depend_on_the_partition() -> None:
    """All clients, each round: dealing one federation's rows to 2, 5 or 1 clients gives gradient descent on all of them."""
    full = {"lr": 0.1, "epochs": 1, "batch": math.inf}
    runs = [weights(on_blobs("fedsgd", clients=k, local=full, dtype="float64", rounds=4)) for k in (1, 2, 5)]
    np.testing.assert_allclose(runs[1], runs[0], atol=1e-12)
    np.testing.assert_allclose(runs[2], runs[0], atol=1e-12)
    pooled = weights(on_blobs("centralized", clients=5, local=full, dtype="float64", rounds=4))
    np.testing.assert_allclose(runs[0], pooled, atol=1e-12)


def test_order_of_clients_does_not_matter() -> None:
    """The same clients under other numbers (full batches, so that shuffles do not matter): equal to rounding."""
    order = [2, 0, 1]
    rows = [10, 30, 60]
    settings = {"model": lambda: Quadratic(2), "partition": "natural", "rounds": 5, "out": False, "runtime": "serial",
                "dtype": "float64", "local": {"lr": 0.1, "epochs": 3, "batch": math.inf}}  # fmt: skip
    a = fa.run(quadratics(CENTRES, CURVATURES, rows), **settings)
    b = fa.run(quadratics(CENTRES[order], CURVATURES[order], [rows[k] for k in order]), **settings)
    np.testing.assert_allclose(a.state["w"], b.state["w"], rtol=1e-12)
