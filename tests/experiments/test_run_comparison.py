"""Comparing: pairs that are pairs, trouble that stays where it is, and a folder that can be gone on with."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.federations import blobs
from typer.testing import CliRunner, Result

import fedarena as fa
from fedarena.cli.main import app
from fedarena.common.folder_lock import hold_folder
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.loop import TrainingLoop
from fedarena.engine.setup import open_context
from fedarena.experiments import run_comparison
from fedarena.experiments.plan import build_plan
from fedarena.results.run_folder import read_facts
from fedarena.runtimes.serial import SerialRuntime

SMALL: dict[str, Any] = {"rounds": 2, "clients": 4, "model": "logreg", "share": 0.5}
QUICK = ["--set", "rounds=2", "--set", "clients=4", "--set", "model=logreg"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def bits(comparison: fa.Comparison) -> dict[str, Any]:
    """All that must not depend on how it was made."""
    return {label: [(r.weights_sha256, r.curve, r.bytes) for r in runs] for label, runs in comparison.runs.items()}


# Pairs


@pytest.mark.slow
def test_identical_algorithms_differ_by_exactly_nothing() -> None:
    found = fa.compare("digits", {"one": "fedavg", "other": "fedavg"}, folds=3, **SMALL)
    scores = found.scores()
    assert [b - a for a, b in zip(scores["one"], scores["other"], strict=True)] == [0.0, 0.0, 0.0]
    assert len(set(scores["one"])) > 1  # the splits do differ
    assert bits(found)["one"] == bits(found)["other"]
    duel = found.duel("one", "other")
    assert (duel.p_better, duel.p_equal, duel.p_worse, duel.verdict) == (0, 1, 0, "=")


@pytest.mark.slow
def test_all_algorithms_of_a_split_begin_alike() -> None:
    """The same data, partition and initial weights for all of a split; other ones in every other split."""
    found = fa.compare("digits", ["fedavg", "scaffold", "fedprox:mu=0.5"], folds=2, repeats=2, **SMALL)
    assert found.dir is not None
    plan = found.plan
    keys = ("data_sha256", "partition_sha256", "model_sha256")
    begin = {
        split: {tuple(read_facts(plan.folder(found.dir, label, split))[k] for k in keys) for label in plan.contestants}
        for split in plan.splits
    }
    assert all(len(facts) == 1 for facts in begin.values())
    partitions = [next(iter(facts))[1] for facts in begin.values()]
    assert len(set(partitions)) == 4
    models = [next(iter(facts))[2] for facts in begin.values()]
    assert len(set(models)) == 4


def test_all_algorithms_of_a_split_have_one_schedule(tmp_path: Path) -> None:
    plan = build_plan(
        fa.Experiment.make("digits", **{**SMALL, "clients": 10}),
        {name: {"algorithm": name} for name in ("fedavg", "scaffold", "fednova", "feddyn")},
        folds=2,
    )
    for split in plan.splits:
        schedules = []
        for label in plan.contestants:
            site = open_context(plan.cell(label, split))
            keeper = CheckpointStore(tmp_path / label / split.name, site.algorithm)
            schedules.append([TrainingLoop(site, SerialRuntime(site), keeper).clients.select(round) for round in range(8)])
            keeper.close()
        assert all(schedule == schedules[0] for schedule in schedules)
        assert len({tuple(who) for who in schedules[0]}) > 1


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_bits() -> None:
    made = [fa.compare("digits", ["fedavg", "scaffold"], folds=2, workers=n, out=False, **SMALL) for n in (1, 3)]
    assert bits(made[0]) == bits(made[1])
    assert made[0].dir is None
    assert all(run.dir is None for runs in made[0].runs.values() for run in runs)
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_cell_is_an_ordinary_run() -> None:
    found = fa.compare("digits", ["fedavg", "scaffold"], seeds=2, **SMALL)
    seeds = {key: getattr(found.runs["scaffold"][1].experiment, key) for key in ("seed", "fold_seed")}
    alone = fa.run("digits", algorithm="scaffold", out=False, **seeds, **SMALL)
    assert found.runs["scaffold"][1].weights_sha256 == alone.weights_sha256
    assert found.runs["scaffold"][1].dir == Path("runs/digits-compare/cells/scaffold/seed1")
    assert fa.verify(found.runs["scaffold"][1].dir, runtime="serial").same


@pytest.mark.slow
def test_folders_are_not_reused() -> None:
    first = fa.compare("digits", ["fedavg", "fedprox"], seeds=2, baseline=False, **SMALL)
    second = fa.compare("digits", ["fedavg", "fedprox"], seeds=2, baseline=False, **SMALL)
    assert [str(c.dir) for c in (first, second)] == ["runs/digits-compare", "runs/digits-compare-2"]


@pytest.mark.slow
def test_the_baseline_is_shown_and_not_judged() -> None:
    found = fa.compare("digits", ["fedavg", "fedprox"], seeds=2, **SMALL)
    assert found.plan.reference == "centralized"
    assert found.labels == ["fedavg", "fedprox"]
    assert found.rows()[-1]["algorithm"] == "centralized"
    assert found.rows()[0]["relative_accuracy"] > 0
    without = fa.compare("digits", ["fedavg", "fedprox"], seeds=2, baseline=False, **SMALL)
    assert without.plan.reference is None
    assert list(without.runs) == ["fedavg", "fedprox"]
    named = fa.compare("digits", ["fedavg", "centralized"], seeds=2, out=False, **SMALL)
    assert named.plan.reference is None
    assert named.labels == ["fedavg", "centralized"]


def test_an_algorithm_may_have_its_own_rate() -> None:
    found = fa.compare("digits", ["fedavg", "slow=fedavg:local.lr=0.001"], seeds=2, baseline=False, **SMALL)
    fast, slow = (runs[0].experiment for runs in found.runs.values())
    assert slow.local.lr == 0.001
    assert slow.with_(local={"lr": fast.local.lr}) == fast
    assert np.mean(found.scores()["fedavg"]) > np.mean(found.scores()["slow"])


# From Python


@dataclass(frozen=True)
class Half(fa.FedAvg):
    """Half of every step, and only this file knows it."""

    server_lr: float = 0.5


@pytest.fixture
def another_thread() -> Iterator[None]:
    """Where threads are about, workers are started fresh instead of forked."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


