"""Bad input of every kind is one message that says what, where and what to do, before any work starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config.errors import BadValue, FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.config.settings_tables import Devices, Evaluate, Local, Uplink
from fedarena.engine.setup import open_context

QUICK = ["--set", "rounds=1", "--set", "clients=4", "--set", "partition=iid", "--runtime", "serial", "-q"]
LONG = "n" * 300
NUL = "a\0b"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(*arguments: str) -> str:
    """Return the message of a command that must end with exit code 2, without a traceback and without a run folder."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2, (result.exception, result.output)
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not list(Path().rglob("result.json"))
    return result.stderr


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("share={}", "share"),
        ("rounds.x=1", "rounds is a single value and has no key 'x'"),
        ("device=meta", "device = 'meta' cannot be used"),
        ("device=meta:0", "device = 'meta:0' cannot be used"),
        ("devices.overselect=1e308", "devices.overselect"),
        ("uplink={clip=1,noise=1e308}", "uplink.noise"),
        ("uplink={clip=1e308}", "uplink.clip"),
        ("local.lr=1e308", "local.lr"),
        ("local.batch=1e308", "local.batch"),
        ("devices.speed=5e-324", "devices.speed"),
        ("devices.bandwidth=5e-324", "devices.bandwidth"),
        ("seed=0x" + "f" * 40, "seed"),
        ("rounds=" + "9" * 5000, "rounds"),
        ("rounds=0x" + "f" * 5000, "rounds"),
        ("local=[1]", "local"),
        ("algorithm={name='fedavg', with=5}", "algorithm.with"),
        ("algorithm={name='fedavg', with=[5]}", "algorithm.with"),
        ("algorithm.server_lr=1e308", "algorithm.server_lr"),
        ('data={name="csv", path="a\\u0000b.csv", label="y"}', "data.path"),
        ('devices.trace="a\\u0000b"', "devices.trace"),
        ('devices.available="a\\u0000b"', "devices.available"),
        ("v=" + "[" * 2000, "v"),
    ],
)
def test_a_bad_setting_ends_with_a_message(setting: str, said: str) -> None:
    message = refused("run", "digits", *QUICK, "--set", setting)
    assert said in message
    assert "\n  -> " in message
    assert len(message) < 1000


@pytest.mark.parametrize(
    "setting",
    [
        "data={name='least_squares', features=1000000000}",
        "data={name='least_squares', clients=1000000, rows=1000000}",
        "data={name='least_squares', clients=1000000, rows=1, sizes='unequal'}",
        "partition={name='label_dirichlet', retries=2147483648}",
        "partition={name='quantity_dirichlet', max_draws=2147483648}",
        "algorithm={name='fedavg', with=[{name='fedvc', n_vc=2147483648}]}",
    ],
)
def test_a_component_of_absurd_size_is_refused_before_memory_is_taken(setting: str) -> None:
    assert "\n  -> " in refused("run", "digits", "--set", setting)


@pytest.mark.parametrize(
    "nested", ["[" * 2000, "[" * 2000 + "]" * 2000, "{a=" * 2000], ids=["open", "closed", "tables"]
)
def test_deeply_nested_toml_is_refused(nested: str) -> None:
    Path("deep.toml").write_text(f'data = "digits"\nfreeze = {nested}\n')
    assert "deep.toml" in refused("run", "deep.toml")
    Path("space.toml").write_text(f"local = {nested}\n")
    assert "space.toml" in refused("search", "digits", "--space", "space.toml", "--trials", "1")


