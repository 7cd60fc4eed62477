"""What a client that never trained predicts with, at once and after steps on its own samples: what each method says."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.algorithms.test_fedavg import small_net
from tests.algorithms.test_own_layers import normed
from tests.engine.test_validated_round import KILLED
from tests.support import forked_processes
from tests.support.federations import blobs

import fedarena as fa
from fedarena.algorithms import APFL, FedBN, FedPer, FedProto, FedRep
from fedarena.algorithms.base import Model, Vector, Work
from fedarena.algorithms.fedproto import Prototypes
from fedarena.algorithms.ifca import ClusterModels
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.config.registry import components
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.evaluation import LocalEvaluator
from fedarena.engine.personal_model import PersonalModelTask
from fedarena.engine.setup import open_context
from fedarena.engine.unseen_clients import UnseenBroadcast, UnseenEvaluation, UnseenTask
from fedarena.federation.consent import check_experiment
from fedarena.models.task import Buffers
from fedarena.results.json_files import read_table, write_table
from fedarena.runtimes.serial import SerialRuntime
from fedarena.trees.forest import Forest

CLIENT = 2
BODY = 6 * 8 + 8
SETTINGS: dict[str, Any] = {
    "clients": 5, "partition": {"name": "label_dirichlet", "beta": 0.5}, "local": {"lr": 0.1, "batch": 8}, "rounds": 3,
    "fast": False,
}  # fmt: skip
QUIET: dict[str, Any] = {"runtime": "serial", "out": False}


def opened(algorithm: Any, *, unseen: bool = True, **settings: Any) -> ExperimentContext:
    """Return a context in which one client never trains, or trains like the others."""
    held = {"evaluate": {"unseen": [CLIENT]}} if unseen else {}
    return open_context(
        Experiment.make(blobs(), algorithm=algorithm, **{"model": small_net, **SETTINGS, **held, **settings})
    )


def somewhere(context: ExperimentContext) -> Vector:
    """Return weights of the server that are not the initial ones."""
    rng = np.random.default_rng(1)
    return (context.initial + 0.3 * rng.standard_normal(len(context.initial))).astype(context.initial.dtype)


def given(context: ExperimentContext, message: Any, steps: int, own: Vector | None = None) -> Vector:
    """Return the weights with which the unseen client predicts after a message and so many steps."""
    common = UnseenBroadcast(message, context.initial_buffers, own)
    return UnseenTask(CLIENT, context.owners.unseen_tests[CLIENT], steps).model(context, common)[0]


SHARED = [
    "fedavg",
    "scaffold",
    "fedadam",
    "qfedavg",
    "krum",
    "centralized",
    "fedasync",
    "moon",
    "ditto",
    "apfl",
    "pfedme",
]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [*SHARED, "perfedavg", {"name": "fedavg", "with": ["finetune"]}])
def test_without_steps_it_is_the_server_model_to_the_bit(algorithm: Any, tmp_path: Path) -> None:
    settings = {**SETTINGS, "model": "mlp_2nn"}
    run = fa.run(
        blobs(), algorithm=algorithm, out=tmp_path / "run", runtime="serial", evaluate={"unseen": 0.4}, **settings
    )
    context = open_context(run.experiment)
    context.task.module.load_state_dict(run.state)
    w = context.task.vector()
    assert run.unseen is not None
    for position, client in enumerate(context.owners.unseen):
        context.task.load(w)
        scores = context.evaluate(context.owners.unseen_tests[client])
        right, loss = run.unseen.client_before["accuracy"][position], run.unseen.client_before["loss"][position]
        assert (right, loss) == (scores.right.sum() / scores.count.sum(), scores.loss.sum() / scores.count.sum())


@pytest.mark.parametrize("algorithm", SHARED)
def test_the_steps_start_from_the_server_model(algorithm: str) -> None:
    context = opened(algorithm)
    w = somewhere(context)
    np.testing.assert_array_equal(given(context, Model(w), 0), w)
    assert not np.array_equal(given(context, Model(w), 3), w)


@pytest.mark.parametrize("steps", [1, 7, 40])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "centralized", "fedasync", "krum"])
def test_the_steps_are_those_of_finetune_to_the_bit(algorithm: str, steps: int) -> None:
    """A client of the federation that fine-tunes, and the same client without a part in it, train alike."""
    context, tuned = opened(algorithm), opened(fa.algorithms.FineTune(steps=steps), unseen=False)
    w = somewhere(context)
    found, _ = PersonalModelTask(CLIENT, None).run(tuned, Broadcast(Model(w), tuned.initial_buffers))
    np.testing.assert_array_equal(given(context, Model(w), steps), found)


def test_finetune_has_its_own_rate() -> None:
    tuned, plain = opened(fa.algorithms.FineTune(lr=0.02)), opened("fedavg", local={"lr": 0.02, "batch": 8})
    w = somewhere(plain)
    np.testing.assert_array_equal(given(tuned, Model(w), 5), given(plain, Model(w), 5))


def test_a_step_of_perfedavg_is_the_one_with_which_clients_predict() -> None:
    context, trains = opened("perfedavg"), opened("perfedavg", unseen=False)
    w = somewhere(context)
    found, _ = PersonalModelTask(CLIENT, None).run(trains, Broadcast(Model(w), trains.initial_buffers))
    np.testing.assert_array_equal(given(context, Model(w), 1), found)


def test_local_training_knows_nothing_of_the_others() -> None:
    alone, plain = opened("local"), opened("fedavg")
    np.testing.assert_array_equal(given(alone, Model(somewhere(alone)), 0), alone.initial)
    np.testing.assert_array_equal(given(alone, Model(somewhere(alone)), 9), given(plain, Model(plain.initial), 9))


def test_ditto_without_its_term_is_fedavg() -> None:
    ditto, plain = opened(fa.algorithms.Ditto(lam=0.0)), opened("fedavg")
    w = somewhere(plain)
    np.testing.assert_array_equal(given(ditto, Model(w), 9), given(plain, Model(w), 9))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [fa.algorithms.Ditto(lam=1.0), fa.algorithms.PFedMe(lam=1.0)])
def test_the_proximal_term_holds_the_own_model_at_the_shared_one(algorithm: Any) -> None:
    """At the end of full-batch steps the gradient of F(v) + 1/2 |v - w|^2 is 0 (a convex model in double precision)."""
    context = opened(algorithm, model="logreg", dtype="float64", local={"lr": 0.1, "batch": "inf"})
    w = somewhere(context)
    v = given(context, Model(w), 3000)
    task = UnseenTask(CLIENT, np.empty(0, np.int64), 0)
    g = task._work(context, UnseenBroadcast(Model(w), context.initial_buffers)).gradient(v)
    assert abs(g).max() > 1e-3
    np.testing.assert_allclose(g, w - v, atol=1e-9)


def test_apfl_adapts_the_mixture() -> None:
    plain = opened("fedavg")
    w = somewhere(plain)
    np.testing.assert_array_equal(given(opened(APFL(alpha=1.0)), Model(w), 6), given(plain, Model(w), 6))
    np.testing.assert_array_equal(given(opened(APFL(alpha=0.0)), Model(w), 6), w)
    # One step from v = w: v' = w - eta alpha g, and the mixture w + alpha (v' - w) = w - eta alpha^2 g.
    step = w - given(plain, Model(w), 1)
    np.testing.assert_allclose(w - given(opened(APFL(alpha=0.5)), Model(w), 1), step / 4, rtol=1e-3, atol=1e-7)


# Own layers


@pytest.mark.parametrize("algorithm", [FedPer(), FedRep()])
def test_a_fresh_head_on_the_shared_body(algorithm: Any) -> None:
    context = opened(algorithm)
    w, initial = somewhere(context), context.task.initial
    at_once, adapted = given(context, Model(w), 0), given(context, Model(w), 5)
    np.testing.assert_array_equal(at_once[:BODY], w)
    np.testing.assert_array_equal(at_once[BODY:], initial[BODY:])
    assert not np.array_equal(adapted[BODY:], initial[BODY:])
    is_same = np.array_equal(adapted[:BODY], w)
    assert is_same == isinstance(algorithm, FedRep)  # which trains the head alone; in FedPer all layers train


def test_without_own_layers_fedper_and_fedbn_are_fedavg() -> None:
    plain = opened("fedavg")
    w = somewhere(plain)
    for algorithm in (FedPer(own=()), FedBN()):
        for steps in (0, 6):
            np.testing.assert_array_equal(given(opened(algorithm), Model(w), steps), given(plain, Model(w), steps))


def test_a_model_that_is_all_own_starts_as_local_training_does() -> None:
    own, alone = opened(FedPer(own=("*",))), opened("local")
    np.testing.assert_array_equal(given(own, Model(own.initial), 6), given(alone, Model(alone.initial), 6))


def test_fedbn_takes_the_mean_of_the_own_weights_and_statistics_of_its_own(tmp_path: Path) -> None:
    settings = {**SETTINGS, "local": {"lr": 0.1, "batch": 400}, "model": normed}
    evaluate = {"unseen": [CLIENT], "unseen_steps": 4}
    run = fa.run(blobs(), algorithm="fedbn", out=tmp_path / "run", runtime="serial", evaluate=evaluate, **settings)
    context = open_context(run.experiment)
    parts = context.parts
    assert parts is not None
    assert parts.weights.sum() == 16
    folder, trained = tmp_path / "run" / "checkpoint", context.owners.population
    states = {k: CheckpointStore.read_client_state(folder, context.algorithm, k) for k in trained}
    sizes = context.owners.sizes[trained]
    own = [states[k].own for k in trained]  # type: ignore[union-attr]
    mean = np.average(np.array(own, np.float64), axis=0, weights=sizes)
    complete = np.concatenate([run.state[name].numpy().ravel() for name in context.task.names])
    message = Broadcast(Model(parts.shared(complete)), parts.shared_buffers(context.task.buffers()))
    evaluation = UnseenEvaluation(context, LocalEvaluator(context, SerialRuntime(context)))
    found = evaluation._own_layers(states.get)
    assert found is not None
    np.testing.assert_allclose(found, mean, rtol=1e-6)

    task = UnseenTask(CLIENT, context.owners.unseen_tests[CLIENT], 0)
    w, buffers = task.model(context, UnseenBroadcast(message.message, message.buffers, found))
    np.testing.assert_array_equal(parts.own(w), found)
    x = torch.from_numpy(context.data.x[context.owners.unseen_clients[CLIENT]])
    before = x @ torch.from_numpy(w[:48].reshape(8, 6)).T + torch.from_numpy(w[48:56])
    expected = np.concatenate([before.mean(dim=0).numpy(), before.var(dim=0).numpy()])  # one batch has all samples
    np.testing.assert_allclose(buffers.values, expected, rtol=1e-4, atol=1e-6)

    adapted, _ = replace(task, steps=4).model(context, UnseenBroadcast(message.message, message.buffers, found))
    np.testing.assert_array_equal(parts.shared(adapted), parts.shared(w))
    assert not np.array_equal(parts.own(adapted), found)
    metrics = evaluation.metrics(message, states.get)
    assert run.unseen is not None
    assert metrics.client_before["loss"] == run.unseen.client_before["loss"]
    assert metrics.client_after["loss"] == run.unseen.client_after["loss"]


def test_local_statistics_are_measured_on_the_clients_samples() -> None:
    """With bn_buffers = "local" the statistics of the server belong to no client, and one that never trained skips them."""
    context = opened("fedavg", model=normed, bn_buffers="local", local={"lr": 0.1, "batch": 400})
    w, known = somewhere(context), context.initial_buffers
    other = Buffers(known.values + 5, known.counters)
    task = UnseenTask(CLIENT, context.owners.unseen_tests[CLIENT], 0)
    one, two = (task.model(context, UnseenBroadcast(Model(w), buffers))[1] for buffers in (known, other))
    np.testing.assert_array_equal(one.values, two.values)
    shared = opened("fedavg", model=normed)
    np.testing.assert_array_equal(task.model(shared, UnseenBroadcast(Model(w), other))[1].values, other.values)


# Prototypes, clusters, trees


def test_fedproto_starts_from_the_initial_body() -> None:
    context, alone = opened(FedProto(lam=0.0)), opened("local")
    rows = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    for steps in (0, 6):
        found = given(context, Prototypes(rows), steps)
        np.testing.assert_array_equal(found[:BODY], given(alone, Model(alone.initial), steps)[:BODY])
        np.testing.assert_array_equal(found[BODY : BODY + 24], 2 * rows.ravel())


def test_ifca_chooses_the_cluster_by_the_training_samples() -> None:
    context, plain = opened("ifca"), opened("fedavg")
    good, bad = given(plain, Model(plain.initial), 60), somewhere(context)
    for order in ((good, bad), (bad, good)):
        message = ClusterModels(order[0], order[1:])
        np.testing.assert_array_equal(given(context, message, 0), good)
        np.testing.assert_array_equal(given(context, message, 5), given(plain, Model(good), 5))


@pytest.mark.slow
def test_trees_are_added_to_the_forest_of_the_server(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 3, "clients": 4, "partition": "iid"}
    tree = {"depth": 2, "bins": 16}
    shared = open_context(
        Experiment.make(
            "breast_cancer", algorithm={"name": "histboost", **tree}, evaluate={"unseen": [CLIENT]}, **settings
        )
    )
    forest = Forest.of(shared.initial)
    grown = Forest.of(given(shared, Model(shared.initial), 3))
    np.testing.assert_array_equal(given(shared, Model(shared.initial), 0), forest.vector)
    assert len(grown.trees) == 3
    alone = fa.run(
        "breast_cancer", algorithm={"name": "local_trees", **tree}, out=tmp_path / "run", runtime="serial", **settings
    )
    context = open_context(alone.experiment)
    state = CheckpointStore.read_client_state(tmp_path / "run" / "checkpoint", context.algorithm, CLIENT)
    w, _ = PersonalModelTask(CLIENT, state).run(context, Broadcast(Model(shared.initial), shared.initial_buffers))
    np.testing.assert_array_equal(grown.vector, w)


# Runs


def bits(run: fa.Run) -> str:
    assert run.unseen is not None
    return repr((run.weights_sha256, run.metrics, run.unseen))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn", "ditto", "fedproto", "ifca", "fedasync"])
def test_the_bits_are_those_of_any_number_of_workers_and_of_a_resumed_run(algorithm: str, tmp_path: Path) -> None:
    experiment = Experiment.make(
        "digits", clients=6, model={"name": "cnnnet", "norm": "bn"} if algorithm == "fedbn" else "mlp_2nn", rounds=4,
        algorithm=algorithm, evaluate={"unseen": 0.4, "unseen_steps": 4, "validation": 0.2},
    )  # fmt: skip
    whole = fa.run(experiment, **QUIET)
    assert bits(fa.run(experiment, out=False, runtime="processes", workers=2)) == bits(whole)
    for record in fa.rounds(experiment, out=tmp_path / "run", runtime="serial"):
        if record.round == 2:
            break
    resumed = fa.run(resume=tmp_path / "run", runtime="serial")
    assert bits(resumed) == bits(whole)
    assert whole.chosen is not None
    assert resumed.chosen is not None
    assert whole.chosen.measured.unseen is not None
    one, two = whole.chosen.measured.unseen, resumed.chosen.measured.unseen
    assert two is not None
    assert repr(one) == repr(two)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "round"), [("fedper", 2), ("fedbn", 3), ("fedasync", 3)])
def test_a_killed_run_has_the_same_bits_once_it_is_resumed(algorithm: str, round: int, tmp_path: Path) -> None:
    """The kill comes in the middle, or after the last round and before the result is written."""
    model = {"name": "cnnnet", "norm": "bn"} if algorithm == "fedbn" else "mlp_2nn"
    evaluate = {"unseen": 0.4, "unseen_steps": 4}
    whole = fa.run("digits", clients=6, rounds=3, algorithm=algorithm, model=model, evaluate=evaluate, **QUIET)
    file, folder = tmp_path / "exp.toml", tmp_path / "run"
    file.write_text(whole.experiment.to_toml())
    ended = forked_processes.run([sys.executable, "-c", KILLED, str(file), str(round), str(folder)])
    assert ended.returncode == -signal.SIGKILL
    assert bits(fa.run(resume=folder, runtime="serial")) == bits(whole) == bits(fa.load(folder))
    assert fa.verify(folder, runtime="serial").differences == []


@pytest.mark.slow
def test_the_folder_has_the_result(tmp_path: Path) -> None:
    evaluate = {"unseen": 0.4, "unseen_steps": 6, "validation": 0.2}
    settings = {**SETTINGS, "model": "mlp_2nn"}
    run = fa.run("digits", out=tmp_path / "run", runtime="serial", evaluate=evaluate, **settings)
    back = fa.load(tmp_path / "run")
    assert bits(back) == bits(run)
    assert repr(back.chosen.measured.unseen) == repr(run.chosen.measured.unseen)
    assert fa.verify(tmp_path / "run", runtime="serial").same
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert run.unseen is not None
    assert run.chosen is not None
    assert run.chosen.measured.unseen is not None
    assert (result["unseen"]["clients"], result["unseen"]["steps"]) == (list(run.unseen.clients), 6)
    assert result["unseen"]["before"]["loss"] == run.unseen.before["loss"]
    assert result["unseen"]["after"]["loss"] == run.unseen.after["loss"]
    assert result["validated_unseen"]["after"]["loss"] == run.chosen.measured.unseen.after["loss"]
    rows = pq.read_table(tmp_path / "run" / "clients.parquet").to_pylist()
    assert [row["name"] for row in rows if row["unseen"]] == list(run.unseen.clients)
    assert not any(row["rows"] for row in rows if row["unseen"])
    counted = run.unseen.client_after["accuracy"]
    assert run.unseen.after["accuracy"] == pytest.approx(np.average(counted, weights=run.unseen.samples))
    assert "2 clients never trained: accuracy" in str(run)
    assert "after 6 steps on their own samples" in str(run)


def test_verify_sees_a_changed_value(tmp_path: Path) -> None:
    fa.run(
        "digits", out=tmp_path / "run", runtime="serial", evaluate={"unseen": 0.4}, **{**SETTINGS, "model": "logreg"}
    )
    file = tmp_path / "run" / "result.json"
    table = read_table(file, "")
    table["evaluation"]["unseen"]["client_after"]["loss"][0] += 1e-9
    write_table(file, table)
    assert "unseen clients, after: their loss differs" in fa.verify(tmp_path / "run", runtime="serial").differences


def test_no_steps_is_one_evaluation() -> None:
    run = fa.run("digits", evaluate={"unseen": 0.4, "unseen_steps": 0}, **{**SETTINGS, **QUIET, "model": "logreg"})
    assert run.unseen is not None
    assert repr(run.unseen.client_before) == repr(run.unseen.client_after)
    default = fa.run("digits", evaluate={"unseen": 0.4}, **{**SETTINGS, **QUIET, "model": "logreg"})
    assert default.unseen is not None
    assert default.unseen.steps == 10
    assert default.weights_sha256 == run.weights_sha256


def test_noise_on_features_is_that_of_the_client() -> None:
    noisy = {"name": "feature_noise", "sigma": 2.0}
    runs = [
        fa.run("digits", evaluate={"unseen": ["4"]}, **{**SETTINGS, **QUIET, "model": "logreg", "partition": partition})
        for partition in (noisy, "iid")
    ]
    losses = [run.unseen.before["loss"] for run in runs if run.unseen is not None]
    assert losses[0] > 1.2 * losses[1]


COMPANIONS = ("fedir", "fedvc", "finetune")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(components("algorithm")))
def test_every_algorithm_gives_a_new_client_something(name: str) -> None:
    algorithm = {"name": "fedavg", "with": [name]} if name in COMPANIONS else name
    settings: dict[str, Any] = {"clients": 8, "partition": "iid", "model": "logreg" if name == "fsvrg" else "mlp_2nn"}
    evaluate = {"unseen": 0.25, "unseen_steps": 30}
    run = fa.run("breast_cancer", algorithm=algorithm, rounds=2, evaluate=evaluate, **settings, **QUIET)
    assert run.unseen is not None
    assert len(run.unseen.clients) == 2
    assert run.unseen.after["loss"] < run.unseen.before["loss"]
    assert run.unseen.after["accuracy"] > 0.8


@pytest.mark.parametrize(("data", "metric"), [("diabetes", "rmse"), ("tiny_shakespeare", "accuracy")])
@pytest.mark.slow
def test_every_task_has_its_metrics(data: str, metric: str) -> None:
    settings: dict[str, Any] = {"clients": 8, "partition": "iid", "rounds": 1, "share": 0.3}
    run = fa.run(data, evaluate={"unseen": 0.13, "unseen_steps": 2}, **settings, **QUIET)
    assert run.unseen is not None
    assert np.isfinite([run.unseen.before[metric], run.unseen.after[metric]]).all()
    assert {*run.unseen.before} == {*run.own_metrics}


# What is refused


@dataclass(frozen=True)
class Own(fa.FedAvg):
    """Clients with models of their own, without a word about new clients."""

    personal = True

    def personal_model(self, message: Any, client_state: Any, work: Work) -> Vector:
        w: Vector = message.w
        return w


def test_an_algorithm_must_say_what_a_new_client_starts_from() -> None:
    with pytest.raises(BadValue, match="does not say what a client that never trained starts from"):
        opened(Own())
    opened(Own(), unseen=False)


def test_adaptation_that_no_epsilon_counts_is_refused() -> None:
    pytest.importorskip("dp_accounting")
    private = {"lr": 0.1, "batch": 8, "privacy": {"clip": 1.0, "noise": 1.0}}
    with pytest.raises(BadValue, match=r"which local.privacy does not count"):
        opened("fedavg", local=private)
    opened("fedavg", local=private, evaluate={"unseen": [CLIENT], "unseen_steps": 0})


def test_a_real_federation_refuses_them() -> None:
    data = {"name": "csv", "path": "elsewhere.csv", "label": "y", "client": "site"}
    experiment = Experiment.make({"data": data}, partition="natural", model="logreg", evaluate={"unseen": 0.2})
    with pytest.raises(BadValue, match="every client that joins trains"):
        check_experiment(experiment)
