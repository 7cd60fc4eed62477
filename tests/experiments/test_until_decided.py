"""A comparison adds whole repeats until it is decided: it stops where the rule says, and interruptions change nothing."""

from __future__ import annotations

import io
import json
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.support import forked_processes
from typer.testing import CliRunner, Result

import fedarena as fa
from fedarena.algorithms.fedavg import FedAvg
from fedarena.cli.main import app
from fedarena.config.comparison_plan import LookRecord, Plan, next_look
from fedarena.experiments.live_table import ComparisonProgress
from fedarena.experiments.run_comparison import make_plan
from fedarena.experiments.until_decided import first_look
from fedarena.reports import write_report
from fedarena.results.comparison import Comparison
from fedarena.results.next_step import next_step
from fedarena.results.plan_file import read_plan
from fedarena.results.run_status import comparison_cells
from fedarena.statistics.sequential import look
from fedarena.ui import comparison_page
from fedarena.ui.catalogue import Catalogue

SMALL: dict[str, Any] = {"model": "logreg", "rounds": 1, "clients": 3}
QUICK = ["--no-baseline", "-q", *(word for key, value in SMALL.items() for word in ("--set", f"{key}={value}"))]
CLEAR = {"fedavg": "fedavg", "weak": "fedavg:local.lr=0.0001"}  # tens of points apart after one round
OPEN = {"fedavg": "fedavg", "twin": "fedavg:local.batch=17"}  # a chance difference that no rope of 0.0001 covers
NARROW = 0.0001
TYPED = ["-a", "fedavg", "-a", "twin=fedavg:local.batch=17", "--rope", str(NARROW)]
PATIENCE = 120.0  # seconds, after which something is wrong


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["compare", *words])


def facts(comparison: Comparison) -> dict[str, Any]:
    """All that must not depend on workers, kills or resumes."""
    weights = {label: [run.weights_sha256 for run in runs] for label, runs in comparison.runs.items()}
    return {"weights": weights, "scores": comparison.scores(), "looks": comparison.plan.looks}


