"""FSVRG (docs/reference/algorithms.md#fsvrg): single steps, the optimum, costs, and the diagonal scalings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import CENTRES, CURVATURES, on_blobs, on_quadratics, small_net, weights
from tests.support.federations import Given, blobs, optimum
from tests.support.quadratic_federations import ROWS, at_optimum
from torch import nn

import fedarena as fa
from fedarena.algorithms import FSVRG
from fedarena.algorithms.base import Cohort
from fedarena.algorithms.fsvrg import ClientFeatureCounts, FeatureCounts, FSVRGState, FullGradient
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.config.seeds import stream
from fedarena.data.dataset import Dataset
from fedarena.engine.setup import open_context
from fedarena.models.linear_features import input_features
from fedarena.models.task import Task

CLASSES, SIZES = 3, (4, 6, 5)


def test_the_first_step_is_along_the_full_gradient() -> None:
    """Clients of one row each make only that one: together gradient descent with step h, on a network."""
    x, y = blobs(12)
    each: dict[str, Any] = {"model": small_net, "clients": 10, "partition": "iid", "dtype": "float64", "rounds": 3}
    runs = [fa.run((x, y), algorithm=a, local={"lr": 0.3}, out=False, runtime="serial", **each)
            for a in (FSVRG(h=0.3), "fedsgd")]  # fmt: skip
    assert runs[0].records[-1].steps == 30
    np.testing.assert_allclose(weights(runs[0]), weights(runs[1]), atol=1e-12)


def test_identical_rows_make_small_steps_of_gradient_descent() -> None:
    """One client with seven times the same row: seven steps of size h / 7."""
    w = np.zeros(2)
    for _ in range(7):
        w = w - 0.7 / 7 * CURVATURES[0] * (w - CENTRES[0])
    np.testing.assert_allclose(on_quadratics([7], algorithm=FSVRG(h=0.7), rounds=1), w, rtol=1e-12)


def test_fsvrg_stays_at_the_optimum() -> None:
    got, target = at_optimum(FSVRG(h=2.0))
    np.testing.assert_allclose(got, target, atol=1e-12)


@pytest.mark.slow
def test_fsvrg_reaches_the_optimum_from_elsewhere() -> None:
    target = optimum(CENTRES, CURVATURES, np.array(ROWS))
    got = on_quadratics(ROWS, algorithm=FSVRG(h=0.5), rounds=60, evaluate={"every": 60})
    np.testing.assert_allclose(got, target, atol=1e-9)


def test_fsvrg_by_hand() -> None:
    """Equal rows: n_k steps of w <- w - h/n_k [h_k (w - w_t) + grad f], the first of them -h/n_k grad f exactly."""
    n = np.array(ROWS)
    full = (n[:, None] * CURVATURES * (0 - CENTRES)).sum(axis=0) / n.sum()
    ends = []
    for k in range(3):
        w = np.zeros(2)
        for _ in range(n[k]):
            w = w - 0.7 / n[k] * (CURVATURES[k] * w + full)
        ends.append(w)
    expected = (n[:, None] * np.array(ends)).sum(axis=0) / n.sum()
    got = on_quadratics(ROWS, algorithm=FSVRG(h=0.7), rounds=1)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_fsvrg_with_one_row_is_gradient_descent_and_h_0_is_nothing() -> None:
    got = on_quadratics([1], algorithm=FSVRG(h=0.3), rounds=1)
    np.testing.assert_allclose(got, 0.3 * CURVATURES[0] * CENTRES[0], rtol=1e-12)
    assert np.array_equal(on_quadratics(ROWS, algorithm=FSVRG(h=0.0), rounds=2), np.zeros(2))


def test_fsvrg_asks_everyone_twice_and_costs_twice_fedavg() -> None:
    """Section 0.7: two models down (w, grad f) and two up (grad F_k, w_k); uploads 2 K a round."""
    fsvrg, avg = on_blobs("fsvrg", share=0.5, rounds=1).records[-1], on_blobs("fedavg", rounds=1).records[-1]
    assert (fsvrg.uploads, avg.uploads) == (8, 4)
    assert fsvrg.bytes_down == 2 * avg.bytes_down
    assert fsvrg.bytes_up == 2 * avg.bytes_up


def test_fsvrg_refuses_what_is_no_fixed_function() -> None:
    x = np.random.default_rng(0).random((60, 1, 8, 8)).astype(np.float32)
    y = np.arange(60) % 3
    for layer in (nn.BatchNorm2d(1), nn.Dropout(0.5)):
        net = lambda layer=layer: nn.Sequential(layer, nn.Flatten(), nn.Linear(64, 3))
        with pytest.raises(BadValue, match="fsvrg cannot train"):
            fa.run((x, y), model=net, algorithm="fsvrg", out=False, runtime="serial")
    with pytest.raises(BadValue, match="no momentum"):
        on_blobs("fsvrg", local={"lr": 0.1, "momentum": 0.9})


def sparse_rows() -> tuple[np.ndarray, np.ndarray]:
    """Five features: 0 everywhere, 1 on two clients, 2 on the last only, 3 in some rows of all, 4 nowhere."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((sum(SIZES), 5)) + 3.0
    owner = np.repeat(np.arange(3), SIZES)
    x[owner == 1, 1] = 0.0
    x[owner != 2, 2] = 0.0
    x[[0, 5, 6, 11, 13], 3] = 0.0
    x[:, 4] = 0.0
    return x / 3, rng.integers(0, CLASSES, sum(SIZES))


