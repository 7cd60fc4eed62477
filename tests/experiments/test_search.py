"""A search finds what is there, looks at no test row, and makes the same trials however it is carried out."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.support import forked_processes
from typer.testing import CliRunner, Result

import fedarena as fa
from fedarena.cli.main import app
from fedarena.common.folder_lock import hold_folder
from fedarena.config import registry
from fedarena.config.errors import FedarenaError
from fedarena.experiments.study import AHEAD, AT_RANDOM, FINISHED_FIRST, UNTOUCHED, Pruner

SMALL: dict[str, Any] = {"clients": 4, "model": "logreg", "partition": "iid", "rounds": 4}
SPACE = {"local.lr": {"low": 1e-5, "high": 1.0, "log": True}, "local.epochs": {"low": 1, "high": 3}}
SET = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]


def rows(seed: int, count: int = 160) -> tuple[Any, Any]:
    """Two classes that a line parts."""
    x = np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)
    return x, (x @ [1.0, -1.0, 0.5, 0.0] > 0).astype(int)


DATA = rows(0)


def report(found: fa.Found) -> list[Any]:
    """Everything about every trial, to the last bit."""
    return [(t.number, t.values, t.state, t.score, t.curve) for t in found.trials]


@pytest.fixture(scope="module", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a run imports late is imported here once: forked workers then have it."""
    fa.run(DATA, out=tmp_path_factory.mktemp("warm") / "run", runtime="serial", **SMALL)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["search", *words])


# What it finds


@pytest.mark.slow
def test_a_grid_finds_the_planted_best() -> None:
    """Of these rates two are too small to learn anything in four rounds."""
    space = {"local.lr": {"choices": [1e-7, 0.3, 1e-6]}}
    found = fa.search(DATA, space=space, method="grid", out=False, workers=1, **SMALL)
    assert sorted(t.values["local.lr"] for t in found.trials) == [1e-7, 1e-6, 0.3]
    assert found.best.values == {"local.lr": 0.3}
    assert found.best.score == max(t.score or 0.0 for t in found.trials)
    assert found.experiment.local.lr == 0.3
    assert found.experiment.validate_share is None  # the best is judged on its test rows


@pytest.mark.slow
def test_a_trial_is_the_run_it_says() -> None:
    found = fa.search(DATA, space=SPACE, trials=3, prune=False, out=False, workers=1, **SMALL)
    for trial in found.trials:
        run = fa.run(found.search.validating.with_(**trial.values), out=False, runtime="serial")
        assert trial.curve == dict(run.monotone_curve)
        assert trial.score == run.best.accuracy
        assert len(run.client_accuracy) == SMALL["clients"]


@pytest.mark.slow
def test_the_final_accuracy_may_count() -> None:
    found = fa.search(DATA, space=SPACE, trials=3, score="final", out=False, workers=1, **SMALL)
    for trial in found.trials:
        run = fa.run(found.search.validating.with_(**trial.values), out=False, runtime="serial")
        assert trial.score == run.final.accuracy
        assert trial.curve == dict(run.curve)


@pytest.mark.slow
@pytest.mark.slow
def test_own_models_are_searched_on_clients_own_held_out_samples() -> None:
    """The weight of Ditto's proximal term changes own models only: common samples cannot tell its values apart."""
    ditto = {"space": {"algorithm.lam": {"choices": [0.01, 1.0]}}, "method": "grid", "algorithm": "ditto", "out": False}
    skewed = {**SMALL, "partition": {"name": "label_dirichlet", "beta": 0.1}}
    own = fa.search("digits", workers=1, **ditto, **skewed)
    assert own.search.evaluate_on == "own"
    assert own.trials[0].score != own.trials[1].score
    common = fa.search("digits", evaluate_on="common", workers=1, **ditto, **skewed)
    assert common.trials[0].score == common.trials[1].score
    for trial in own.trials:
        algorithm = {"name": "ditto", "lam": trial.values["algorithm.lam"]}
        run = fa.run("digits", algorithm=algorithm, validate_share=0.2, out=False, **skewed)
        assert trial.score == max(record.weighted_accuracy for record in run.records)


@pytest.mark.slow
def test_another_metric_on_own_samples_is_that_of_the_last_round() -> None:
    how = {"space": {"local.lr": {"choices": [0.01, 0.3]}}, "method": "grid", "algorithm": "local", "out": False}
    found = fa.search(DATA, workers=1, evaluate={"metric": "log_loss"}, **how, **SMALL)
    for trial in found.trials:
        settings = {**SMALL, "evaluate": {"metric": "log_loss"}, "local": {"lr": trial.values["local.lr"]}}
        run = fa.run(DATA, algorithm="local", validate_share=0.2, out=False, **settings)
        assert trial.score == -run.own_metrics["log_loss"]
        assert not trial.curve


