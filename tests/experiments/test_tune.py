"""Equal tuning budgets: everyone the same number of trials, on rows held out of the training rows, never the test fold."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import forked_processes
from typer.testing import CliRunner, Result

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config.comparison_plan import Plan, Split
from fedarena.config.errors import FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.engine.setup import partition_data
from fedarena.experiments.contestants import contestants
from fedarena.experiments.plan import build_plan
from fedarena.experiments.tune import run_tuning, tuning_note, tuning_split, with_tuning

SMALL: dict[str, Any] = {"clients": 4, "model": "logreg", "partition": "iid", "rounds": 3}
SET = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]


def rows(seed: int = 0, count: int = 160) -> tuple[Any, Any]:
    """Two classes that a line parts."""
    x = np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)
    return x, (x @ [1.0, -1.0, 0.5, 0.0] > 0).astype(int)


def plan(data: Any, algorithms: list[Any], tune: int, *, folds: int | None = 2, repeats: int = 1, **how: Any) -> Plan:
    entered = contestants(algorithms)
    planned = build_plan(Experiment.make(data, **SMALL), entered, folds=folds, repeats=repeats)
    return with_tuning(planned, tune, entered, **how)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["compare", *words])


# Equal


@pytest.mark.slow
def test_everyone_gets_the_same_number_of_trials_and_its_own_space() -> None:
    duel = fa.compare(rows(), ["fedavg", "fedprox", "fedadam"], folds=2, tune=3, out="c", **SMALL)
    table = json.loads(Path("c/tuning.json").read_text())
    assert table["found"].keys() == {"fedavg", "fedprox", "fedadam", "centralized"}  # the baseline too
    for label, splits in table["found"].items():
        assert splits.keys() == {"repeat0-fold0", "repeat0-fold1"}
        for report in splits.values():
            assert len(report["trials"]) == 3
            assert all(trial["values"].keys() == table["spaces"][label].keys() for trial in report["trials"])
            assert report["best"]["score"] == max(trial["score"] for trial in report["trials"])
    assert table["spaces"]["fedprox"].keys() == {"local.lr", "algorithm.mu"}
    assert "tuned: 3 trials (tpe) for every algorithm in every split" in duel.plan.notes[0]
    assert "no test sample was used" in duel.plan.notes[0]
    for label, runs in duel.runs.items():  # and the cells ran with what was found
        for run, split in zip(runs, duel.plan.splits, strict=True):
            best = table["found"][label][split.name]["best"]["values"]
            assert run.experiment == run.experiment.with_(**best)
            assert run.experiment.validate_share is None


@pytest.mark.slow
def test_trials_are_judged_as_the_comparison_judges_runs() -> None:
    """Where own samples decide, so they do while tuning: otherwise Ditto's proximal term would be tuned blindly."""
    skewed = {**SMALL, "partition": {"name": "label_dirichlet", "beta": 0.1}}
    spaces = {"ditto": {"algorithm.lam": {"choices": [0.01, 1.0]}}, "fedper": {"local.lr": {"choices": [0.1, 0.2]}}}
    how = {"tune": 2, "tune_method": "grid", "spaces": spaces, "folds": 2, "baseline": False, "workers": 1}
    duel = fa.compare("digits", ["ditto", "fedper"], out="own", **how, **skewed)
    assert duel.plan.tuning["evaluate_on"] == "own"
    assert "20% of the training samples, each client's by its own model" in duel.plan.notes[0]
    trials = json.loads(Path("own/tuning.json").read_text())["found"]["ditto"]["repeat0-fold0"]["trials"]
    assert trials[0]["score"] != trials[1]["score"]


@pytest.mark.slow
def test_the_same_luck_for_the_same_key() -> None:
    """Random trials of a split draw the same rates for everyone who searches nothing else before it."""
    found = run_tuning(plan(rows(), ["fedavg", "fednova", "scaffold"], 3, folds=None, method="random"), Path()).tuning
    assert found["trials"] == 3
    report = json.loads(Path("tuning.json").read_text())["found"]
    rates = [[t["values"]["local.lr"] for t in report[label]["seed0"]["trials"]] for label in report]
    assert rates[0] == rates[1] == rates[2]
    assert len(set(rates[0])) == 3


def test_what_was_said_stays() -> None:
    fixed = "fedavg:local.lr=0.01,server_lr=1.0"
    entered = ["fedavg", "fedprox:mu=0.3", f"slow={fixed}", "fedavgm:beta=0.5"]
    chosen = plan(rows(), entered, 5).tuning["spaces"]
    assert {label: list(space) for label, space in chosen.items()} == {
        "fedavg": ["local.lr", "algorithm.server_lr"],
        "fedprox:mu=0.3": ["local.lr"],
        "slow": [],
        "fedavgm:beta=0.5": ["local.lr"],
    }
    objects = plan(rows(), [fa.FedProx(mu=0.3), fa.FedAvgM()], 5).tuning["spaces"]
    assert [list(space) for space in objects.values()] == [["local.lr"], ["local.lr", "algorithm.beta"]]
    with pytest.raises(FedarenaError, match="nothing is left to tune"):
        plan(rows(), [f"a={fixed}", "b=fedavg:local.lr=0.1,server_lr=1.0"], 5)


