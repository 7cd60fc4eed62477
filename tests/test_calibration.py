"""The calibration study: it judges what `compare` would say, its rules are right, and its committed result meets the bar."""

from __future__ import annotations

import doctest
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedarena as fa
from tests.support.benchmark_scripts import script

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


study = script("calibration")
page = script("calibration_page")


@pytest.mark.slow
def test_the_examples_of_the_simulated_scores_hold():
    assert doctest.testmod(script("simulated_scores")).failed == 0


@pytest.fixture(scope="module")
def scores() -> dict[str, Any]:
    with np.load(RESULTS / "calibration.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return json.loads((RESULTS / "calibration.json").read_text(encoding="utf-8"))


def pairs_of(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every judged pair of the default protocol, with its name."""
    return [
        (f"{name}, {scheme}, {pair}", judged)
        for name, setting in found["settings"].items()
        for scheme in ("1x5 folds", "3x5 folds", "10 seeds")
        for pair, judged in setting[scheme]["pairs"].items()
    ]


@pytest.mark.slow
def test_the_study_judges_the_scores_that_compare_would_judge():
    tiny = replace(study.SETTINGS["digits-dirichlet"], keys={**study.DIGITS, "clients": 4, "rounds": 1})
    plan = tiny.plan(7, folds=5)
    column = [study.split_scores(plan, split, tiny.algorithms) for split in plan.splits[:2]]
    keys = {**tiny.keys, "model": "logreg", "seed": 7}
    compared = fa.compare("digits", tiny.algorithms, folds=5, baseline=False, out=False, **keys)
    for i, label in enumerate(tiny.algorithms):
        assert [split[i] for split in column] == compared.scores()[label][:2]


def test_own_samples_of_a_global_model_are_the_common_ones():
    """A client's own test samples are its part of the held-out fold, so only local training needs runs of its own."""
    tiny = replace(study.SETTINGS["digits-dirichlet"], keys={**study.DIGITS, "clients": 4, "rounds": 1})
    plan = tiny.plan(7, folds=5)
    own = study.own_accuracies(plan, plan.splits[0], "fedavg")[0]
    assert own == pytest.approx(study.split_scores(plan, plan.splits[0], ("fedavg",))[0], abs=1e-12)


def test_a_copy_shares_samples_and_partition_and_nothing_else():
    from fedarena.engine.setup import open_context

    plan = study.SETTINGS["digits-sampled"].plan(3, folds=5)
    cell = plan.cell("fedavg", plan.splits[1])
    first, second = open_context(cell), open_context(study.copied(cell, 1))
    assert np.array_equal(first.owners.test, second.owners.test)
    for a, b in zip(first.owners.clients, second.owners.clients, strict=True):
        assert np.array_equal(a, b)
    assert not np.array_equal(first.initial, second.initial)
    assert study.copied(cell, 0) is cell
    assert len({study.copied(cell, k).seed_for("shuffle") for k in range(3)}) == 3
    assert study.copied(cell, 1).seed_for("select") != cell.seed_for("select")


def test_truth_uses_no_seed_that_is_judged():
    assert study.FIRST_TRUTH_SEED > study.COMPARISONS
    units = [*study.units(study.COMPARISONS, study.TRUTH, study.COPY_COMPARISONS, list(study.SETTINGS))]
    assert len(units) == len(set(units))
    assert sum(u.kind == "folds" for u in units) == study.COMPARISONS * len(study.SETTINGS)


def test_a_study_resumes_where_it_was_interrupted(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    lines = [{"kind": "folds", "index": i, "scores": [[0.5, 0.5]]} for i in range(2)]
    cut = json.dumps(lines[1])[:20]
    (out / "digits-iid.jsonl").write_text(json.dumps(lines[0]) + "\n" + cut, encoding="utf-8")
    assert [unit for unit, _ in study.saved(out)] == [study.Unit("digits-iid", "folds", 0)]


def test_the_rules_on_scores_with_a_known_truth():
    """Independent normal differences around the truth: intervals cover at least their level, few verdicts are wrong."""
    rng = np.random.default_rng(0)
    zero = np.zeros((400, 15))
    for mean in (0.0, 0.03):
        d = mean + 0.02 * rng.standard_normal(zero.shape)
        judged = study.judged_pair(zero, d, 0.2, study.Truth(mean, 0.0))
        assert judged["coverage"] > 0.97  # the test allows for a correlation that these scores do not have
        assert judged["wrong_lower_bound"] < 0.05
    shared = 0.02 * (rng.standard_normal((400, 1)) + 0.3 * rng.standard_normal((400, 5)))  # folds repeat one accident
    judged = study.judged_pair(np.zeros((400, 5)), shared, 0.2, study.Truth(0.0, 0.0))
    assert judged["coverage"] < 0.85
    assert judged["wrong_lower_bound"] > 0.05
    assert judged["contradictions"] > 10


def test_the_committed_figures_follow_from_the_committed_scores(scores, found):
    setting = study.SETTINGS["digits-sampled"]
    x = scores["digits-sampled/folds"]
    truth = np.concatenate([*scores["digits-sampled/truth-folds"]])
    judged = found["settings"]["digits-sampled"]["3x5 folds"]["pairs"]
    assert judged["null"] == study.judged_pair(x[:, :, 0], x[:, :, -1], 0.2, study.Truth(0.0, 0.0), 359)
    again = study.judged_pair(x[:, :, 0], x[:, :, 1], 0.2, study.true_difference(truth, 0, 1), 359)
    assert judged[f"{setting.algorithms[1]} - {setting.algorithms[0]}"] == again


def test_every_setting_has_the_required_size(scores):
    for name in study.SETTINGS:
        for kind, splits in (
            ("folds", 15),
            ("seeds", 10),
        ):  # 200 comparisons, and the first repeats of the folds beside
            assert scores[f"{name}/{kind}"].shape[0] >= 200
            assert scores[f"{name}/{kind}"].shape[1] == splits
        for kind in ("folds", "seeds"):
            assert np.prod(scores[f"{name}/truth-{kind}"].shape[:2]) >= 200


def test_the_samples_of_every_setting_are_those_of_its_scores(scores):
    """An accuracy is a number of right samples: times the size of its test set it is whole."""
    for name, setting in study.SETTINGS.items():
        x = scores[f"{name}/folds"].ravel()
        sizes = np.array([setting.samples // 5, -(-setting.samples // 5)])
        right = np.outer(x, sizes)
        assert (np.abs(right - right.round()).min(axis=1) < 1e-6).all(), name


def test_three_repeats_have_no_wrong_verdict_however_it_is_counted(found):
    for name, setting in found["settings"].items():
        for pair, judged in setting["3x5 folds"]["pairs"].items():
            assert judged["wrong"] == judged["contradictions"] == 0, (name, pair)


def test_intervals_hold_the_truth_in_every_setting(found):
    for name, judged in pairs_of(found):
        assert 0.85 <= judged["coverage"] <= 1.0, name


def test_few_decided_verdicts_are_wrong_in_every_setting(found):
    for name, judged in pairs_of(found):
        assert judged["wrong_lower_bound"] < 0.05, name
    for name, setting in found["settings"].items():
        for pair, end in setting["until decided"].items():
            assert end["wrong_lower_bound"] < 0.05, (name, pair)


def test_no_two_decided_verdicts_of_forty_seeds_contradict(found):
    for name, judged in pairs_of(found):
        if not name.endswith("null"):  # the null has its own limit: every + or - of it is wrong
            assert judged["contradictions_of_40"] == 0, name


def test_no_copy_among_copies_is_called_the_best(found):
    copies = [s["copies"] for s in found["settings"].values() if "copies" in s]
    assert copies
    for one in copies:
        assert one["comparisons"] >= 40
        assert one["copies"] == 15
        assert one["largest_p_best"] <= 0.95


def test_hierarchical_intervals_hold_the_truth(found):
    for suite in found["suites"]:
        for key in ("next", "average", "federations"):
            assert 0.85 <= suite[key] <= 1.0, suite


def test_the_page_shows_the_committed_figures(found):
    text = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    assert page.filled(text, page.tables_of(found)) == text
    assert all(table in text for table in page.tables_of(found).values())
