"""Text, keywords and files become one experiment, which prints back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedarena as fa
from fedarena.config.errors import BadValue, UnknownName
from fedarena.config.experiment import Experiment
from fedarena.config.registry import components


@pytest.mark.parametrize("name", ["digits", "breast_cancer", "mnist", "fashion_mnist", "cifar10", "heart_disease"])
def test_a_data_set_is_a_complete_experiment_and_prints_back(name: str, tmp_path: Path) -> None:
    exp = Experiment.make(name)
    (tmp_path / "e.toml").write_text(exp.to_toml())
    again = Experiment.make(tmp_path / "e.toml")
    assert again.to_toml() == exp.to_toml()
    assert again == exp


@pytest.mark.slow
@given(
    lr=st.floats(1e-6, 10),
    batch=st.one_of(st.integers(1, 1000), st.just(math.inf)),
    share=st.floats(0.01, 1),
    seed=st.integers(0, 2**40),
    patience=st.one_of(st.none(), st.integers(1, 9)),
    freeze=st.lists(st.text("ab.*\"'\\é", min_size=1), max_size=2),
)
def test_any_values_survive_printing(
    lr: float, batch: float, share: float, seed: int, patience: int | None, freeze: list[str]
) -> None:
    import tomllib

    local, evaluate = {"lr": lr, "batch": batch}, {"patience": patience} if patience else {}
    exp = Experiment.make("digits", local=local, share=share, seed=seed, evaluate=evaluate, freeze=freeze)
    assert Experiment.make(tomllib.loads(exp.to_toml())) == exp


def test_given_values_win_over_the_data_sets_which_win_over_the_general() -> None:
    exp = Experiment.make("digits", local={"lr": 0.7})
    assert exp.local.lr == 0.7
    assert exp.local.batch == components("dataset")["digits"].make.defaults["local"]["batch"]
    assert exp.local.momentum == 0.0


def test_one_of_two_replaces_the_other() -> None:
    exp = Experiment.make("digits", per_round=3, uploads=50)
    assert (exp.share, exp.per_round, exp.rounds, exp.uploads) == (None, 3, None, 50)
    for both in (
        lambda: Experiment.make({"data": "digits", "share": 0.5, "per_round": 2}),
        lambda: Experiment.make("digits", share=0.5, per_round=2),
        lambda: Experiment.make("digits", ["per_round=2", "share=0.5"]),
    ):
        with pytest.raises(BadValue, match=r"both .* are given"):
            both()


def test_a_name_means_the_same_as_a_word_and_in_a_table() -> None:
    word, table = (Experiment.make("digits", partition=p) for p in ("label_dirichlet", {"name": "label_dirichlet"}))
    assert word == table == Experiment.make("digits", ["partition.name=label_dirichlet"])
    assert word.partition.settings["beta"] == 0.5


def test_values_of_objects_have_the_same_ranges() -> None:
    with pytest.raises(BadValue, match="server_lr = -1"):
        Experiment.make("digits", algorithm=fa.FedAvg(server_lr=-1))


def test_a_new_name_starts_with_its_own_defaults() -> None:
    """Changing partition.name does not carry the old one's settings along."""
    exp = Experiment.make("digits", ["partition.name=shards", "partition.shards_per_client=3"])
    assert exp.partition.settings["shards_per_client"] == 3
    assert "beta" not in exp.partition.settings
    kept = Experiment.make("digits", ["partition.beta=0.7"])
    assert (kept.partition.name, kept.partition.settings["beta"]) == ("label_dirichlet", 0.7)


def test_overrides_speak_toml_and_bare_words() -> None:
    exp = Experiment.make("digits", ["local.batch=inf", "evaluate.target=0.5", "algorithm=fedsgd", 'freeze=["0.*"]'])
    assert exp.local.batch == math.inf
    assert exp.algorithm.name == "fedsgd"
    assert exp.freeze == ("0.*",)


def test_components_as_objects_print_as_text() -> None:
    exp = Experiment.make("digits", algorithm=fa.FedAvg(server_lr=0.5))
    assert 'algorithm = { name = "fedavg", server_lr = 0.5' in exp.to_toml()
    assert exp == Experiment.make("digits", algorithm={"name": "fedavg", "server_lr": 0.5})


def test_with_changes_one_thing() -> None:
    exp = Experiment.make("digits")
    assert exp.with_(seed=4).seed == 4
    assert exp.with_(local={"lr": 9.0}).local == exp.local.model_copy(update={"lr": 9.0})
    assert exp.with_(uploads=10).rounds is None


def test_paths_in_a_file_are_meant_from_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "e.toml").write_text('data = { name = "csv", path = "t.csv", label = "y" }\n')
    assert Experiment.make(tmp_path / "deep" / "e.toml").data.settings["path"] == str(tmp_path / "deep" / "t.csv")


@pytest.mark.parametrize(
    ("settings", "kind", "said"),
    [
        ({}, BadValue, "no data set is given"),
        ({"data": {"path": "x"}}, BadValue, "without a name"),
        ({"data": "digits", "modell": "x"}, UnknownName, "did you mean 'model'"),
        ({"data": "digits", "algorithm": {"name": "fedavg", "server_lr": "fast"}}, BadValue, "server_lr = 'fast'"),
        ({"data": {"name": "csv", "label": "y"}}, BadValue, "needs a value for 'path'"),
        ({"data": "digits", "local": {"batch": True}}, BadValue, "batch is not true or false"),
        ({"data": "digits", "local": 3}, BadValue, "local"),
    ],
)
def test_mistakes_name_the_place(settings: dict[str, object], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said.replace("(", r"\(")):
        Experiment.make(settings)


def test_what_is_not_given_stays_so_in_a_file(tmp_path: Path) -> None:
    """digits has a target of its own; an experiment without one must not get it back by being written down."""
    exp = Experiment.make("digits", ["evaluate.target=none"])
    assert exp.evaluate.target is None
    (tmp_path / "exp.toml").write_text(exp.to_toml())
    assert Experiment.make(tmp_path / "exp.toml") == exp