PATHS = [
    ("run", "digits", "--out", "PATH"),
    ("run", "--resume", "PATH"),
    ("run", "digits", "--file", "PATH"),
    ("run", "PATH.toml"),
    ("run", "PATH.csv", "--set", "data.label=y"),
    ("compare", "digits", "-a", "fedavg", "-a", "fedprox", "--out", "PATH"),
    ("compare", "digits", "-a", "fedavg", "-a", "fedprox", "--report", "PATH/r.html"),
    ("compare", "digits", "-a", "fedavg", "-a", "fedprox", "--report", "PATH"),
    ("compare", "digits", "-a", "fedavg", "-a", "fedprox", "--tune", "2", "--spaces", "PATH"),
    ("compare", "--resume", "PATH"),
    ("search", "digits", "--trials", "1", "--out", "PATH"),
    ("search", "digits", "--trials", "1", "--study", "PATH"),
    ("search", "digits", "--trials", "1", "--space", "PATH"),
    ("search", "--resume", "PATH"),
    ("report", "PATH"),
    ("ui", "PATH", "--no-open"),
    ("verify", "PATH"),
    ("verify", "PATH.json"),
    ("reproduce", "N-F2", "--out", "PATH"),
    ("reproduce", "N-F2", "--save", "PATH/deeper"),
    ("reproduce", "--resume", "PATH"),
    ("reproduce", "--judge", "PATH"),
    ("reproduce", "--page", "PATH"),
    ("data", "get", "mnist", "--folder", "PATH"),
    ("data", "show", "digits", "--plot", "PATH"),
    ("check", "fedavg", "--file", "PATH"),
]


@pytest.mark.slow
@pytest.mark.parametrize("path", [NUL, LONG, "d/" * 3000], ids=["nul", "long", "deep"])
@pytest.mark.parametrize("command", PATHS, ids=[" ".join(c).replace("PATH", "-") for c in PATHS])
def test_a_path_that_no_file_can_have_is_refused(command: tuple[str, ...], path: str) -> None:
    refused(*(part.replace("PATH", path) for part in command))


@pytest.mark.parametrize(
    "call",
    [
        lambda: fa.run("digits", out=NUL),
        lambda: fa.run(resume=NUL),
        lambda: fa.run("digits", track=NUL),
        lambda: fa.rounds("digits", out=NUL),
        lambda: fa.load(NUL),
        lambda: fa.verify(NUL),
        lambda: fa.run(f"{NUL}.toml"),
        lambda: fa.run(f"{NUL}.csv", data={"label": "y"}),
        lambda: fa.run(fa.csv(NUL, label="y")),
        lambda: fa.run(fa.parquet(NUL, label="y")),
        lambda: fa.run(fa.csv("x.csv", label="y", test_path=NUL)),
        lambda: fa.run("digits", partition={"name": "natural", "table": NUL}),
        lambda: fa.compare("digits", ["fedavg", "fedprox"], out=NUL),
        lambda: fa.compare("digits", ["fedavg", "fedprox"], report=NUL),
        lambda: fa.compare(resume=NUL),
        lambda: fa.search("digits", trials=1, out=NUL),
        lambda: fa.search("digits", trials=1, study=NUL),
        lambda: fa.search("digits", trials=1, space=NUL),
        lambda: fa.search(resume=NUL),
        lambda: fa.reproduce("N-F2", out=NUL),
        lambda: fa.reproduce(resume=NUL),
        lambda: fa.reproduce("N-F2", save=NUL),
        lambda: fa.report(NUL),
    ],
)
def test_a_nul_byte_in_a_path_is_refused_from_python(call: Any) -> None:
    with pytest.raises(FedarenaError):
        call()
    assert not list(Path().iterdir())


@pytest.mark.parametrize("folder", ["~no-such-user-at-all/data", "d/" * 3000, LONG])
def test_a_data_folder_that_cannot_be_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDARENA_DATA", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.cwd()))
    assert "FEDARENA_DATA" in refused("run", "mnist", *QUICK)


@pytest.mark.parametrize("table", [Local, Evaluate, Devices, Uplink, Experiment])
def test_every_number_of_an_experiment_has_a_largest_value(table: Any) -> None:
    """1e308 for any key is refused in one message or makes an experiment that opens and runs."""
    messages: list[str] = []
    prefix = "" if table is Experiment else table.__name__.lower() + "."
    for key in table.model_fields:
        for number in ("1e308", "1e-308", "0x" + "f" * 30):
            settings = [
                f"{prefix}{key}={number}",
                *(["uplink.clip=1"] if prefix == "uplink." and key != "clip" else []),
            ]
            try:
                exp = Experiment.make("digits", ["rounds=1", "clients=4", "partition=iid", "model=logreg", *settings])
                fa.run(exp.with_(rounds=1), runtime="serial", out=False)
            except FedarenaError as error:
                messages.append(str(error))
    assert messages
    assert max(map(len, messages)) < 1000


