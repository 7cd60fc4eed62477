"""Comparisons without each client in turn: the others keep everything, the folder resumes, bad input is refused."""

from __future__ import annotations

import json
import math
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import forked_processes

import fedarena as fa
from fedarena.config.comparison_plan import client_folder
from fedarena.config.errors import BadValue, UnknownName
from fedarena.engine.setup import partition_data
from fedarena.experiments.compare import dry_run
from fedarena.experiments.run_comparison import make_plan
from fedarena.reports.commands import commands
from fedarena.reports.page import render
from fedarena.reports.report_data import ReportData
from fedarena.results.comparison import Comparison
from fedarena.results.leave_one_out import others_scores
from fedarena.results.plan_file import read_plan
from fedarena.results.run_status import left_out_cells
from fedarena.statistics.bayes import posterior
from fedarena.ui import comparison_page
from fedarena.ui.catalogue import Catalogue

NAMES = ("Basel", "Chur", "Genf", "Zug & Au")
ASKED = ["-a", "fedavg", "-a", "scaffold", "-a", "local", "--folds", "2", "--set", "model=logreg", "--no-baseline"]
SETTINGS: dict[str, Any] = {"folds": 2, "model": "logreg", "rounds": 2, "baseline": False, "workers": 1}
THREE = ["fedavg", "scaffold", "local"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an experiment on a file with four hospitals."""
    rng = np.random.default_rng(11)
    client = np.repeat(NAMES, (24, 18, 30, 21))
    x = rng.normal(size=(len(client), 2))
    y = (x.sum(axis=1) + rng.normal(size=len(client)) > 0).astype(int)
    lines = [f"{a:.4f},{b:.4f},{label},{name}" for (a, b), label, name in zip(x, y, client, strict=True)]
    file = tmp_path_factory.mktemp("table") / "hospitals.csv"
    file.write_text("\n".join(["age,dose,label,client", *lines]) + "\n")
    experiment = file.with_name("exp.toml")
    experiment.write_text('data = { name = "csv", path = "hospitals.csv", label = "label", client = "client" }\n')
    return experiment


@pytest.fixture(scope="module")
def whole(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("left") / "c"
    return fa.compare(table, THREE, leave_one_out=True, out=out, **SETTINGS)


def weights(root: Path) -> dict[str, str]:
    """Return the weights of every run of a folder."""
    return {
        file.parent.relative_to(root).as_posix(): json.loads(file.read_text())["weights_sha256"]
        for file in sorted(root.rglob("result.json"))
    }


@pytest.mark.slow
def test_the_others_keep_samples_folds_and_initial_weights(whole: Comparison) -> None:
    plan = whole.plan
    for split in plan.splits:
        _, with_it = partition_data(plan.cell("fedavg", split))
        assert with_it.names == NAMES
        for k, client in enumerate(NAMES):
            exp = plan.cell("fedavg", split, client)
            assert exp == plan.cell("fedavg", split).with_(exclude=[client])
            _, without = partition_data(exp)
            assert without.population == [j for j in range(4) if j != k]
            for j in without.population:
                assert np.array_equal(with_it.clients[j], without.clients[j])
                assert np.array_equal(with_it.client_tests[j], without.client_tests[j])


def test_effects_are_those_of_the_recorded_scores(whole: Comparison) -> None:
    """Posterior of the sample-weighted mean of the other clients, with minus without, paired by split."""
    found = whole.leave_one_out()
    assert found is not None
    assert len(found.effects) == 8
    assert found.algorithms == ["fedavg", "scaffold"]
    for k, effect in enumerate(found.of("scaffold")):
        assert effect.client == NAMES[k]
        others, pairs = [j for j in range(4) if j != k], []
        for one, two in zip(whole.runs["scaffold"], whole.without[NAMES[k]]["scaffold"], strict=True):
            sizes = one.measured.client_tests[others]
            pairs.append([np.average(run.client_metrics["accuracy"][others], weights=sizes) for run in (one, two)])
        with_it, without = np.array(pairs).T
        known = posterior(without, with_it, whole.plan.rho)
        assert math.isclose(effect.mean or 0.0, (with_it - without).mean(), abs_tol=1e-12)
        assert effect.interval is not None
        assert np.allclose(effect.interval, known.interval(0.9))
        assert math.isclose(effect.p_helps or 0.0, known.regions(0.01).right, abs_tol=1e-12)
        assert (effect.splits, effect.undefined) == (2, 0)


def test_the_score_over_all_clients_is_that_of_the_view(whole: Comparison) -> None:
    """With no client left out, the mean of clients is the score on own samples, in both weightings."""
    for run in whole.runs["fedavg"]:
        weighted = others_scores(run, run, "no client of this name", "accuracy", "own")
        assert math.isclose(weighted[0], run.own_metrics["accuracy"])
        assert weighted[0] == weighted[1]
        uniform = others_scores(run, run, "no client of this name", "accuracy", "own:uniform")
        assert math.isclose(uniform[0], run.client_metrics["accuracy"].mean())


def test_the_sign_follows_the_direction_of_the_metric(whole: Comparison) -> None:
    """Without Basel the log loss of the others rises by 0.2 and 0.3: they lose 0.25."""
    plan = replace(whole.plan, metric="log_loss", leave_one_out=("Basel",))
    first = [
        replace(r, measured=replace(r.measured, clients={"log_loss": np.full(4, 0.5)})) for r in whole.runs["fedavg"]
    ]
    second = [
        replace(r, measured=replace(r.measured, clients={"log_loss": np.array([math.nan, v, v, v])}))
        for r, v in zip(whole.without["Basel"]["fedavg"], (0.7, 0.8), strict=True)
    ]
    one = replace(whole, plan=plan, runs={**whole.runs, "fedavg": first}, without={"Basel": {"fedavg": second}})
    found = one.leave_one_out()
    assert found is not None
    assert math.isclose(found.effects[0].mean or 0.0, 0.25)


def test_local_training_is_not_repeated(whole: Comparison) -> None:
    assert whole.plan.federated == ["fedavg", "scaffold"]
    assert whole.dir is not None
    assert not [*(whole.dir / "leave_one_out").glob("*/local")]
    assert len([*(whole.dir / "leave_one_out").rglob("result.json")]) == 4 * 2 * 2


@pytest.mark.slow
def test_the_comparison_itself_stays_as_it_was(whole: Comparison, table: Path) -> None:
    """Scores, verdict table and weights are those of the comparison that leaves no client out."""
    plain = fa.compare(table, THREE, out=False, **SETTINGS)
    assert plain.scores() == whole.scores()
    assert plain.duels() == whole.duels()
    assert [r.weights_sha256 for r in plain.runs["fedavg"]] == [r.weights_sha256 for r in whole.runs["fedavg"]]
    assert plain.leave_one_out() is None
    assert plain.as_dict()["leave_one_out"] is None


@pytest.mark.slow
def test_it_can_be_added_to_a_finished_comparison_by_any_number_of_workers(
    table: Path, whole: Comparison, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    fa.compare(table, THREE, out=out, **SETTINGS)
    one = fa.compare(resume=out, leave_one_out=["Chur"], workers=1)
    assert one.plan.leave_one_out == ("Chur",)
    assert [*one.without] == ["Chur"]
    both = fa.compare(resume=out, leave_one_out=True, workers=2)
    assert both.plan.leave_one_out == NAMES
    assert whole.dir is not None
    assert weights(out) == weights(whole.dir)
    assert both.leave_one_out() == whole.leave_one_out() == Comparison.load(out).leave_one_out()


@pytest.mark.slow
def test_killed_and_resumed_it_ends_with_the_same_bits(table: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedarena", "compare", str(table), *ASKED, "-q", "--leave-one-out"]
    command += ["--set", "rounds=25", "--workers", "1", "--out"]
    forked_processes.run([*command, str(tmp_path / "whole")], check=True)
    process = forked_processes.Popen([*command, str(tmp_path / "killed")])
    begun = tmp_path / "killed" / "leave_one_out" / "Chur"
    deadline = time.monotonic() + 120
    while not [*begun.rglob("rounds.jsonl")]:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(weights(tmp_path / "killed")) < len(weights(tmp_path / "whole")) == 6 + 16
    with pytest.raises(BadValue, match=r"without .* are not finished"):
        Comparison.load(tmp_path / "killed")
    resumed = fa.compare(resume=tmp_path / "killed", workers=2)
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    assert resumed.leave_one_out() == Comparison.load(tmp_path / "whole").leave_one_out()


@pytest.mark.slow
def test_the_plan_says_what_it_takes(table: Path) -> None:
    asked = {k: v for k, v in SETTINGS.items() if k != "workers"}
    preview = dry_run(table, THREE, leave_one_out=True, workers=1, **asked)
    assert preview.runs == 6 + 16
    assert preview.as_dict()["leave_one_out"] == [*NAMES]
    assert "without each of 4 clients in turn, fedavg, scaffold: 4 x 2 x 2 = 16 runs" in str(preview)
    assert dry_run(table, THREE, workers=1, **asked).as_dict()["leave_one_out"] == []
    one = dry_run(table, THREE, leave_one_out="Zug & Au", workers=1, **asked)
    assert one.runs == 6 + 4
    assert one.seconds < preview.seconds


def test_old_plans_leave_no_client_out(whole: Comparison, tmp_path: Path) -> None:
    assert whole.dir is not None
    before = json.loads((whole.dir / "comparison.json").read_text())
    assert before.pop("leave_one_out") == [*NAMES]
    assert before.pop("sha256")
    (tmp_path / "comparison.json").write_text(json.dumps(before))
    assert read_plan(tmp_path).leave_one_out == ()
    assert left_out_cells(read_plan(tmp_path), tmp_path) == []


@pytest.mark.slow
def test_a_failed_run_is_named_and_stops_no_other(whole: Comparison, tmp_path: Path) -> None:
    assert whole.dir is not None
    root = tmp_path / "c"
    shutil.copytree(whole.dir, root)
    cell = whole.plan.folder(root, "fedavg", whole.plan.splits[0], "Genf")
    (cell / "result.json").unlink()
    (cell / "failure.txt").write_text("no memory\n")
    one = Comparison.load(root)
    found = one.leave_one_out()
    assert found is not None
    assert found.failures == {"fedavg without Genf": "no memory"}
    assert len(found.effects) == 7
    assert "fedavg without Genf has no result: no memory" in one.words
    assert one.scores() == whole.scores()


def test_names_of_folders_do_not_collide() -> None:
    assert client_folder("Basel") == "Basel"
    found = {client_folder(name) for name in ("Zug & Au", "Zug - Au", "Zug ? Au", "..", "a" * 300, "a" * 301)}
    assert len(found) == 6
    assert all(len(name) < 100 and "/" not in name and name.strip(".") for name in found)


# What is shown


@pytest.mark.slow
def test_effects_in_words_json_report_and_page(whole: Comparison) -> None:
    assert whole.dir is not None
    (line,) = [text for text in whole.words if "the other clients" in text]
    assert line.startswith("With ")
    assert line.endswith(".")
    output = json.loads(json.dumps(whole.as_dict()["leave_one_out"], allow_nan=False))
    assert {one["client"] for one in output["effects"]} == {*NAMES}
    assert output["evaluate_on"] == "own"
    page = render(ReportData(whole))
    section = page.partition('<section id="left-out">')[2].partition("</section>")[0]
    assert "Zug &amp; Au" in section
    assert "paired by split" in section
    assert "<svg" in section
    assert "--leave-out 'Zug & Au'" in commands(whole)[0]
    catalogue = Catalogue(whole.dir.parent)
    (match,) = catalogue.scan().comparisons
    shown = comparison_page.page(catalogue, match.id, {})
    assert shown is not None
    assert 'id="gains"' in shown
    assert 'id="left-out"' in shown
    assert "22 of 22 runs" in shown


# Bad input


def refused(
    kind: type[Exception], match: str, source: Any, algorithms: Any = ("fedavg", "local"), **asked: Any
) -> None:
    with pytest.raises(kind, match=match):
        make_plan(source, algorithms, folds=2, model="logreg", rounds=1, **asked)


def test_what_cannot_be_left_out_is_refused_by_name(table: Path) -> None:
    refused(BadValue, "every split draws its own clients", "digits", leave_one_out=True)
    refused(BadValue, "no algorithm communicates", table, ["local", "centralized"], leave_one_out=True)
    refused(UnknownName, "no client 'Bern'", table, leave_one_out=["Bern"])
    refused(BadValue, "2 clients have samples", "digits", clients=2, fixed="partition", leave_one_out=True)
    refused(BadValue, "each of 51 clients", "digits", clients=51, fixed="partition", leave_one_out=True)
    plan = make_plan("digits", ["fedavg", "local"], folds=2, clients=51, fixed="partition", leave_one_out=["50", "3"])
    assert plan.leave_one_out == ("3", "50")


def test_too_few_clients_for_a_round_are_refused_before_any_run(table: Path, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="per_round = 4, but only 3") as error:
        fa.compare(table, ["fedavg", "local"], per_round=4, leave_one_out=True, out=tmp_path / "c", **SETTINGS)
    assert "without Basel" in str(error.value.where)
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_the_command_exits_with_2_and_one_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedarena", "compare", "digits", "-a", "fedavg", "-a", "local", "--leave-one-out"]
    done = forked_processes.run(command, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "--fixed partition" in " ".join(done.stderr.split())
    assert not [*tmp_path.iterdir()]
