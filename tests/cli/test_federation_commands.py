"""The commands as a user types them: mistakes end with exit code 2 before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.federation_clients import Federation
from typer.testing import CliRunner, Result

pytest.importorskip("cryptography")
from fedarena import api
from fedarena.cli.main import app
from fedarena.config.errors import FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.federation.consent import differences, experiment_as_text, experiment_from_text, federated_experiment
from fedarena.federation.what_leaves import what_leaves

TABLE = 'data = { name = "csv", label = "label", standardise = false }\nrounds = 2\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Federation(tmp_path)
    (tmp_path / "exp.toml").write_text(TABLE)
    return tmp_path


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == code, result.output
    return result


@pytest.mark.slow
def test_keys_for_all_parties_and_for_one_more(folder: Path) -> None:
    assert run("federation", "keys", "alfa", "bravo").stdout.split() == ["keys/organiser", "keys/alfa", "keys/bravo"]
    more = json.loads(run("federation", "keys", "charlie", "--json").stdout)
    assert more == {"organiser": "keys/organiser", "charlie": "keys/charlie"}
    assert sorted(path.name for path in Path("keys/organiser/participants").iterdir()) == [
        "alfa.pub",
        "bravo.pub",
        "charlie.pub",
    ]
    assert "is already there" in run("federation", "keys", "alfa", code=2).stderr


SERVE = [
    (["exp.toml"], "cannot read keys/cert.pem"),
    (["exp.toml", "--keys", "made", "--participants", "7"], "7 clients, and the keys of 2 are known"),
    (["exp.toml", "--keys", "made", "--minimum", "3"], "a minimum of 3 of 2"),
    (["exp.toml", "--keys", "made", "--set", "algorithm=centralized"], "centralized needs all samples in one place"),
    (["exp.toml", "--keys", "made", "--set", "partition=iid"], "partition 'iid' splits a pooled table"),
    (["digits", "--keys", "made"], "'digits' is not a table of which clients have files"),
    (["--resume", "nowhere", "--keys", "made"], "is not a run folder"),
]


@pytest.mark.parametrize(("words", "expected"), SERVE)
def test_mistakes_of_a_server(words: list[str], expected: str, folder: Path) -> None:
    run("federation", "keys", "alfa", "bravo", "--out", "made")
    result = run("serve", *words, code=2)
    assert expected in result.stderr
    assert not Path("runs").exists()


JOIN = [
    (["--data", "nothing.csv", "--keys", "made/alfa"], "there is no file nothing.csv"),
    (["--data", "alfa.csv", "--keys", "made/alfa", "--name", "bravo"], "the keys are those of 'alfa', not of 'bravo'"),
    (["--data", "alfa.csv", "--keys", "made/zulu"], "cannot read made/zulu/node.pub"),
    (
        ["--data", "alfa.csv", "--keys", "made", "--name", "alfa", "--experiment", "no.toml"],
        "no experiment file no.toml",
    ),
]


@pytest.mark.parametrize(("words", "expected"), JOIN)
def test_mistakes_of_a_client(words: list[str], expected: str, folder: Path) -> None:
    run("federation", "keys", "alfa", "bravo", "--out", "made")
    assert expected in run("join", "--server", "127.0.0.1:1", *words, code=2).stderr


@pytest.mark.slow
def test_the_help_names_what_a_newcomer_needs() -> None:
    for command in ("serve", "join", "federation keys"):
        text = run(*command.split(), "--help").stdout
        assert f"fedarena {command}" in " ".join(text.split())


# The experiment, as server and clients see it


def test_an_experiment_needs_no_path_and_no_owner(folder: Path) -> None:
    experiment = federated_experiment("exp.toml", [])
    assert experiment.partition.name == "natural"
    assert experiment.data.made.client == "participant"
    assert experiment_from_text(experiment_as_text(experiment)) == experiment_from_text(
        experiment_as_text(federated_experiment("exp.toml", ["data.path=all.csv"]))
    )


def test_clients_see_no_path_of_the_servers_machine(folder: Path) -> None:
    trace = Path("trace.csv")
    trace.write_text("client,speed\n")
    text = experiment_as_text(federated_experiment("exp.toml", ["data.path=all.csv", f"devices.trace={trace}"]))
    assert str(folder) not in text
    assert "trace" not in text
    named = Experiment.make(
        "exp.toml", ["data.path=/participants", "data.client=participant", "devices.trace=/etc/hosts"]
    )
    with pytest.raises(FedarenaError, match="names a file of this machine"):
        experiment_from_text(named.to_toml())


def test_an_experiment_that_was_agreed_on_is_the_only_one(folder: Path) -> None:
    mine = federated_experiment("exp.toml", [])
    elsewhere = federated_experiment("exp.toml", ["data.path=all.csv"])
    assert differences(mine, experiment_from_text(experiment_as_text(elsewhere))) == {}
    longer = federated_experiment("exp.toml", ["rounds=3"])
    assert differences(mine, longer) == {"rounds": "rounds = 3, not 2"}


LEAVES = [
    ([], "labels that occur", True),
    ([], "sum over its training rows", False),
    (["data.standardise=true"], "sum over its training rows", True),
    ([], "of each class", False),
    (['algorithm={name="fedavg", with=["fedir"]}'], "of each class", True),
    (['algorithm={name="fedavg", with=[{name="fedir", target="uniform"}]}'], "of each class", False),
    (["uplink.secure=true"], "only the sum over clients can be read", True),
    ([], "of each training its loss", True),
    (["local.privacy={clip=1, noise=2}"], "its loss", False),
    (["local.privacy={clip=1, noise=2}"], "clipped to 1, and noise of 2 times that on their sum", True),
    (["algorithm=coop"], "when it has finished a training", True),
    (["algorithm=local"], "a change of the model's weights", False),
]


@pytest.mark.parametrize(("overrides", "expected", "leaves"), LEAVES)
def test_what_leaves_is_shown_before_it_does(overrides: list[str], expected: str, leaves: bool, folder: Path) -> None:
    text = "\n".join(what_leaves(federated_experiment("exp.toml", overrides), shares_models=False))
    assert (expected in text) == leaves


def test_serve_and_join_are_in_the_api() -> None:
    assert {"serve", "join"} <= {*api.__all__}
