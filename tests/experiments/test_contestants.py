"""Labels: what is typed is what is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import fedarena as fa
from fedarena.algorithms import FedIR, FedVC
from fedarena.config.algorithm_text import label_of, parse
from fedarena.config.experiment import Experiment
from fedarena.experiments.contestants import contestants


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        ("fedavg", {"name": "fedavg"}),
        (" fedprox:mu=0.1 ", {"name": "fedprox", "mu": 0.1}),
        ("fedprox: mu = 0.1", {"name": "fedprox", "mu": 0.1}),
        ("fedavgm:beta=0.9+fedir", {"name": "fedavgm", "beta": 0.9, "with": [{"name": "fedir"}]}),
        (
            "fedavg+fedvc:n_vc=64+fedir",
            {"name": "fedavg", "with": [{"name": "fedvc", "n_vc": 64}, {"name": "fedir"}]},
        ),
        ("scaffold:option=ii,flag=true", {"name": "scaffold", "option": "ii", "flag": True}),  # a bare word is a text
        ("x:big=1e+5,less=-1e-3", {"name": "x", "big": 1e5, "less": -1e-3}),  # this plus belongs to the number
        ("x:list=[1, 2],text='a,b+c'", {"name": "x", "list": [1, 2], "text": "a,b+c"}),
    ],
)
def test_a_label_means(text: str, algorithm: dict[str, Any]) -> None:
    assert parse(text) == (text.strip(), {"algorithm": algorithm})


def test_local_settings_go_to_the_experiment() -> None:
    _, table = parse("fedprox:mu=0.1,local.lr=0.05,local.epochs=3+fedir")
    assert table["local"] == {"lr": 0.05, "epochs": 3}
    assert table["algorithm"] == {"name": "fedprox", "mu": 0.1, "with": [{"name": "fedir"}]}
    exp = Experiment.make("digits", local={"lr": 0.3, "batch": 7}).with_(**table)
    assert (exp.local.lr, exp.local.epochs, exp.local.batch) == (0.05, 3, 7)
    assert exp.algorithm.name == "fedprox"


def test_a_name_of_ones_own() -> None:
    assert parse("twin=fedavg") == ("twin", {"algorithm": {"name": "fedavg"}})
    assert parse("slow=fedprox:mu=0.1,local.lr=0.01")[0] == "slow"
    assert parse("fedprox:mu=0.1")[0] == "fedprox:mu=0.1"  # the first = comes after a colon: no name
    assert list(contestants(["fedavg", "twin=fedavg"])) == ["fedavg", "twin"]


@dataclass(frozen=True)
class Mine(fa.FedAvg):
    """An algorithm that is not registered."""

    gain: float = 1.0


def test_objects_and_tables_are_named_by_what_differs() -> None:
    given = [
        fa.FedProx(),
        fa.FedProx(mu=0.5),
        {"name": "fedprox", "mu": 0.25},
        FedIR(base=FedVC(base=fa.FedAvgM(beta=0.5))),
    ]
    assert list(contestants([*given, Mine(gain=2.0)])) == [
        "fedprox", "fedprox:mu=0.5", "fedprox:mu=0.25", "fedavgm:beta=0.5+fedvc+fedir", "Mine:gain=2.0",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["fedavg", "fedprox:mu=0.5", "fedavgm:beta=0.5+fedir", "fedprox:mu=2.0,local.lr=0.1"])
def test_a_label_reads_back(text: str) -> None:
    assert label_of(parse(text)[1]) == text


def test_a_mapping_gives_names() -> None:
    found = contestants({"a": "fedavg", "b": fa.FedProx(mu=1.0), "c": {"algorithm": "fedavg", "local": {"lr": 0.01}}})
    assert found["a"] == {"algorithm": {"name": "fedavg"}}
    assert found["b"] == {"algorithm": fa.FedProx(mu=1.0)}
    assert found["c"] == {"algorithm": "fedavg", "local": {"lr": 0.01}}


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "no algorithm is named"),
        (["fedavg"], "one algorithm cannot be compared"),
        ("fedavg", "one algorithm cannot be compared"),
        ({"name": "fedavg"}, "a comparison needs two algorithms"),
        (["fedavg", "fedavg"], "'fedavg' twice cannot be distinguished"),
        (["fedavg", " fedavg"], "'fedavg' twice"),
        ({"a b": "fedavg", "a-b": "fedprox"}, "'a b' and 'a-b' cannot be distinguished"),
        ({"A": "fedavg", "a": "fedprox"}, "'A' and 'a' cannot be distinguished"),
        ({"..": "fedavg", "a": "fedprox"}, "'..' cannot be the name of a contestant"),
        ({"a": "b=fedavg", "c": "fedprox"}, "two labels"),
        ({"a" * 201: "fedavg", "b": "fedprox"}, "cannot be the name of a contestant"),
        ({"ä" * 101: "fedavg", "b": "fedprox"}, "at most 200 bytes"),
        (["fedavg", "scafold"], r"no algorithm is called 'scafold'  \(-a scafold, algorithm.name\)\n.*'scaffold'"),
        (["fedavg", "fedprox:nu=1"], "has no setting 'nu'"),
        (["fedavg", "fedprox:mu=much"], "mu = 'much' does not fit"),
        (["fedavg", "fedprox:mu"], "'mu' is not a setting"),
        (["fedavg", "fedprox:mu="], "'mu=' is not a setting"),
        (["fedavg", "fedprox:"], "a setting is missing"),
        (["fedavg", "fedprox:name=fedavg"], "'name=fedavg' is not a setting"),
        (["fedavg", "+fedir"], "a name is missing"),
        (["fedavg", "x="], "names no algorithm"),
        (["fedavg", "=fedprox"], "names no algorithm"),
        (["fedavg", "fedavg+scaffold"], "not a companion"),
        (["fedavg", "fedprox:model.norm=bn"], "model.norm cannot differ between algorithms"),
        (["fedavg", "fedavg+fedir:local.lr=1"], "local.lr cannot differ"),
        ([fa.FedAvg, "fedprox"], "is not a valid algorithm"),
        ([{"algorithm": "fedavg", "seed": 3}, "fedprox"], "seed cannot differ between algorithms"),
        ([{"local": {"lr": 1}}, "fedprox"], "no algorithm is named"),
    ],
)  # fmt: skip
def test_refused_with_a_remedy(choices: Any, message: str) -> None:
    with pytest.raises(fa.FedarenaError, match=message):
        contestants(choices)
