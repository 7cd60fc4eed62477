"""Where one algorithm is another (docs/reference/algorithms.md#identities): every row, on a network and on quadratics.

CO-OP's row is in test_coop.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_companions import Balanced
from tests.algorithms.test_fedavg import small_net, weights
from tests.support.federations import Quadratic, blobs, quadratics
from tests.support.trainings import same_bits, trained

import fedarena as fa
from fedarena.algorithms import (
    AFL,
    APFL,
    IFCA,
    MOON,
    Bulyan,
    CenteredClip,
    CoLearning,
    Ditto,
    FedAvgM,
    FedIR,
    FedNova,
    FedPAGE,
    FedPer,
    FedProto,
    FedProx,
    FedRep,
    FedVC,
    FineTune,
    GeometricMedian,
    Krum,
    LoAdaBoost,
    MultiKrum,
    NormBound,
    PerFedAvg,
    PFedMe,
    QFedAvg,
    Scaffold,
    TrimmedMean,
)
from fedarena.algorithms.base import Cohort
from fedarena.algorithms.loadaboost import LoAdaBoostState
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.config.registry import components
from fedarena.engine.async_loop import open_loop
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.record import TIMES
from fedarena.engine.setup import open_context
from fedarena.engine.tasks import ClientBatch, ClientTask, FailedTask, run_task
from fedarena.models.pytree import leaves
from fedarena.runtimes.serial import SerialRuntime

PROBLEMS = ("network", "quadratics")
EXACT: dict[str, Any] = {"dtype": "float64"}
FULL: dict[str, Any] = {"local": {"lr": 0.1, "epochs": 1, "batch": math.inf}}
HEAVY: dict[str, Any] = {
    "local": {"lr": 0.02, "epochs": 2, "batch": 8, "momentum": 0.9, "weight_decay": 0.01, "decay": 0.01}
}


def problem(name: str, clients: int = 6, equal: bool = False, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """Data, and an experiment on them: unequal clients unless asked for, some of them each round."""
    common = {"rounds": 4, "share": 0.5, "local": {"lr": 0.1, "epochs": 2, "batch": 8}, "evaluate": {"every": 2}}
    if name == "network":
        partition: Any = "iid" if equal else {"name": "quantity_dirichlet", "beta": 2.0}
        own = {"model": small_net, "clients": clients, "partition": partition}
        return blobs(), {**common, **own, **settings}
    rng = np.random.default_rng(1)
    centres, curvatures = 3 * rng.standard_normal((clients, 3)), rng.uniform(0.5, 2.0, (clients, 3))
    rows = [16] * clients if equal else list(range(5, 5 + 7 * clients, 7))
    own = {"model": lambda: Quadratic(3), "partition": "natural"}
    return quadratics(centres, curvatures, rows), {**common, **own, **settings}


def play(name: str, algorithm: Any, runtime: Any = "serial", workers: int | None = None, **settings: Any) -> fa.Run:
    data, experiment = problem(name, **settings)
    return fa.run(data, algorithm=algorithm, out=False, runtime=runtime, workers=workers, **experiment)


@dataclass(frozen=True)
class Row:
    """`a` is `b` under these settings; `within` 0 means bit by bit."""

    a: Any
    b: Any = "fedavg"
    both: dict[str, Any] = field(default_factory=dict)
    only_a: dict[str, Any] = field(default_factory=dict)
    only_b: dict[str, Any] = field(default_factory=dict)
    within: float = 0.0


class Patient(LoAdaBoost):
    """LoAdaBoost whose median is +inf in every round."""

    def server(self, state: Any, mean: Any, cohort: Cohort) -> LoAdaBoostState:
        return replace(super().server(state, mean, cohort), median=math.inf)


class Uniform(FedVC):
    """FedVC that selects as FedAvg does."""

    def select(self, sizes: Any, count: int, rng: Any) -> Any:
        return self.base.select(sizes, count, rng)


EPOCHS: dict[str, Any] = {"lr": 0.05, "batch": 8}
MATRIX = {
    "fedper without own layers": Row(FedPer(own=())),
    "fedper without own layers, heavy": Row(FedPer(own=()), both=HEAVY),
    "fedbn without norm layers": Row("fedbn"),
    "fedrep without own layers": Row(FedRep(own=()), both={"local": {**EPOCHS, "epochs": 1}}),
    "pfedme, one step from w on": Row(
        PFedMe(lam=2.0, steps=1, own_lr=0.05),
        both=EXACT,
        within=1e-10,
        only_a={"local": {**EPOCHS, "lr": 0.5, "epochs": 2}},
        only_b={"local": {**EPOCHS, "epochs": 2}},
    ),
    "finetune": Row(FineTune(epochs=2)),
    "finetune around scaffold": Row(FineTune(base=Scaffold(), steps=3), "scaffold"),
    "fedprox without a spring": Row(FedProx(mu=0.0)),
    "fedprox without a spring, heavy": Row(FedProx(mu=0.0), both=HEAVY),
    "fedavgm without momentum": Row(FedAvgM(beta=0.0)),
    "fedavgm without momentum, heavy": Row(FedAvgM(beta=0.0), both=HEAVY),
    "scaffold in round 0": Row("scaffold", both={"rounds": 1}),
    "scaffold in round 0, heavy": Row("scaffold", both={**HEAVY, "rounds": 1}),
    "scaffold, one client": Row("scaffold", both={**EXACT, "clients": 1}, within=1e-10),
    "fednova, equal work": Row("fednova", both={**EXACT, "equal": True}, within=1e-6),
    "fednova, equal work, heavy": Row(FedNova(), both={**EXACT, **HEAVY, "equal": True}, within=1e-6),
    "fedavg, a full step": Row("fedavg", "fedsgd", both={**EXACT, **FULL}, within=1e-6),
    "fedavg, one client": Row("fedavg", "centralized", both={**EXACT, "clients": 1}, within=1e-10),
    "fedir, clients like the whole": Row(FedIR(), both={**EXACT, "equal": True}, within=1e-6),
    "fedvc, clients of that size": Row(Uniform(n_vc=16), both={"equal": True}),
    "fedvc split, clients of that size": Row(Uniform(n_vc=16, with_split=True), both={"equal": True}),
    "loadaboost, no client retrains": Row(
        Patient(), both={"local": {**EPOCHS, "epochs": 6}}, only_b={"local": {**EPOCHS, "epochs": 3}}
    ),
    "colearning, constant rate and epochs": Row(CoLearning(decay=1.0, epsilon=-1.0)),
    "trimmed mean without trimming": Row(TrimmedMean(share=0.0), both={"equal": True}, within=1e-6),
    "multikrum that keeps all": Row(MultiKrum(keep=10), both={"equal": True}, within=1e-6),
    "multikrum that keeps one": Row(MultiKrum(keep=1), Krum()),
    "norm bound, no step is long": Row(NormBound(bound=1e12), both={"equal": True}, within=1e-6),
    "centered clip, a large radius": Row(CenteredClip(radius=1e12), both={"equal": True}, within=1e-6),
    "bulyan without attackers": Row(Bulyan(attackers=0), both={"equal": True}, within=1e-6),
    "geometric median of two is their mean": Row(GeometricMedian(), both={"equal": True, "share": 1 / 3}, within=1e-6),
    "moon without mu": Row(MOON(mu=0.0), both={"fast": False}),
    "perfedavg, inner rate 0": Row(PerFedAvg(inner_lr=0.0), both={"fast": False}),
    "perfedavg hf, inner rate 0": Row(PerFedAvg(inner_lr=0.0, variant="hf"), both={"fast": False}),
    "ifca, one cluster": Row(IFCA(clusters=1)),
    "fedpage, always a full gradient": Row(
        FedPAGE(p=1.0, server_lr=0.1), "fedsgd", both=EXACT, only_b={"share": 1.0}, within=1e-6
    ),
    "qfedavg without q, equal clients": Row(
        QFedAvg(q=0.0), both={"equal": True, "local": {"lr": 0.125, "epochs": 2, "batch": 8}}
    ),
    "afl without ascent, equal clients": Row(AFL(weight_lr=0.0), both={"equal": True, "share": 1.0}),
}


# Quadratics have a loss of their own: no classes, and no representation before a last layer.
REFUSED = {
    "fedir": "fedir weighs rows by their class",
    "moon": "moon compares representations",
    "fedproto": "fedproto has a prototype for each class",
}


@pytest.mark.parametrize("on", PROBLEMS)
@pytest.mark.parametrize("name", MATRIX)
def test_matrix(name: str, on: str) -> None:
    row = MATRIX[name]
    both = dict(row.both)
    if on == "quadratics" and (refused := [text for start, text in REFUSED.items() if name.startswith(start)]):
        with pytest.raises(BadValue, match=refused[0]):
            play(on, row.a, **both)
        return
    if name.startswith("fedir"):
        both["partition"] = Balanced()
    if on == "network" and name.startswith("fedvc"):
        both["clients"] = 12  # of 192 rows: 16 each
    a, b = play(on, row.a, **{**both, **row.only_a}), play(on, row.b, **{**both, **row.only_b})
    if row.within:
        np.testing.assert_allclose(weights(a), weights(b), rtol=0, atol=row.within)
    else:
        assert a.weights_sha256 == b.weights_sha256
    data, experiment = problem(on, **both)
    start = open_context(Experiment.make(data, **experiment)).initial
    assert np.abs(weights(a) - start).max() > 1e-2  # they did learn something


# Models of clients, and the server's beside them: bit by bit, on autograd and in full participation

SHARED_IS_FEDAVG = [
    Ditto(lam=0.3),
    APFL(alpha=0.3),
    APFL(adapt=True),
    PerFedAvg(inner_lr=0.0),
    FineTune(),
    IFCA(clusters=1),
]
OWN_IS_LOCAL = [
    Ditto(lam=0.0), APFL(alpha=1.0), FedPer(own=("*",)), FedRep(own=("*",), head_epochs=2, body_epochs=0),
]  # fmt: skip
OWN_IS_SHARED = [
    APFL(alpha=0.0),
    PerFedAvg(inner_lr=0.0),
    FineTune(steps=0),
    FineTune(base=Scaffold(), epochs=0),
    IFCA(1),
]


def ends(on: str, folder: Path, *algorithms: Any) -> Any:
    data, experiment = problem(on, fast=False, share=1.0)
    return (trained(data, algorithm, folder, **experiment) for algorithm in algorithms)


@pytest.mark.parametrize("on", PROBLEMS)
@pytest.mark.parametrize("algorithm", SHARED_IS_FEDAVG, ids=repr)
def test_the_shared_model_is_that_of_fedavg(algorithm: Any, on: str, tmp_path: Path) -> None:
    ours, average = ends(on, tmp_path, algorithm, "fedavg")
    assert same_bits(ours.state.w, average.state.w)


@pytest.mark.parametrize("on", PROBLEMS)
@pytest.mark.parametrize("algorithm", OWN_IS_LOCAL, ids=repr)
def test_models_of_clients_are_those_of_local_training(algorithm: Any, on: str, tmp_path: Path) -> None:
    ours, alone = ends(on, tmp_path, algorithm, "local")
    assert same_bits(ours.own, alone.own)
    assert not same_bits(ours.own[0], ours.own[1])


def test_weights_of_fedproto_without_its_term_are_those_of_local_training(tmp_path: Path) -> None:
    ours, alone = ends("network", tmp_path, FedProto(lam=0.0), "local")
    assert same_bits(ours.kept, alone.kept)


@pytest.mark.parametrize("on", PROBLEMS)
@pytest.mark.parametrize("algorithm", OWN_IS_SHARED, ids=repr)
def test_models_of_clients_are_the_shared_one(algorithm: Any, on: str, tmp_path: Path) -> None:
    (ours,) = ends(on, tmp_path, algorithm)
    assert same_bits(ours.own, [ours.state.w] * len(ours.own))


# What holds for all


class SilentRuntime(SerialRuntime):
    """A runtime whose clients all fail while `silent` is set."""

    silent = False

    def map(self, jobs: Any, common: Any) -> Any:
        if not self.silent:
            yield from super().map(jobs, common)
            return
        for position, job in enumerate(jobs):
            trains = isinstance(job, ClientTask | ClientBatch)
            yield position, FailedTask("gone") if trains else run_task(self.context, job, common)


def parts(tree: Any) -> list[Any]:
    return [leaf.tolist() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves(tree)]


EVERYTHING = [
    (n, on) for n in sorted(components("algorithm")) for on in PROBLEMS if on == "network" or n not in REFUSED
]


@pytest.mark.parametrize(("name", "on"), EVERYTHING)
def test_without_answers_nothing_changes(name: str, on: str, tmp_path: Path) -> None:
    """Two rounds, then two in which no client answers: the states of server and clients stay the same, to the bit."""
    data, experiment = problem(on, on_error="drop")
    context = open_context(Experiment.make(data, algorithm=name, **experiment))
    runtime = SilentRuntime(context)
    loop = open_loop(context, runtime, CheckpointStore(tmp_path, context.algorithm))
    believed: list[Any] = []
    remembered: list[Any] = []
    answered: list[int] = []
    for record in loop.rounds():
        runtime.silent = record.round >= 2
        believed.append(parts(loop.state))
        memories = [loop.store.client_state(k) for k in loop.clients.population]
        remembered.append([[] if m is None else parts((m.kept, m.momentum, m.own)) for m in memories])
        answered.append(record.answered)
    one_layer = name in ("fedper", "fedrep") and on == "quadratics"
    nothing_shared = one_layer or name in ("local", "local_trees")
    assert believed[0] != believed[1] or nothing_shared
    assert believed[1] == believed[2] == believed[3]
    assert remembered[1] == remembered[2] == remembered[3]
    assert answered[2:] == [0, 0]


class AnyOrder(SerialRuntime):
    """Runs what it is given in a random order, as three workers might."""

    workers = 3
    rng = np.random.default_rng(0)

    def map(self, jobs: Any, common: Any) -> Any:
        waiting = list(enumerate(jobs))
        for i in self.rng.permutation(len(waiting)):
            position, job = waiting[i]
            for _, result in super().map([job], common):
                yield position, result


def everything(run: fa.Run) -> tuple[str, list[dict[str, Any]]]:
    """All but times."""
    return run.weights_sha256, [{k: v for k, v in vars(r).items() if k not in TIMES} for r in run.records]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "on"), EVERYTHING)
def test_any_order_of_execution_and_any_workers(name: str, on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who computes a client, and when, changes no bit."""
    in_turn = repr(everything(play(on, name, dropouts=0.2)))  # in text nan is nan
    assert repr(everything(play(on, name, dropouts=0.2, runtime="processes", workers=3))) == in_turn
    monkeypatch.setattr("fedarena.experiments.run.SerialRuntime", AnyOrder)
    assert repr(everything(play(on, name, dropouts=0.2))) == in_turn
