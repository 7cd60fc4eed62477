"""What is concluded from several federations, on comparisons made by hand."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.engine.record import RoundRecord
from fedarena.engine.task_metrics import FinalMetrics
from fedarena.experiments.plan import build_plan
from fedarena.reports.suite_tables import show_suite
from fedarena.results.comparison import Comparison
from fedarena.results.json_files import as_json
from fedarena.results.run import Run
from fedarena.results.suite import SuiteComparison
from fedarena.results.suite_pairs import PairEstimate
from fedarena.statistics.bayes import posterior
from fedarena.statistics.hierarchical import hierarchy
from fedarena.statistics.repeats import repeat_posterior
from fedarena.statistics.signed_rank import signed_rank

BASE = Experiment.make("digits", rounds=1, model="logreg")


def federation(
    scores: dict[str, list[float]], *, metric: str = "accuracy", settings: dict[str, Any] | None = None, **how: Any
) -> Comparison:
    """A comparison with these final scores; NaN of a metric without a bound is a run that diverged."""
    experiment = BASE.with_(**(settings or {}))
    contestants = {label: {"algorithm": label} for label in scores}
    n = len(next(iter(scores.values())))
    asked = {"folds": n, "score": "final", "metric": metric, "fixed": ("start",), **how}
    plan = build_plan(experiment, contestants, **asked)
    runs = {
        label: [_run(experiment, label, value, metric) for value in values]
        for label, values in scores.items()
        if values
    }
    return Comparison(plan, runs, {label: "out of memory" for label, values in scores.items() if not values})


def _run(experiment: Experiment, label: str, value: float, metric: str) -> Run:
    accuracy = value if metric == "accuracy" else 0.5
    record = RoundRecord(
        1, accuracy, math.nan if math.isnan(value) and metric != "auc" else 1.0, best_accuracy=accuracy, uploads=1,
        bytes_up=1, bytes_down=1, clock=1.0, wall_seconds=0.1, answered=1,
    )  # fmt: skip
    common = {metric: value} if not math.isnan(value) else {}
    measured = FinalMetrics("classification", metric, "minimize" if metric == "log_loss" else "maximize", common)
    return Run(experiment.with_(algorithm=label), [record], "sha", np.empty(0), np.array([5]), measured=measured)


def drawn(seed: int, advantage: float = 0.0, n: int = 5) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    first = 0.7 + 0.02 * rng.standard_normal(n)
    return {"fedavg": first.tolist(), "scaffold": (first + advantage + 0.01 * rng.standard_normal(n)).tolist()}


def suite(*federations: Comparison, **how: Any) -> SuiteComparison:
    return SuiteComparison({f"F{k}": one for k, one in enumerate(federations)}, **how)


def numbers(found: PairEstimate) -> list[float]:
    return [found.p_better, found.p_equal, found.p_worse, found.mean, *found.interval]


@pytest.mark.slow
def test_every_number_is_that_of_the_hierarchical_model() -> None:
    ones = [federation(drawn(seed, advantage)) for seed, advantage in enumerate((0.05, 0.02, 0.03, 0.0))]
    pair = suite(*ones).pair("scaffold", "fedavg")
    known = [one.posterior("scaffold", "fedavg") for one in ones]
    found = hierarchy(known, rope=0.01)
    for mine, theirs in zip(
        (pair.next, pair.average, *(e.shrunk for e in pair.by_federation)),
        (found.next, found.average, *found.federations),
        strict=True,
    ):
        worse, equal, better = theirs.regions
        assert numbers(mine) == [better, equal, worse, theirs.mean, *theirs.interval]
    for estimate, one in zip(pair.by_federation, ones, strict=True):
        duel = one.duel("scaffold", "fedavg")
        assert numbers(estimate.own) == [duel.p_better, duel.p_equal, duel.p_worse, duel.mean, *duel.interval]
        assert estimate.own.verdict == duel.verdict
    means = [[float(np.mean(one.scores()[label])) for one in ones] for label in ("fedavg", "scaffold")]
    worse, equal, better = signed_rank(*means, 0.01)
    test = pair.signed_rank
    assert (test.p_better, test.p_equal, test.p_worse) == (better, equal, worse)


@pytest.mark.slow
def test_the_same_federation_three_times_gives_its_own_difference_with_more_certainty() -> None:
    """All d_j are equal, so every posterior is symmetric around them."""
    one = federation(drawn(3, 0.02))
    pair = suite(one, one, one).pair("scaffold", "fedavg")
    own = one.duel("scaffold", "fedavg")
    for found in (pair.next, pair.average, *(e.shrunk for e in pair.by_federation)):
        assert found.mean == pytest.approx(own.mean, abs=1e-6)
        assert sum(found.interval) / 2 == pytest.approx(own.mean, abs=1e-5)
    low, high = pair.average.interval
    assert high - low < own.interval[1] - own.interval[0]
    assert pair.next.interval[1] > high


@pytest.mark.slow
def test_a_pair_mirrors() -> None:
    found = suite(*(federation(drawn(seed, 0.03)) for seed in range(3)))
    there, back = found.pair("scaffold", "fedavg"), found.pair("fedavg", "scaffold")
    for a, b in ((there.next, back.next), (there.average, back.average)):
        assert (a.p_better, a.p_equal, a.p_worse, a.mean) == (b.p_worse, b.p_equal, b.p_better, -b.mean)
        assert a.interval == (-b.interval[1], -b.interval[0])
    assert there.by_federation[1].own.mean == -back.by_federation[1].own.mean
    assert len(found.pairs) == 1
    with pytest.raises(BadValue, match="was not compared"):
        found.pair("scaffold", "fedprox")


# Metrics with units


@pytest.mark.slow
def test_metrics_with_units_enter_as_log_ratios_so_units_do_not_matter() -> None:
    scores = [{label: [10 * v for v in values] for label, values in drawn(seed, -0.05).items()} for seed in range(3)]
    ones = [federation(s, metric="log_loss") for s in scores]
    large = {label: [1000 * v for v in values] for label, values in scores[2].items()}
    found = suite(*ones).pair("scaffold", "fedavg")
    scaled = suite(*ones[:2], federation(large, metric="log_loss")).pair("scaffold", "fedavg")
    assert numbers(scaled.next) == pytest.approx(numbers(found.next), abs=1e-6)
    assert numbers(scaled.average) == pytest.approx(numbers(found.average), abs=1e-6)
    logs = posterior(np.log(scores[0]["fedavg"]), np.log(scores[0]["scaffold"]), 1 / 5)
    own = found.by_federation[0].own
    assert own.mean == pytest.approx(logs.mean)
    assert own.interval == pytest.approx(logs.interval(0.9))
    better, equal, worse = logs.regions(math.log(1.01))  # smaller is better
    assert (own.p_better, own.p_equal, own.p_worse) == pytest.approx((better, equal, worse))


@pytest.mark.slow
def test_ratios_are_read_in_percent() -> None:
    one = {"fedavg": [2.0, 2.1, 1.9], "scaffold": [1.0, 1.05, 0.95]}  # half of it, everywhere
    found = suite(*(federation(one, metric="log_loss") for _ in range(3)))
    pair = found.pair("scaffold", "fedavg")
    assert pair.next.mean == pytest.approx(math.log(0.5))
    assert pair.next.verdict == pair.average.verdict == "+"
    assert "scaffold is better than fedavg by more than 1% with probability 1.00." in found.words[0]
    assert "-50.0%" in found.words[1]
    assert found.as_dict()["scale"] == "log ratio"


# What has no score


@pytest.mark.slow
def test_a_run_that_diverged_keeps_the_accuracy_it_had() -> None:
    bad = federation({"fedavg": [0.7, 0.71, 0.72], "scaffold": [0.1, 0.1, 0.1]})
    broken = [_diverged(run) for run in bad.runs["scaffold"]]
    bad = Comparison(bad.plan, {**bad.runs, "scaffold": broken})
    found = suite(*(federation(drawn(seed, 0.05, n=3)) for seed in range(3)), bad)
    pair = found.pair("scaffold", "fedavg")
    assert len(pair.by_federation) == 4
    assert pair.by_federation[3].own.mean == pytest.approx(-0.61)
    assert pair.next.verdict == "?"
    assert "scaffold diverged on F3; no score was dropped." in found.words


def _diverged(run: Run) -> Run:
    from dataclasses import replace

    return replace(run, records=[replace(run.records[0], loss=math.nan)])


@pytest.mark.slow
def test_without_a_worst_value_a_diverged_run_leaves_its_pairs_open_and_no_other() -> None:
    clean = {"fedavg": [1.0, 1.1, 0.9], "fedprox": [3.0, 3.3, 2.7], "scaffold": [0.5, 0.55, 0.45]}
    bad = {**clean, "scaffold": [0.5, math.nan, 0.45]}
    found = suite(*(federation(s, metric="log_loss") for s in (clean, clean, bad)))
    for column in ("fedavg", "fedprox"):
        pair = found.pair("scaffold", column)
        assert pair.next.verdict == pair.average.verdict == "?"
        assert math.isnan(pair.next.p_better)
        assert "scaffold diverged on F2" in pair.why_not
        assert [e.own.is_known for e in pair.by_federation] == [True, True, False]
    assert found.pair("fedavg", "fedprox").next.verdict == "+"
    assert found.mean_ranks == {"fedavg": 5 / 3, "fedprox": 8 / 3, "scaffold": 5 / 3}  # 2 2 1, 3 3 2 and 1 1 3
    assert any("nothing can be said about" in text and "log_loss has no worst value" in text for text in found.words)
    assert json.loads(as_json(found.as_dict()))["pairs"][0]["next"]["p_better"] is None


def test_an_algorithm_that_failed_on_one_federation_is_not_judged_by_the_others() -> None:
    scores = {**drawn(0, 0.2), "fedprox": [0.1] * 5}
    failed = federation({**drawn(1, 0.2), "fedprox": [0.1] * 5, "scaffold": []})
    found = suite(federation(scores), federation(scores), federation(scores), failed)
    pair = found.pair("scaffold", "fedavg")
    assert pair.next.verdict == "?"
    assert pair.why_not == "scaffold has no result on F3"
    assert found.pair("fedavg", "fedprox").next.verdict == "+"
    assert "scaffold has no result on F3: out of memory" in found.words
    assert found.mean_ranks["scaffold"] == (1 + 1 + 1 + 3) / 4


def test_a_federation_whose_labels_leave_the_metric_undefined_is_left_out_for_all() -> None:
    known = {"fedavg": [0.7, 0.71, 0.72], "scaffold": [0.8, 0.82, 0.81]}
    undefined = federation({"fedavg": [math.nan] * 3, "scaffold": [math.nan] * 3}, metric="auc")
    four = suite(*(federation(known, metric="auc") for _ in range(3)), undefined)
    assert four.dropped == ["F3"]
    assert [e.federation for e in four.pairs[0].by_federation] == ["F0", "F1", "F2"]
    assert "F3 is left out: auc is undefined on the labels of its splits" in four.notes
    three = suite(*(federation(known, metric="auc") for _ in range(2)), undefined)
    assert three.pairs[0].next.verdict == "?"
    assert "2 federations with scores do not show how federations differ" in three.undecidable


@pytest.mark.slow
def test_federations_whose_folds_share_a_partition_keep_their_own_posterior() -> None:
    scores = drawn(5, 0.05, n=10)
    ones = [federation(scores, folds=2, repeats=5, per_repeat=("partition",)) for _ in range(3)]
    pair = suite(*ones).pair("scaffold", "fedavg")
    repeats = [r for r in range(5) for _ in range(2)]
    known = repeat_posterior(scores["fedavg"], scores["scaffold"], repeats, 1 / 2)
    assert pair.by_federation[0].own.interval == known.interval(0.9)
    assert known.df == 4
    few = suite(*(federation(drawn(5, 0.3, n=4), folds=2, repeats=2, per_repeat=("partition",)) for _ in range(3)))
    judged = few.pair("scaffold", "fedavg")
    assert judged.average.p_better > 0.95
    assert judged.next.verdict == judged.average.verdict == judged.signed_rank.verdict == "?"
    assert any("2 repeats cannot show" in text for text in few.words)


@pytest.mark.slow
def test_where_the_signed_rank_test_contradicts_it_is_said() -> None:
    """30 federations within the rope and 5 far beyond it: the median pair is equal, the mean is not."""
    rng = np.random.default_rng(0)
    ones = []
    for k in range(35):
        first = 0.5 + 0.001 * rng.standard_normal(3)
        gain = 0.3 if k < 5 else 0.008
        ones.append(federation({"fedavg": first.tolist(), "scaffold": (first + gain).tolist()}))
    pair = (found := suite(*ones)).pair("scaffold", "fedavg")
    assert pair.signed_rank.verdict == "="
    assert pair.average.verdict == "+"
    assert pair.signed_rank.contradicts == ("average",)
    assert any("The signed-rank test contradicts" in text for text in found.words)


# Settings that vary


@pytest.mark.slow
def test_a_setting_with_three_values_is_found_and_the_answer_changes_along_it() -> None:
    ones = []
    for beta, gain in ((0.1, 0.10), (1.0, 0.05), (10.0, 0.0), (100.0, -0.05)):
        first = np.array([0.6, 0.61, 0.59])
        settings = {"partition": {"name": "label_dirichlet", "beta": beta}, "clients": 10 if beta < 1 else 20}
        ones.append(federation({"fedavg": first.tolist(), "scaffold": (first + gain).tolist()}, settings=settings))
    found = suite(*ones)
    assert [setting.key for setting in found.varying] == ["partition.beta"]  # clients has two values
    (output,) = found.as_dict()["varying"]
    assert output["values"] == {"F0": 0.1, "F1": 1.0, "F2": 10.0, "F3": 100.0}
    (trend,) = output["trends"]
    assert trend["axis"] == "log"
    assert [(c["below"], c["above"]) for c in trend["changes"]] == [("+", "="), ("=", "-")]
    crossings = [10**0.8, 10**1.2]  # 0.05 (1 - log10 beta) is 0.01 and -0.01 there
    for change, at in zip(trend["changes"], crossings, strict=True):
        assert change["at"] == pytest.approx(at, rel=0.1)  # a point of the line is 9 % of beta
    (text,) = [text for text in found.words if text.startswith("Along partition.beta")]
    assert text.startswith("Along partition.beta, scaffold against fedavg is most probably better below about 6.")
    assert "; with over 95% probability, " in text


def test_where_smaller_is_better_the_line_rises_from_better_to_worse() -> None:
    ones = []
    for clients, ratio in ((2, 0.5), (4, 1.0), (6, 2.0)):  # log ratios on a straight line
        settings = {"clients": clients}
        scores = {"fedavg": [1.0, 1.2, 1.1], "scaffold": [1.0 * ratio, 1.2 * ratio, 1.1 * ratio]}
        ones.append(federation(scores, metric="log_loss", settings=settings))
    found = suite(*ones)
    pair = found.pair("scaffold", "fedavg")
    trend = found.trend(pair, found.varying[0])
    assert trend is not None
    line = found.line(trend)
    assert [line[0][1], line[-1][1]] == pytest.approx([math.log(0.5), math.log(2)], abs=1e-6)
    assert [(c.before, c.after) for c in trend.changes] == [("right", "rope"), ("rope", "left")]
    assert [e.own.verdict for e in pair.by_federation] == ["+", "=", "-"]


# What is shown


def test_the_answer_comes_first() -> None:
    found = suite(*(federation(drawn(seed, 0.1)) for seed in range(3)))
    assert 0.995 < found.pairs[0].next.p_better < 1
    assert found.words[0] == (
        "On the next federation like these 3, scaffold is better than fedavg by more than 1 point with probability over 0.99."
    )
    assert str(found).startswith(found.words[0])
    assert "scaffold against fedavg" in found._repr_html_()
    out = Console(file=io.StringIO(), highlight=False, width=100)
    show_suite(found, out)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert text.lstrip().startswith("On the next federation like these 3")
    for name in (
        "F0",
        "F1",
        "F2",
        "average",
        "next federation",
        "Mean ranks over 3 federations: scaffold 1.00, fedavg 2.00",
    ):
        assert name in text


@pytest.mark.slow
def test_json_has_what_is_promised() -> None:
    found = json.loads(as_json(suite(*(federation(drawn(seed, 0.1)) for seed in range(3))).as_dict()))
    assert {"federations", "pairs", "mean_ranks", "about", "verdict", "varying"} <= set(found)
    assert [one["name"] for one in found["federations"]] == ["F0", "F1", "F2"]
    assert "table" in found["federations"][0]
    (pair,) = found["pairs"]
    estimate = {"p_better", "p_equal", "p_worse", "verdict", "mean", "interval"}
    assert {"row", "column", "next", "average", "by_federation", "signed_rank"} <= set(pair)
    assert estimate <= set(pair["next"])
    assert estimate <= set(pair["average"])
    assert [set(one) for one in pair["by_federation"]] == [{"federation", "own", "shrunk"}] * 3
    assert pair["next"]["p_better"] + pair["next"]["p_equal"] + pair["next"]["p_worse"] == pytest.approx(1)


@pytest.mark.slow
def test_more_algorithms_than_sentences_are_grouped() -> None:
    names = ("fedavg", "fedprox", "fednova", "fedavgm", "fedadam", "fedsgd", "scaffold")
    scores = {name: [0.5 + 0.05 * k, 0.52 + 0.05 * k, 0.51 + 0.05 * k] for k, name in enumerate(names)}
    words = suite(*(federation(scores) for _ in range(3))).words
    assert words[0].startswith(
        "On the next federation like these 3, scaffold is better by more than 1 point, with over 95%"
    )
    assert sum(text.startswith("On the next") for text in words) == 1