@pytest.fixture(scope="module")
def undecided(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Three looks, at 10, 15 and 20 splits, that decide nothing."""
    folder = tmp_path_factory.mktemp("undecided") / "c"
    how: dict[str, Any] = {"until_decided": True, "at_most": 20, "rope": NARROW, "baseline": False, "workers": 1}
    return fa.compare("digits", OPEN, out=folder, **how, **SMALL)


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("decided") / "c"
    return fa.compare("digits", CLEAR, until_decided=True, baseline=False, out=folder, workers=2, **SMALL)


def copied(comparison: Comparison, to: Path = Path("c")) -> Path:
    assert comparison.dir is not None
    shutil.copytree(comparison.dir, to)
    return to


# When it looks


@pytest.mark.parametrize(
    ("folds", "has_effect", "at_most", "expected"),
    [
        (5, False, 50, [10, 15, 20, 25, 30, 35, 40, 45, 50]),
        (5, False, 23, [10, 15, 20]),  # whole repeats only
        (5, True, 40, [25, 30, 35, 40]),  # 5 repeats
        (2, False, 25, [10, 16, 22, 24]),  # 5 further splits are 3 repeats of 2 folds
        (10, False, 50, [20, 30, 40, 50]),  # one repeat does not show what its folds have in common
        (None, False, 22, [10, 15, 20, 22]),
    ],
)
def test_the_looks_of_a_plan(folds: int | None, has_effect: bool, at_most: int, expected: list[int]) -> None:
    repeats: int | None = first_look(folds, has_effect)
    found = []
    while repeats is not None:
        found.append(repeats * (folds or 1))
        repeats = next_look(repeats, folds, at_most)
    assert found == expected


def test_the_plan_begins_with_the_splits_of_the_first_look() -> None:
    def plan(**how: Any) -> Plan:
        return make_plan("digits", OPEN, until_decided=True, baseline=False, **how, **SMALL)

    assert (len(plan().splits), plan().at_most) == (10, 50)
    assert len(plan(repeats=4).splits) == 20, "the first look may be later"
    assert len(plan(per_repeat="partition").splits) == 25
    assert len(plan(partition="nilsson_iid").splits) == 25, "its folds share a partition"
    assert (len(plan(seeds=12).splits), plan(seeds=12).folds) == (12, None)
    assert (len(plan(folds=30).splits), plan(folds=30).at_most) == (60, 60), (
        "a default limit never forbids the first look"
    )


# When it stops


@pytest.mark.slow
def test_a_clear_difference_stops_at_the_first_look(decided: Comparison) -> None:
    assert {len(scores) for scores in decided.scores().values()} == {10}
    (only,) = decided.plan.looks
    assert (only.splits, only.n, only.candidates, only.best_set, only.decided) == (10, 10, 2, ("fedavg",), True)
    assert only.level == pytest.approx(0.99)
    assert decided.plan.stopped == only
    assert "Stopped after 10 splits: fedavg is the best with probability 1.000." in decided.words
    assert decided.dir is not None
    assert len(list(decided.dir.glob("cells/*/*/result.json"))) == 20, "nothing more was run"
    assert next_step(decided) == ""


@pytest.mark.slow
def test_an_open_question_runs_to_the_limit(undecided: Comparison) -> None:
    assert [found.splits for found in undecided.plan.looks] == [10, 15, 20]
    assert not any(found.decided for found in undecided.plan.looks)
    assert set(undecided.plan.looks[-1].best_set) == {"fedavg", "twin"}
    assert "Not decided after 20 splits, the limit." in undecided.words
    assert undecided.plan.repeats == 4


@pytest.mark.slow
def test_every_look_is_the_rule_on_the_splits_before_it(undecided: Comparison) -> None:
    for found in undecided.plan.looks:
        scores = {label: values[: found.splits] for label, values in undecided.scores().items()}
        expected = look(scores, 1 / 5, rope=NARROW)
        assert (found.decided, found.reason, found.best_set, found.p_equal, found.level) == expected


@pytest.mark.slow
def test_practical_equality_stops_too() -> None:
    same = {"one": "fedavg", "other": "fedavg"}
    found = fa.compare("digits", same, until_decided=True, seeds=10, out=False, baseline=False, **SMALL)
    (only,) = found.plan.looks
    assert (only.decided, set(only.best_set), only.p_equal) == (True, {"one", "other"}, 1.0)
    stopped = "Stopped after 10 splits: the 2 that may be the best are within one rope with probability 1.000."
    assert stopped in found.words


@pytest.mark.slow
def test_seeds_are_added_five_at_a_time_up_to_the_limit() -> None:
    how: dict[str, Any] = {"rope": NARROW, "fixed": "test", "baseline": False, "out": "c", "workers": 2}
    found = fa.compare("digits", OPEN, seeds=10, until_decided=True, at_most=12, **how, **SMALL)
    assert [(seen.splits, round(seen.level, 4)) for seen in found.plan.looks] == [(10, 0.995), (12, 0.995)]
    assert [split.name for split in found.plan.splits] == [f"seed{i}" for i in range(12)]


@pytest.mark.slow
def test_an_effect_per_repeat_is_part_of_a_look() -> None:
    how: dict[str, Any] = {"folds": 2, "per_repeat": "start", "baseline": False, "out": False, "workers": 2}
    found = fa.compare("digits", CLEAR, until_decided=True, at_most=10, **how, **SMALL)
    (only,) = found.plan.looks
    assert (found.plan.repeats, only.splits) == (5, 10)
    expected, without = (
        look(found.scores(), 1 / 2, repeats=repeats) for repeats in ([i // 2 for i in range(10)], None)
    )
    assert (only.decided, only.reason, only.best_set, only.p_equal, only.level) == expected
    assert only.reason != without.reason


@dataclass(frozen=True)
class Failing(FedAvg):
    """FedAvg whose clients fail."""

    def client(self, *_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("of all things")


@pytest.mark.slow
def test_without_two_results_no_repeats_are_added() -> None:
    entered = {"fedavg": "fedavg", "failing": Failing()}
    how: dict[str, Any] = {"until_decided": True, "baseline": False, "workers": 2}
    found = fa.compare("digits", entered, out="c", **how, **SMALL)
    (only,) = found.plan.looks
    assert (only.candidates, only.decided, found.plan.repeats) == (1, False, 2)
    assert found.as_dict()["stopped"]["reason"] == (
        "Stopped after 10 splits: fewer than two algorithms have results that can be compared."
    )
    again = fa.compare("digits", entered, resume="c", **how, **SMALL)
    assert again.plan.looks == found.plan.looks


@dataclass(frozen=True)
class Repaired(FedAvg):
    """FedAvg whose clients fail as long as a file is there."""

    def client(self, *given: Any) -> Any:
        if Path("broken").exists():
            raise RuntimeError("broken")
        return super().client(*given)


@pytest.mark.slow
def test_results_that_come_with_a_resume_are_looked_at() -> None:
    entered = {"fedavg": "fedavg", "repaired": Repaired()}
    how: dict[str, Any] = {"until_decided": True, "baseline": False, "workers": 2}
    Path("broken").touch()
    before = fa.compare("digits", entered, out="c", **how, **SMALL)
    Path("broken").unlink()
    found = fa.compare("digits", entered, resume="c", **how, **SMALL)
    assert [(seen.splits, seen.candidates, seen.decided) for seen in before.plan.looks] == [(10, 1, False)]
    assert [(seen.splits, seen.candidates, seen.decided) for seen in found.plan.looks] == [(10, 2, True)]


# Workers, kills and resumes


@pytest.mark.slow
def test_the_same_bits_and_looks_for_any_number_of_workers(undecided: Comparison) -> None:
    how: dict[str, Any] = {"until_decided": True, "at_most": 20, "rope": NARROW, "baseline": False, "out": False}
    two = fa.compare("digits", OPEN, workers=2, **how, **SMALL)
    assert facts(two) == facts(undecided)


MOMENTS = {
    "before the look is written": """
from fedarena.results.comparison import Comparison
def hold(comparison):
    wait()
Comparison.look = hold
""",
    "before the added runs begin": """
from fedarena.experiments import until_decided
write = until_decided.write_plan
def hold(plan, root):
    write(plan, root)
    if plan.repeats == 3:
        wait()
until_decided.write_plan = hold
""",
    "in the added runs": """
import json
from fedarena.engine.checkpoint import CheckpointStore
save = CheckpointStore.save
def hold(keeper, snapshot, record):
    if json.loads(Path("c/comparison.json").read_text())["repeats"] == 3:
        wait()
    save(keeper, snapshot, record)
CheckpointStore.save = hold
""",
}
WAIT = """
import time
from pathlib import Path

def wait():
    Path("held").touch()
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs workers that begin as copies of their process")
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_resumed(moment: str, undecided: Comparison) -> None:
    Path("hold.py").write_text(WAIT + MOMENTS[moment])
    words = ["digits", *TYPED, "--until-decided", "--at-most", "20", "--out", "c", "--workers", "2", *QUICK]
    command = [sys.executable, "-m", "fedarena", "compare", *words, "--file", "hold.py"]
    process = forked_processes.Popen(command)
    deadline = time.monotonic() + PATIENCE
    while not Path("held").exists():
        assert process.poll() is None, f"it ended with exit code {process.poll()}"
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.01)
    process.kill()
    process.communicate()
    plan = read_plan(Path("c"))
    before = moment == "before the look is written"
    assert (plan.repeats, len(plan.looks)) == ((2, 0) if before else (3, 1))
    assert plan.looks == undecided.plan.looks[: len(plan.looks)]
    with pytest.raises(fa.FedarenaError, match=r"is not decided after 1[05] splits, and its limit is 20") as refused:
        Comparison.load("c")
    assert refused.value.remedy == "resume it: fedarena compare --resume c"
    (match,) = Catalogue(Path()).scan().comparisons
    assert match.state == "interrupted"
    assert facts(fa.compare(resume="c", workers=2)) == facts(Comparison.load("c")) == facts(undecided)


