"""Clients that never train: which they are, and that nothing of the training depends on their samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.test_exclusion import NAMES, SETTINGS, hospitals

import fedarena as fa
from fedarena.config.errors import BadValue, UnknownName
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Partition
from fedarena.data.unseen_clients import unseen_names
from fedarena.engine.setup import open_context, partition_data

QUIET: dict[str, Any] = {"out": False, "runtime": "serial"}


def drawn(**settings: Any) -> Partition:
    return partition_data(Experiment.make("digits", clients=10, evaluate={"unseen": 0.3}, **settings))[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    ["fedavg", "scaffold", "local", "centralized", "ditto", "fedper", "fedproto", "ifca", "fedbuff"],
)
def test_the_training_is_that_without_them_to_the_bit(algorithm: str) -> None:
    settings = {**SETTINGS, **QUIET, "algorithm": algorithm, "model": "mlp_2nn"}
    held = fa.run(hospitals(), evaluate={"unseen": ["Bea"]}, **settings)
    without = fa.run(hospitals(), exclude=["Bea"], **settings)
    assert held.weights_sha256 == without.weights_sha256
    assert held.metrics == without.metrics
    assert held.own_metrics == without.own_metrics
    assert held.metric_curve == without.metric_curve
    assert held.bytes == without.bytes
    np.testing.assert_array_equal(held.client_accuracy, without.client_accuracy)
    assert held.unseen is not None
    assert held.unseen.clients == ("Bea",)
    assert without.unseen is None
    assert "unseen" not in without.summary()


@pytest.mark.parametrize(
    "key",
    [{}, {"folds": 3, "fold": 1, "fold_seed": 7}, {"fold_seed": 7}, {"folds": 3, "fold": 1}, {"validate_share": 0.3}],
)
def test_under_every_division_they_keep_the_samples_that_they_would_train_on(key: dict[str, Any]) -> None:
    exp = Experiment.make(hospitals(), **SETTINGS, **key)
    _, whole = partition_data(exp)
    _, without = partition_data(exp.with_(exclude=["Bea"]))
    _, held = partition_data(exp.with_(evaluate={"unseen": ["Bea"]}))
    for name in ("clients", "client_tests"):
        for one, two in zip(getattr(held, name), getattr(without, name), strict=True):
            np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(held.test, without.test)
    assert (held.unseen, held.population) == ([1], [0, 2, 3])
    np.testing.assert_array_equal(held.unseen_clients[1], whole.clients[1])
    np.testing.assert_array_equal(held.unseen_tests[1], whole.client_tests[1])
    assert not any(len(held.unseen_clients[k]) + len(held.unseen_tests[k]) for k in held.population)


def test_the_draw_depends_on_the_schedule_alone() -> None:
    first = drawn()
    assert len(first.unseen) == 3
    assert first.unseen == drawn(algorithm="ditto", rounds=7, share=0.5).unseen
    assert first.unseen == drawn(schedule_seed=0, seed=5, partition_seed=9).unseen
    draws = {tuple(drawn(schedule_seed=seed).unseen) for seed in range(20)}
    assert len(draws) > 10  # of 120 that are possible


def test_every_client_is_drawn_as_often_as_any_other() -> None:
    """600 draws of 3 of 10: 180 for each client, standard deviation 11.2; beyond 4 of them is one in 1600 for ten clients."""
    _, partition = partition_data(Experiment.make("digits", clients=10))
    counts = np.bincount(
        [int(name) for seed in range(600) for name in unseen_names(partition, 0.3, seed)], minlength=10
    )
    assert counts.sum() == 1800
    assert abs(counts - 180).max() < 45


def test_an_excluded_client_does_not_change_which_others_never_train() -> None:
    unseen = [str(k) for k in drawn().unseen]
    other = next(str(k) for k in range(10) if str(k) not in unseen)
    assert drawn(exclude=[other]).unseen == drawn().unseen
    assert [str(k) for k in drawn(exclude=unseen[:1]).unseen] == unseen[1:]


def hospital_table(folder: Path, shift: float, task: str = "classification") -> Path:
    """Five hospitals in a file; the numbers of the last one, and its labels, are shifted."""
    rng = np.random.default_rng(3)
    names = np.repeat(["a", "b", "c", "d", "e"], 40)
    age, kind = rng.normal(50, 10, 200), rng.choice(["x", "y"], 200)
    y = (age + rng.normal(0, 5, 200) > 50).astype(int) if task == "classification" else age + rng.normal(0, 1, 200)
    last = names == "e"
    age, kind = np.where(last, age + shift, age), np.where(last & (shift > 0), "z", kind)
    y = y if task == "classification" else np.where(last, y + 500 + shift, y)  # the fifths of labels stay as they are
    lines = ["site,age,kind,y", *(f"{s},{a},{k},{v}" for s, a, k, v in zip(names, age, kind, y, strict=True))]
    file = folder / f"table-{shift}.csv"
    file.write_text("\n".join(lines))
    return file


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("algorithm", ["fedavg", "centralized", "histboost"])
def test_nothing_of_a_table_leaks_into_the_training(tmp_path: Path, task: str, algorithm: str) -> None:
    """Means, deviations, levels, the scale of labels and cut points are those of the clients that train."""
    found = []
    for shift in (0.0, 1000.0):
        path = str(hospital_table(tmp_path, shift, task))
        data = {"name": "csv", "path": path, "label": "y", "client": "site", "task": task}
        shared: dict[str, Any] = {"model": "mlp_2nn", "rounds": 2, **QUIET}
        run = fa.run({"data": data}, algorithm=algorithm, evaluate={"unseen": ["e"], "unseen_steps": 2}, **shared)
        found.append(run)
    clean, dirty = found
    assert clean.weights_sha256 == dirty.weights_sha256
    assert clean.metrics == dirty.metrics
    assert clean.unseen is not None
    assert dirty.unseen is not None
    assert clean.unseen.before["loss"] != dirty.unseen.before["loss"]


def test_a_new_client_is_standardised_by_its_own_training_samples(tmp_path: Path) -> None:
    """With `normalise = "client"` a client needs no other one for that, so a shift of its numbers makes no difference."""
    encoded = []
    for shift in (0.0, 1000.0):
        path = str(hospital_table(tmp_path, shift))
        data = {"name": "csv", "path": path, "label": "y", "client": "site", "normalise": "client", "drop": ["kind"]}
        context = open_context(Experiment.make({"data": data}, evaluate={"unseen": ["e"]}, model="logreg"))
        rows = context.owners.unseen_clients[4]
        encoded.append(context.data.x[rows])
        np.testing.assert_allclose(encoded[-1].mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(encoded[-1].std(axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose(*encoded, atol=1e-4)


def test_it_comes_back_from_a_file(tmp_path: Path) -> None:
    for unseen in (0.25, ["1", 2]):
        exp = Experiment.make("digits", evaluate={"unseen": unseen, "unseen_steps": 3})
        (tmp_path / "e.toml").write_text(exp.to_toml())
        assert Experiment.make(tmp_path / "e.toml") == exp
    assert exp.evaluate.unseen == ("1", "2")
    assert Experiment.make("digits", evaluate={"unseen": "none"}).evaluate.unseen is None
    assert "unseen" not in Experiment.make("digits").to_toml()


@pytest.mark.parametrize(
    ("evaluate", "what"),
    [
        ({"unseen": 0.0}, "between 0 and 1"),
        ({"unseen": 1.0}, "between 0 and 1"),
        ({"unseen": 2}, "between 0 and 1"),
        ({"unseen": True}, "evaluate.unseen"),
        ({"unseen": []}, "between 0 and 1"),
        ({"unseen": [0.5]}, "between 0 and 1"),
        ({"unseen": 0.2, "unseen_steps": -1}, "unseen_steps"),
        ({"unseen_steps": 5}, "no client is held out"),
        ({"unseen": 0.2, "on": "train"}, "adapt on their training samples"),
    ],
)
def test_bad_settings_are_named(evaluate: dict[str, Any], what: str) -> None:
    with pytest.raises(BadValue, match=what):
        Experiment.make("digits", evaluate=evaluate)


def test_clients_that_cannot_be_held_out_are_named() -> None:
    exp = Experiment.make(hospitals(), **SETTINGS)

    def split(unseen: Any) -> None:
        partition_data(exp.with_(evaluate={"unseen": unseen}))

    with pytest.raises(UnknownName, match="no client 'Eve'"):
        split(["Eve"])
    with pytest.raises(BadValue, match=r"0.2 of 4 clients with samples is less than one client"):
        split(0.2)
    with pytest.raises(BadValue, match="all 4 clients with samples are held out"):
        split(list(NAMES))
    with pytest.raises(BadValue, match="per_round = 4, but only 3"):
        partition_data(exp.with_(evaluate={"unseen": ["Ada"]}, per_round=4))
    few = Experiment.make("digits", clients=400, partition="iid", evaluate={"unseen": 0.5})  # three samples each
    with pytest.raises(BadValue, match="only 0 have test samples of their own"):
        partition_data(few)
    with pytest.raises(BadValue, match="client '3' has no training samples to adapt on, or no test samples"):
        partition_data(few.with_(evaluate={"unseen": ["3"]}))