@pytest.mark.slow
def test_gains_are_those_of_two_runs_on_held_out_samples() -> None:
    """The best trial and `local` with its local settings, on the same held-out samples of each client."""
    changes = ["--set", "algorithm=ditto", "--set", "partition=shards"]
    words = ["digits", "--trials", "1", "--gains", "--json", "-q", *SET, *changes]
    table = json.loads(call(*words).stdout)
    settings = {**SMALL, "partition": "shards", "validate_share": 0.2, "out": False}
    values = table["best"]["values"]
    ditto = {"name": "ditto", "lam": values["algorithm.lam"]}
    ours = fa.run("digits", algorithm=ditto, local={"lr": values["local.lr"]}, **settings)
    alone = fa.run("digits", algorithm="local", local={"lr": values["local.lr"]}, **settings)
    expected = ours.client_metrics["accuracy"] - alone.client_metrics["accuracy"]
    assert [one["gain"] for one in table["client_gains"]] == expected.tolist()
    assert [one["client"] for one in table["client_gains"]] == [f"client {k}" for k in range(4)]


def test_an_algorithm_without_a_federation_has_no_gains() -> None:
    found = fa.search(DATA, trials=1, algorithm="local", out=False, workers=1, **SMALL)
    with pytest.raises(FedarenaError, match="local has no clients that could gain"):
        found.client_gains()


def test_a_search_on_common_samples_needs_a_common_model() -> None:
    how = {"space": SPACE, "trials": 1, "out": False, "algorithm": "fedper", "evaluate_on": "common"}
    with pytest.raises(FedarenaError, match="fedper has no complete common model"):
        fa.search("digits", **how, **SMALL)


def test_tpe_begins_with_the_values_of_the_experiment() -> None:
    found = fa.search(DATA, space=SPACE, trials=1, out=False, workers=1, local={"lr": 0.07, "epochs": 2}, **SMALL)
    assert found.trials[0].values == {"local.lr": 0.07, "local.epochs": 2}


@pytest.mark.slow
def test_tpe_is_random_until_it_knows_enough() -> None:
    """Trial t knows t - 3 results: the first that knows six is number 9."""
    how: dict[str, Any] = {**SMALL, "space": SPACE, "trials": 11, "out": False}
    tpe, random = ([t.values for t in fa.search(DATA, method=method, **how).trials] for method in ("tpe", "random"))
    first = AHEAD - 1 + AT_RANDOM
    assert tpe[0] == {"local.lr": 0.05, "local.epochs": 1}
    assert tpe[1:first] == random[1:first]
    assert all(a != b for a, b in zip(tpe[first:], random[first:], strict=True))
    known = fa.search(DATA, trials=11, space=SPACE, out=False, ahead=11, **SMALL).trials
    assert [t.values for t in known[1:]] == random[1:]  # who knows nothing stays random


@pytest.mark.slow
def test_a_grid_ends_with_its_points() -> None:
    space = {"local.epochs": {"low": 1, "high": 3}}
    found = fa.search(DATA, space=space, method="grid", trials=10, out=False, workers=1, **SMALL)
    assert sorted(t.values["local.epochs"] for t in found.trials) == [1, 2, 3]


@pytest.mark.slow
def test_what_some_values_cannot_do_is_a_failed_trial_that_never_wins() -> None:
    """FedProx refuses local.lr x mu >= 2."""
    space = {"algorithm.mu": {"choices": [0.01, 100.0]}}
    found = fa.search(DATA, space=space, method="grid", out=False, workers=1, algorithm="fedprox", **SMALL)
    states = {t.values["algorithm.mu"]: (t.state, t.score) for t in found.trials}
    assert states[100.0] == ("failed", None)
    assert states[0.01][0] == "done"
    assert found.best.values == {"algorithm.mu": 0.01}
    assert "must stay below 2" in next(t.reason for t in found.trials if t.state == "failed")


def test_without_any_result_it_says_why() -> None:
    space = {"algorithm.mu": {"choices": [100.0]}}
    with pytest.raises(FedarenaError, match="none of 1 trials gave a result; the first failed: fedprox diverges"):
        fa.search(DATA, space=space, method="grid", out=False, workers=1, algorithm="fedprox", **SMALL)