def test_spaces_of_ones_own() -> None:
    Path("spaces.toml").write_text(
        "[fedprox]\nalgorithm.mu = { choices = [0.1, 0.2] }\n[mine]\nlocal.epochs = { low = 1, high = 2 }\n"
    )
    chosen = plan(rows(), ["fedprox", "mine=fedavg", "fedavg"], 5, spaces="spaces.toml").tuning["spaces"]
    assert {label: list(space) for label, space in chosen.items()} == {
        "fedprox": ["algorithm.mu"],
        "mine": ["local.epochs"],
        "fedavg": ["local.lr", "algorithm.server_lr"],
    }
    with pytest.raises(FedarenaError, match="did you mean 'fedprox'"):
        plan(rows(), ["fedprox", "fedavg"], 5, spaces={"fedporx": {"algorithm.mu": {"choices": [0.1]}}})
    with pytest.raises(FedarenaError, match=r"mu = -1.0 does not fit.*\(the search space of fedprox, algorithm.mu\)"):
        plan(rows(), ["fedprox", "fedavg"], 5, spaces={"fedprox": {"algorithm.mu": {"choices": [-1.0]}}})


@pytest.mark.parametrize("key", ["share", "model.norm", "bn_buffers", "init", "algorithm", "algorithm.name"])
def test_what_makes_scores_pairs_is_not_tuned(key: str) -> None:
    """One who may choose its own model or share of clients is compared on another task."""
    with pytest.raises(FedarenaError, match=f"{key} cannot differ between algorithms.*the search space of fedavg"):
        plan(rows(), ["fedprox", "fedavg"], 5, spaces={"fedavg": {key: {"choices": ["a", "b"]}}})


@pytest.mark.slow
def test_who_stays_untuned_is_named() -> None:
    """FedProx refuses a spring that overshoots (rate times mu of 2 or more), and only where it is tried."""
    stiff = {"fedprox": {"algorithm.mu": {"choices": [50.0, 100.0]}}}
    words = ["digits", "-a", "fedavg", "-a", "fedprox", "--no-baseline", "--seeds", "2", *SET]
    Path("spaces.toml").write_text("[fedprox]\nalgorithm.mu = { choices = [50.0, 100.0] }\n")
    result = call(*words, "--tune", "2", "--spaces", "spaces.toml", "--out", "c", "--report", "r.html", "--json")
    report = "fedprox: no trial gave a result; it keeps its own settings"
    assert json.loads(result.stdout)["notes"][1:] == [report]
    assert f"note: {report}" in result.stderr
    assert report in Path("r.html").read_text(encoding="utf-8")
    assert fa.Comparison.load("c").runs["fedprox"][0].experiment.algorithm.settings["mu"] == fa.FedProx().mu
    assert plan(rows(), ["fedavg", "fedprox"], 2, spaces=stiff).tuning["given"] == ["fedprox"]


# Never the test fold


@pytest.mark.slow
def test_the_test_fold_is_never_looked_at() -> None:
    """Poison in the rows of a test fold changes nothing that is tuned for that split; in the others it does."""
    x, y = rows()
    clean = plan((x, y), ["fedavg", "fedprox"], 4)
    data, partition = partition_data(clean.cell("fedavg", Split(0, 0)))
    poisoned = data.x.copy()
    poisoned[partition.test] = np.random.default_rng(1).standard_normal(poisoned[partition.test].shape) * 50
    untouched = fa.arrays(data.x[: data.n_train], data.y[: data.n_train], x_test=data.x[data.n_train :],
                          y_test=data.y[data.n_train :])  # fmt: skip
    changed = fa.arrays(poisoned[: data.n_train], data.y[: data.n_train], x_test=poisoned[data.n_train :],
                        y_test=data.y[data.n_train :])  # fmt: skip
    report = []
    for number, source in enumerate((untouched, changed)):
        root = Path(str(number))
        root.mkdir()
        run_tuning(plan(source, ["fedavg", "fedprox"], 4), root)
        report.append(json.loads((root / "tuning.json").read_text())["found"])
    for label in ("fedavg", "fedprox"):
        assert report[0][label]["repeat0-fold0"] == report[1][label]["repeat0-fold0"]
        assert report[0][label]["repeat0-fold1"] != report[1][label]["repeat0-fold1"]  # there they are training rows


