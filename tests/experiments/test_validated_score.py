"""`--score validated` is decided before the runs, holds samples out for all contestants, and scores the chosen rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config.errors import BadValue
from fedarena.engine.setup import open_context
from fedarena.experiments.run_comparison import make_plan
from fedarena.experiments.validated_score import HELD_OUT
from fedarena.reports import write_report
from fedarena.reports.terminal_tables import show_comparison
from fedarena.results.comparison import Comparison
from fedarena.results.plan_file import read_plan
from fedarena.results.scoring import Scoring

ALGORITHMS = ["fedavg", "local", "fedasync"]
QUICK: dict[str, Any] = {"rounds": 5, "clients": 4, "model": "logreg", "local": {"lr": 1.0, "epochs": 2}}
SETS = ["--set", "rounds=2", "--set", "clients=4", "--set", "model=logreg"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("validated") / "compared"
    return fa.compare("digits", ALGORITHMS, score="validated", seeds=3, out=folder, workers=1, **QUICK)


@pytest.fixture
def plain() -> Path:
    """A finished comparison without validation samples."""
    fa.compare("digits", ["fedavg", "fedprox"], seeds=2, out="plain", workers=1, baseline=False, **QUICK)
    return Path("plain")


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["compare", *words])


@pytest.mark.slow
def test_samples_are_held_out_for_all_contestants_and_the_baseline(compared: Comparison) -> None:
    assert compared.plan.score == "validated"
    assert compared.plan.experiment["evaluate"]["validation"] == HELD_OUT
    assert compared.plan.reference in compared.runs
    for i in range(3):
        sites = [open_context(runs[i].experiment) for runs in compared.runs.values()]
        held = {site.owners.fingerprint() for site in sites}
        assert len(held) == 1
        assert sum(map(len, sites[0].owners.validation)) > 0


@pytest.mark.parametrize("view", ["common", "own", "own:uniform"])
def test_scores_are_the_test_metrics_of_the_chosen_rounds(compared: Comparison, view: Any) -> None:
    for run in (run for runs in compared.runs.values() for run in runs):
        assert run.validated is not None
        own = run.validated_client_metrics["accuracy"]
        expected = {
            "common": run.validated.accuracy,
            "own": run.validated_own_metrics["accuracy"],
            "own:uniform": float(own[~np.isnan(own)].mean()),
        }[view]
        assert Scoring("validated", "accuracy", view).value(run) == expected


def test_json_follows_the_score_and_always_has_the_others(compared: Comparison) -> None:
    plain = compared.as_dict()
    assert plain["score"] == "validated"
    assert plain["validation_share"] == HELD_OUT
    assert plain["scores"] == plain["validated_scores"] == compared.scores("validated")
    for which in ("final", "best"):
        assert plain[f"{which}_scores"] == compared.scores(which)
    assert plain["scores"] != plain["final_scores"]
    assert plain["table"][0] == vars(compared.duel(*[plain["table"][0][key] for key in ("row", "column")], "validated"))
    assert plain["final_table"][0] == vars(compared.duel("fedavg", "local", "final"))
    assert all(row["validated"] is not None for row in plain["rows"])


def test_the_table_the_report_and_the_words_name_the_score(
    compared: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_comparison(compared)
    shown = " ".join(capsys.readouterr().out.split())
    assert "validated accuracy" in shown
    assert "held out of training" in shown
    write_report(compared, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "validated accuracy" in page
    assert "Values after the validated round" in page
    assert any("validated round of each run" in note and "10%" in note for note in compared.notes)


@pytest.mark.slow
def test_a_folder_loads_and_resumes_as_it_was(compared: Comparison) -> None:
    assert compared.dir is not None
    loaded = Comparison.load(compared.dir)
    assert loaded.as_dict() == compared.as_dict()
    assert fa.compare(resume=compared.dir, score="validated", workers=1).scores() == compared.scores()
    assert fa.compare(resume=compared.dir, workers=1).plan.score == "validated"


@pytest.mark.slow
def test_two_workers_give_the_same_scores(compared: Comparison) -> None:
    again = fa.compare("digits", ALGORITHMS, score="validated", seeds=3, out=False, workers=2, **QUICK)
    assert again.scores() == compared.scores()
    assert again.scores("final") == compared.scores("final")


def test_the_share_of_the_experiment_counts() -> None:
    plan = make_plan("digits", ["fedavg", "fedprox"], score="validated", seeds=2, evaluate={"validation": 0.3})
    assert plan.experiment["evaluate"]["validation"] == 0.3
    untouched = make_plan("digits", ["fedavg", "fedprox"], seeds=2)
    assert "validation" not in untouched.experiment["evaluate"]


def test_a_share_of_zero_is_refused() -> None:
    with pytest.raises(BadValue, match=r"evaluate\.validation = 0"):
        make_plan("digits", ["fedavg", "fedprox"], score="validated", seeds=2, evaluate={"validation": 0})


@pytest.mark.slow
def test_a_finished_comparison_is_never_scored_so_afterwards(plain: Path) -> None:
    before = (plain / "comparison.json").read_bytes()
    with pytest.raises(BadValue, match="must be decided before the runs"):
        fa.compare(resume=plain, score="validated", workers=1)
    with pytest.raises(BadValue, match="must be decided before the runs"):
        fa.compare("digits", ["fedavg", "fedprox"], seeds=2, resume=plain, score="validated", baseline=False, **QUICK)
    done = call("--resume", str(plain), "--score", "validated", "-q")
    assert done.exit_code == 2
    assert (plain / "comparison.json").read_bytes() == before
    with pytest.raises(BadValue, match="held out no validation samples"):
        Comparison.load(plain).scores("validated")
    assert Comparison.load(plain).as_dict()["validated_scores"] is None


@pytest.mark.slow
def test_nor_one_whose_runs_happen_to_hold_samples_out() -> None:
    evaluate = {"validation": 0.1}
    fa.compare("digits", ["fedavg", "fedprox"], seeds=2, out="c", workers=1, baseline=False, evaluate=evaluate, **QUICK)
    with pytest.raises(BadValue, match="must be decided before the runs"):
        fa.compare(resume="c", score="validated", workers=1)
    assert Comparison.load(Path("c")).as_dict()["validated_scores"] is not None


@pytest.mark.slow
def test_the_command_line_switches_it_on() -> None:
    done = call("digits", "-a", "fedavg", "-a", "fedprox", "--seeds", "2", "--score", "validated", *SETS,
                "--out", "c", "--workers", "1", "--json", "-q")  # fmt: skip
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["score"] == "validated"
    assert found["scores"] == found["validated_scores"]
    assert read_plan(Path("c")).experiment["evaluate"]["validation"] == HELD_OUT
    again = call("--resume", "c", "--json", "-q")
    assert json.loads(again.stdout)["scores"] == found["scores"]


@pytest.mark.slow
def test_a_metric_that_does_not_exist_for_the_task_is_refused_on_resume_too(plain: Path) -> None:
    for metric in ("rmse", "c_index"):
        with pytest.raises(BadValue, match="does not exist for the task 'classification'"):
            fa.compare("digits", ["fedavg", "fedprox"], metric=metric, seeds=2, **QUICK)
        with pytest.raises(BadValue, match="does not exist for the task 'classification'"):
            fa.compare(resume=plain, metric=metric, workers=1)
    assert read_plan(plain).metric == "accuracy"