def own(resume: Path | None = None, **how: Any) -> fa.Comparison:
    rows = fa.arrays(*blobs())
    return fa.compare(rows, {"half": Half(), "whole": "fedavg"}, folds=2, baseline=False, resume=resume, **SMALL, **how)


@pytest.mark.slow
def test_own_objects_in_fresh_workers(another_thread: None) -> None:
    found = own(out="fresh", workers=1)
    assert found.scores().keys() == {"half", "whole"}
    assert found.runs["half"][0].experiment.algorithm.made == Half()


def test_own_objects_are_given_again_to_resume() -> None:
    first = own(out="c")
    again = own(resume=Path("c"))
    assert bits(again) == bits(first)
    with pytest.raises(fa.FedarenaError, match="came from Python"):
        fa.compare(resume="c")
    loaded = fa.load("c")
    assert loaded.scores() == first.scores()
    assert loaded.runs["half"][0].experiment.algorithm.made != Half()
    given = fa.load("c", algorithms={"half": Half()}, data=fa.arrays(*blobs()))
    assert given.runs["half"][0].experiment.algorithm.made == Half()


# Trouble


@dataclass(frozen=True)
class Failing(fa.FedAvg):
    """Breaks in its second round."""

    def server(self, state: Any, mean: Any, cohort: Any) -> Any:
        raise ZeroDivisionError("of all things")


