"""Reproductions resume, add up, refuse and judge; recipes of the tests' own, in a folder of their own."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from fedarena.cli.main import app
from fedarena.config.errors import BadValue, CannotWrite, DataBroken, DataMissing, ResumeMismatch, UnknownName
from fedarena.config.experiment import Experiment
from fedarena.experiments import time_estimate
from fedarena.reproduction import recipe_index
from fedarena.reproduction.collect import _tune
from fedarena.reproduction.measures import read
from fedarena.reproduction.reproduce import reproduce, reproduce_all, verify_row, write_page
from fedarena.reproduction.result import fingerprint
from fedarena.results.run_loading import load_run

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
CHECK = """kind = "ordering"
says = "the fast one is better"
measure = "best"
choices = ["slow", "fast"]
"""
SMALL = '[small]\nsays = "one round"\nexperiment = { rounds = 1 }\n'


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Put recipes into a folder that stands for papers/; runs go to the folder of the test."""
    place = tmp_path / "papers"
    place.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipe_index, "recipes_folder", lambda: place)

    def put(name: str = "X-A", more: str = "", *changes: tuple[str, str]) -> None:
        text = RECIPE.format(id=name, more=more)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (place / f"{name.lower()}.toml").write_text(text, encoding="utf-8")
        recipe_index.recipe_files.cache_clear()

    yield put
    recipe_index.recipe_files.cache_clear()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one reproduction that was saved, which tests copy instead of running it again."""
    root = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setattr(recipe_index, "recipes_folder", lambda: root)
        (root / "x-a.toml").write_text(RECIPE.format(id="X-A", more=""), encoding="utf-8")
        recipe_index.recipe_files.cache_clear()
        reproduce("X-A", "full", save="kept")
    recipe_index.recipe_files.cache_clear()
    return root / "kept"


@pytest.fixture
def kept(saved: Path, write: Write) -> Path:
    """The file of a saved reproduction, in the folder of the test."""
    write()
    shutil.copytree(saved, "kept")
    return Path("kept/X-A-full.json")


def times(root: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in root.rglob("result.json")}


# What comes out


@pytest.mark.slow
def test_published_and_measured_stand_side_by_side(write: Write) -> None:
    write()
    result = reproduce("x-a", "full")
    rows = {(row["cell"], row["measure"]): row for row in result.rows}
    run = load_run("runs/papers/x-a-full/cells/slow/seed0")
    assert rows["slow", "best"]["published"] == 0.2
    assert rows["slow", "best"]["measured"] == run.best.accuracy
    assert rows["fast", "final_loss"]["published"] is None
    assert result.verdict == "agrees"
    assert result.figure is not None
    report = json.loads(Path("runs/papers/x-a-full/X-A-full.json").read_text(encoding="utf-8"))
    assert report == json.loads(json.dumps(report))
    assert [r["weights_sha256"] for r in report["runs"] if r["cell"] == "slow"] == [run.weights_sha256]


@pytest.mark.slow
def test_a_smaller_run_never_agrees(write: Write) -> None:
    write(more=SMALL)
    assert reproduce("X-A", "small").verdict == "ordering agrees"
    assert reproduce("X-A", "full").verdict == "agrees"
    assert reproduce("X-A").notes[0] == "one round"


@pytest.mark.slow
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
    first, last = (load_run(runs / name).experiment for name in ("repeat0-fold0", "repeat1-fold1"))
    assert (first.seed, first.fold, last.seed, last.fold) == (0, 0, 1, 1)


@pytest.mark.slow
def test_of_a_tuned_axis_the_best_choice_counts(write: Write) -> None:
    more = '[axes.who]\nmlp = { model = "mlp_2nn" }\nlinear = {}\n'
    write("X-A", more, ('claim = "Faster is better."', 'claim = "x"\ntuned = ["rate"]\ngrids = [["who", "rate"]]'),
          ('choices = ["slow", "fast"]', 'choices = ["mlp", "linear"]'), ("slow = 0.2", "mlp = 0.2"))  # fmt: skip
    result = reproduce("X-A", "full")
    assert {row["cell"]: row.get("tuned") for row in result.rows} == {"mlp": "fast", "linear": "fast"}
    assert len(result.runs) == 4


@pytest.mark.slow
def test_one_run_is_read_at_several_rounds(write: Write) -> None:
    more = '[axes.rounds]\n"T=1" = { upto = 1 }\n"T=3" = { upto = 3 }\n'
    write("X-A", more, ("slow = 0.2\n", '"slow T=1" = 0.2\n'))
    result = reproduce("X-A", "full")
    assert len(result.runs) == 2
    curve = dict(load_run("runs/papers/x-a-full/cells/fast/seed0").curve)
    measured = {row["cell"]: row["measured"] for row in result.rows if row["measure"] == "best"}
    assert measured["fast T=1"] == curve[1]
    assert measured["fast T=3"] == max(curve.values())


@pytest.mark.slow
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
    slow, fast = (load_run(f"runs/papers/x-a-full/cells/{name}/seed0") for name in ("slow", "fast"))
    rows = {(row["cell"], row["measure"]): row["measured"] for row in result.rows}
    assert rows["slow", "lost"] == pytest.approx(fast.best.accuracy - slow.best.accuracy)
    assert rows["slow", "relative"] == pytest.approx(slow.final.weighted_accuracy / fast.final.accuracy)
    assert rows["slow", "divergence"] > 0
    assert read("divergence", fast, fast) == 0
    assert ("fast", "divergence") not in rows


# Going on


@pytest.mark.slow
def test_the_same_command_runs_nothing_twice(write: Write) -> None:
    write()
    first = reproduce("X-A", "full")
    before = times(Path("runs"))
    again = reproduce("X-A", "full")
    assert times(Path("runs")) == before
    assert again.as_dict() == first.as_dict()
    assert reproduce(resume="runs/papers/x-a-full").as_dict() == first.as_dict()


@pytest.mark.slow
def test_a_killed_reproduction_resumes_with_the_same_bits(write: Write) -> None:
    write()
    first = reproduce("X-A", "full")
    shutil.rmtree("runs/papers/x-a-full/cells/slow")
    (Path("runs/papers/x-a-full/cells/fast/seed0") / "result.json").unlink()
    again = reproduce("X-A", "full")
    assert [m.weights_sha256 for m in again.runs] == [m.weights_sha256 for m in first.runs]


@pytest.mark.slow
def test_parts_add_up(write: Write) -> None:
    write()
    part = reproduce("X-A", "full", only="sl*")
    assert part.verdict == "not comparable"
    assert [made.made_by for made in part.runs] == [("slow",)]
    before = times(Path("runs"))
    whole = reproduce("X-A", "full", only="fast")
    assert whole.verdict == "agrees"
    assert {*before.items()} < {*times(Path("runs")).items()}


@pytest.mark.slow
def test_a_folder_of_another_recipe_is_refused(write: Write) -> None:
    write()
    reproduce("X-A", "full")
    write("X-A", "", ("rounds = 3", "rounds = 4"))
    with pytest.raises(ResumeMismatch, match="another recipe: cells/slow/seed0"):
        reproduce("X-A", "full")


@pytest.mark.slow
def test_results_of_something_else_never_count(write: Write) -> None:
    """Folders of another recipe, another size or of unknown origin are refused."""
    write("X-A", SMALL)
    write("X-B")
    reproduce("X-A", "small", out="here")
    for name, size in (("X-B", "full"), ("X-A", "full")):
        with pytest.raises(ResumeMismatch, match="here holds X-A at size small"):
            reproduce(name, size, out="here")  # type: ignore[arg-type]
    plan = Path("here/reproduction.json")
    for text in ("[]", "{", '{"id": "X-A", "size": "huge", "jobs": {}}', '{"id": "X-A", "size": "small"}'):
        plan.write_text(text, encoding="utf-8")
        for how in ({"name": "X-A", "size": "small", "out": "here"}, {"resume": "here"}):
            with pytest.raises(DataBroken, match="cannot be used"):
                reproduce(**how)  # type: ignore[arg-type]
    plan.unlink()
    with pytest.raises(ResumeMismatch, match=r"here holds results without reproduction\.json"):
        reproduce("X-A", "small", out="here")


@pytest.mark.slow
def test_a_choice_that_was_gone_for_a_while_is_remembered(write: Write) -> None:
    write()
    reproduce("X-A", "full")
    write(
        "X-A", "", ("fast = { local = { lr = 0.5 } }", ""), (CHECK, 'kind = "range"\nsays = "so"\nmeasure = "best"\n')
    )
    reproduce("X-A", "full")
    write("X-A", "", ("lr = 0.5", "lr = 0.4"))
    with pytest.raises(ResumeMismatch, match="cells/fast/seed0"):
        reproduce("X-A", "full")


@pytest.mark.slow
def test_runs_from_before_a_setting_was_there_still_count(write: Write) -> None:
    write()
    reproduce("X-A", "full")
    plan = Path("runs/papers/x-a-full/reproduction.json")
    report = json.loads(plan.read_text(encoding="utf-8"))
    for table in report["jobs"].values():
        del table["local"]["decay_form"]
    plan.write_text(json.dumps(report), encoding="utf-8")
    assert reproduce("X-A", "full").verdict == "agrees"
    for table in report["jobs"].values():
        table["local"]["gone"] = 1
    plan.write_text(json.dumps(report), encoding="utf-8")
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


def test_too_little_disk_is_reported_before_work(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write()
    monkeypatch.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))  # type: ignore[attr-defined]
    with pytest.raises(CannotWrite, match="X-A at size full needs about"):
        reproduce("X-A", "full")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("claim =", "clame =", "did you mean 'claim'"),
        ('claim = "Faster is better."', "", "claim: Field required"),
        ('title = "Two rates"', "title = 5", "title: Input should be a valid string"),
        ('measures = ["best", "final_loss"]', 'measures = ["bets"]', "no measure is called 'bets'"),
        ('measures = ["best", "final_loss"]', 'measures = ["best", "rounds_to"]', "write rounds_to:VALUE"),
        ('measures = ["best", "final_loss"]', 'measures = ["best", "rounds_to:abc"]', "'rounds_to:abc' is not a measure"),
        ("[experiment]", "seeds = 0\n[experiment]", "seeds: Input should be greater than or equal to 1"),
        ("[experiment]", 'notes = "hello"\n[experiment]', "notes: Input should be a valid tuple"),
        ("[experiment]", 'kind = "walk"\n[experiment]', "kind: Input should be 'run', 'open', 'posterior' or 'boost'"),
        ("[experiment]", 'grids = [["rat"]]\n[experiment]', "no axis is called 'rat'"),
        ("[experiment]", 'tuned = ["rat"]\n[experiment]', "no axis is called 'rat'"),
        ("[experiment]", 'reference = "slw"\n[experiment]', "no choice is called 'slw'"),
        ("[experiment]", 'figure = { form = "piechart" }\n[experiment]', "no form is called 'piechart'"),
        ("[experiment]", 'figure = { form = "bars", bars = "rat" }\n[experiment]', "no axis is called 'rat'"),
        ("[experiment]", 'figure = { form = "lines" }\n[experiment]', "a figure of the form lines has no x"),
        ('id = "X-A"', 'id = "../../X"', "call it X-A"),
        ("rounds = 3", 'rounds = "three"', "rounds"),
        ("slow = {", '"sl ow" = {', "'sl ow' is not a valid name of a choice"),
        ("[axes.rate]", "[axes.rate]\nnone = 5", "axes.rate.none: Input should be a valid dictionary"),
        ("[axes.rate]", "[axes.rate]\nnone = { upto = 0 }", "upto = 0"),
        ("slow = 0.2", "slw = 0.2", "no cell is called 'slw'"),
        ("slow = 0.2", 'slow = "five"', "slow = 'five'"),
        ("[published.best]", "[published.bets]", "no measure is called 'bets'"),
        ('kind = "ordering"', 'kind = "order"', "no check is called 'order'"),
        ('measure = "best"\n', "", "has no measure"),
        ('measure = "best"\n', 'measure = "bets"\n', "no measure is called 'bets'"),
        ('choices = ["slow", "fast"]', "", "has no choices"),
        ('choices = ["slow", "fast"]', 'choices = ["slow", "fst"]', "no choice is called 'fst'"),
        ('choices = ["slow", "fast"]', 'choices = "slow"', "write a list of texts"),
        ('choices = ["slow", "fast"]', 'choices = ["slow", "fast"]\nmargn = 1', "did you mean 'margin'"),
        ('choices = ["slow", "fast"]', 'choices = ["slow", "fast"]\nmean_over = ["x"]', "no axis is called 'x'"),
        ('choices = ["slow", "fast"]', 'choices = ["slow", "fast"]\ncells = "w*"', "cells = 'w*' matches no cell"),
        ('choices = ["slow", "fast"]', 'choices = ["slow", "fast"]\nany_size = "no"', "write true or false"),
        ("the fast one", "the {fast} one", "a reading has no word for {fast}"),
        ("rounds = 1 }", 'rounds = 1 }\nonly = { rat = ["slow"] }', "no axis is called 'rat'"),
        ("rounds = 1 }", 'rounds = 1 }\nonly = { rate = ["slw"] }', "no choice of the axis rate is called 'slw'"),
        ("rounds = 1 }", "rounds = 1 }\naxes.rate.slw = {}", "no choice of the axis rate is called 'slw'"),
        ("rounds = 1 }", 'rounds = 1 }\nseeds = "three"', "small.seeds: Input should be a valid integer"),
        ("rounds = 1 }", "rounds = 1 }\nseed = 3", "small.seed: Unexpected keyword argument"),
        ('measures = ["best", "final_loss"]', 'measures = "best"', "measures are a list, or a table"),
        ("[[checks]]", "[checks]", "checks are tables: [[checks]]"),
        ('says = "the fast one is better"', "says = 5", "says 5"),
        ('kind = "ordering"', "kind = 5", "no check is called '5'"),
        (CHECK, 'kind = "factor"\nsays = "so"\nmeasure = "best"\nfactor = 0', "factor = 0"),
        (
            CHECK,
            'kind = "trend"\nsays = "so"\nmeasure = "best"\naxis = "rate"\nsign = 1\nof = "slow"',
            "one of two choices",
        ),
        (CHECK, 'kind = "top"\nsays = "so"\nmeasure = "best"\naxis = ["rate"]\namong = ["slow"]', "axis = ['rate']"),
        (CHECK, 'kind = "top"\nsays = "so"\nmeasure = "best"\namong = ["slwo"]', "no cell or choice is called 'slwo'"),
        (CHECK, 'kind = "signs"\nsays = "so"\nmeasure = "best"\nrows = "slwo"', "the check is about no cells"),
        ('choices = ["slow", "fast"]', 'choices = ["slow", "fast"]\nshare = 5', "share = 5"),
        ("[published.best]", '[published.sign]\nslow = "="\n[published.best]', "slow = '='"),
        ("[experiment]", 'grids = [["rate", "rate"]]\n[experiment]', "has an axis twice"),
        ("[experiment]", 'reference = { slwo = "slow" }\n[experiment]', "no choice is called 'slwo'"),
        ("[experiment]", "figure = { form = 5 }\n[experiment]", "no form is called '5'"),
        ("[experiment]", "figure = { monotne = true }\n[experiment]", "did you mean 'monotone'"),
        ("[experiment]", 'figure = { form = "posterior" }\n[experiment]', "a recipe of kind run has no posterior"),
        ("[experiment]", 'kind = "boost"\n[experiment]', "a recipe of kind boost has no rows"),
        ("[axes.rate]", '[axes.rate]\n"a/b" = {}\n"a-b" = {}', "2 cells would share a folder, a-b"),
        ("[axes.rate]", "[axes.none]\n[axes.rate]", "axes are tables of choices"),
        ("[axes.rate]", "[axes.rate]\nnone = { upto = true }", "upto = True"),
    ],
)
def test_mistakes_of_a_recipe_are_named_before_work(write: Write, old: str, new: str, said: str) -> None:
    write("X-A", SMALL, (old, new))
    with pytest.raises((UnknownName, BadValue), match=re.escape(said)) as caught:
        reproduce("X-A", "full")
    assert re.search("X-A|x-a", caught.value.where)
    assert not Path("runs").exists()


@pytest.mark.slow
def test_folders_that_cannot_be_written_are_named_before_work(write: Write) -> None:
    write()
    Path("file").touch()
    for option in ("--save", "--out"):
        for bad in ("file", "file/below"):
            done = CliRunner().invoke(app, ["reproduce", "X-A", "--size", "full", option, bad])
            assert done.exit_code == 2
            assert f"choose another folder with {option}" in done.output
            assert not list(Path().rglob("result.json"))


# What fails


@pytest.mark.slow
def test_a_cell_that_fails_stops_no_other(write: Write) -> None:
    write("X-A", "", ("lr = 0.5 }", "lr = 1e38 }, on_nan = 'raise'"))
    result = reproduce("X-A", "full")
    assert list(result.failures) == ["fast seed0"]
    assert result.verdict == "not comparable"
    assert "1 of 2 runs have no result" in result.reason
    assert [row["cell"] for row in result.rows] == ["slow", "slow"]
    report = CliRunner().invoke(app, ["reproduce", "X-A", "--size", "full", "-q", "--json"])
    assert report.exit_code == 1
    assert json.loads(report.stdout)["failures"]


@pytest.mark.slow
def test_a_loss_of_its_own_has_no_accuracy(write: Write) -> None:
    """A row of zeros would hold any check that two of them are equal."""
    write(
        "X-A",
        "",
        ('data = "digits"\nmodel = "logreg"\npartition = "iid"\n', 'data = "least_squares"\n'),
        ("clients = 4\n", ""),
        ("slow = 0.2", ""),
        (CHECK, CHECK.replace('"best"', '"final_loss"')),
    )
    rows = reproduce("X-A", "full").rows
    assert {(row["cell"], row["measure"]) for row in rows} == {("slow", "final_loss"), ("fast", "final_loss")}


# What is kept


@pytest.mark.slow
def test_a_row_is_run_again_bit_by_bit(kept: Path) -> None:
    assert verify_row(kept, 2).differences == []
    table = json.loads(kept.read_text(encoding="utf-8"))
    table["runs"][0]["scores"]["best_accuracy"] += 0.001
    table["runs"][1]["settings"]["local"]["lr"] = 0.4
    kept.write_text(json.dumps({**table, "sha256": fingerprint(table)}), encoding="utf-8")  # who lies, and knows how
    assert [d.split(":")[0] for d in verify_row(kept, 1).differences] == ["best_accuracy"]
    assert verify_row(kept, 1).rounded == []
    assert verify_row(kept, 2).differences[-1].startswith("weights: sha256")
    done = CliRunner().invoke(app, ["verify", str(kept), "--row", "1", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["same"]) == (1, False)
    with pytest.raises(BadValue, match="row = 3 of 2 runs"):
        verify_row(kept, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bearable"), [("final_loss", 1e-6), ("best_accuracy", 5e-4), ("uploads", 0.0)])
def test_what_test_rows_say_may_be_rounded_elsewhere(kept: Path, name: str, bearable: float) -> None:
    """Never here, never what is counted, and never weights."""
    first = json.loads(kept.read_text(encoding="utf-8"))
    for off, elsewhere in ((0.5, True), (2.0, True), (0.5, False)):
        table = json.loads(json.dumps(first))
        scores = table["runs"][0]["scores"]
        scores[name] += off * (bearable * (scores[name] if name == "final_loss" else 1) or 1)
        table["versions"] |= {"processor": "another"} if elsewhere else {}
        kept.write_text(json.dumps({**table, "sha256": fingerprint(table)}), encoding="utf-8")
        done = CliRunner().invoke(app, ["verify", str(kept), "--row", "1"])
        is_bearable = off < 1 and bearable > 0 and elsewhere
        assert done.exit_code == (0 if is_bearable else 1)
        assert ("the same bits of all weights" in done.output) == is_bearable
        assert f"{name}: " in done.output
        assert ("processor another then, " in done.output) == elsewhere


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda table: table["rows"][0].update(measured=0.99),
        lambda table: table["rows"][0].update(published=0.99),
        lambda table: table["checks"][0]["findings"][0].update(value="7.77"),
        lambda table: table.update(verdict="superb"),
        lambda table: table.update(id="X-B"),
        lambda table: table["notes"].append("accuracy was 99.99 %"),
        lambda table: table["runs"][0].pop("weights_sha256"),
        lambda table: table.pop("sha256"),
    ],
)
def test_a_result_that_was_changed_by_hand_is_refused(kept: Path, change: Callable[[Any], None]) -> None:
    write_page("page.md", "kept")
    table = json.loads(kept.read_text(encoding="utf-8"))
    change(table)
    kept.write_text(json.dumps(table), encoding="utf-8")
    for command in (["verify", str(kept)], ["reproduce", "--page", "new.md", "--save", "kept"]):
        done = CliRunner().invoke(app, command)
        assert (done.exit_code, "X-A-full.json is no" in done.output) == (2, True)
    assert not Path("new.md").exists()


@pytest.mark.slow
def test_a_result_is_judged_again_by_other_checks_of_the_same_runs(write: Write, kept: Path) -> None:
    before = kept.read_bytes()

    def judge() -> Any:
        return CliRunner().invoke(app, ["reproduce", "--judge", str(kept)])

    assert judge().exit_code == 0
    assert kept.read_bytes() == before
    write("X-A", "", ('choices = ["slow", "fast"]', 'choices = ["fast", "slow"]'), ("slow = 0.2", "slow = 0.3"))
    assert judge().exit_code == 0
    report = json.loads(kept.read_text(encoding="utf-8"))
    assert report["verdict"] == "differs"
    assert report["runs"] == json.loads(before)["runs"]
    assert next(row["published"] for row in report["rows"] if row["published"] is not None) == 0.3
    after = kept.read_bytes()
    for old, new, said in (
        ("lr = 0.5", "lr = 0.4", "does not run fast seed0 as this result did"),
        ("slow = {", "slw = {", "no cell is called 'slow'"),
        ('["best", "final_loss"]', '{ best = "at:1", final_loss = "final_loss" }', "reads something else"),
        ('choices = ["slow", "fast"]', 'choices = ["slow", "fst"]', "no choice is called 'fst'"),
    ):
        write("X-A", "", (old, new))
        done = judge()
        assert (done.exit_code, said in done.output) == (2, True), done.output
        assert kept.read_bytes() == after


@pytest.mark.slow
@pytest.mark.parametrize("key", ["common", "versions", "rows", "kind", "reads"])
def test_a_result_that_lacks_something_is_refused(kept: Path, key: str) -> None:
    """As one of another version may, whose fingerprint is right."""
    table = json.loads(kept.read_text(encoding="utf-8"))
    del table[key]
    kept.write_text(json.dumps({**table, "sha256": fingerprint(table)}), encoding="utf-8")
    for command in (
        ["verify", str(kept)],
        ["reproduce", "--judge", str(kept)],
        ["reproduce", "--page", "p.md", "--save", "kept"],
    ):
        done = CliRunner().invoke(app, command)
        assert (done.exit_code, f"{key}: Field required" in done.output.replace("\n", " ")) == (2, True), done.output


@pytest.mark.slow
def test_a_file_stands_for_one_result(kept: Path) -> None:
    shutil.copy("kept/X-A-full.json", "kept/backup.json")
    with pytest.raises(BadValue, match=r"backup\.json is X-A at size full"):
        write_page("page.md", "kept")
    done = CliRunner().invoke(app, ["reproduce", "X-A", "--page", "page.md"])
    assert (done.exit_code, "--page goes with --save" in done.output) == (2, True)


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_contract_of_json(write: Write) -> None:
    write()
    done = CliRunner().invoke(app, ["reproduce", "X-A", "--size", "full", "--json", "-q"])
    assert done.exit_code == 0
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["id"], report["size"], report["verdict"]) == ("X-A", "full", "agrees")
    assert report["reason"]
    assert {"published", "measured"} <= {*report["rows"][0]}
    everything = CliRunner().invoke(app, ["reproduce", "--all", "--size", "full", "--json", "-q"])
    assert [r["id"] for r in json.loads(everything.stdout)] == ["X-A"]
    listed = json.loads(CliRunner().invoke(app, ["list", "papers", "--json"]).stdout)
    assert {"name", "summary", "paper", "parameters"} <= {*listed[0]}
    assert listed[0]["runs"] == {"smoke": 2, "small": 2, "full": 2}


@pytest.mark.slow
def test_a_full_run_says_first_how_long_it_takes(write: Write) -> None:
    write()
    done = CliRunner().invoke(app, ["reproduce", "X-A", "--size", "full"])
    lines = done.stderr.splitlines()
    assert lines[0] == "X-A · Two rates · full · 2 runs"
    assert lines[1].startswith("about ")


def test_an_estimate_grows_with_rounds_and_clients() -> None:
    base = Experiment.make("digits", partition="iid", clients=10, rounds=10, model="mlp_2nn", local={"epochs": 5})
    one = time_estimate.estimate_seconds([base])
    assert 0 < one < time_estimate.estimate_seconds([base, base.with_(rounds=2000)])
    for name, work in (("fedavg", 10), ("centralized", 10), ("fsvrg", 10), ("coop", 20)):
        assert time_estimate._amount(base.with_(algorithm=name), 10) == (10, work)
    assert time_estimate._amount(base.with_(algorithm="fsvrg", uploads=100), 10) == (
        5,
        10,
    )  # two uploads a client and round


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