@pytest.mark.slow
def test_a_finished_comparison_is_not_looked_at_again(decided: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied(decided)
    before = (folder / "comparison.json").read_bytes()

    def refuse(_: Comparison) -> LookRecord:
        raise AssertionError("a look that was made is made again")

    monkeypatch.setattr(Comparison, "look", refuse)
    again = fa.compare(resume=folder)
    assert (folder / "comparison.json").read_bytes() == before
    assert facts(again) == facts(decided)
    typed = fa.compare("digits", CLEAR, until_decided=True, baseline=False, resume=folder, **SMALL)
    assert facts(typed) == facts(decided), "typed once more it is the same"


@pytest.mark.slow
def test_a_higher_limit_gives_what_it_would_have_given_from_the_start(undecided: Comparison) -> None:
    how: dict[str, Any] = {"until_decided": True, "rope": NARROW, "baseline": False, "workers": 2}
    short = fa.compare("digits", OPEN, at_most=15, out="c", **how, **SMALL)
    assert [found.splits for found in short.plan.looks] == [10, 15]
    longer = fa.compare("digits", OPEN, at_most=20, resume="c", **how, **SMALL)
    assert facts(longer) == facts(undecided)
    assert longer.plan.notes == ("the limit was 15 splits at first, and became 20 after 15 splits",)
    assert fa.compare(resume="c").plan == longer.plan


def test_the_command_that_continues(undecided: Comparison) -> None:
    """The means are a chance difference: no number of splits would decide by the spread that they have."""
    assert next_step(undecided) == "If means and spread persist, no number of splits up to 1000 would decide it."
    equal = replace(undecided, plan=replace(undecided.plan, rope=0.05))
    command, limit = next_step(equal).rsplit(" ", 1)
    assert command == f"To add further splits: fedarena compare --resume {undecided.dir} --at-most"
    assert int(limit) > 20
    assert int(limit) % 5 == 0
    plain = replace(undecided, plan=replace(undecided.plan, at_most=None, looks=()))
    assert next_step(plain) == "", "further splits would not decide"


# What is shown


@pytest.mark.slow
def test_json(decided: Comparison, undecided: Comparison) -> None:
    output = json.loads(call("--resume", str(copied(undecided)), "--json", "-q").stdout)
    assert output["at_most"] == 20
    assert output["stopped"] == {"splits": 20, "decided": False, "reason": "Not decided after 20 splits, the limit."}
    assert [found["splits"] for found in output["looks"]] == [10, 15, 20]
    keys = {"splits", "n", "candidates", "level", "best_set", "p_equal", "decided", "reason"}
    assert all({*found} == keys for found in output["looks"])
    assert decided.as_dict()["stopped"] == {
        "splits": 10,
        "decided": True,
        "reason": "Stopped after 10 splits: fedavg is the best with probability 1.000.",
    }
    plain = replace(decided, plan=replace(decided.plan, at_most=None, looks=())).as_dict()
    assert (plain["at_most"], plain["looks"], plain["stopped"]) == (None, [], None)


@pytest.mark.slow
def test_terminal_and_report(undecided: Comparison) -> None:
    shown = " ".join(call("--resume", str(copied(undecided)), "-q").stdout.split())
    assert "Not decided after 20 splits, the limit." in shown
    for splits in (10, 15, 20):
        assert f"Look at {splits} splits: not decided, " in shown
    write_report(undecided, Path("report.html"))
    page = Path("report.html").read_text()
    assert "Not decided after 20 splits, the limit." in page
    assert "Every look, and what it found" in page
    assert "--folds 5 --repeats 2 --until-decided --at-most 20" in page
    catalogue = Catalogue(Path())
    (match,) = catalogue.scan().comparisons
    shown_in_browser = comparison_page.page(catalogue, match.id, {})
    assert match.state == "finished"
    assert shown_in_browser is not None
    assert "Repeats are added until it is decided, at most 20 splits." in shown_in_browser
    assert "Look at 15 splits: not decided, " in shown_in_browser


def test_a_best_algorithm_need_not_be_better_by_more_than_a_rope(decided: Comparison) -> None:
    """The sentence about the pair does not deny the one about the best."""
    wide = replace(decided, plan=replace(decided.plan, rope=0.4))
    assert wide.duel("fedavg", "weak").verdict == "?"
    assert any(
        text.startswith("These 10 splits do not decide whether it is better by more than 40") for text in wide.words
    )


def test_lines_and_table_of_a_plan_that_grows(undecided: Comparison) -> None:
    assert undecided.dir is not None
    grown = undecided.plan
    first = replace(grown, repeats=2, looks=())
    for terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=120, height=60, color_system=None)
        view = ComparisonProgress(console=console)
        view.start(first, comparison_cells(first, undecided.dir))
        view.stop()
        assert len(view.seen) == 20
        view.report_look(grown.looks[0])
        view.start(grown, comparison_cells(grown, undecided.dir))
        view.update([])
        view.stop()
        assert len(view.seen) == 40
        assert view.summary().startswith("40/40 runs")
        assert isinstance(console.file, io.StringIO)
        output = console.file.getvalue()
        assert output.count("2 x 10 runs or more, until it is decided or has 20 splits") == 1, "one title"
        assert "look at 10 splits: not decided, " in output