@dataclass(frozen=True)
class Deadly(fa.FedAvg):
    """Takes its worker down, as a machine without memory would."""

    def client(self, got: Any, kept: Any, work: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_trouble_of_one_does_not_lose_the_others() -> None:
    settings = {**SMALL, "model": "mlp_2nn"}
    entered = {
        "wild": "fedavg:local.lr=1e30", "failing": Failing(), "deadly": Deadly(), "fedavg": "fedavg", "fedprox": "fedprox",
    }  # fmt: skip
    found = fa.compare("digits", entered, seeds=2, workers=2, out="c", **settings)
    assert found.labels == ["wild", "fedavg", "fedprox"]
    assert found.failures["failing"].startswith("ZeroDivisionError: of all things (")
    assert "test_run_comparison.py, line" in found.failures["failing"]
    assert found.failures["deadly"].startswith("its worker died 3 times (last exit code -9)")
    assert [run.diverged for run in found.runs["wild"]] == [True, True]
    assert found.rows()[0]["diverged"] == 2
    assert all(0 <= score <= 1 for score in found.scores()["wild"])
    quiet = fa.compare("digits", ["fedavg", "fedprox"], seeds=2, out=False, **settings)
    assert {label: bits(found)[label] for label in quiet.runs} == bits(quiet)
    assert "wild diverged in 2 of 2 runs." in found.words
    assert Path("c/cells/failing/seed0/failure.txt").read_text().count("\n") == 1


@dataclass(frozen=True)
class Repaired(fa.FedAvg):
    """Fails as long as a file is there."""

    def client(self, got: Any, kept: Any, work: Any) -> Any:
        if Path("broken").exists():
            raise RuntimeError("broken")
        return super().client(got, kept, work)


@pytest.mark.slow
def test_what_failed_is_tried_again_on_resume() -> None:
    def go(**how: Any) -> fa.Comparison:
        return fa.compare("digits", {"repaired": Repaired(), "fedavg": "fedavg"}, seeds=2, baseline=False, **SMALL, **how)

    Path("broken").touch()
    assert "broken" in go(out="c").failures["repaired"]
    Path("broken").unlink()
    found = go(resume="c")
    assert not found.failures
    assert bits(found)["repaired"] == bits(found)["fedavg"]


@dataclass(frozen=True)
class FullDisk(fa.FedAvg):
    """What the keeper of a run says when there is no room."""

    def client(self, got: Any, kept: Any, work: Any) -> Any:
        return super().client(got, kept, work)

    def server(self, state: Any, mean: Any, cohort: Any) -> Any:
        from fedarena.config.errors import CannotWrite

        if Path("full").exists():
            raise CannotWrite("the disk is full", remedy="make room, then go on with --resume")
        return super().server(state, mean, cohort)


@pytest.mark.slow
def test_a_full_disk_stops_everything_and_loses_nothing() -> None:
    """It would be full for the next cell too; no cell is marked as failed."""

    def go(**how: Any) -> fa.Comparison:
        return fa.compare("digits", {"a": FullDisk(), "b": FullDisk()}, seeds=2, baseline=False, **SMALL, **how)

    Path("full").touch()
    with pytest.raises(fa.FedarenaError, match="the disk is full"):
        go(out="c")
    assert not list(Path("c").rglob("failure.txt"))
    Path("full").unlink()
    assert bits(go(resume="c"))["a"] == bits(go(out=False))["a"]


@dataclass(frozen=True)
class Sociable(fa.FedAvg):
    """Needs three clients."""

    def check(self, setting: Any) -> None:
        if setting.clients < 3:
            raise fa.FedarenaError("two are no company", remedy="bring a friend")


def test_trouble_of_a_later_split_shows_before_any_work() -> None:
    """Rows are dealt to folds in turn: the only row of b is held out in the second fold, which then has two clients."""
    x, y = blobs(11)
    owners = np.array([0] * 3 + [1] + [2] * 7)
    how: dict[str, Any] = {"folds": 2, "baseline": False, "rounds": 1, "model": "logreg", "partition": "natural"}
    with pytest.raises(fa.FedarenaError, match="per_round = 3, but only 2 clients have rows"):
        fa.compare((x, y, owners), ["fedavg", "fedprox"], per_round=3, **how)
    with pytest.raises(fa.FedarenaError, match="two are no company"):
        fa.compare((x, y, owners), {"fedavg": "fedavg", "sociable": Sociable()}, **how)
    assert not Path("runs").exists()


def test_killed_while_what_failed_is_cleared_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files go in any order: had failure.txt gone first, the rest would look like a run that can be gone on with."""
    experiment, cell = fa.Experiment.make("digits", **SMALL), Path("c/cells/fedavg/seed0")
    fa.run(experiment, out=cell, runtime="serial")
    whole = {file.name: file.read_bytes() for file in cell.iterdir() if file.is_file()}
    (cell / "result.json").unlink()
    (cell / "checkpoint" / "rounds.jsonl").unlink()
    (cell / "failure.txt").write_text("broken")

    def killed(folder: Path, **how: Any) -> None:
        if Path(folder).exists():
            (Path(folder) / "failure.txt").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            run_comparison._run_cell(experiment, cell)
    assert run_comparison._run_cell(experiment, cell) is None
    assert (cell / "model.safetensors").read_bytes() == whole["model.safetensors"]
    assert [folder.name for folder in cell.parent.iterdir()] == ["seed0"]


# The folder


@pytest.mark.slow
def test_resuming_a_finished_comparison_runs_nothing() -> None:
    first = fa.compare("digits", ["fedavg", "fedprox:mu=0.1"], folds=2, out="c", **SMALL)
    before = {file: file.stat().st_mtime_ns for file in Path("c/cells").rglob("*") if file.is_file()}
    again = fa.compare(resume="c")
    assert bits(again) == bits(first)
    assert again.as_dict() == first.as_dict()
    assert {file: file.stat().st_mtime_ns for file in Path("c/cells").rglob("*") if file.is_file()} == before


@pytest.mark.slow
def test_judging_again_needs_no_new_runs() -> None:
    fa.compare("digits", ["fedavg", "fedprox:mu=0.1"], folds=2, out="c", rope=0.02, **SMALL)
    assert fa.compare(resume="c").plan.rope == 0.02
    assert fa.compare(resume="c", rope=0.5).duel("fedavg", "fedprox:mu=0.1").verdict == "="
    assert fa.Comparison.load("c").plan.rope == 0.5


@pytest.mark.slow
def test_another_plan_is_refused() -> None:
    def go(names: list[str], **how: Any) -> fa.Comparison:
        return fa.compare("digits", names, **{**SMALL, "baseline": False, "folds": 2, **how})

    go(["fedavg", "fedprox"], out="c")
    for names, how, message in [
        (["fedavg", "fedprox"], {"rounds": 3}, "its rounds is 2, not 3"),
        (["fedavg", "fedprox"], {"local": {"lr": 0.9}}, "its local.lr is"),
        (["fedavg", "fedprox"], {"folds": 3}, "its folds is 2, not 3"),
        (["fedavg", "fedprox"], {"repeats": 2}, "its repeats is 1, not 2"),
        (["fedavg", "fedprox"], {"baseline": True}, "its contestants.centralized is None"),
        (["fedavg", "scaffold"], {}, "its contestants.fedprox is"),
    ]:
        with pytest.raises(fa.FedarenaError, match=message):
            go(names, resume="c", **how)
    with pytest.raises(fa.FedarenaError, match="stays as it was"):
        fa.compare(resume="c", rounds=3)


@pytest.mark.slow
def test_what_a_resumed_comparison_cannot_have_is_refused() -> None:
    Path("spaces.toml").write_text("[fedavg]\nlocal.lr = { choices = [0.1] }\n")
    fa.compare("digits", ["fedavg", "fedprox"], seeds=2, out="c", **SMALL)
    fa.compare("digits", ["fedavg", "fedprox"], seeds=2, out="without", baseline=False, **SMALL)
    for words in (["--spaces", "spaces.toml"], ["--tune-method", "grid"], ["--tune-per", "once"], ["--no-baseline"]):
        result = call("compare", "--resume", "c", *words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "a resumed comparison stays as it was" in result.stderr
    assert call("compare", "--resume", "without", "--no-baseline", "-q").exit_code == 0  # as it was


@pytest.mark.slow
def test_one_at_a_time() -> None:
    fa.compare("digits", ["fedavg", "fedprox"], seeds=2, out="c", baseline=False, **SMALL)
    with hold_folder(Path("c")), pytest.raises(fa.FedarenaError, match="another process is using c"):
        fa.compare(resume="c")
    fa.compare(resume="c")  # the lock is let go


# The command


@pytest.mark.slow
def test_json_and_nothing_else() -> None:
    result = call("compare", "digits", "-a", "fedavg", "-a", "fedprox:mu=0.1", *QUICK, "--seeds", "2", "--json", "-q")
    assert result.exit_code == 0
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert report["algorithms"] == ["fedavg", "fedprox:mu=0.1"]
    assert {len(scores) for scores in report["scores"].values()} == {2}
    assert [d["row"] for d in report["table"]] == ["fedavg", "fedprox:mu=0.1"]
    assert report["dir"] == "runs/digits-compare"
    assert [row["algorithm"] for row in report["rows"]] == ["fedavg", "fedprox:mu=0.1", "centralized"]


@pytest.mark.slow
def test_a_line_for_every_run_then_the_verdict() -> None:
    result = call("compare", "digits", "-a", "fedavg", "-a", "fedprox:mu=0.1", *QUICK, "--no-baseline", "--out", "c")
    assert result.exit_code == 0
    title, *lines, note = result.stderr.splitlines()
    assert title == "fedavg, fedprox:mu=0.1 · digits · label_dirichlet · logreg · 2 x 5 runs"
    assert note == "note: beta = 0.3 over the clients of each class; unequal sizes"
    assert [line.split()[0] for line in lines] == [f"{n}/10" for n in range(1, 11)]
    assert "is the best choice" in result.stdout
    assert "1 x 5 folds" in result.stdout
    assert result.stdout.splitlines()[-1] == "c"


@pytest.mark.slow
def test_exit_code_1_when_nothing_could_be_compared() -> None:
    Path("mine.py").write_text(
        "from dataclasses import dataclass\nimport fedarena as fa\n"
        "@fa.register('algorithm', 'broken')\n@dataclass(frozen=True)\nclass Broken(fa.FedAvg):\n"
        "    'Never works.'\n    def client(self, got, kept, work):\n        raise ValueError('never')\n"
    )
    both = ["-a", "fedavg", "-a", "broken"]
    result = call("compare", "digits", *both, *QUICK, "--file", "mine.py", "--seeds", "2", "-q", "--no-baseline")
    assert result.exit_code == 1
    assert "broken has no result: client 0 in round 1 failed: ValueError: never" in result.stdout
    assert "nothing to compare" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits"], "no algorithm is named"),
        (["digits", "-a", "fedavg"], "one algorithm cannot be compared"),
        (["digits", "-a", "fedavg", "-a", "fedavg"], "cannot be distinguished"),
        (["digits", "-a", "fedavg", "-a", "scafold"], "did you mean 'scaffold'?"),
        (["digits", "-a", "fedavg", "-a", "fedprox:mu=-1"], "does not fit algorithm 'fedprox'"),
        (["digits", "-a", "fedavg", "-a", "fedprox:local.lrr=1"], "local has no key 'lrr'"),
        (["digits", "-a", "fedavg", "-a", "fedprox:mu=100"], "mu"),  # found by the algorithm itself: eta mu >= 2
        (["digitz", "-a", "fedavg", "-a", "fedprox"], "did you mean 'digits'?"),
        (["none.toml", "-a", "fedavg", "-a", "fedprox"], "no experiment file"),
        (["digits", "-a", "fedavg", "-a", "fedprox", "--folds", "1"], "folds = 1"),
        (["digits", "-a", "fedavg", "-a", "fedprox", "--repeats", "0"], "repeats = 0"),
        (["digits", "-a", "fedavg", "-a", "fedprox", "--seeds", "1"], "seeds = 1"),
        (["digits", "-a", "fedavg", "-a", "fedprox", "--seeds", "3", "--folds", "5"], "exclude each other"),
        (["digits", "-a", "fedavg", "-a", "fedprox", "--rope", "-0.1"], "rope = -0.1"),
        (["digits", "-a", "fedavg", "-a", "fedprox", "--threshold", "1"], "threshold = 1"),
        (["digits", "-a", "fedavg", "-a", "fedprox", "--workers", "0"], "workers = 0"),
        (["digits", "-a", "fedavg", "-a", "fedprox", "--set", "rounds=0"], "rounds = 0"),
        (
            ["digits", "-a", "fedavg", "-a", "fedprox", "--set", "folds=5", "--set", "fold=0"],
            "holds out samples itself",
        ),
        (["digits", "-a", "centralized=fedavg", "-a", "fedprox"], "'centralized' is the name of the baseline"),
        (["digits", "-a", "fedavg", "-a", "fedprox", "--report", "no/such/place.html"], "no folder for"),
        (["digits", "-a", "fedavg", "-a", "fedprox", "--out", "taken"], "taken exists already"),
        (["digits", "-a", "fedavg", "-a", "fedprox", "--out", "x", "--resume", "taken"], "stays in its folder"),
        (["--resume", "taken"], "taken holds no comparison"),
    ],
)
def test_mistakes_get_one_message_before_any_work(arguments: list[str], message: str) -> None:
    Path("taken").mkdir()
    Path("taken/file").touch()
    result = call("compare", *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert message in result.stderr
    assert "\n  -> " in result.stderr
    assert len(result.stderr.strip().splitlines()) == 2
    assert {p.name for p in Path().iterdir()} == {"taken"}


@pytest.mark.slow
def test_a_taken_folder_says_how_to_go_on() -> None:
    both = ["-a", "fedavg", "-a", "fedprox"]
    assert call("compare", "digits", *both, *QUICK, "--seeds", "2", "--out", "c", "-q").exit_code == 0
    result = call("compare", "digits", *both, *QUICK, "--seeds", "2", "--out", "c", "-q")
    assert result.exit_code == 2
    assert "fedarena compare --resume c" in result.stderr
    assert call("compare", "--resume", "c", "-q").exit_code == 0


def test_help_has_examples() -> None:
    text = call("compare", "--help").stdout.replace("\n", " ")
    assert "fedarena compare digits -a fedavg -a fedprox:mu=0.1 -a scaffold" in text
    assert call("compare").exit_code == 2


def test_an_error_names_the_contestant(tmp_path: Path) -> None:
    with pytest.raises(fa.FedarenaError, match="fedprox diverges") as error:
        fa.compare("digits", ["fedavg", "fedprox:mu=100", "fedprox:mu=0.1"], folds=2, rounds=1, out=tmp_path / "c")
    assert "fedprox:mu=100" in error.value.where
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_another_rope_after_the_scores_are_known_is_reported(tmp_path: Path) -> None:
    fa.compare("digits", ["fedavg", "fedsgd"], folds=2, rounds=1, model="logreg", out=tmp_path / "c", baseline=False)
    again = fa.compare(resume=tmp_path / "c", rope=0.05)
    assert any("rope was 0.01 at first, and became 0.05 later" in note for note in again.notes)
    assert again.plan.rope == 0.05


@pytest.mark.parametrize("count", [{"seeds": 10**8}, {"folds": 10**5}])
def test_absurd_numbers_of_splits_are_refused(count: dict[str, int]) -> None:
    with pytest.raises(fa.FedarenaError, match="at most 1000"):
        fa.compare("digits", ["fedavg", "fedsgd"], out=False, **count)


@pytest.mark.slow
def test_a_resumed_comparison_is_not_half_given(tmp_path: Path) -> None:
    fa.compare("digits", ["fedavg", "fedsgd"], folds=2, rounds=1, model="logreg", out=tmp_path / "c", baseline=False)
    for source, algorithms in (("digits", ()), (None, ["fedavg"])):
        with pytest.raises(fa.FedarenaError, match="stays as it was"):
            fa.compare(source, algorithms, resume=tmp_path / "c")


@pytest.mark.slow
def test_notes_of_cells_are_shown_once_with_their_algorithm() -> None:
    duel = fa.compare(
        "digits", ["fedavg", "fedbuff:buffer=1000"], folds=2, rounds=1, model="logreg", out=False, baseline=False
    )
    report = [note for note in duel.notes if "never changed" in note]
    assert report == [
        "fedbuff:buffer=1000: the server's model never changed: no usable answer came, or too few for its buffer "
        "(in 2 of 2 runs)"
    ]
    assert sum("beta" in note for note in duel.notes) == 1
    assert "fedavg" in duel._repr_html_()
    assert duel.words[0] in str(duel)
