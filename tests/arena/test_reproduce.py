"""Reproductions resume, add up, refuse and judge; recipes of the tests' own, in a folder of their own."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from fedarena.arena import estimate, recipes
from fedarena.arena.gather import _tune
from fedarena.arena.reproduce import reproduce, reproduce_all, verify_row, write_page
from fedarena.cli import app
from fedarena.errors import BadValue, CannotWrite, DataMissing, ResumeMismatch, UnknownName
from fedarena.results.measures import read
from fedarena.results.run import load
from fedarena.spec import Experiment

Write = Callable[..., None]

RECIPE = """
id = "{id}"
title = "Two rates"
source = "A test"
claim = "Faster is better."
measures = ["best", "final_loss"]

[experiment]
data = "digits"
model = "logreg"
partition = "iid"
clients = 4
rounds = 3
local = {{ batch = 32, epochs = 1 }}

[axes.rate]
slow = {{ local = {{ lr = 0.001 }} }}
fast = {{ local = {{ lr = 0.5 }} }}

[published.best]
slow = 0.2

[[checks]]
kind = "ordering"
says = "the fast one is better"
measure = "best"
choices = ["slow", "fast"]

{more}
"""
SMALL = '[small]\nsays = "one round"\nexperiment = { rounds = 1 }\n'


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Put recipes into a folder that stands for papers/; runs go to the folder of the test."""
    place = tmp_path / "papers"
    place.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipes, "folder", lambda: place)

    def put(name: str = "X-A", more: str = "", *changes: tuple[str, str]) -> None:
        text = RECIPE.format(id=name, more=more)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (place / f"{name.lower()}.toml").write_text(text, encoding="utf-8")
        recipes.files.cache_clear()

    yield put
    recipes.files.cache_clear()


def times(root: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in root.rglob("result.json")}


# What comes out


def test_published_and_measured_stand_side_by_side(write: Write) -> None:
    write()
    result = reproduce("x-a", "full")
    rows = {(row["cell"], row["measure"]): row for row in result.rows}
    run = load("runs/papers/x-a-full/cells/slow/seed0")
    assert rows["slow", "best"]["published"] == 0.2
    assert rows["slow", "best"]["measured"] == run.best.accuracy
    assert rows["fast", "final_loss"]["published"] is None
    assert result.verdict == "agrees"
    assert result.figure is not None
    told = json.loads(Path("runs/papers/x-a-full/X-A-full.json").read_text(encoding="utf-8"))
    assert told == json.loads(json.dumps(told))
    assert [r["weights_sha256"] for r in told["runs"] if r["cell"] == "slow"] == [run.weights_sha256]


def test_a_smaller_run_never_agrees(write: Write) -> None:
    write(more=SMALL)
    assert reproduce("X-A", "small").verdict == "ordering agrees"
    assert reproduce("X-A", "full").verdict == "agrees"
    assert reproduce("X-A").notes[0] == "one round"


def test_seeds_and_folds_are_splits(write: Write) -> None:
    write("X-A", "", ("measures =", "seeds = 2\nmeasures ="))
    write(
        "X-B",
        "",
        ("measures =", "folds = 2\nrepeats = 2\nmeasures ="),
        ("clients = 4", "clients = 4\nfolds = 2\nfold = 0"),
    )
    assert [r["split"] for r in reproduce("X-A", "full").as_dict()["runs"]] == ["seed0"] * 2 + ["seed1"] * 2
    scores = next(row["scores"] for row in reproduce("X-B", "full").rows)
    assert len(scores) == 4
    runs = Path("runs/papers/x-b-full/cells/slow")
    first, last = (load(runs / name).experiment for name in ("repeat0-fold0", "repeat1-fold1"))
    assert (first.seed, first.fold, last.seed, last.fold) == (0, 0, 1, 1)


def test_of_a_tuned_axis_the_best_choice_counts(write: Write) -> None:
    more = '[axes.who]\nmlp = { model = "mlp_2nn" }\nlinear = {}\n'
    write("X-A", more, ('claim = "Faster is better."', 'claim = "x"\ntuned = ["rate"]\ngrids = [["who", "rate"]]'),
          ('choices = ["slow", "fast"]', 'choices = ["mlp", "linear"]'), ("slow = 0.2", "mlp = 0.2"))  # fmt: skip
    result = reproduce("X-A", "full")
    assert {row["cell"]: row.get("tuned") for row in result.rows} == {"mlp": "fast", "linear": "fast"}
    assert len(result.runs) == 4


def test_one_run_is_read_at_several_rounds(write: Write) -> None:
    more = '[axes.rounds]\n"T=1" = { upto = 1 }\n"T=3" = { upto = 3 }\n'
    write("X-A", more, ("slow = 0.2\n", '"slow T=1" = 0.2\n'))
    result = reproduce("X-A", "full")
    assert len(result.runs) == 2
    curve = dict(load("runs/papers/x-a-full/cells/fast/seed0").curve)
    measured = {row["cell"]: row["measured"] for row in result.rows if row["measure"] == "best"}
    assert measured["fast T=1"] == curve[1]
    assert measured["fast T=3"] == max(curve.values())