# Test rows


@pytest.mark.slow
def test_test_rows_are_never_looked_at() -> None:
    """Other rows and shuffled labels in the test set change nothing that a search sees; in the training set they do."""
    x_test, y_test = rows(1, 40)
    poison = rows(2, 40)[0] * 100, np.random.default_rng(3).permutation(y_test)
    how: dict[str, Any] = {**SMALL, "space": SPACE, "trials": 6, "out": False, "workers": 1}
    clean = fa.search(fa.arrays(*DATA, x_test=x_test, y_test=y_test), **how)
    poisoned = fa.search(fa.arrays(*DATA, x_test=poison[0], y_test=poison[1]), **how)
    assert report(clean) == report(poisoned)
    other = fa.search(fa.arrays(*rows(5), x_test=x_test, y_test=y_test), **how)
    assert report(clean) != report(other)
    tests = [
        fa.run(fa.arrays(*DATA, x_test=x, y_test=y), out=False, runtime="serial", **SMALL).final.accuracy
        for x, y in ((x_test, y_test), poison)
    ]
    assert tests[0] != tests[1]  # who looks at them does see the poison


# The same trials, always


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tpe", "random", "grid"])
def test_trials_are_the_same_for_any_number_of_workers(method: Any) -> None:
    """Eleven are more than TPE begins with at random, and enough for some to be hopeless."""
    rates = {"low": 1e-3, "high": 1.0, "log": True} if method != "grid" else {"choices": [0.7**k for k in range(11)]}
    how: dict[str, Any] = {
        **SMALL,
        "rounds": 8,
        "space": {"local.lr": rates},
        "trials": 14,
        "method": method,
        "out": False,
    }
    one, three = (fa.search(DATA, workers=workers, **how) for workers in (1, 3))
    assert report(one) == report(three)
    assert any(t.state == "pruned" for t in one.trials)


@pytest.mark.slow
def test_another_seed_tries_other_values() -> None:
    how: dict[str, Any] = {**SMALL, "space": SPACE, "trials": 3, "method": "random", "out": False, "workers": 1}
    first, again, other = (fa.search(DATA, seed=seed, **how) for seed in (0, 0, 1))
    assert report(first) == report(again)
    assert not {t.values["local.lr"] for t in first.trials} & {t.values["local.lr"] for t in other.trials}


@pytest.mark.slow
def test_the_same_call_again_resumes() -> None:
    how: dict[str, Any] = {**SMALL, "space": SPACE}
    whole = fa.search(DATA, trials=13, out=False, **how)
    first = fa.search(DATA, trials=11, **how)
    assert report(first) == report(whole)[:11]
    written = Path("runs/search-arrays-fedavg-seed0/study.db").stat().st_mtime_ns
    assert report(fa.search(DATA, trials=11, **how)) == report(first)
    assert Path("runs/search-arrays-fedavg-seed0/study.db").stat().st_mtime_ns == written  # nothing was left to do
    more = fa.search(DATA, trials=13, **how)
    assert report(more) == report(whole)
    assert more.dir == first.dir == Path("runs/search-arrays-fedavg-seed0")
    assert report(fa.search(DATA, trials=11, **how)) == report(first)  # what it was with fewer


@pytest.mark.slow
def test_another_search_gets_a_folder_of_its_own() -> None:
    how: dict[str, Any] = {**SMALL, "space": SPACE, "trials": 1, "workers": 1}
    assert fa.search(DATA, **how).dir == Path("runs/search-arrays-fedavg-seed0")
    assert fa.search(rows(9), **how).dir == Path("runs/search-arrays-fedavg-seed0-2")  # other rows, the same settings
    with pytest.raises(FedarenaError, match="holds another search"):
        fa.search(DATA, **{**how, "rounds": 5}, out="runs/search-arrays-fedavg-seed0")


@pytest.mark.slow
def test_killed_and_resumed() -> None:
    """kill -9 in the middle of a trial; what follows is what would have followed."""
    table = np.column_stack(DATA)
    np.savetxt("rows.csv", table, delimiter=",", header="a,b,c,d,y", comments="", fmt=["%.6f"] * 4 + ["%d"])
    Path("space.toml").write_text('"local.lr" = { low = 1e-5, high = 1.0, log = true }\n')
    words = ["rows.csv", "--space", "space.toml", "--trials", "12", *SET, "--set", "rounds=30", "--set", "data.label=y"]
    process = forked_processes.Popen([sys.executable, "-m", "fedarena", "search", *words, "-q", "--out", "killed"])
    while process.poll() is None and (stored("killed/study.db") < 3 or not under_way("killed")):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 3 <= stored("killed/study.db") < 12
    resumed = fa.search(resume="killed")
    whole = fa.search(
        "rows.csv", space="space.toml", trials=12, out=False, overrides=["data.label=y"], **SMALL | {"rounds": 30}
    )
    assert report(resumed) == report(whole)
    assert stored("killed/study.db") == 12
    assert not Path("killed/trials").exists()
    assert fa.Experiment.make("killed/best.toml") == whole.experiment


