"""What a search may try: read, checked against the experiment before anything starts, and known for every algorithm."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.support.algorithm_models import smallest_model

from fedarena.algorithms import FedAvg
from fedarena.config.errors import FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.config.registry import components
from fedarena.engine.setup import open_context
from fedarena.experiments.search_space import PRESETS, Choices, Range, Space, own_space, preset

DIGITS = Experiment.make("digits")


def refused(table: Any, experiment: Experiment = DIGITS) -> str:
    with pytest.raises(FedarenaError) as error:
        Space.make(table).check(experiment)
    return str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "local.lr = { low = 0.01, high = 0.2, log = true }\nlocal.epochs = { choices = [1, 5] }",
        '"local.lr" = { low = 0.01, high = 0.2, log = true }\n"local.epochs" = { choices = [1, 5] }',
        "[local]\nlr = { low = 0.01, high = 0.2, log = true }\nepochs.choices = [1, 5]",
    ],
)
def test_three_ways_to_write_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(text)
    space = Space.make(tmp_path / "space.toml")
    assert space.keys == {"local.lr": Range(0.01, 0.2, log=True), "local.epochs": Choices((1, 5))}
    assert Space.make(space.as_table()) == space
    assert json.loads(json.dumps(space.as_table())) == space.as_table()


def test_whole_numbers_are_those_written_so() -> None:
    assert Range(1, 5).points == [1, 2, 3, 4, 5]
    assert Range(1, 5, step=2).points == [1, 3, 5]
    assert Range(1.0, 5.0).points is None
    assert Range(0.1, 0.3, step=0.1).points == [0.1, 0.2, 0.3]
    assert Range(1, 64, log=True).points is None


def test_a_grid_is_every_combination() -> None:
    space = Space.make({"local.epochs": {"low": 1, "high": 3}, "local.lr": {"choices": [0.1, 0.2]}})
    pairs = [(g["local.epochs"], g["local.lr"]) for g in space.grid]
    assert pairs == list(itertools.product([1, 2, 3], [0.1, 0.2]))


@pytest.mark.parametrize("dimension", [{"low": 0.1, "high": 0.2}, {"low": 1, "high": 9, "log": True}])
def test_a_grid_over_what_has_no_end_is_refused_by_name(dimension: dict[str, Any]) -> None:
    with pytest.raises(FedarenaError, match="a grid cannot hold all of it") as error:
        _ = Space.make({"local.lr": dimension}).grid
    assert "step" in error.value.remedy


@pytest.mark.parametrize(
    ("table", "output"),
    [
        ({}, "the space is empty"),
        ({"local": {}}, "local has no low"),
        ({"local.lr": 0.1}, "leaves nothing to search"),
        ({"local.lr": {"low": 0.1}}, "has no high"),
        ({"local.lr": {"lo": 0.1, "high": 1.0}}, "did you mean 'low'"),
        ({"local.lr": {"low": 1.0, "high": 0.1}}, "is not below high"),
        ({"local.lr": {"low": 0.0, "high": 0.1, "log": True}}, "begin a logarithmic range above 0"),
        ({"local.lr": {"low": 0.1, "high": 1.0, "log": True, "step": 0.1}}, "log and step exclude each other"),
        ({"local.lr": {"low": 0.1, "high": 1.0, "step": 0.4}}, "does not lead from 0.1 to 1"),
        ({"local.lr": {"low": 0.1, "high": 1.0, "step": -0.1}}, "does not lead"),
        ({"local.lr": {"low": "a", "high": 1.0}}, "give a number"),
        ({"local.lr": {"low": 0.1, "high": 1.0, "log": 1}}, "give true or false"),
        ({"local.lr": {"choices": []}}, "at least one value"),
        ({"local.lr": {"choices": [[0.1]]}}, "give texts, numbers"),
        ({"local.lr": {"choices": [0.1, 0.1]}}, "names a value twice"),
        ({"local.lr": {"choices": [0.1], "low": 0.1}}, "exclude each other"),
        ({"locl.lr": {"choices": [0.1]}}, "did you mean 'local'"),
        ({"local.rl": {"choices": [0.1]}}, "did you mean 'lr'"),
        ({"algorithm.mu": {"choices": [0.1]}}, "'fedavg' has no setting 'mu'"),
        ({"local.lr": {"low": -1.0, "high": 1.0}}, "local.lr = -1.0"),
        ({"local.momentum": {"low": 0.0, "high": 1.0}}, "local.momentum = 1.0"),
        ({"local.epochs": {"choices": [1, "many"]}}, "local.epochs = 'many'"),
        ({"seed": {"low": 0, "high": 9}}, "seed defines the task"),
        ({"partition.beta": {"low": 0.1, "high": 9.0}}, "partition defines the task"),
        ({"rounds": {"low": 1, "high": 9}}, "rounds defines the task"),
        ({"share": {"choices": [0.1]}, "per_round": {"choices": [1]}}, "both share and per_round"),
    ],
)
def test_a_mistake_is_reported_before_anything_starts(table: Any, output: str) -> None:
    message = refused(table)
    assert output in message
    assert "\n  -> " in message


def test_the_range_of_an_algorithms_setting_is_respected() -> None:
    fedavgm = Experiment.make("digits", algorithm="fedavgm")
    assert "beta = 1.0 does not fit algorithm 'fedavgm'" in refused(
        {"algorithm.beta": {"low": 0.0, "high": 1.0}}, fedavgm
    )
    Space.make({"algorithm.beta": {"low": 0.0, "high": 0.99}}).check(fedavgm)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    assert "there is no file" in refused(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("local.lr = {")
    assert "cannot read it" in refused(tmp_path / "bad.toml")


def test_own_values_are_those_of_the_experiment_if_they_lie_in_the_space() -> None:
    space = Space.make({"local.lr": {"low": 0.01, "high": 1.0}, "local.batch": {"choices": [8, 16]}})
    assert space.own_values(DIGITS) == {"local.lr": 0.1, "local.batch": 16}
    assert space.own_values(DIGITS.with_(local={"lr": 2.0})) is None


def test_all_rows_at_once_is_a_choice() -> None:
    space = Space.make({"local.batch": {"choices": [16, float("inf")]}})
    space.check(DIGITS)
    assert DIGITS.with_(**space.grid[1]).local.batch == float("inf")


# Published searches


def test_nilssons_searches_are_the_papers() -> None:
    fedavg, fsvrg = PRESETS["nilsson-fedavg"], PRESETS["nilsson-fsvrg"]
    assert fedavg.space.keys == {"local.lr": Range(0.01, 0.2, log=True), "local.decay": Range(1e-8, 1e-3, log=True)}
    assert (fedavg.method, fedavg.trials) == ("random", 56)  # "all 56 configurations"
    assert [point["algorithm.h"] for point in fsvrg.space.grid] == [1, 2, 3, 4, 5]
    assert fsvrg.method == "grid"


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_fits_its_algorithm_and_no_other(name: str) -> None:
    known = PRESETS[name]
    known.space.check(Experiment.make("digits", algorithm=known.algorithm))
    if known.method == "grid":
        assert len(known.space.grid) == known.trials
    with pytest.raises(FedarenaError, match=f"searches {known.algorithm}, and the experiment has scaffold"):
        preset(name, Experiment.make("digits", algorithm="scaffold"))


def test_an_unknown_preset_gets_a_suggestion() -> None:
    with pytest.raises(FedarenaError, match="did you mean 'nilsson-fedavg'"):
        preset("nilson-fedavg", DIGITS)


# Every algorithm its own


@pytest.mark.parametrize("name", list(components("algorithm")))
def test_every_algorithm_has_a_space_whose_corners_it_accepts(name: str) -> None:
    experiment = Experiment.make("digits", algorithm=name, model=smallest_model(name))
    space = own_space(experiment)
    assert ("local.lr" in space.keys) != (name == "fsvrg")  # its step is h / n_k
    assert len(space.keys) == 2  # equal trials are worth the same in spaces of equal size
    space.check(experiment)
    for end in (0, -1):
        open_context(experiment.with_(**{key: dimension.ends[end] for key, dimension in space.keys.items()}))


def test_the_space_of_an_algorithm_in_company_is_its_own() -> None:
    alone = own_space(Experiment.make("digits", algorithm="fedavgm"))
    assert own_space(Experiment.make("digits", algorithm={"name": "fedavgm", "with": ["fedir", "fedvc"]})) == alone


@dataclass(frozen=True)
class Mine(FedAvg):
    """Says itself what to search."""

    search: ClassVar[dict[str, Any]] = {"algorithm.server_lr": {"low": 0.5, "high": 2.0}}


def test_an_algorithm_may_declare_its_space() -> None:
    assert own_space(Experiment.make("digits", algorithm=Mine())).keys == {"algorithm.server_lr": Range(0.5, 2.0)}
