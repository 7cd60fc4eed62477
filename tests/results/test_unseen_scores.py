"""What a comparison says about clients that never trained: pairs, numbers by hand, pages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.comparisons import compare_in_folder

import fedarena as fa
from fedarena.config.errors import BadValue
from fedarena.reports.page import render
from fedarena.reports.report_data import ReportData
from fedarena.reports.terminal_tables import show_comparison
from fedarena.reports.text_tables import text_tables
from fedarena.results.comparison import Comparison
from fedarena.results.unseen_scores import UnseenScores, unseen_scores
from fedarena.statistics.bayes import posterior

LABELS = ("fedavg", "local", "fedper")
SETTINGS: dict[str, Any] = {
    "clients": 6, "rounds": 2, "model": "logreg", "partition": {"name": "label_dirichlet", "beta": 0.3},
    "evaluate": {"unseen": 0.4, "unseen_steps": 5},
}  # fmt: skip


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    contestants = {label: {"algorithm": label} for label in (*LABELS, "centralized")}
    root = tmp_path_factory.mktemp("unseen") / "c"
    how: dict[str, Any] = {"reference": "centralized", "folds": 3, "evaluate_on": "own", "score": "final"}
    return compare_in_folder(root, contestants, settings=SETTINGS, **how)


def found(result: Comparison) -> UnseenScores:
    scores = unseen_scores(result)
    assert scores is not None
    return scores


def changed(result: Comparison, values: dict[str, list[tuple[float, float]]]) -> Comparison:
    """Return the comparison with other accuracies of unseen clients: before and after the steps on each split."""
    runs = {}
    for label, pairs in values.items():
        runs[label] = []
        for run, (before, after) in zip(result.runs[label], pairs, strict=True):
            assert run.unseen is not None
            count = len(run.unseen.clients)
            one, two = ({"accuracy": np.full(count, value)} for value in (before, after))
            unseen = replace(run.unseen, client_before=one, client_after=two)
            runs[label].append(replace(run, measured=replace(run.measured, unseen=unseen)))
    return replace(result, runs=result.runs | runs)


@pytest.mark.slow
def test_all_algorithms_of_a_split_hold_out_the_same_clients_and_every_split_others(compared: Comparison) -> None:
    clients = {
        label: [run.unseen.clients for run in runs if run.unseen is not None] for label, runs in compared.runs.items()
    }
    assert len({tuple(each) for each in clients.values()}) == 1
    assert len({*clients["fedavg"]}) > 1
    assert all(len(names) == 2 for names in clients["fedavg"])


@pytest.mark.slow
def test_the_numbers_are_means_over_splits(compared: Comparison) -> None:
    scores = found(compared)
    assert (scores.steps, scores.clients, scores.metric) == (5, 2.0, "accuracy")
    assert [one.algorithm for one in scores.scores] == [*LABELS, "centralized"]
    for one in scores.scores:
        runs = [run.unseen for run in compared.runs[one.algorithm] if run.unseen is not None]
        assert one.before == pytest.approx(np.mean([run.before["accuracy"] for run in runs]))
        assert one.after == pytest.approx(np.mean([run.after["accuracy"] for run in runs]))
        assert one.after_sd == pytest.approx(np.std([run.after["accuracy"] for run in runs], ddof=1))
        assert one.splits == 3
    assert scores.best == max(
        LABELS, key=lambda label: next(one.after for one in scores.scores if one.algorithm == label)
    )


@pytest.mark.slow
def test_the_verdict_is_against_the_best_method_after_the_steps(compared: Comparison) -> None:
    """The posterior is that of the comparison, of the scores after the steps; pooled training is not judged."""
    known = {
        "fedavg": [(0.1, 0.50), (0.1, 0.52), (0.2, 0.55)],
        "local": [(0.1, 0.81), (0.3, 0.80), (0.2, 0.84)],
        "fedper": [(0.1, 0.80), (0.3, 0.81), (0.2, 0.84)],
        "centralized": [(0.9, 0.99)] * 3,
    }
    result = changed(compared, known)
    scores = {one.algorithm: one for one in found(result).scores}
    assert found(result).best == "local"
    after = {label: [pair[1] for pair in pairs] for label, pairs in known.items()}
    expected = posterior(after["local"], after["fedavg"], result.plan.rho).regions(result.plan.rope)
    one = scores["fedavg"]
    assert (one.p_worse, one.p_equal, one.p_better) == pytest.approx(expected)
    assert one.verdict == "-"
    assert scores["fedper"].verdict == "?"
    assert (scores["local"].verdict, scores["local"].p_better) == ("", None)
    assert (scores["centralized"].verdict, scores["centralized"].p_better) == ("", None)
    gain = posterior(*zip(*known["fedavg"], strict=True), result.plan.rho)  # type: ignore[arg-type]
    assert one.gain == pytest.approx(gain.mean)
    assert one.interval == pytest.approx(gain.interval(0.9))


@pytest.mark.slow
def test_an_undefined_split_is_left_out_for_all(compared: Comparison) -> None:
    nothing = float("nan")
    known = {label: [(0.1, 0.5), (nothing, nothing), (0.2, 0.6)] for label in compared.runs}
    scores = found(changed(compared, known)).scores
    assert {(one.splits, one.undefined) for one in scores} == {(2, 1)}
    assert [one.after for one in scores] == pytest.approx([0.55] * 4)


@pytest.mark.slow
def test_every_client_alike_is_the_unweighted_mean(compared: Comparison) -> None:
    alike = replace(compared, plan=replace(compared.plan, evaluate_on="own:uniform"))
    one = found(alike).scores[0]
    runs = [run.unseen for run in alike.runs["fedavg"] if run.unseen is not None]
    assert one.after == pytest.approx(np.mean([run.client_after["accuracy"].mean() for run in runs]))


@pytest.mark.slow
def test_text_json_report_and_tables_show_it(compared: Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    table = json.loads(json.dumps(compared.as_dict()["unseen"]))
    assert table["steps"] == 5
    assert [one["algorithm"] for one in table["scores"]] == [*LABELS, "centralized"]
    show_comparison(compared)
    text = capsys.readouterr().out
    assert "Clients that never trained:" in text
    assert "after 5 steps" in text
    page = render(ReportData(compared))
    assert "Clients that never trained" in page
    assert "In every split 2 clients never train." in page
    assert "The last columns compare each method after the steps" in page
    assert "after 5 steps" in text_tables(compared, "markdown")
    assert "after 5 steps" in text_tables(compared, "latex")


@pytest.mark.slow
def test_nothing_is_said_where_all_clients_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = {**SETTINGS, "evaluate": {"every": 2}}
    contestants = {label: {"algorithm": label} for label in ("fedavg", "fedper")}
    result = compare_in_folder(tmp_path / "c", contestants, settings=plain, folds=2, evaluate_on="own", score="final")
    assert unseen_scores(result) is None
    assert result.as_dict()["unseen"] is None
    show_comparison(result)
    assert "never trained" not in capsys.readouterr().out
    assert "never trained" not in render(ReportData(result))


@pytest.mark.slow
def test_gains_of_clients_count_the_splits_in_which_they_train(tmp_path: Path) -> None:
    contestants = {label: {"algorithm": label} for label in ("fedavg", "local")}
    how: dict[str, Any] = {"fixed": ("partition",), "evaluate_on": "own", "score": "final"}
    result = compare_in_folder(tmp_path / "c", contestants, settings=SETTINGS, folds=4, **how)
    gains = result.client_gains()
    assert gains is not None
    unseen = [name for run in result.runs["local"] if run.unseen is not None for name in run.unseen.clients]
    for gain in gains.clients:
        assert gain.undefined >= unseen.count(gain.client.removeprefix("client "))
    assert len(unseen) == 8
    assert any("clients, or they never train, in at least one split" in note for note in gains.notes)


@pytest.mark.slow
def test_own_layers_and_trees_are_paired_with_other_models(tmp_path: Path) -> None:
    """A setting that is called `own` is no part from Python, and the initial weights are the same."""
    labels = {
        "fedavg": "fedavg",
        "fedper": {"name": "fedper", "own": ["last:1"]},
        "histboost": {"name": "histboost", "depth": 2},
    }
    contestants = {label: {"algorithm": algorithm} for label, algorithm in labels.items()}
    settings = {**SETTINGS, "partition": "iid", "model": "mlp_2nn"}
    result = compare_in_folder(tmp_path / "c", contestants, settings=settings, folds=2, evaluate_on="own", score="final")
    assert result.labels == list(labels)
    assert ReportData(result).no_verdict_reason is None
    assert fa.load(result.runs["fedper"][0].dir).experiment.algorithm.settings["own"] == ("last:1",)
    assert fa.verify(result.runs["fedper"][0].dir, runtime="serial").same


@pytest.mark.slow
def test_an_unseen_client_can_be_left_out_in_turn(tmp_path: Path) -> None:
    out = tmp_path / "c"
    settings = {**SETTINGS, "baseline": False, "workers": 1, "fixed": "partition", "leave_one_out": ["0", "1"]}
    result = fa.compare("digits", ["fedavg", "scaffold"], folds=2, out=out, **settings)
    left = result.leave_one_out()
    assert left is not None
    assert {effect.client for effect in left.effects} == {"client 0", "client 1"}
    assert not left.failures


def test_bad_settings_end_before_any_run(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="less than one client"):
        fa.compare("digits", ["fedavg", "local"], seeds=2, evaluate={"unseen": 0.05}, clients=5, out=tmp_path / "c")
    assert not (tmp_path / "c" / "cells").exists()