def stored(file: str) -> int:
    """Trials in a study. A kill may have left a journal, which only a connection that may write can roll back."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=rw", uri=True)) as study:
            return int(study.execute("select count(*) from trials").fetchone()[0])
    except sqlite3.OperationalError:  # not there yet
        return 0


def under_way(folder: str) -> bool:
    """Is a trial in the middle of its rounds?"""
    logs = Path(folder, "trials").glob("*/checkpoint/rounds.jsonl")
    with_rounds = (log.read_text().count("\n") for log in logs if log.exists())
    return any(2 <= count < 25 for count in with_rounds)


def test_one_process_at_a_time() -> None:
    fa.search(DATA, space=SPACE, trials=1, out="here", workers=1, **SMALL)
    with hold_folder(Path("here")), pytest.raises(FedarenaError, match="another process is using here"):
        fa.search(DATA, space=SPACE, trials=2, out="here", workers=1, **SMALL)


@pytest.mark.slow
def test_a_resumed_search_stays_as_it_was() -> None:
    call("digits", "--trials", "1", *SET, "--out", "here", "-q")
    for words in (["--set", "rounds=3"], ["digits"], ["--preset", "nilsson-fedavg"], ["--out", "there"]):
        result = call("--resume", "here", *words)
        assert result.exit_code == 2
        assert "a resumed search stays as it was" in result.stderr
    result = call("--resume", "nowhere")
    assert result.exit_code == 2
    assert "holds no search" in result.stderr


@pytest.mark.slow
def test_workers_that_begin_afresh_know_what_was_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a second thread (as in a notebook) workers cannot be forked."""

    @fa.register("algorithm", "of_the_notebook")
    @dataclass(frozen=True)
    class Mine(fa.FedAvg):
        """Mine."""

        search: ClassVar[dict[str, Any]] = {"algorithm.server_lr": {"choices": [1.0]}}

    monkeypatch.setitem(
        registry._entries["algorithm"], "of_the_notebook", registry._entries["algorithm"].pop("of_the_notebook")
    )
    done = threading.Event()
    threading.Thread(target=done.wait, daemon=True).start()
    try:
        found = fa.search(DATA, algorithm="of_the_notebook", trials=1, out=False, workers=1, **SMALL)
    finally:
        done.set()
    assert found.best.values == {"algorithm.server_lr": 1.0}
    assert found.best.score == fa.search(DATA, space={"algorithm.server_lr": {"choices": [1.0]}}, trials=1, out=False,
                                         workers=1, **SMALL).best.score  # fmt: skip


# Hopeless trials


def curve(height: float, rounds: int = 8) -> dict[int, float]:
    return {r: height * r / rounds for r in range(1, rounds + 1)}


def test_a_trial_below_the_median_is_hopeless_after_the_first_quarter() -> None:
    rivals = [curve(h) for h in (0.2, 0.4, 0.6, 0.8, 1.0)]
    judge = Pruner(rivals)
    seen = [judge(r, 0.5 * r / 8) for r in range(1, 9)]  # the median is 0.6 r / 8
    assert seen.index(True) + 1 == 8 // UNTOUCHED
    assert Pruner(rivals)(8, 0.61) is False
    assert Pruner(rivals)(8, 0.59) is True


def test_no_trial_is_pruned_before_some_have_finished() -> None:
    assert Pruner([curve(1.0)] * (FINISHED_FIRST - 1))(8, 0.0) is False
    assert Pruner([curve(1.0)] * FINISHED_FIRST)(8, 0.0) is True


@pytest.mark.slow
def test_hopeless_trials_stop_early_and_only_if_asked() -> None:
    space = {"local.lr": {"choices": [0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4]}}
    how: dict[str, Any] = {**SMALL, "rounds": 8, "space": space, "method": "grid", "out": False}
    kept, pruned = (fa.search(DATA, prune=prune, **how) for prune in (False, True))
    assert all(t.state == "done" and max(t.curve) == 8 for t in kept.trials)
    stopped = [t for t in pruned.trials if t.state == "pruned"]
    assert stopped
    assert all(max(t.curve) < 8 for t in stopped)
    assert all(t.number >= FINISHED_FIRST for t in stopped)
    assert pruned.best == kept.best