def test_relative_measures_stand_beside_the_reference(write: Write) -> None:
    write(
        "X-A",
        "",
        (
            'measures = ["best", "final_loss"]',
            'measures = ["best", "relative", "lost", "divergence"]\nreference = "fast"',
        ),
    )
    result = reproduce("X-A", "full")
    slow, fast = (load(f"runs/papers/x-a-full/cells/{name}/seed0") for name in ("slow", "fast"))
    rows = {(row["cell"], row["measure"]): row["measured"] for row in result.rows}
    assert rows["slow", "lost"] == pytest.approx(fast.best.accuracy - slow.best.accuracy)
    assert rows["slow", "relative"] == pytest.approx(slow.final.weighted_accuracy / fast.final.accuracy)
    assert rows["slow", "divergence"] > 0
    assert read("divergence", fast, fast) == 0
    assert ("fast", "divergence") not in rows


# Going on


def test_the_same_command_runs_nothing_twice(write: Write) -> None:
    write()
    first = reproduce("X-A", "full")
    before = times(Path("runs"))
    again = reproduce("X-A", "full")
    assert times(Path("runs")) == before
    assert again.as_dict() == first.as_dict()
    assert reproduce(resume="runs/papers/x-a-full").as_dict() == first.as_dict()


def test_what_was_killed_goes_on_with_the_same_bits(write: Write) -> None:
    write()
    first = reproduce("X-A", "full")
    shutil.rmtree("runs/papers/x-a-full/cells/slow")
    (Path("runs/papers/x-a-full/cells/fast/seed0") / "result.json").unlink()
    again = reproduce("X-A", "full")
    assert [m.weights_sha256 for m in again.runs] == [m.weights_sha256 for m in first.runs]


def test_parts_add_up(write: Write) -> None:
    write()
    part = reproduce("X-A", "full", only="sl*")
    assert part.verdict == "not comparable"
    assert [made.made_by for made in part.runs] == [("slow",)]
    before = times(Path("runs"))
    whole = reproduce("X-A", "full", only="fast")
    assert whole.verdict == "agrees"
    assert {*before.items()} < {*times(Path("runs")).items()}


def test_a_folder_of_another_recipe_is_refused(write: Write) -> None:
    write()
    reproduce("X-A", "full")
    write("X-A", "", ("rounds = 3", "rounds = 4"))
    with pytest.raises(ResumeMismatch, match="another recipe: cells/slow/seed0"):
        reproduce("X-A", "full")


def test_runs_from_before_a_setting_was_there_still_count(write: Write) -> None:
    write()
    reproduce("X-A", "full")
    plan = Path("runs/papers/x-a-full/reproduction.json")
    told = json.loads(plan.read_text(encoding="utf-8"))
    for table in told["jobs"].values():
        del table["local"]["decay_form"]
    plan.write_text(json.dumps(told), encoding="utf-8")
    assert reproduce("X-A", "full").verdict == "agrees"
    for table in told["jobs"].values():
        table["local"]["gone"] = 1
    plan.write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(ResumeMismatch, match="another recipe: cells/slow/seed0"):
        reproduce("X-A", "full")


# Refused before work


def test_unknown_ids_get_the_nearest_name(write: Write) -> None:
    write("X-ABC")
    with pytest.raises(UnknownName, match="did you mean 'X-ABC'"):
        reproduce("X-ABD")
    assert CliRunner().invoke(app, ["reproduce", "X-ABD"]).exit_code == 2


def test_missing_data_leave_no_trace(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDARENA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    write("X-A", "", ('data = "digits"', 'data = "mnist"'))
    write("X-B")
    for go in (lambda: reproduce("X-A", "full"), lambda: reproduce_all("full")):
        with pytest.raises(DataMissing, match="mnist"):
            go()
        assert not Path("runs").exists()


def test_too_little_disk_is_told_before_work(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write()
    monkeypatch.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))  # type: ignore[attr-defined]
    with pytest.raises(CannotWrite, match="X-A at size full needs about"):
        reproduce("X-A", "full")
    assert not Path("runs").exists()


def test_mistakes_of_a_recipe_are_named(write: Write) -> None:
    for changes, said in (
        (("claim =", "clame ="), "did you mean 'claim'"),
        (('kind = "ordering"', 'kind = "order"'), "no check is called 'order'"),
        (("slow = {{".format(), '"sl ow" = {'), "'sl ow' is no name of one choice"),
        (("the fast one", "the {fast} one"), "cannot make sense of it: 'fast'"),  # no reading has this word
    ):
        write("X-A", "", changes)
        with pytest.raises((UnknownName, BadValue), match=said):
            reproduce("X-A", "full")


# What fails