def federation(owner: np.ndarray | None = None) -> Given:
    """Those rows, and two to test on."""
    x, y = sparse_rows()
    owner = np.repeat(np.arange(3), SIZES) if owner is None else owner
    names = tuple(str(k) for k in range(owner.max() + 1))
    return Given(
        Dataset(
            "sparse", np.concatenate([x, x[:2]]), np.concatenate([y, y[:2]]), len(x), CLASSES,
            owner=np.concatenate([owner, [-1, -1]]), owner_names=names,
        )
    )  # fmt: skip


def settings(**more: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {"model": "logreg", "partition": "natural", "dtype": "float64", "rounds": 2}
    return {**defaults, **more}


def train(algorithm: Any, data: Given | None = None, **more: Any) -> fa.Run:
    return fa.run(data or federation(), algorithm=algorithm, out=False, runtime="serial", **settings(**more))


def slopes(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient of the mean softmax cross-entropy of logits W x + b, weights and bias apart."""
    wide, bias = w[: CLASSES * 5].reshape(CLASSES, 5), w[CLASSES * 5 :]
    z = x @ wide.T + bias
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    d = (p - np.eye(CLASSES)[y]) / len(y)
    return d.T @ x, d.sum(axis=0)


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.concatenate([part.ravel() for part in slopes(w, x, y)])


def by_hand(w: np.ndarray, h: float, rounds: int) -> np.ndarray:
    """Algorithm 4 of the paper, with a feature's number repeated for every class, and 1 for biases."""
    x, y = sparse_rows()
    clients = np.split(np.arange(len(x)), np.cumsum(SIZES)[:-1])
    present = x != 0
    phi, omega = present.mean(axis=0), sum(present[k].any(axis=0) for k in clients)
    a = np.array([3 / o if o else 1.0 for o in omega])
    everywhere = lambda numbers: np.concatenate([np.tile(numbers, CLASSES), np.ones(CLASSES)])
    for t in range(rounds):
        full, total = gradient(w, x, y), np.zeros_like(w)
        for k, rows in enumerate(clients):
            phi_k = present[rows].mean(axis=0)
            s = everywhere(np.where(phi_k > 0, phi / np.where(phi_k > 0, phi_k, 1), 1.0))
            w_k = w.copy()
            for i in rows[stream(0, "shuffle", t, k).permutation(len(rows))]:
                row = x[[i]], y[[i]]
                w_k = w_k - h / len(rows) * (s * (gradient(w_k, *row) - gradient(w, *row)) + full)
            total += len(rows) / len(x) * (w_k - w)
        w = w + everywhere(a) * total
    return w


@pytest.mark.parametrize("fast", [True, False])
def test_scaled_fsvrg_by_hand(fast: bool) -> None:
    run = train(FSVRG(h=0.5, scaling="diagonal"), rounds=3, fast=fast)
    start = open_context(Experiment.make(federation(), **settings())).initial
    np.testing.assert_allclose(weights(run), by_hand(start, 0.5, 3), atol=1e-12)
    plain = train(FSVRG(h=0.5), rounds=3, fast=fast)
    assert np.abs(weights(run) - weights(plain)).max() > 1e-2


def test_rows_without_zeros_need_no_scaling() -> None:
    """Every feature in every row: S_k and A are exactly 1, so the bits are the same; only the bytes sent differ."""
    unlike = {"clients": 4, "partition": {"name": "label_dirichlet", "min_size": 5}}
    both = [fa.run(blobs(), model="logreg", algorithm=FSVRG(h=1.0, scaling=how), rounds=3, out=False, runtime="serial",
                   **unlike) for how in ("none", "diagonal")]  # fmt: skip
    assert both[0].weights_sha256 == both[1].weights_sha256
    assert both[0].records[-1].bytes_up < both[1].records[-1].bytes_up


def test_one_client_needs_no_scaling() -> None:
    """K = 1: its rows are all rows, however sparse."""
    alone = federation(np.zeros(sum(SIZES), np.int64))
    plain, scaled = (train(FSVRG(h=0.5, scaling=how), alone) for how in ("none", "diagonal"))
    assert plain.weights_sha256 == scaled.weights_sha256


def test_scalings_are_ratios_of_frequencies_and_of_clients() -> None:
    """a^j = K / omega^j: K for a feature that one client has; s_k^j = phi^j / phi_k^j; 1 where there is nothing; biases 1."""
    seen: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    class Spy(FSVRG):
        def _scalings(self, features: Any, work: Any) -> Any:
            seen[work.client] = super()._scalings(features, work)
            return seen[work.client]

    train(Spy(scaling="diagonal"), rounds=1)
    for s, a in seen.values():
        assert s[-CLASSES:].tolist() == a[-CLASSES:].tolist() == [1.0] * CLASSES
        assert a.reshape(-1)[:5].tolist() == [1.0, 1.5, 3.0, 1.0, 1.0]
        assert np.array_equal(np.tile(a[:5], CLASSES), a[:-CLASSES])
        assert np.array_equal(np.tile(s[:5], CLASSES), s[:-CLASSES])
    # Feature 1: 9 of 15 rows, all of clients 0 and 2. Feature 3: 10 of 15 rows; 3 of 4, 4 of 6, 3 of 5.
    assert seen[0][0][:5].tolist() == pytest.approx([1.0, 9 / 15, 1.0, (10 / 15) / (3 / 4), 1.0])
    assert seen[1][0][:5].tolist() == pytest.approx([1.0, 1.0, 1.0, (10 / 15) / (4 / 6), 1.0])
    assert seen[2][0][:5].tolist() == pytest.approx([1.0, 9 / 15, 5 / 15, (10 / 15) / (3 / 5), 1.0])


@pytest.mark.slow
def test_scaled_fsvrg_shares_the_optimum_of_gradient_descent() -> None:
    """With weight decay there is one: it stays there, and it gets there from elsewhere."""
    local = {"lr": 1.0, "weight_decay": 0.1}
    best = train("fedsgd", rounds=400, local=local, evaluate={"every": 400})
    module = nn.Sequential(nn.Flatten(), nn.Linear(5, CLASSES)).double()
    module.load_state_dict(best.state)
    stayed = train(FSVRG(h=0.5, scaling="diagonal"), model=module, local=local)
    came = train(FSVRG(h=0.5, scaling="diagonal"), rounds=400, local=local, evaluate={"every": 400})
    np.testing.assert_allclose(weights(stayed), weights(best), atol=1e-13)
    np.testing.assert_allclose(weights(came), weights(best), atol=1e-8)


def test_counts_cross_the_wire_once() -> None:
    """Two 4-byte counts a feature: up in a third exchange of the first round, with n_k, and back with two numbers."""
    plain, scaled = (train(FSVRG(scaling=how), rounds=3).records for how in ("none", "diagonal"))
    assert [s.bytes_up - p.bytes_up for s, p in zip(scaled, plain, strict=True)] == [3 * (5 * 8 + 8)] * 3
    assert [s.bytes_down - p.bytes_down for s, p in zip(scaled, plain, strict=True)] == [3 * (5 * 8 + 16)] * 3
    assert [s.uploads - p.uploads for s, p in zip(scaled, plain, strict=True)] == [3, 3, 3]


class Asked:
    """Answers an algorithm's questions as clients would: those in `here`, of three."""

    def __init__(self, here: tuple[int, ...]) -> None:
        self.cohort = Cohort((0, 1, 2), here, 3, 10 * len(here), 30, 0.1)
        self.log: list[tuple[str, Any]] = []

    def __call__(self, message: Any, do: str = "client", everyone: bool = False) -> Any:
        self.log.append((do, message))
        if not self.cohort.answered:
            return None
        counts = np.full(2, 7, np.int32), np.full(2, len(self.cohort.answered), np.int32)
        return {
            "count": ClientFeatureCounts(*counts),
            "slope": FullGradient(np.ones(4)),
            "client": fa.Step(np.ones(4)),
        }[do]


def test_counting_is_repeated_until_all_have_answered_together() -> None:
    """A round scales by the clients that answer in it, and counts again only while a client was missing."""
    algorithm = FSVRG(scaling="diagonal")
    state = algorithm.init(np.zeros(4))
    without_clients = Asked(())
    assert algorithm.round(state, without_clients) is state
    some = Asked((0, 2))
    state = algorithm.round(state, some)
    assert [do for do, _ in some.log] == ["count", "slope", "client"]
    assert some.log[1][1].features.all_rows == 20
    assert (some.log[2][1].features.all_owners, state.features) == (2, None)
    assert state.w.tolist() == [-1.0] * 4
    everyone = Asked((0, 1, 2))
    state = algorithm.round(state, everyone)
    assert isinstance(state.features, FeatureCounts)
    assert state.features.all_owners == 3
    later = Asked((1,))
    after = algorithm.round(state, later)
    assert [do for do, _ in later.log] == ["slope", "client"]
    assert not isinstance(later.log[0][1], FSVRGState)  # the model alone: they have the counts
    assert later.log[1][1].features is after.features is state.features


def test_scaling_is_refused_where_weights_belong_to_no_feature() -> None:
    for model in ("mlp_2nn", lambda: nn.Sequential(nn.ReLU(), nn.Linear(5, CLASSES))):
        with pytest.raises(BadValue, match="diagonal scaling is for linear models"):
            train(FSVRG(scaling="diagonal"), model=model)
        train(FSVRG(), model=model, rounds=1)
    with pytest.raises(BadValue, match="linear models"):
        train(FSVRG(scaling="diagonal"), freeze=["1.weight"])


@pytest.mark.parametrize(
    ("module", "features"),
    [
        (nn.Linear(5, 3), 5),
        (nn.Sequential(nn.Flatten(), nn.Linear(7, 3, bias=False)), 7),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 1), nn.ZeroPad1d((1, 0))), 4),
        (nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3)), None),
        (nn.Sequential(nn.Dropout(0.1), nn.Linear(5, 3)), None),
        (nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), None),
        (nn.Conv2d(1, 2, 3), None),
    ],
)
def test_which_models_are_linear(module: nn.Module, features: int | None) -> None:
    assert input_features(Task(module)) == features