# The command


@pytest.mark.slow
def test_search_prints_what_it_found_and_the_best_runs() -> None:
    result = call("digits", "--trials", "3", *SET, "--json")
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert printed["algorithm"] == "fedavg"
    assert len(printed["trials"]) == 3
    assert printed["best"]["score"] == max(t["score"] for t in printed["trials"])
    assert result.stderr.count("trial ") == 2 * 3  # its number, and that of the best so far
    again = call("digits", "--trials", "3", *SET, "-q")
    assert again.stderr == ""
    assert f"fedarena run {printed['best_toml']}" in again.stdout
    run = CliRunner().invoke(app, ["run", printed["best_toml"], "--json", "-q", "--runtime", "serial"])
    assert json.loads(run.stdout)["final_accuracy"] > 0.3
    text = Path(json.loads(run.stdout)["run_dir"], "experiment.toml").read_text()
    assert f"lr = {printed['best']['values']['local.lr']}" in text


@pytest.mark.slow
def test_a_preset_is_a_whole_search() -> None:
    result = call(
        "digits", "--preset", "nilsson-fsvrg", *SET, "--set", "algorithm=fsvrg", "--set", "rounds=1", "--json"
    )
    printed = json.loads(result.stdout)
    assert printed["method"] == "grid"
    assert sorted(t["values"]["algorithm.h"] for t in printed["trials"]) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_one_file_may_hold_many_studies() -> None:
    import optuna

    for seed in ("0", "1"):
        call("digits", "--trials", "2", *SET, "--seed", seed, "--study", "all.db", "-q")
    names = optuna.study.get_all_study_names("sqlite:///all.db")
    assert len(names) == 2
    study = optuna.load_study(study_name=names[0], storage="sqlite:///all.db")
    assert [t.number for t in study.trials] == [0, 1]
    assert study.best_value == max(t.value or 0.0 for t in study.trials)
    assert not Path("runs/search-digits-fedavg-seed0/study.db").exists()


@pytest.mark.parametrize(
    ("words", "report"),
    [
        (["digits"], "the number of trials is not given"),
        (["digits", "--trials", "0"], "trials = 0"),
        (["digits", "--trials", "2", "--workers", "0"], "workers = 0"),
        (["digits", "--trials", "2", "--method", "grid"], "a grid cannot hold all of it"),
        (["digits", "--trials", "2", "--space", "none.toml"], "there is no file none.toml"),
        (["digits", "--trials", "2", "--space", "empty.toml"], "the space is empty"),
        (["digits", "--trials", "2", "--space", "typo.toml"], "did you mean 'lr'"),
        (["digits", "--preset", "nilson-fedavg"], "did you mean 'nilsson-fedavg'"),
        (["digits", "--preset", "nilsson-fsvrg"], "add --set algorithm=fsvrg"),
        (["digits", "--preset", "nilsson-fedavg", "--space", "good.toml"], "both a space and a preset"),
        (["digits", "--trials", "2", "--set", "local.rl=1"], "did you mean 'lr'"),
        (["digits", "--trials", "2", "--out", "full"], "full holds something else"),
        (["digits", "--trials", "2", "--study", "good.toml"], "good.toml cannot be used"),
        (["digits", "--trials", "2", "--set", "algorithm=fsvrg", "--set", "local.momentum=0.5"], "knows no momentum"),
    ],
)
def test_a_mistake_is_one_message(words: list[str], report: str) -> None:
    Path("full").mkdir()
    Path("full/thing").touch()
    Path("empty.toml").touch()
    Path("typo.toml").write_text("local.rl = { choices = [1] }\n")
    Path("good.toml").write_text("local.lr = { choices = [0.1] }\n")
    result = call(*words, "-q")
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert report in result.stderr
    assert "\n  -> " in result.stderr
    assert len(result.stderr.strip().splitlines()) == 2


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = call("digits", "--trials", "2")
    assert result.exit_code == 2
    assert 'pip install "fedarena[search]"' in result.stderr
    assert not Path("runs").exists()


def test_the_command_explains_itself() -> None:
    text = call("--help").stdout
    assert "fedarena search digits --trials 20" in text
    assert "--preset" in text
