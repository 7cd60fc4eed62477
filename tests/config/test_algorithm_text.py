"""An algorithm as text means the same in an experiment as in a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedarena as fa
from fedarena.config.experiment import Experiment
from fedarena.experiments.contestants import contestants

TABLE = {"name": "fedprox", "mu": 0.1, "with": ["fedir"]}


@pytest.mark.parametrize("text", ["fedprox:mu=0.1+fedir", " fedprox:mu=0.1 + fedir"])
def test_text_and_table_are_the_same_algorithm(text: str, tmp_path: Path) -> None:
    wanted = Experiment.make("digits", algorithm=TABLE)
    assert Experiment.make("digits", algorithm=text) == wanted
    assert Experiment.make("digits", [f"algorithm={text}"]) == wanted
    assert Experiment.make("digits").with_(algorithm=text) == wanted
    (tmp_path / "e.toml").write_text(f'data = "digits"\nalgorithm = "{text}"\n')
    assert Experiment.make(tmp_path / "e.toml") == wanted


def test_local_settings_of_the_text_come_after_those_of_the_experiment() -> None:
    text = "fedavg:local.lr=0.7"
    made = Experiment.make("digits", algorithm=text, local={"lr": 0.1, "batch": 7})
    assert (made.local.lr, made.local.batch) == (0.7, 7)
    base = Experiment.make("digits", local={"lr": 0.1, "batch": 7})
    assert base.with_(**contestants(["fedsgd", text])[text]) == made


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mine=fedavg", "only the algorithms of a comparison"),
        ("fedprox:mu", "'mu' is not a setting"),
        ("fedprox:nu=1", "did you mean 'mu'"),
        ("fedproks:mu=1", "did you mean 'fedprox'"),
        (":mu=1", "a name is missing"),
    ],
)
def test_a_wrong_text_is_explained(text: str, problem: str) -> None:
    with pytest.raises(fa.FedarenaError, match=problem):
        Experiment.make("digits", algorithm=text)