def test_tuned_less_often_it_says_what_that_costs() -> None:
    splits = [Split(repeat, fold) for repeat in (0, 1) for fold in (0, 1)]
    planned = {per: plan(rows(), ["fedavg", "fedprox"], 2, repeats=2, per=per) for per in ("split", "repeat", "once")}
    used = {per: [tuning_split(p, split, per) for split in splits] for per, p in planned.items()}  # type: ignore[arg-type]
    assert used["split"] == splits
    assert used["repeat"] == [Split(0, 0), Split(0, 0), Split(1, 0), Split(1, 0)]
    assert used["once"] == [Split(0, 0)] * 4
    assert "no test sample was used" in tuning_note(planned["split"])
    for per in ("repeat", "once"):
        assert "test samples of other folds were among the training samples there" in tuning_note(planned[per])
    seeds = {per: plan(rows(), ["fedavg", "fedprox"], 2, folds=None, repeats=3, per=per) for per in ("repeat", "once")}
    assert "no test sample was used" in tuning_note(seeds["repeat"])  # a seed is a repeat of its own
    assert "test samples of other splits were among the training samples there" in tuning_note(seeds["once"])
    kept = replace(seeds["once"], fixed=("test",), test_share=None)
    assert "no test sample was used" in tuning_note(
        kept
    )  # all seeds have the same test rows, and none trains on them


@pytest.mark.slow
def test_tuned_once_is_one_search_for_each() -> None:
    found = run_tuning(plan(rows(), ["fedavg", "fedprox"], 2, repeats=2, per="once"), Path())
    report = json.loads(Path("tuning.json").read_text())["found"]
    assert [list(splits) for splits in report.values()] == [["repeat0-fold0"]] * 2
    assert all(len(splits) == 4 for splits in found.tuned.values())
    assert len({json.dumps(values) for values in found.tuned["fedprox"].values()}) == 1


# Interrupted


HOLD = """
import time
from pathlib import Path
from fedarena.experiments.study import Study

take = Study.take

def hold(study, trial):
    take(study, trial)
    while study._stored >= 2:
        Path("held").touch()
        time.sleep(1)

Study.take = hold
"""


@pytest.mark.slow
def test_killed_and_resumed() -> None:
    """kill -9 while tuning; the comparison goes on and ends as if nothing had been."""
    words = ["digits", "-a", "fedavg", "-a", "fedprox", "--no-baseline", "--seeds", "2", "--tune", "4", *SET, "-q"]
    Path("hold.py").write_text(HOLD)  # it waits for the kill when two trials of a study are on disk
    start = [sys.executable, "-m", "fedarena", "compare", *words, "--out", "killed", "--file", "hold.py"]
    process = forked_processes.Popen(start)
    while not Path("held").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 2 <= stored("killed/tuning/study.db") < 16
    assert not Path("killed/tuning.json").exists()
    resumed = json.loads(call("--resume", "killed", "--json", "-q").stdout)
    whole = json.loads(call(*words, "--json", "--out", "whole").stdout)
    assert resumed["scores"] == whole["scores"]
    assert Path("killed/tuning.json").read_text() == Path("whole/tuning.json").read_text()
    assert resumed["notes"] == whole["notes"]
    assert len(whole["notes"]) == 1
    again = json.loads(call("--resume", "killed", "--json", "-q").stdout)  # nothing is left, and it is not tuned again
    assert again["notes"] == whole["notes"]
    assert again["scores"] == whole["scores"]


def stored(file: str) -> int:
    """Trials in a study. A kill may have left a journal, which only a connection that may write can roll back."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=rw", uri=True)) as study:
            return int(study.execute("select count(*) from trials").fetchone()[0])
    except sqlite3.OperationalError:  # not there yet
        return 0


@pytest.mark.slow
def test_another_budget_is_another_comparison() -> None:
    words = ["digits", "-a", "fedavg", "-a", "fedvc", "--no-baseline", "--seeds", "2", *SET, "-q"]
    call(*words, "--out", "c", "--tune", "1")
    assert call(*words, "--resume", "c", "--tune", "1").exit_code == 0
    result = call(*words, "--resume", "c", "--tune", "2")
    assert result.exit_code == 2
    assert "its tuning.trials is 1, not 2" in result.stderr


# Mistakes


@pytest.mark.parametrize(
    ("words", "report"),
    [
        (["--tune", "0"], "tune = 0"),
        (["--tune-per", "once"], "the number of trials is not given"),
        (["--tune-method", "random"], "the number of trials is not given"),
        (["--tune", "3", "--tune-method", "grid"], "a grid cannot hold all of it"),
        (["--tune", "3", "--spaces", "none.toml"], "there is no file none.toml"),
    ],
)
def test_a_mistake_is_one_message(words: list[str], report: str) -> None:
    result = call("digits", "-a", "fedavg", "-a", "scaffold", *SET, *words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert report in result.stderr
    assert len(result.stderr.strip().splitlines()) == 2
    assert not Path("runs").exists()


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = call("digits", "-a", "fedavg", "-a", "scaffold", *SET, "--tune", "3")
    assert result.exit_code == 2
    assert 'pip install "fedarena[search]"' in result.stderr
