"""FedIR and FedVC (docs/reference/algorithms.md#fedir), alone and around other algorithms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare
from tests.algorithms.test_fedavg import on_blobs, small_net, weights
from tests.support.federations import Given, blobs

import fedarena as fa
from fedarena.algorithms import FedAvgM, FedFA, FedIR, FedVC
from fedarena.algorithms.base import Reply
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset, Partition
from fedarena.engine.client import ClientState, ClientWork
from fedarena.engine.setup import open_context


class Balanced:
    """Every client has the same share of each class, to the row."""

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        by_class = [np.flatnonzero(data.y[: data.n_train] == c) for c in range(data.classes)]
        least = min(map(len, by_class)) // clients
        parts = [np.sort(np.concatenate([r[k * least : (k + 1) * least] for r in by_class])) for k in range(clients)]
        return Partition(parts, data.test_rows)


class ByClass:
    """Client k has class k only."""

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        return Partition([np.flatnonzero(data.y[: data.n_train] == k) for k in range(clients)], data.test_rows)


def seen_weights(algorithm: Any, **settings: Any) -> list[np.ndarray]:
    seen: list[np.ndarray] = []

    class Spy(fa.FedAvg):
        def client(self, got: Any, kept: Any, work: Any) -> Reply:
            seen.append(work.task.class_weights.numpy().copy())
            return super().client(got, kept, work)

    on_blobs(type(algorithm)(**{**vars(algorithm), "base": Spy()}), rounds=1, dtype="float64", **settings)
    return seen


def test_fedir_weights_are_exactly_one_where_clients_are_like_the_whole() -> None:
    assert all((w == 1.0).all() for w in seen_weights(FedIR(), partition=Balanced()))
    fair, plain = on_blobs(FedIR(), partition=Balanced()), on_blobs(partition=Balanced())
    np.testing.assert_allclose(weights(fair), weights(plain), rtol=1e-4, atol=1e-6)


def test_fedir_weights_take_every_client_to_the_same_mixture() -> None:
    """sum_y q_k(y) w_k(y) = sum of p(y) over the classes that the client has; absent classes weigh nothing."""
    partition = {"name": "label_dirichlet", "beta": 0.3, "min_size": 5}
    seen = seen_weights(FedIR(), partition=partition)
    context = open_context(Experiment.make(blobs(), model=small_net, partition=partition, clients=4))
    counts = np.stack([np.bincount(context.data.y[rows], minlength=3) for rows in context.owners.clients])
    p = counts.sum(axis=0) / counts.sum()
    assert len(seen) == 4
    for own, w in zip(counts, seen, strict=True):
        assert (own / own.sum() * w).sum() == pytest.approx(p[own > 0].sum())
        assert (w[own == 0] == 0).all()
        assert not np.allclose(w[own > 0], 1.0)


def test_fedir_on_one_class_is_fedavg_or_scaled_by_its_share() -> None:
    """One class a client: self-normalised weights cancel; without, the gradient is p(y) times as long."""
    settings: dict[str, Any] = {"partition": ByClass(), "clients": 3, "dtype": "float64", "rounds": 1}
    plain = on_blobs(**settings)
    np.testing.assert_allclose(weights(on_blobs(FedIR(), **settings)), weights(plain), atol=1e-12)
    x, y = blobs()
    train = fa.arrays(x, y).load(0)
    share = np.bincount(train.y[: train.n_train]) / train.n_train
    seen = seen_weights(FedIR(normalise="none"), partition=ByClass(), clients=3)
    for k, w in enumerate(seen):
        assert w[k] == pytest.approx(share[k])
        assert w.sum() == pytest.approx(share[k])


@pytest.mark.slow
@pytest.mark.parametrize("normalise", ["self", "none"])
def test_fedir_on_the_tape_is_fedir_by_autograd(normalise: Any) -> None:
    settings: dict[str, Any] = {
        "partition": {"name": "label_dirichlet", "beta": 0.5, "min_size": 5},
        "dtype": "float64",
    }
    fast = on_blobs(FedIR(normalise=normalise), **settings)
    slow = on_blobs(FedIR(normalise=normalise), fast=False, **settings)
    np.testing.assert_allclose(weights(fast), weights(slow), atol=1e-11)
    assert fast.weights_sha256 != on_blobs(**settings).weights_sha256


def test_fedvc_every_client_makes_the_same_steps() -> None:
    """S = ceil(N_VC / B) E, however many rows a client has."""
    run = on_blobs(FedVC(n_vc=50), partition={"name": "quantity_dirichlet", "beta": 1.0},
                   local={"lr": 0.05, "epochs": 3, "batch": 16}, rounds=1)  # fmt: skip
    assert run.records[0].steps == 4 * 4 * 3
    assert run.records[0].samples == 4 * 50 * 3


def test_fedvc_with_clients_of_that_size_is_fedavg() -> None:
    """n_k = N_VC for all, all selected, same order: bitwise (n/(m n) and 1/m are one number)."""
    x, y = blobs(300)
    data = fa.arrays(x, y, test=0.2).load(0)
    equal = Given(Dataset("equal", data.x, data.y, 240, 3))
    settings: dict[str, Any] = {"model": small_net, "partition": "iid", "clients": 4, "rounds": 3, "out": False,
                                "runtime": "serial", "local": {"lr": 0.1, "epochs": 1, "batch": 8}}  # fmt: skip
    virtual = fa.run(equal, algorithm=FedVC(n_vc=60), **settings)
    assert virtual.weights_sha256 == fa.run(equal, **settings).weights_sha256


@pytest.mark.slow
def test_fedvc_selects_by_rows() -> None:
    """m = 1: chi-square of 4000 draws against n_k / n; far from uniform."""
    sizes = np.array([10, 40, 50, 100])
    drawn = [int(FedVC().select(sizes, 1, np.random.default_rng(i))[0]) for i in range(4000)]
    counts = np.bincount(drawn, minlength=4)
    assert chisquare(counts, 4000 * sizes / sizes.sum()).pvalue > 1e-3
    assert chisquare(counts).pvalue < 1e-6


def test_fedvc_draws_distinct_rows_while_it_can_and_fresh_ones_each_round() -> None:
    drawn: list[np.ndarray] = []

    class Spy(fa.FedAvg):
        def client(self, got: Any, kept: Any, work: Any) -> Reply:
            drawn.append(work.index.copy())
            return super().client(got, kept, work)

    on_blobs(FedVC(base=Spy(), n_vc=20), rounds=2)
    assert all(len(np.unique(rows)) == 20 for rows in drawn)
    assert not np.array_equal(drawn[0], drawn[4])
    drawn.clear()
    on_blobs(FedVC(base=Spy(), n_vc=100), rounds=1)  # clients have 48
    assert all(len(rows) == 100 and len(np.unique(rows)) <= 48 for rows in drawn)


def visits(algorithm: FedVC, sizes: tuple[int, ...], rounds: int) -> dict[int, list[np.ndarray]]:
    """The rows that each client worked on, visit by visit; all clients take part."""
    seen: dict[int, list[np.ndarray]] = {}
    x, y = blobs(sum(sizes) + 10)
    owner = np.concatenate([np.repeat(np.arange(len(sizes)), sizes), np.full(10, -1)])
    data = Given(Dataset("sizes", x, y, sum(sizes), 3, owner=owner, owner_names=tuple(map(str, range(len(sizes))))))

    class Spy(fa.FedAvg):
        def client(self, got: Any, kept: Any, work: Any) -> Reply:
            seen.setdefault(work.client, []).append(work.index.copy())
            return Reply(fa.Step(np.zeros_like(got.w)))

    fa.run(data, model=small_net, partition="natural", algorithm=replace(algorithm, base=Spy()), rounds=rounds,
           out=False, runtime="serial", evaluate={"every": rounds})  # fmt: skip
    return seen


@pytest.mark.slow
def test_fedvc_splits_large_clients_into_fixed_disjoint_blocks() -> None:
    """65 rows in blocks of 20 are three; every visit is to one of them, each as often as another, and rows 61 to 65 rest."""
    seen = visits(FedVC(n_vc=20, with_split=True), (65, 40, 39, 12), 240)
    blocks = {k: {tuple(rows) for rows in drawn} for k, drawn in seen.items()}
    for k, count in ((0, 3), (1, 2)):
        assert len(blocks[k]) == count  # the same ones in 240 rounds
        rows = np.concatenate(list(blocks[k]))
        assert len(rows) == len(np.unique(rows)) == 20 * count
        often = [sum(tuple(drawn) == block for drawn in seen[k]) for block in blocks[k]]
        assert chisquare(often).pvalue > 1e-3
    assert all(np.ptp(block) > 19 for block in blocks[0])  # drawn, not cut off in the order of rows
    assert len(blocks[2]) == len(blocks[3]) == 240  # one virtual client each: fresh draws
    assert all(len(set(rows)) == 20 for rows in blocks[2])
    assert all(len(rows) == 20 and len(set(rows)) <= 12 for rows in blocks[3])


@pytest.mark.slow
def test_fedvc_with_split_selects_by_virtual_clients() -> None:
    """m = 1: chi-square of 4000 draws against 3, 2, 1 and 1 of 7; far from n_k / n."""
    sizes = np.array([65, 40, 39, 12])
    drawn = [int(FedVC(n_vc=20, with_split=True).select(sizes, 1, np.random.default_rng(i))[0]) for i in range(4000)]
    counts = np.bincount(drawn, minlength=4)
    assert chisquare(counts, 4000 * np.array([3, 2, 1, 1]) / 7).pvalue > 1e-3
    assert chisquare(counts, 4000 * sizes / sizes.sum()).pvalue < 1e-6
    both = FedVC(n_vc=20, with_split=True).select(sizes, 4, np.random.default_rng(0))
    assert sorted(both.tolist()) == [0, 1, 2, 3]  # a client once, however many it is


def test_drawn_rows_keep_their_own_noise() -> None:
    """In training and in judging: FedFA inside FedVC looks at the rows that were drawn, as they were trained on."""
    noisy = {"partition": {"name": "feature_noise", "sigma": 0.5}, "clients": 4}
    context = open_context(Experiment.make(blobs(), model=small_net, **noisy))
    work = ClientWork(context, 3, 0, ClientState())
    noise = dict(zip(work.index.tolist(), context.feature_noise.in_training(3, 0), strict=True))
    work.draw(20)
    x, _ = work._gather(np.arange(20))
    expected = np.stack([context.data.x[row] + noise[row] for row in work.index.tolist()])
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-6)
    assert np.abs(expected - context.data.x[work.index]).max() > 0.1
    assert on_blobs(FedVC(base=FedFA(), n_vc=20), **noisy).final.accuracy > 0.5


@pytest.mark.slow
def test_companions_compose_in_text_and_in_python() -> None:
    text = Experiment.make("digits", algorithm={"name": "fedavgm", "beta": 0.5, "with": ["fedir", "fedvc"]})
    made = text.algorithm.made
    assert isinstance(made, FedVC)
    assert isinstance(made.base, FedIR)
    assert made.base.base == FedAvgM(beta=0.5)
    import tomllib

    assert Experiment.make(tomllib.loads(text.to_toml())) == text
    settings: dict[str, Any] = {"rounds": 2, "out": False, "runtime": "serial"}
    by_text = fa.run(text, **settings)
    by_hand = fa.run("digits", algorithm=FedVC(base=FedIR(base=FedAvgM(beta=0.5))), **settings)
    assert by_text.weights_sha256 == by_hand.weights_sha256


def test_companions_refuse_what_they_cannot_go_with() -> None:
    with pytest.raises(BadValue, match="FedIR does not go with Centralized"):
        on_blobs(FedIR(base=fa.Centralized()))
    with pytest.raises(BadValue, match="not a companion"):
        Experiment.make("digits", algorithm={"name": "fedavg", "with": ["scaffold"]})


@pytest.mark.parametrize("inside", ["fedpage", "fedsgd"])
@pytest.mark.parametrize("companion", ["fedir", {"name": "fedvc", "n_vc": 20}])
def test_they_go_around_algorithms_with_other_exchanges(inside: str, companion: Any) -> None:
    """FedPAGE asks for gradients, FedSGD counts one step a round: a companion changes the rows, not that."""
    run, alone = on_blobs({"name": inside, "with": [companion]}, rounds=2), on_blobs(inside, rounds=2)
    assert run.final.steps == alone.final.steps
    assert (run.final.train_loss is None) == (alone.final.train_loss is None)
    assert run.weights_sha256 != alone.weights_sha256


def test_a_weighted_gradient_does_not_depend_on_how_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A self-normalised mean over all rows is not the mean of such means over parts of them."""
    skewed = {"partition": {"name": "label_dirichlet", "beta": 0.3, "min_size": 5}, "clients": 3, "rounds": 1}
    whole = on_blobs({"name": "fedsgd", "with": ["fedir"]}, **skewed)
    monkeypatch.setattr("fedarena.engine.client.EVALUATION_ROWS", 7)
    assert np.array_equal(weights(whole), weights(on_blobs({"name": "fedsgd", "with": ["fedir"]}, **skewed)))
