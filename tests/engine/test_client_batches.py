"""Many light clients: bundled, trained ahead of being asked, and still the same to the bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedarena as fa
from fedarena.algorithms.base import Model, Reply, Step, Work
from fedarena.algorithms.fedavg import FedAvg
from fedarena.config.seeds import stream
from fedarena.engine import tasks
from fedarena.engine.batched_training import BatchedTraining
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.setup import open_context
from fedarena.engine.tasks import ClientAnswer, ClientBatch, ClientTask, FailedTask, client_batch_size
from fedarena.models.compiled import can_shuffle, library, shuffled, uniform
from fedarena.models.pytree import WeightedMean, leaves

compiled = pytest.mark.skipif(library() is None, reason="no kernels were built for this processor")


def images(rows: int = 640, classes: int = 4) -> Any:
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 256, (rows, 1, 6, 6), dtype=np.uint8), rng.integers(0, classes, rows)
    return fa.arrays(x, y, x_test=x[:40], y_test=y[:40])


def federation(**settings: Any) -> fa.Experiment:
    """Eighty clients with eight rows: far too little to do for a message each."""
    local = {"lr": 0.1, "epochs": 2, "batch": 3, **settings.pop("local", {})}
    usual: dict[str, Any] = {"model": "logreg", "clients": 80, "share": 1.0, "rounds": 3, "partition": "iid"}
    return fa.Experiment.make(images(), local=local, **{**usual, **settings})


def replies(experiment: fa.Experiment, with_ahead: bool) -> list[list[Any]]:
    """What the first five clients answer, each with what it remembers from a round before."""
    context = open_context(experiment)
    common = Broadcast(context.algorithm.broadcast(context.algorithm.init(context.initial)), context.task.buffers())
    memory = ClientState(kept=context.algorithm.remember(context.initial))
    ahead = BatchedTraining(context, 4, range(5)) if with_ahead else None
    found = []
    for client in range(5):
        answer = ClientTask(4, client, "client", memory).train(context, common, 1.0, ahead)
        assert isinstance(answer, ClientAnswer)
        facts = (answer.report.steps, answer.report.samples, answer.report.loss, answer.reply.weight)
        found.append([*facts, *(np.asarray(leaf).tobytes() for leaf in leaves((answer.reply.send, answer.reply.keep)))])
    return found


@compiled
@pytest.mark.parametrize(
    "algorithm",
    [
        "fedavg",
        {"name": "fedprox", "mu": 0.3},
        "fednova",
        "scaffold",
        "fedir",
        {"name": "fedvc", "n_vc": 5},
        "loadaboost",
    ],
    ids=str,
)
@pytest.mark.parametrize("local", [{}, {"weight_decay": 0.01}, {"batch": float("inf")}], ids=str)
def test_trained_ahead_or_when_asked(algorithm: Any, local: dict[str, Any]) -> None:
    """The same answers, bit by bit, also where a client asks for something else, or for more than one training."""
    experiment = federation(algorithm=algorithm, local=local)
    assert BatchedTraining.can_train(open_context(experiment))
    assert replies(experiment, with_ahead=True) == replies(experiment, with_ahead=False)


@dataclass(frozen=True)
class LooksFirst(FedAvg):
    """Takes a batch before it trains: its epochs go on with the stream from there."""

    def client(self, got: Model, kept: None, work: Work) -> Reply:
        work.batch_rows(1)
        return super().client(got, kept, work)


@compiled
def test_who_has_drawn_already_is_not_trained_ahead() -> None:
    experiment = federation(algorithm=LooksFirst())
    assert replies(experiment, with_ahead=True) == replies(experiment, with_ahead=False)


@compiled
def test_all_of_a_bundle_are_trained_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedarena.models.compiled import CompiledNetwork

    calls: list[str] = []
    for name in ("train", "train_each"):
        original = getattr(CompiledNetwork, name)
        monkeypatch.setattr(CompiledNetwork, name, lambda *a, f=original, n=name: (calls.append(n), f(*a))[1])
    replies(federation(), with_ahead=True)
    assert calls == ["train_each"]


@pytest.mark.parametrize(
    "local",
    [{"momentum": 0.9}, {"decay": 0.1}, {"clip": 1.0}, {"shuffle": False}, {"last_batch": "drop"}],
    ids=lambda local: next(iter(local)),
)
def test_what_depends_on_the_client_is_not_guessed(local: dict[str, Any]) -> None:
    assert not BatchedTraining.can_train(open_context(federation(local=local)))


@pytest.mark.slow
def test_the_same_bits_for_any_workers() -> None:
    """Eighty clients make batches of two on any number of workers; a batch that is lost is run again."""
    experiment = federation()
    assert client_batch_size(open_context(experiment), 80) == 2
    settings = [{"runtime": "serial"}, {"workers": 1}, {"workers": 2}, {"workers": 3}]
    assert len({fa.run(experiment, out=False, **how).weights_sha256 for how in settings}) == 1


@pytest.mark.slow
def test_bundles_only_change_the_last_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client at a time gives the same model up to the rounding of a sum in double precision."""
    together = fa.run(federation(), out=False, runtime="serial")
    monkeypatch.setattr(tasks, "LIGHT", 0.0)
    alone = fa.run(federation(), out=False, runtime="serial")
    assert together.final.bytes_up == alone.final.bytes_up
    for name, value in together.state.items():
        np.testing.assert_allclose(value, alone.state[name], rtol=0, atol=1e-7)


