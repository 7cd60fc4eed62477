"""Clients that are left out of an experiment: the same samples and streams for all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedarena as fa
from fedarena.config.errors import BadValue, PartitionImpossible, UnknownName
from fedarena.config.experiment import Experiment
from fedarena.data.sources import arrays
from fedarena.engine.setup import partition_data

NAMES = ("Ada", "Bea", "Cyd", "Dee")
SETTINGS: dict[str, Any] = {"model": "logreg", "rounds": 3, "local": {"lr": 0.2, "batch": 4}}


def hospitals(left_out: str = "") -> Any:
    """Four clients with training and test samples of their own; one of them may be deleted by hand."""
    rng = np.random.default_rng(5)
    client = np.repeat(NAMES, [20, 14, 26, 17])
    x = rng.normal(size=(len(client), 3)).astype(np.float32)
    y = (x.sum(axis=1) + rng.normal(size=len(client)) > 0).astype(int)
    kept, test = client != left_out, np.arange(len(client)) % 4 == 0
    train, test = kept & ~test, kept & test
    return arrays(x[train], y[train], client[train], x[test], y[test], client[test])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "local", "centralized"])
def test_excluding_the_last_client_is_deleting_its_samples(algorithm: str) -> None:
    """Streams are keyed by the number of a client, which does not change for others if the last one is deleted."""
    settings = {**SETTINGS, "algorithm": algorithm, "out": False}
    excluded = fa.run(hospitals(), exclude=["Dee"], **settings)
    deleted = fa.run(hospitals(left_out="Dee"), **settings)
    assert excluded.weights_sha256 == deleted.weights_sha256
    assert excluded.metrics == deleted.metrics
    assert excluded.own_metrics == deleted.own_metrics
    assert np.array_equal(excluded.client_accuracy[:3], deleted.client_accuracy)
    assert np.isnan(excluded.client_accuracy[3])
    assert excluded.weights_sha256 != fa.run(hospitals(), **settings).weights_sha256


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_local_training_of_the_others_does_not_change_by_a_bit(name: str) -> None:
    """Who trains alone has the same samples, batches and initial weights without any other client."""
    whole = fa.run(hospitals(), algorithm="local", out=False, **SETTINGS)
    without = fa.run(hospitals(), algorithm="local", out=False, exclude=name, **SETTINGS)
    others = np.array(NAMES) != name
    for metric, values in whole.client_metrics.items():
        assert np.array_equal(values[others], without.client_metrics[metric][others], equal_nan=True), metric
    assert not without.client_sizes[~others].any()
    assert np.isnan(without.client_accuracy[~others]).all()


@pytest.mark.parametrize(
    "key",
    [{}, {"folds": 3, "fold": 1, "fold_seed": 7}, {"fold_seed": 7}, {"folds": 3, "fold": 1}, {"validate_share": 0.3}],
)
def test_the_others_keep_their_samples_under_every_division(key: dict[str, Any]) -> None:
    exp = Experiment.make(hospitals(), **SETTINGS, **key)
    _, whole = partition_data(exp)
    _, without = partition_data(exp.with_(exclude=["Bea"]))
    assert without.names == whole.names == NAMES
    assert without.population == [0, 2, 3]
    for k in without.population:
        assert np.array_equal(whole.clients[k], without.clients[k])
        assert np.array_equal(whole.client_tests[k], without.client_tests[k])
    assert np.array_equal(without.test, np.setdiff1d(whole.test, whole.client_tests[1]))
    assert len(whole.client_tests[1])


def test_common_test_samples_that_belong_to_no_client_stay() -> None:
    exp = Experiment.make("digits", clients=4, partition_seed=3)
    (_, whole), (_, without) = partition_data(exp), partition_data(exp.with_(exclude=[2]))
    assert without.population == [0, 1, 3]
    assert np.array_equal(whole.test, without.test)
    assert not len(without.client_tests[2])
    assert np.array_equal(whole.client_tests[3], without.client_tests[3])


def test_the_key_changes_nothing_where_it_is_not_given() -> None:
    exp = Experiment.make("digits")
    assert "exclude" not in exp.as_table()
    assert exp.with_(exclude=[]) == exp
    back = Experiment.make("digits", exclude=[1, "2", 1])
    assert back.exclude == ("1", "2")


def test_it_comes_back_from_a_file(tmp_path: Path) -> None:
    exp = Experiment.make("digits", exclude="3")
    (tmp_path / "e.toml").write_text(exp.to_toml())
    assert Experiment.make(tmp_path / "e.toml") == exp


def test_what_cannot_be_excluded_is_named() -> None:
    exp = Experiment.make(hospitals(), **SETTINGS)
    with pytest.raises(UnknownName, match="no client 'Eve'"):
        partition_data(exp.with_(exclude=["Eve"]))
    with pytest.raises(PartitionImpossible, match="without Ada, Bea, Cyd, Dee there are no"):
        partition_data(exp.with_(exclude=list(NAMES)))
    with pytest.raises(BadValue, match="exclude"):
        exp.with_(exclude=[1.5])
    with pytest.raises(BadValue, match="per_round = 4, but only 3"):
        partition_data(exp.with_(exclude=["Ada"], per_round=4))
