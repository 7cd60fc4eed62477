"""FedPer, FedRep and FedBN: layers of each client's own (docs/reference/algorithms.md#own-layers)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import on_blobs, small_net
from tests.support.federations import blobs
from tests.support.trainings import same_bits, trained
from torch import nn

import fedarena as fa
from fedarena.algorithms import FedAvg, FedBN, FedPer, FedProx, FedRep, FedSGD, Scaffold
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.engine.client import ClientState, ClientWork
from fedarena.engine.own_parts import find_own_parts
from fedarena.engine.partial_work import PartialWork
from fedarena.engine.setup import open_context

BODY, HEAD = 6 * 8 + 8, 8 * 3 + 3
SKEWED: dict[str, Any] = {"clients": 4, "partition": {"name": "label_dirichlet", "beta": 0.5}, "runtime": "serial"}


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def models(run: fa.Run) -> list[np.ndarray]:
    """Return the weights of every client's model at the end."""
    return [run.context(k).task.vector() for k in range(len(run.client_sizes))]


@pytest.mark.parametrize("fast", [True, False])
def test_a_model_that_is_all_own_is_local_training(tmp_path: Path, fast: bool) -> None:
    settings: dict[str, Any] = {"model": small_net, "rounds": 3, "fast": fast, **SKEWED}
    alone = fa.run(blobs(), algorithm="local", out=tmp_path / "local", **settings)
    own = fa.run(blobs(), algorithm=FedPer(own=("*",)), out=tmp_path / "own", **settings)
    for a, b in zip(models(alone), models(own), strict=True):
        np.testing.assert_array_equal(a, b)
    assert own.records[-1].bytes_down == 0
    assert own.own_metrics == pytest.approx(alone.own_metrics, rel=1e-6)  # batches of predictions differ


def test_own_statistics_and_dropout_are_those_of_local_training(tmp_path: Path) -> None:
    drops = lambda: normed().insert(3, nn.Dropout(0.3))
    settings: dict[str, Any] = {"model": drops, "rounds": 3, "clients": 4, "partition": SKEWED["partition"]}
    alone, own = (trained(blobs(), a, tmp_path, **settings) for a in ("local", FedPer(own=("*",))))
    assert same_bits(own.own, alone.own)
    statistics = [[state.buffers.values for state in end.clients if state.buffers is not None] for end in (own, alone)]
    assert len(statistics[0]) == 4
    assert same_bits(*statistics)


@pytest.mark.parametrize("algorithm", ["fedper", "fedrep", FedPer(base=FedProx()), FedPer(base=Scaffold())])
def test_the_body_is_common_and_the_head_is_not(tmp_path: Path, algorithm: Any) -> None:
    run = fa.run(blobs(), model=small_net, algorithm=algorithm, rounds=2, out=tmp_path / "run", **SKEWED)
    first, *others = models(run)
    for other in others:
        np.testing.assert_array_equal(first[:BODY], other[:BODY])
        assert not np.array_equal(first[BODY:], other[BODY:])
    assert run.metrics == {}
    with pytest.raises(BadValue, match="each client has its own"):
        run.model()


def test_files_keep_the_own_layers_of_an_algorithm(tmp_path: Path) -> None:
    """The list `own` of layers is a setting, and not `own = true`, the mark of an object from Python."""
    two = {"name": "fedper", "own": ["last:2"]}
    settings: dict[str, Any] = {"model": "mlp_2nn", "rounds": 1, "clients": 4}
    fa.run("digits", algorithm=two, out=tmp_path / "run", runtime="serial", **settings)
    assert fa.load(tmp_path / "run").experiment.algorithm.made.own == ("last:2",)
    fa.compare("digits", ["fedavg", two], seeds=2, baseline=False, workers=1, out=tmp_path / "duel", **settings)
    assert [runs[0].experiment.algorithm.made for runs in fa.load(tmp_path / "duel").runs.values()][1].own == ("last:2",)


@pytest.mark.parametrize("algorithm", ["fedper", "fedrep"])
def test_only_the_body_is_sent(algorithm: str) -> None:
    first = on_blobs(algorithm, rounds=1).records[0]
    assert (first.bytes_down, first.bytes_up) == (4 * 4 * BODY, 4 * (4 * BODY + 8))


def test_a_proximal_term_leaves_own_layers_alone() -> None:
    """With all of the model own, nothing is left that FedProx could hold back."""
    free, held = (on_blobs(FedPer(base=base, own=("*",))) for base in (FedProx(mu=0.0), FedProx(mu=10.0)))
    assert held.own_metrics["log_loss"] == pytest.approx(free.own_metrics["log_loss"], rel=1e-5)
    apart = on_blobs(FedPer(base=FedProx(mu=1.0)))
    assert apart.weights_sha256 != on_blobs("fedper").weights_sha256