def test_heavy_clients_travel_alone() -> None:
    context = open_context(fa.Experiment.make(images(), model="mlp_2nn", clients=2, local={"epochs": 20}))
    assert client_batch_size(context, 1000) == 1


@dataclass(frozen=True)
class Fragile(FedAvg):
    """Client 7 cannot, client 9 sends nonsense."""

    def client(self, got: Model, kept: None, work: Work) -> Reply:
        if work.client == 7:
            raise RuntimeError("out of order")
        reply = super().client(got, kept, work)
        return Reply(Step(reply.send.delta * np.float32("nan"))) if work.client == 9 else reply


def test_one_bad_client_does_not_spoil_its_bundle() -> None:
    experiment = federation(algorithm=Fragile(), on_error="drop", on_nan="drop", rounds=1)
    run = fa.run(experiment, out=False, runtime="serial")
    assert (run.records[0].answered, run.records[0].dropped, run.records[0].non_finite) == (78, 2, 1)
    assert run.final.loss is not None
    assert np.isfinite(run.final.loss)
    context = open_context(experiment)
    common = Broadcast(Model(context.initial), context.task.buffers())
    reports = ClientBatch(0, "client", (6, 7, 8), (None,) * 3).run(context, common).reports
    assert [isinstance(report, FailedTask) for report in reports] == [False, True, False]


@compiled
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**31), st.lists(st.integers(0, 70), min_size=1, max_size=6))
def test_the_kernels_draw_what_numpy_draws(seed: int, round: int, sizes: list[int]) -> None:
    """Orders of two epochs, and the first number, of streams with any key."""
    assert can_shuffle(seed)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    rows = 1000 + np.arange(bounds[-1])
    drawn = shuffled(seed, round, (rows, bounds), range(len(sizes)), 2)
    expected = []
    for client in range(len(sizes)):
        rng = stream(seed, "shuffle", round, client)
        mine = rows[bounds[client] : bounds[client + 1]]
        expected += [*mine[rng.permutation(len(mine))], *mine[rng.permutation(len(mine))]]
    assert drawn.tolist() == expected
    first = [stream(seed, "latency", round, client).random() for client in range(3)]
    assert uniform(seed, "latency", round, range(3)).tolist() == first


def test_a_stream_is_the_same_however_its_key_is_handed_over() -> None:
    from fedarena.config.seeds import number_of

    for key in ((0, 5), (7,), (2**32 - 1, 0)):
        assert stream(3, "shuffle", *key).random() == np.random.default_rng([3, number_of("shuffle"), *key]).random()
    assert stream(2**40, "shuffle").random() == np.random.default_rng([2**40, number_of("shuffle")]).random()


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(0, 50)), min_size=1, max_size=12), st.integers(1, 5))
def test_a_sum_of_sums_is_the_sum(parts: list[tuple[float, int]], size: int) -> None:
    if not any(weight for _, weight in parts):
        return
    whole, merged = WeightedMean(), WeightedMean()
    for i in range(0, len(parts), size):
        piece = WeightedMean()
        for value, weight in parts[i : i + size]:
            piece.add(Step(np.array([value])), weight)
            whole.add(Step(np.array([value])), weight)
        merged.merge(piece)
    expected = whole.result().delta
    np.testing.assert_allclose(merged.result().delta, expected, rtol=1e-12, atol=1e-9)
    if size == 1:
        assert merged.result().delta == expected
