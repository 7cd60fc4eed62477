"""Verdicts are shown in the unit and direction of their metric, within the screen, and without paths of the machine."""

from __future__ import annotations

import csv
import html
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.browser import browser, overflow, resize
from tests.support.comparisons import compare_in_folder

import fedarena as fa
from fedarena.common.formatting import format_size
from fedarena.reports import write_report
from fedarena.reports.charts.posteriors import (
    PosteriorPair,
    posterior_chart,
    posterior_rows,
    shown_range,
)
from fedarena.reports.report_data import ReportData
from fedarena.reports.text_tables import text_tables
from fedarena.results.comparison import Comparison
from fedarena.results.scoring import OPTIMISTIC, Scoring
from fedarena.statistics.bayes import Posterior

ROPE = 0.01
EIGHT = ("fedavg", "fedprox", "scaffold", "fednova", "fedavgm", "fedadam", "fedyogi", "local")


def pair(mean: float, scale: float = 0.01, **more: Any) -> PosteriorPair:
    return PosteriorPair("leader", "other", Posterior(mean, scale, 14), "?", **more)


@pytest.mark.parametrize("far", [1.0, 100.0, -100.0])
def test_a_baseline_that_lies_far_off_does_not_choose_the_axis(far: float) -> None:
    candidates = [pair(0.01), pair(0.02), pair(-0.01)]
    alone = shown_range(candidates, ROPE)
    assert shown_range([*candidates, pair(far, is_reference=True)], ROPE) == alone
    assert pair(far).far_side(*alone) == np.sign(far)


def test_one_far_candidate_does_not_squeeze_two_near_ones() -> None:
    """The axis reaches at most three times as far as the lower median of the candidates."""
    near = [pair(0.01), pair(0.012)]
    reach = max(abs(end) for end in near[1].posterior.interval(0.98))
    low, high = shown_range([*near, pair(5.0)], ROPE)
    assert high == pytest.approx(3 * reach)
    assert low < -ROPE < ROPE < high


def test_the_range_holds_nearly_all_of_pairs_that_are_alike() -> None:
    pairs = [pair(0.01), pair(0.02), pair(0.03)]
    low, high = shown_range(pairs, ROPE)
    for one in pairs:
        start, end = one.posterior.interval(0.98)
        assert low <= start
        assert end <= high


def test_a_far_pair_is_an_arrow_with_its_number() -> None:
    drawn = posterior_rows([pair(0.01), pair(0.5, is_reference=True)], ROPE)
    assert f"{pair(0.5).far_text} →" in drawn
    assert pair(0.5).far_text.startswith("+50.0 points (")
    assert drawn.count('class="density"') == 1  # the arrow stands in place of its curve


def test_where_smaller_is_better_the_left_side_is_the_better_one() -> None:
    """P(row - column < -rope) is the probability that the row is better."""
    loss = Scoring(metric="log_loss")
    one = pair(-0.02, scoring=loss)
    below, equal, above = one.posterior.regions(ROPE)
    assert one.probabilities(ROPE) == (below, equal, above)
    assert pair(-0.02).probabilities(ROPE) == (above, equal, below)
    assert [kind for kind, _, _ in one.regions(ROPE, -1, 1)] == ["better", "equal", "worse"]
    assert [kind for kind, _, _ in pair(0.0).regions(ROPE, -1, 1)] == ["worse", "equal", "better"]


def test_only_shares_are_measured_in_percentage_points() -> None:
    assert "percentage points" in posterior_chart(pair(0.01), ROPE)
    drawn = posterior_rows([pair(-0.0123, scoring=Scoring(metric="log_loss"))], ROPE)
    assert "points" not in drawn
    assert "leader minus the other, log_loss (smaller is better)" in drawn
    assert "mean difference −0.0123" in drawn


# A comparison by a loss