def opened_work(algorithm: Any, model: Any = normed, **settings: Any) -> tuple[ClientWork, PartialWork]:
    experiment = Experiment.make(blobs(), model=model, algorithm=algorithm, clients=2, partition="iid", **settings)
    context = open_context(experiment)
    assert context.parts is not None
    work = ClientWork(context, 0, 0, ClientState())
    return work, PartialWork(work, context.parts, context.parts.initial)


@pytest.mark.parametrize(
    "optimizer", [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": "adam"}, {"clip": 0.1}]
)
def test_frozen_layers_and_their_statistics_do_not_move_by_a_bit(optimizer: dict[str, Any]) -> None:
    whole, work = opened_work("fedrep", local={"lr": 0.05, "batch": 8, **optimizer})
    body, statistics = whole.context.initial, whole.task.buffers()
    head = work.own
    out = work.train(body, epochs=2, only="own")
    np.testing.assert_array_equal(out.w, body)
    np.testing.assert_array_equal(whole.task.buffers().values, statistics.values)
    assert not (work.own == head).any()
    head = work.own
    out = work.train(body, epochs=1, only="shared")
    np.testing.assert_array_equal(work.own, head)
    assert not np.array_equal(whole.task.buffers().values, statistics.values)
    assert np.abs(out.w - body).max() > 1e-3


def test_a_frozen_head_keeps_its_own_statistics() -> None:
    """The head has a norm layer: its weights and statistics move in the first phase, and not by a bit in the second."""
    tail = lambda: nn.Sequential(*normed(), nn.BatchNorm1d(3))
    whole, work = opened_work(FedRep(own=("last:2",)), tail, local={"lr": 0.05, "batch": 8, "momentum": 0.9})
    parts = work.parts
    body, before = whole.context.initial, whole.task.buffers()
    assert parts.values.sum() == 6  # mean and variance of three outputs
    work.train(body, epochs=2, only="own")
    fitted, head = whole.task.buffers(), work.own
    assert (fitted.values != before.values).tolist() == parts.values.tolist()
    work.train(body, epochs=2, only="shared")
    after = whole.task.buffers()
    assert same_bits(work.own, head)
    assert same_bits(parts.own_buffers(after).values, parts.own_buffers(fitted).values)
    assert parts.own_buffers(after).counters.tolist() == parts.own_buffers(fitted).counters.tolist()
    assert not same_bits(parts.shared_buffers(after).values, parts.shared_buffers(fitted).values)


def test_fedrep_is_its_pseudocode(tmp_path: Path) -> None:
    """Two linear layers, full batches: against a loop in numpy."""
    linear = lambda: nn.Sequential(nn.Linear(6, 4, bias=False), nn.Linear(4, 3, bias=False))
    settings: dict[str, Any] = {"clients": 4, "partition": {"name": "label_dirichlet", "beta": 0.5}, "dtype": "float64"}
    settings |= {"rounds": 3, "local": {"lr": 0.1, "batch": float("inf")}, "model": linear}
    settings |= {"algorithm": FedRep(head_epochs=3, body_epochs=2)}
    run = fa.run(blobs(), out=tmp_path / "run", runtime="serial", **settings)
    context = open_context(Experiment.make(blobs(), **settings))
    body, head = np.split(context.task.initial, [24])
    body, heads = body.reshape(4, 6), [head.reshape(3, 4)] * 4
    rows, n = context.partition.clients, context.sizes
    data = [(context.data.x[r].astype(np.float64), np.eye(3)[context.data.y[r]]) for r in rows]

    def error(k: int, body: np.ndarray) -> np.ndarray:
        """Return (p - y) / n: the gradient of the mean cross-entropy by the logits."""
        x, y = data[k]
        logits = x @ body.T @ heads[k].T
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        return (p / p.sum(axis=1, keepdims=True) - y) / len(x)

    for _ in range(3):
        bodies = []
        for k, (x, _y) in enumerate(data):
            for _ in range(3):
                heads[k] = heads[k] - 0.1 * error(k, body).T @ (x @ body.T)
            own = body
            for _ in range(2):
                own = own - 0.1 * (error(k, own) @ heads[k]).T @ x
            bodies.append(own)
        body = np.average(bodies, axis=0, weights=n)
    np.testing.assert_allclose(run.state["0.weight"], body, rtol=0, atol=1e-10)
    for found, expected in zip(models(run), heads, strict=True):
        np.testing.assert_allclose(found[24:], expected.ravel(), rtol=0, atol=1e-10)


def test_fedbn_keeps_weights_and_statistics_of_norm_layers(tmp_path: Path) -> None:
    run = fa.run(blobs(), model=normed, algorithm="fedbn", rounds=2, out=tmp_path / "run", **SKEWED)
    states = [run.context(k).task.state() for k in range(4)]
    for name, value in states[0].items():
        is_same = all(bool((value == other[name]).all()) for other in states[1:])
        assert is_same == (not name.startswith("1."))
    parameters = BODY + HEAD  # without the 16 of the norm layer, and no statistics
    assert run.records[0].bytes_down == 4 * 4 * parameters
    assert {name for name in states[0] if name.startswith("1.running")}


@pytest.mark.parametrize("algorithm", [FedBN(), FedPer(own=("last:1",)), FedRep(own=("head",))])
def test_a_resume_changes_no_bit(tmp_path: Path, algorithm: Any) -> None:
    settings: dict[str, Any] = {**SKEWED, "model": normed, "algorithm": algorithm}
    whole = fa.run(blobs(), rounds=3, out=False, **settings)
    part = fa.run(blobs(), rounds=1, out=tmp_path / "part", **settings)
    assert part.weights_sha256 != whole.weights_sha256
    more = fa.run(blobs(), rounds=3, resume=tmp_path / "part", **settings)
    assert more.weights_sha256 == whole.weights_sha256
    assert more.own_metrics == whole.own_metrics


def test_layers_are_named_in_four_ways() -> None:
    task = opened_work("fedbn")[0].task
    sizes = {"head": HEAD, "norm": 16, "last:1": HEAD, "last:2": HEAD + 16, "0.*": BODY, "3.weight": 24, "*": task.size}
    for layer, size in sizes.items():
        parts = find_own_parts(task, [layer], False)
        assert parts is not None
        assert parts.weights.sum() == size
        np.testing.assert_array_equal(parts.join(parts.shared(task.initial), parts.initial), task.initial)
    assert find_own_parts(task, [], False) is None
    assert find_own_parts(task, ["norm"], False).values.sum() == 16  # type: ignore[union-attr]


class OwnBiases(FedPer):
    """Every bias is the client's own, by a predicate on the names of parameters."""

    @property
    def own_layers(self) -> Any:
        return (lambda name: name.endswith("bias"),)


def test_a_predicate_on_names_chooses_layers() -> None:
    parts = opened_work(OwnBiases())[0].context.parts
    assert parts is not None
    sizes = [48, 8, 8, 8, 24, 3]  # weights and biases in turn
    assert parts.weights.tolist() == np.repeat([False, True] * 3, sizes).tolist()


@pytest.mark.parametrize("name", ["fedbn", "fedper", "fedrep", "fedproto"])
def test_a_comparison_on_common_samples_refuses_it_by_name(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": normed, "clients": 4, "rounds": 1, "repeats": 2, "baseline": False}
    with pytest.raises(BadValue, match=f"{name} has no complete common model") as refused:
        fa.compare(blobs(), [name, "fedavg"], evaluate_on="common", out=tmp_path / "c", **options)
    assert refused.value.where == f"{name}, --evaluate-on"


@pytest.mark.slow
def test_the_setting_own_is_not_the_mark_of_an_algorithm_from_python(tmp_path: Path) -> None:
    """Runs are read back and verified, comparisons resumed and reported with a verdict."""
    settings: dict[str, Any] = {"model": "mlp_2nn", "clients": 4, "rounds": 1}
    algorithm = {"name": "fedper", "own": ["last:2"]}
    run = fa.run("digits", algorithm=algorithm, out=tmp_path / "run", runtime="serial", **settings)
    assert fa.load(tmp_path / "run").experiment == run.experiment
    assert run.experiment.algorithm.made.own_layers == ("last:2",)
    assert fa.verify(tmp_path / "run", runtime="serial").same
    fa.compare("digits", ["fedper:own=head", "fedavg"], seeds=2, workers=1, out=tmp_path / "c", **settings)
    found = fa.compare(resume=tmp_path / "c", workers=1)
    assert found.plan.evaluate_on == "own"
    page = found.report(tmp_path / "page.html").read_text()
    assert "no pairs" not in page
    assert "fedper:own=head" in page


@pytest.mark.parametrize("algorithm", [FedBN(), FedPer(own=())])
def test_where_no_layer_is_own_there_is_a_common_score(algorithm: Any) -> None:
    assert on_blobs(algorithm).metrics == on_blobs(FedAvg()).metrics


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (FedPer(own=("tail",)), "no parameter of the model fits 'tail'"),
        (FedPer(own=("last:9",)), "'last:9' of a model with 2 layers"),
        (FedPer(base=FedSGD()), "FedPer does not go with FedSGD"),
        (FedPer(base=fa.LocalOnly()), "FedPer does not go with LocalOnly"),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_start(algorithm: Any, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        on_blobs(algorithm)


def test_statistics_that_need_the_whole_model_are_refused() -> None:
    with pytest.raises(BadValue, match="statistics cannot be recomputed"):
        opened_work("fedper", bn_buffers="recompute")
