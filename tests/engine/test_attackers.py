"""Attackers in a simulation: what they train on, what they send, who they are, and where they are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedarena as fa
from fedarena.algorithms.base import Asynchronous, Model, Step
from fedarena.attacks import Attack, Backdoor, SeenUpdates
from fedarena.config.errors import BadValue, FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.config.registry import components
from fedarena.engine.attacked_updates import flat_update, with_update
from fedarena.engine.setup import open_context, partition_data
from fedarena.experiments.component_checks import check_component
from fedarena.federation.consent import federated_experiment

SMALL: dict[str, Any] = {"model": "logreg", "clients": 6, "partition": "iid", "rounds": 2, "local": {"lr": 0.1}}
ATTACKS = [n for n, entry in components("attack").items() if entry.make.__module__.startswith("fedarena.")]


def run(attack: Any = None, **settings: Any) -> fa.Run:
    given = {} if attack is None else {"attack": attack}
    return fa.run("digits", out=False, runtime="serial", **{**SMALL, **given, **settings})


@dataclass(frozen=True)
class Spy(Attack):
    """Changes nothing; `found` has what it saw."""

    def updates(self, seen: SeenUpdates, rng: np.random.Generator) -> Any:
        found.append(seen)
        return seen.own


found: list[SeenUpdates] = []


@pytest.mark.parametrize(("knows", "known"), [("own", 2), ("all", 6)])
def test_attackers_see_the_updates_that_they_know(knows: Any, known: int) -> None:
    found.clear()
    watched = run(Spy(share=0.34, knows=knows))
    assert [(len(seen.own), len(seen.known), seen.clients) for seen in found] == [(2, known, 6)] * 2
    plain = run()
    for seen in found:
        assert all(any((one == other).all() for other in seen.known) for one in seen.own)
    assert watched.weights_sha256 == plain.weights_sha256  # the same updates, in the same order


@pytest.mark.parametrize("name", ATTACKS)
def test_without_attackers_nothing_changes(name: str) -> None:
    assert run({"name": name, "share": 0.0}, rounds=1).weights_sha256 == run(rounds=1).weights_sha256


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "backdoor"])
def test_attacks_keep_the_contract(name: str) -> None:
    """Same bits with two workers and after a stop: of an attack with random updates, and of one with random samples."""
    report = check_component(name)
    assert not report["broken"]
    assert len(report["held"]) == 4


def test_a_sign_flip_of_one_client_by_hand() -> None:
    """FedAvg with -10 Delta_0 in place of Delta_0, weighted by the samples of the clients."""
    settings = {**SMALL, "rounds": 1, "dtype": "float64", "clients": 3}
    context = open_context(Experiment.make("digits", **settings))
    found.clear()
    run(Spy(clients=(0, 1), knows="all"), **settings)
    deltas = found[0].known.copy()
    deltas[0] *= -10
    flipped = run({"name": "sign_flip", "clients": [0], "scale": 10.0}, **settings)
    w = np.concatenate([v.numpy().ravel() for v in flipped.state.values()])
    expected = context.initial - np.average(deltas, axis=0, weights=context.sizes)
    np.testing.assert_allclose(w, expected, rtol=0, atol=1e-12)


def test_weights_are_attacked_as_updates() -> None:
    """A client that sends weights w (cyclic) is seen as w_t - w, and -s times that becomes w_t + s (w_t - w)."""
    start = Model(np.array([1.0, 2.0, 3.0], np.float32))
    sent = Model(np.array([2.0, 2.0, 1.0], np.float32))
    update = flat_update(sent, start)
    assert update.tolist() == [-1.0, 0.0, 2.0]
    assert with_update(sent, -10 * update, start).w.tolist() == [-9.0, 2.0, 23.0]
    assert flat_update(Step(sent.w), start).tolist() == [2.0, 2.0, 1.0]
    assert with_update(Step(sent.w), update, start).delta.dtype == np.float32


@pytest.mark.parametrize(
    "algorithm", ["scaffold", "fednova", "cyclic", "fsvrg", "fedadam", "loadaboost", "fedavg+fedvc", "median", "fedpage"]
)
def test_attacks_compose_with_synchronous_algorithms(algorithm: str) -> None:
    attacked = run({"name": "sign_flip", "share": 0.34}, algorithm=algorithm, rounds=1)
    assert attacked.final.answered == 6
    assert attacked.weights_sha256 != run(algorithm=algorithm, rounds=1).weights_sha256


def test_attackers_that_send_no_number_are_dropped_like_others() -> None:
    dropped = run({"name": "gaussian", "share": 0.34, "sd": 1e12}, rounds=1)
    assert np.isfinite(dropped.final.loss)
    worse = run({"name": "sign_flip", "clients": [0, 1], "scale": 1e12}, rounds=1, algorithm="median")
    assert worse.final.answered == 6  # large, and finite


def test_more_clients_are_asked_than_needed() -> None:
    """Attackers act among the answers that count."""
    devices = {"overselect": 1.5, "speeds": "uniform", "spread": 4.0}
    found.clear()
    run(Spy(clients=(0, 1, 2), knows="all"), share=0.67, devices=devices, rounds=1)
    assert [seen.clients for seen in found] == [4]


# Samples


def test_only_training_samples_of_attackers_change_and_the_fingerprint_stays() -> None:
    experiment = Experiment.make("digits", **SMALL, attack={"name": "backdoor", "share": 0.34, "size": 2})
    clean, partition = partition_data(experiment)
    context = open_context(experiment)
    assert len(context.attackers) == 2
    rows = np.concatenate([partition.clients[k] for k in context.attackers])
    changed = np.flatnonzero((context.data.x != clean.x).any(axis=(1, 2, 3)))
    assert set(changed) <= set(rows)
    assert len(changed) == sum(round(len(partition.clients[k]) / 2) for k in context.attackers)
    assert set(np.flatnonzero(context.data.y != clean.y)) <= set(changed)
    assert context.data.fingerprint() == clean.fingerprint()


def test_a_label_flip_trains_on_the_flipped_labels() -> None:
    """All clients but one flip: the class that the model prefers is the opposite of the true one."""
    flipped = run({"name": "label_flip", "clients": [0, 1, 2, 3, 4]}, rounds=8, local={"lr": 0.3, "epochs": 3})
    confusion = flipped.measured.confusion
    assert confusion is not None
    assert (confusion.argmax(axis=1) == 9 - np.arange(10)).all()


def test_the_success_of_a_backdoor_is_measured_on_triggered_samples(tmp_path: Path) -> None:
    """By hand: the share of test samples of other classes that become the target with the trigger."""
    attack = {"name": "backdoor", "share": 0.34, "size": 2, "target": 3, "poisoned": 0.1, "scale": 1.0}
    saved = fa.run("digits", out=tmp_path / "r", runtime="serial", attack=attack, **{**SMALL, "rounds": 3})
    import torch

    data, partition = partition_data(saved.experiment)
    rows = partition.test[data.y[partition.test] != 3]
    marked = Backdoor(size=2, target=3).triggered(np.asarray(data.x[rows]), data)
    predicted = saved.model()(torch.from_numpy(marked)).argmax(dim=1).numpy()
    assert saved.attack_success == pytest.approx(float((predicted == 3).mean()), abs=1e-12)
    every = Backdoor(size=2, target=3).triggered(np.asarray(data.x[partition.test]), data)
    with_target = float((saved.model()(torch.from_numpy(every)).argmax(dim=1).numpy() == 3).mean())
    assert 0.1 < saved.attack_success < with_target < 0.9  # samples of the target itself would count as successes
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert result["attack_success"] == saved.attack_success
    loaded = fa.load(tmp_path / "r")
    assert loaded.final.attack_success == saved.attack_success
    assert list(loaded.clients["attacker"]) == list(np.isnan(saved.client_accuracy))
    assert any("2 of 6 clients attack (backdoor): " in note for note in loaded.notes)


# Judgement


def test_attackers_are_not_judged() -> None:
    attacked = run({"name": "label_flip", "clients": [1, 4]})
    assert np.flatnonzero(np.isnan(attacked.client_accuracy)).tolist() == [1, 4]
    assert np.isnan(attacked.client_metrics["accuracy"][[1, 4]]).all()
    honest = [0, 2, 3, 5]
    mean = np.average(attacked.client_accuracy[honest], weights=attacked.client_sizes[honest])
    assert attacked.final.weighted_accuracy == pytest.approx(mean, rel=1e-12)


# Refusals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "centralized"}, "centralized has no clients that send updates"),
        ({"algorithm": "local"}, "local has no clients that send updates"),
        ({"uplink": {"clip": 1.0}}, "sign_flip replaces what attackers send"),
        ({"attack": {"name": "sign_flip", "share": 0.1}}, "of 6 clients is no client"),
        ({"attack": {"name": "backdoor", "size": 9}}, "is outside of a sample"),
        ({"attack": {"name": "label_flip"}, "data": "diabetes"}, "label_flip changes classes"),
        ({"attack": {"name": "sign_flop"}}, "did you mean 'sign_flip'"),
        ({"attack": {"name": "sign_flip", "scal": 3}}, "did you mean 'scale'"),
    ],
)
def test_refused_before_work_starts(settings: dict[str, Any], message: str) -> None:
    given = {"data": "digits", **SMALL, "attack": {"name": "sign_flip", "share": 0.5}, **settings}
    with pytest.raises(FedarenaError, match=message):
        fa.run(given, out=False, runtime="serial")


ASYNCHRONOUS = [n for n, entry in components("algorithm").items() if issubclass(entry.make, Asynchronous)]


@pytest.mark.parametrize("algorithm", ASYNCHRONOUS)
def test_asynchronous_algorithms_refuse_attacks_by_name(algorithm: str) -> None:
    with pytest.raises(BadValue, match=f"{algorithm} merges updates as they arrive, and attackers act in rounds"):
        run("sign_flip", algorithm=algorithm)


def test_a_data_attack_goes_with_private_uplinks() -> None:
    assert run({"name": "label_flip", "share": 0.34}, uplink={"clip": 1.0}, rounds=1).final.answered == 6


def test_a_real_federation_refuses_attacks() -> None:
    with pytest.raises(BadValue, match="attacks are for simulations"):
        federated_experiment({"data": {"name": "csv", "label": "y"}, "model": "logreg"}, [], attack={"name": "sign_flip"})