def test_a_cell_that_fails_stops_no_other(write: Write) -> None:
    write("X-A", "", ("lr = 0.5 }", "lr = 1e300 }, on_nan = 'raise'"))
    result = reproduce("X-A", "full")
    assert list(result.failures) == ["fast seed0"]
    assert result.verdict == "not comparable"
    assert "1 of 2 runs have no result" in result.reason
    assert [row["cell"] for row in result.rows] == ["slow", "slow"]
    told = CliRunner().invoke(app, ["reproduce", "X-A", "--size", "full", "-q", "--json"])
    assert told.exit_code == 1
    assert json.loads(told.stdout)["failures"]


# What is kept


def test_a_row_is_run_again_bit_by_bit(write: Write) -> None:
    write()
    reproduce("X-A", "full", save="kept")
    file = Path("kept/X-A-full.json")
    assert verify_row(file, 2).differences == []
    table = json.loads(file.read_text(encoding="utf-8"))
    table["runs"][0]["scores"]["best_accuracy"] += 0.001
    table["runs"][1]["settings"]["local"]["lr"] = 0.4
    file.write_text(json.dumps(table), encoding="utf-8")
    assert [d.split(":")[0] for d in verify_row(file, 1).differences] == ["best_accuracy"]
    assert verify_row(file, 2).differences[-1].startswith("weights: sha256")
    done = CliRunner().invoke(app, ["verify", str(file), "--row", "1", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["same"]) == (1, False)
    with pytest.raises(BadValue, match="row = 3 of 2 runs"):
        verify_row(file, 3)


def test_the_page_has_every_result_and_every_gap(write: Write) -> None:
    write("X-A")
    write("X-B")
    reproduce("X-A", "full", save="kept")
    page = write_page("page.md", "kept").read_text(encoding="utf-8")
    assert "| [X-A](#x-a-full) | Two rates | full | 2 | agrees |" in page
    assert "**agrees**: the check holds: the fast one is better." in page
    assert "| slow | best | 0.2000 |" in page
    assert "## Not run yet\n\n- X-B: Two rates\n" in page
    with pytest.raises(BadValue, match="keptt holds no result files"):  # not a page that says nothing was ever run
        write_page("page.md", "keptt")
    assert Path("page.md").read_text(encoding="utf-8") == page


# Doors


def test_the_contract_of_json(write: Write) -> None:
    write()
    done = CliRunner().invoke(app, ["reproduce", "X-A", "--size", "full", "--json", "-q"])
    assert done.exit_code == 0
    told: dict[str, Any] = json.loads(done.stdout)
    assert (told["id"], told["size"], told["verdict"]) == ("X-A", "full", "agrees")
    assert told["reason"]
    assert {"published", "measured"} <= {*told["rows"][0]}
    everything = CliRunner().invoke(app, ["reproduce", "--all", "--size", "full", "--json", "-q"])
    assert [r["id"] for r in json.loads(everything.stdout)] == ["X-A"]
    listed = json.loads(CliRunner().invoke(app, ["list", "papers", "--json"]).stdout)
    assert {"name", "summary", "paper", "parameters"} <= {*listed[0]}
    assert listed[0]["runs"] == {"smoke": 2, "small": 2, "full": 2}


def test_a_full_run_says_first_how_long_it_takes(write: Write) -> None:
    write()
    done = CliRunner().invoke(app, ["reproduce", "X-A", "--size", "full"])
    lines = done.stderr.splitlines()
    assert lines[0] == "X-A · Two rates · full · 2 runs"
    assert lines[1].startswith("about ")


def test_an_estimate_grows_with_rounds_and_clients() -> None:
    base = Experiment.make("digits", partition="iid", clients=10, rounds=10, model="mlp_2nn", local={"epochs": 5})
    one = estimate.seconds([base])
    assert 0 < one < estimate.seconds([base, base.with_(rounds=2000)])
    for name, work in (("fedavg", 10), ("centralized", 10), ("fsvrg", 10), ("coop", 20)):
        assert estimate._amount(base.with_(algorithm=name), 10) == (10, work)
    assert estimate._amount(base.with_(algorithm="fsvrg", uploads=100), 10) == (5, 10)  # two uploads a client and round


def test_where_no_rate_reaches_the_target_accuracy_decides() -> None:
    class Known:
        measures: ClassVar[dict[str, str]] = {"rounds": "rounds_to_target", "best": "best"}
        tuned: ClassVar[list[str]] = ["rate"]
        axes: ClassVar[dict[str, dict[str, Any]]] = {"rate": {"slow": {}, "fast": {}}}

    never = {("mlp", "slow"): [math.inf], ("mlp", "fast"): [math.inf]}
    best = {("mlp", "slow"): [0.3], ("mlp", "fast"): [0.9]}
    scores, limits = {"rounds": never, "best": best}, {"rounds": {("mlp", "slow"): [60.0], ("mlp", "fast"): [50.0]}}
    assert _tune(Known(), scores, limits) == {("mlp",): "fast"}  # type: ignore[arg-type]
    assert limits == {"rounds": {("mlp",): [50.0]}}
    assert scores["best"] == {("mlp",): [0.9]}