@pytest.mark.slow
def test_a_dry_run_says_the_first_look_and_the_worst_case() -> None:
    words = ["digits", *TYPED, "--until-decided", "--at-most", "30", *QUICK, "--dry-run", "--workers", "1"]
    output = json.loads(call(*words, "--json").stdout)
    assert (output["first_look"], output["runs"], len(output["splits"])) == (10, 20, 10)
    worst = output["worst_case"]
    assert (worst["splits"], worst["runs"]) == (30, 60)
    assert worst["disk_bytes"] == 3 * output["disk_bytes"]
    assert worst["seconds"] == pytest.approx(3 * output["seconds"])
    lines = call(*words).stdout.splitlines()
    assert lines[0] == "fedavg, twin: 2 x 10 runs (2 x 5 folds) before the first look"
    assert lines[-2].startswith("if it is not decided before its limit of 30 splits: 60 runs, about ")
    assert not list(Path().iterdir())


# Mistakes


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["--at-most", "30"], "add --until-decided, or leave out --at-most"),
        (["--until-decided", "--at-most", "9"], "at most 9 splits, and the first look is at 10"),
        (["--until-decided", "--at-most", "0"], "give a whole number of splits, at most 1000"),
        (["--until-decided", "--at-most", "1001"], "give a whole number of splits, at most 1000"),
        (["--until-decided", "--repeats", "1"], "give --repeats 2 or more, or leave it out"),
        (["--until-decided", "--seeds", "9"], "give --seeds 10 or more"),
        (["--until-decided", "--repeats", "12", "--at-most", "50"], "give --at-most 60 or more"),
        (["--until-decided", "--per-repeat", "start", "--at-most", "20"], "the first look is at 25"),
        (["--until-decided", "--tune", "2"], "--tune and --until-decided exclude each other"),
        (["--until-decided", "--set", "uplink.clip=1", "--sweep", "uplink.noise=0,1"], "--sweep and --until-decided"),
    ],
)
def test_a_mistake_is_one_message(words: list[str], output: str) -> None:
    result = call("digits", *TYPED, *QUICK, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert output in result.stderr
    assert len(result.stderr.strip().splitlines()) == 2
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("which", "words", "output"),
    [
        ("undecided", ["--at-most", "15"], "the limit of this comparison is 20 splits"),
        ("undecided", ["--rope", "0.02"], "the looks of this comparison are made with rope = 0.0001"),
        ("undecided", ["--metric", "f1"], "the looks of this comparison are made with metric = accuracy"),
        ("undecided", ["--repeats", "5"], "a resumed comparison stays as it was"),
        ("decided", ["--at-most", "60"], "the comparison is decided: fedavg is the best with probability 1.000"),
    ],
)
def test_a_resumed_comparison_keeps_its_rule(
    which: str, words: list[str], output: str, request: pytest.FixtureRequest
) -> None:
    folder = copied(request.getfixturevalue(which))
    before = (folder / "comparison.json").read_bytes()
    result = call("--resume", str(folder), *words, "-q")
    assert (result.exit_code, result.stdout) == (2, "")
    assert output in result.stderr
    assert (folder / "comparison.json").read_bytes() == before