X, Y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
MASKED = np.ma.array(X, mask=X > 2)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (([[1.0, 2.0], [3.0]], [0, 1]), "x cannot be converted to an array"),
        ((X, [[0], [1, 2]]), "y cannot be converted to an array"),
        ((X, Y, [[0], [1, 2]]), "client cannot be converted to an array"),
        ((X, Y, np.zeros((40, 2))), "client has shape (40, 2)"),
        ((X, Y, np.float64(3)), "client has shape ()"),
        ((MASKED, Y), "x has masked values"),
        (([MASKED[i] for i in range(40)], Y), "x has masked values"),
        ((X, np.ma.array(Y, mask=Y == 1)), "y has masked values"),
        ((X, Y, np.ma.array(Y, mask=Y == 1)), "client has masked values"),
        ((X, np.where(Y == 1, np.inf, 0.0)), "y is inf in row 1"),
        ((X, np.where(Y == 1, "nan", "yes")), "y is 'nan' in row 1"),
        ((X, Y, np.where(Y == 1, np.inf, 0.0)), "client is inf in row 1"),
        ((np.float64(1), Y), "x has 0 rows"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(source: Any, said: str) -> None:
    with pytest.raises(BadValue) as caught:
        fa.run(source, out=False, runtime="serial", rounds=1, clients=0 if len(source) == 3 else 2)
    assert said in str(caught.value)


def test_a_masked_array_without_masked_values_is_an_array() -> None:
    exp = {"out": False, "runtime": "serial", "rounds": 1, "clients": 2}
    plain, masked = fa.run((X, Y), **exp), fa.run((np.ma.array(X), Y), **exp)
    assert plain.weights_sha256 == masked.weights_sha256


def test_labels_that_differ_only_in_spaces_are_noted() -> None:
    words = np.array(["yes", "yes ", "no", "no"] * 10)
    run = fa.run((X, words), out=False, runtime="serial", rounds=1, clients=2)
    assert [note for note in run.notes if "'yes' and 'yes '" in note]
    assert not [n for n in fa.run((X, Y), out=False, runtime="serial", rounds=1, clients=2).notes if "spaces" in n]


@pytest.mark.slow
def test_a_huge_cell_is_quoted_in_part() -> None:
    Path("t.csv").write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(30)) + "z" * 100_000 + ",1\n")
    message = refused("run", "t.csv", "--set", "data.label=y", *QUICK)
    assert "zzz" in message
    assert len(message) < 1000


def test_a_quoted_value_is_short_and_on_one_line() -> None:
    from fedarena.config.errors import MOST_QUOTED, quoted

    for value in ("z" * 10_000, ["z" * 10_000], 16**9000, {"k": "z" * 10_000}, "a\nb\0c\x1b[31m", "\ud800"):
        text = quoted(value)
        assert len(text) <= MOST_QUOTED
        assert text.isprintable()


@pytest.mark.parametrize(
    "overrides",
    [
        ["per_round=none"],
        ["share=none"],
        ["rounds=none"],
        ["uploads=none"],
        ["clients=none"],
        ["per_round=none", "rounds=none", "evaluate.target=none"],
        ["share=none", "partition=natural", "clients=none"],
        ['freeze=["\\u007f", "a\\u0000", "\\"\\\\"]'],
    ],
)
def test_what_is_not_given_survives_the_round_trip(overrides: list[str]) -> None:
    exp = Experiment.make("digits", overrides)
    Path("exp.toml").write_text(exp.to_toml(), encoding="utf-8")
    assert Experiment.make("exp.toml") == exp
    assert Experiment.make("exp.toml").to_toml() == exp.to_toml()


def test_a_run_without_a_number_a_round_is_the_same_from_its_file() -> None:
    exp = Experiment.make("digits", ["per_round=none", "rounds=1", "clients=4", "partition=iid", "model=logreg"])
    Path("exp.toml").write_text(exp.to_toml())
    first = fa.run(exp, out=False, runtime="serial")
    again = fa.run("exp.toml", out=False, runtime="serial")
    assert first.weights_sha256 == again.weights_sha256
    assert len(open_context(exp).owners.population) == first.final.selected