@pytest.fixture(scope="module")
def by_loss(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    settings = {"clients": 4, "rounds": 3, "model": "logreg", "evaluate": {"metric": "log_loss"}}
    contestants = {name: {"algorithm": name} for name in ("fedavg", "scaffold")}
    how = {"folds": 3, "score": "final", "metric": "log_loss"}
    return compare_in_folder(tmp_path_factory.mktemp("loss") / "match", contestants, settings=settings, **how)


@pytest.mark.slow
def test_charts_and_verdict_agree_on_who_is_better(by_loss: Comparison) -> None:
    subject = ReportData(by_loss)
    row, column = subject.ranked
    duel = by_loss.duel(row, column)
    assert subject.pair(row, column).probabilities(by_loss.plan.rope) == (duel.p_better, duel.p_equal, duel.p_worse)
    means = {label: np.mean(scores) for label, scores in by_loss.scores().items()}
    assert means[row] <= means[column]


def test_the_target_of_a_data_set_is_an_accuracy_and_serves_no_loss(by_loss: Comparison) -> None:
    assert by_loss.runs["fedavg"][0].experiment.evaluate.target is not None
    assert by_loss.given_target is None
    means = [np.mean(scores) for scores in by_loss.scores("best").values()]
    assert max(means) <= by_loss.target <= max(means) + 0.01  # what all reach on average, to two digits


def test_curves_and_splits_show_the_metric(by_loss: Comparison, tmp_path: Path) -> None:
    text = write_report(by_loss, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "The log_loss on the common test samples" in text
    assert "Every run's final log_loss on the common test samples" in html.unescape(text)
    assert "percentage points" not in text.partition("Results and costs</h2>")[0]
    subject = ReportData(by_loss)
    curve = subject.curve("fedavg", subject.axes[0])
    losses = [[value for _, value in run.metric_curve] for run in by_loss.runs["fedavg"]]
    assert curve.mean == pytest.approx(np.mean(losses, axis=0))
    assert curve.best == pytest.approx(np.mean(np.minimum.accumulate(losses, axis=1), axis=0))


def test_tables_name_score_view_and_p_best(by_loss: Comparison) -> None:
    written = text_tables(by_loss, "markdown")
    assert "P(best)" in written
    assert "final: log_loss on the common test samples" in written
    assert "by final log_loss on the common test samples" in written
    assert OPTIMISTIC in written


# Files


@pytest.mark.slow
def test_a_report_names_the_file_and_tells_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "a folder" / "patients.csv"
    file.parent.mkdir()
    rng = np.random.default_rng(0)
    with file.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["age", "label"])
        table.writerows([[float(x), int(x > 0)] for x in rng.normal(size=200)])
    found = fa.compare(
        str(file), ["fedavg", "scaffold"], seeds=2, rounds=2, clients=3, model="logreg", out=tmp_path / "match",
        overrides=["data.label=label"], baseline=False,
    )  # fmt: skip
    text = write_report(found, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h1>Which algorithm for patients.csv?</h1>" in text
    assert str(tmp_path) not in text
    assert "a folder" not in text
    size = format_size(found.rows()[0]["bytes"])
    assert size.endswith((" kB", " bytes"))  # two numbers a model: far below a megabyte
    assert size in text
    assert not re.search(r"\b0\.0 MB", text)
    assert "patients.csv" in str(found.runs["fedavg"][0])


# The screen


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("eight")
    contestants: dict[str, dict[str, Any]] = {name: {"algorithm": name} for name in EIGHT}
    settings = {"clients": 4, "rounds": 2, "model": "logreg"}
    result = compare_in_folder(root / "match", contestants, settings=settings, folds=2, score="final", evaluate_on="own")
    return write_report(result, root / "report.html")


@pytest.mark.slow
def test_the_matrix_of_eight_is_not_cut_and_scrolls_visibly_on_a_phone(eight: Path) -> None:
    measure = """const box = document.querySelector('#verdict .scroll'), hint = box.parentNode.querySelector('.hint');
        const {right} = box.getBoundingClientRect();
        return {over: box.scrollWidth - box.clientWidth, hint: hint.checkVisibility(), right}"""
    with browser() as page:
        for width, scrolls in ((1280, False), (390, True)):
            resize(page, width)
            page.get(eight.as_uri())
            seen = page.execute_script(measure)
            assert overflow(page) == 0
            assert (seen["over"] > 0, seen["hint"]) == (scrolls, scrolls)
            assert seen["right"] <= width
            cells = page.execute_script(
                "return [...document.querySelectorAll('#verdict .chances')].filter(c => c.checkVisibility())"
                ".map(c => [c.innerText, ...[...c.children].map(s => [s.getBoundingClientRect().left, "
                "s.getBoundingClientRect().left + s.scrollWidth, s.getBoundingClientRect().right])])"
            )
            assert len(cells) == 8 * 7
            for text, *spans in cells:
                assert len(text.split()) == 3, text  # three numbers that do not run together
                for one, later in pairwise(spans):
                    assert one[1] <= later[0] + 0.5, text