@pytest.mark.slow
def test_a_fixed_number_of_splits_is_not_continued() -> None:
    fa.compare("digits", CLEAR, seeds=2, baseline=False, out="c", **SMALL)
    for words in (["--until-decided"], ["--at-most", "50"], ["--until-decided", "--at-most", "50"]):
        result = call("--resume", "c", *words, "-q")
        assert result.exit_code == 2
        assert "continuing because a result is undecided needs the stricter rule from the first look on" in result.stderr


def test_other_first_looks_and_other_modes_are_other_comparisons(decided: Comparison) -> None:
    folder = copied(decided)
    with pytest.raises(fa.FedarenaError, match="its repeats is 2, not 3"):
        fa.compare("digits", CLEAR, until_decided=True, repeats=3, baseline=False, resume=folder, **SMALL)
    with pytest.raises(fa.FedarenaError, match="its at_most is 50, not None"):
        fa.compare("digits", CLEAR, repeats=2, baseline=False, resume=folder, **SMALL)
    with pytest.raises(fa.FedarenaError, match="until_decided = 'yes'"):
        fa.compare("digits", CLEAR, until_decided="yes", **SMALL)  # type: ignore[arg-type]


def test_a_damaged_look_is_named(decided: Comparison) -> None:
    folder = copied(decided)
    table = json.loads((folder / "comparison.json").read_text())
    del table["sha256"]
    table["looks"][0]["splits"] = "many"
    (folder / "comparison.json").write_text(json.dumps(table))
    with pytest.raises(fa.FedarenaError, match=r"comparison.json cannot be used: .*splits"):
        read_plan(folder)
