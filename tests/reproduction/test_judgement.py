"""Checks hold and break when they should, and the verdict follows from them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedarena.config.errors import BadValue, UnknownName
from fedarena.reproduction.check_kinds import sign
from fedarena.reproduction.judgement import RecipeCheck, checks_of, judge
from fedarena.reproduction.score_sheet import ScoreSheet, format_number

AXES = {"model": ["mlp", "cnn"], "lr": ["slow", "fast"]}


def sheet(published: dict[str, Any] | None = None, **scores: list[float]) -> ScoreSheet:
    """Cells written `mlp_slow=[0.1, 0.2]`, of the measure `best`."""
    cells = {tuple(name.split("_")): values for name, values in scores.items()}
    printed = {tuple(name.split("_")): value for name, value in (published or {}).items()}
    return ScoreSheet({"best": cells}, {"best": printed}, AXES)


def holds(known: ScoreSheet, kind: str, **how: Any) -> bool | None:
    found = RecipeCheck.make({"kind": kind, "says": "it does", "measure": "best", **how}).findings(known)
    return all(f.held for f in found) if found else None


# One kind after the other


def test_within_is_the_distance_of_the_mean_to_print() -> None:
    known = sheet(
        {"mlp_slow": 0.5, "mlp_fast": math.inf}, mlp_slow=[0.4, 0.64], mlp_fast=[math.inf] * 2, cnn_slow=[9, 9]
    )
    assert holds(known, "within", tolerance=0.02)  # mean 0.52; a target never reached, as printed; cnn was not printed
    assert not holds(known, "within", tolerance=0.019)
    assert not holds(sheet({"mlp_slow": math.inf}, mlp_slow=[500]), "within", tolerance=1000)


def test_factor_goes_both_ways() -> None:
    for ours in (50.0, 200.0):
        assert holds(sheet({"mlp_slow": 100}, mlp_slow=[ours]), "factor", factor=2)
        assert not holds(sheet({"mlp_slow": 100}, mlp_slow=[ours]), "factor", factor=1.9)
    assert not holds(sheet({"mlp_slow": 100}, mlp_slow=[math.inf]), "factor", factor=2)


def test_range_has_one_end_or_two() -> None:
    known = sheet(mlp_slow=[0.2, 0.4], cnn_slow=[0.9, 0.9])
    assert holds(known, "range", cells="mlp *", low=0.29, high=0.31)
    assert holds(known, "range", low=0.3)
    assert not holds(known, "range", high=0.8)


def test_an_ordering_must_hold_on_every_split() -> None:
    assert holds(sheet(mlp_slow=[0.1, 0.2], mlp_fast=[0.2, 0.3]), "ordering", choices=["slow", "fast"])
    assert not holds(sheet(mlp_slow=[0.1, 0.2], mlp_fast=[0.9, 0.2]), "ordering", choices=["slow", "fast"])
    assert holds(sheet(mlp_slow=[0.1, 0.2], mlp_fast=[0.9, 0.2]), "ordering", choices=["slow", "fast"], margin=-0.01)


def test_a_target_never_reached_is_later_than_any() -> None:
    assert holds(sheet(mlp_slow=[500.0], mlp_fast=[math.inf]), "ordering", choices=["slow", "fast"])
    assert not holds(sheet(mlp_slow=[math.inf], mlp_fast=[500.0]), "ordering", choices=["slow", "fast"])


def test_an_ordering_may_be_asked_of_most_cases_only() -> None:
    known = sheet(mlp_slow=[0.1], mlp_fast=[0.2], cnn_slow=[0.2], cnn_fast=[0.1])
    assert not holds(known, "ordering", choices=["slow", "fast"])
    assert holds(known, "ordering", choices=["slow", "fast"], share=0.5)
    assert not holds(known, "ordering", choices=["slow", "fast"], share=0.6)


def test_pairs_differ_in_one_choice_alone() -> None:
    known = sheet(mlp_slow=[0.5], mlp_fast=[0.6], cnn_fast=[0.9])  # cnn has no slow cell: it is no pair
    assert holds(known, "difference", of="fast", minus="slow", between=[0.1, 0.1])
    assert holds(known, "ratio", of="fast", to="slow", between=[1.19, 1.21])
    assert holds(known, "ratio", of="slow", to="missing", between=[0, 1]) is None


def test_spread_is_taken_along_an_axis_or_over_all() -> None:
    known = sheet(mlp_slow=[0.1], mlp_fast=[0.2], cnn_slow=[0.8], cnn_fast=[0.9])
    assert holds(known, "spread", axis="lr", most=0.11)
    assert not holds(known, "spread", axis="lr", most=0.09)
    assert not holds(known, "spread", most=0.5)
    assert not holds(known, "spread", axis="lr", cells="mlp *", relative=True, most=0.5)  # 0.1 of a mean of 0.15


def test_top_names_the_best_of_an_axis() -> None:
    known = sheet(mlp_slow=[0.1], mlp_fast=[0.2], cnn_slow=[0.3], cnn_fast=[0.4])
    assert holds(known, "top", axis="model", among=["cnn"])
    assert not holds(known, "top", axis="lr", among=["slow"])
    rounds = ScoreSheet({"rounds_to:0.9": {("slow",): [9.0], ("fast",): [3.0]}}, {}, AXES)
    assert (
        RecipeCheck.make({"kind": "top", "says": "so", "measure": "rounds_to:0.9", "axis": "lr", "among": ["fast"]})
        .findings(rounds)[0]
        .held
    )  # fewer rounds are better


def test_trend_and_what_one_gains_over_another() -> None:
    axes = {"alpha": ["0", "1", "10"], "who": ["ours", "theirs"]}
    ours = {(alpha, "ours"): [v] for alpha, v in zip(axes["alpha"], (0.5, 0.6, 0.7), strict=True)}
    theirs = {(alpha, "theirs"): [v] for alpha, v in zip(axes["alpha"], (0.2, 0.4, 0.7), strict=True)}
    known = ScoreSheet({"best": {**ours, **theirs}}, {}, axes)
    assert holds(known, "trend", axis="alpha", sign=1)
    assert not holds(known, "trend", axis="alpha", sign=-1)
    assert holds(known, "trend", axis="alpha", of="ours", minus="theirs", sign=-1)  # 0.3, 0.2, 0.0


def test_effects_are_ranges_of_marginal_means() -> None:
    known = sheet(mlp_slow=[0.1], mlp_fast=[0.2], cnn_slow=[0.5], cnn_fast=[0.6])  # model 0.4, rate 0.1
    assert holds(known, "effects", larger=["model"], than="lr")
    assert not holds(known, "effects", larger=["lr"], than="model")


def test_means_over_axes_come_first() -> None:
    known = sheet(mlp_slow=[0.1], mlp_fast=[0.3], cnn_slow=[0.6], cnn_fast=[0.2])
    assert not holds(known, "ordering", choices=["slow", "fast"])
    assert not holds(known, "ordering", choices=["slow", "fast"], mean_over=["model"])  # 0.35 and 0.25
    assert holds(known, "ordering", choices=["fast", "slow"], mean_over=["model"])


def test_signs_are_those_of_the_bayesian_test() -> None:
    """Five folds with differences of 2 points, give or take 0.1: far outside the rope of one."""
    a, b = [0.9, 0.91, 0.89, 0.9, 0.9], [0.88, 0.889, 0.871, 0.88, 0.88]
    published = {"sign": {("iid", "a", "b"): "+", ("iid", "b", "c"): "=+"}}
    known = ScoreSheet({"best": {("iid", "a"): a, ("iid", "b"): b, ("iid", "c"): b}}, published, {}, rho=0.2)
    assert sign(known, "best", ("iid", "a", "b")) == "+"
    assert sign(known, "best", ("iid", "b", "a")) == "-"
    assert sign(known, "best", ("iid", "b", "c")) == "="
    assert holds(known, "signs")
    assert not holds(ScoreSheet(known.scores, {"sign": {("iid", "a", "b"): "="}}, {}, 0.2), "signs")


def test_two_published_signs_may_hold_together_only() -> None:
    """Differences of one point on the mean, the border of the rope: half of the posterior on either side of it."""
    better, base = [0.912, 0.908, 0.911, 0.909, 0.91], [0.9] * 5
    scores = {"best": {("better",): better, ("base",): base}}
    for printed, ours in {"=": "?", "+": "?", "-": "?", "=+": "=+", "-=": "?", "-+": "?"}.items():
        known = ScoreSheet(scores, {"sign": {("better", "base"): printed}}, {}, rho=0.2)
        assert sign(known, "best", ("better", "base")) == ours
        assert holds(known, "signs") == (printed == "=+")


def test_a_diverged_run_breaks_the_signs_it_is_in() -> None:
    scores = {"best": {("a",): [0.9, 0.91, 0.92], ("b",): [0.5, 0.5, 0.5], ("c",): [0.9, math.nan, 0.9]}}
    known = ScoreSheet(scores, {"sign": {("a", "b"): "+", ("c", "b"): "+", ("d", "b"): "+"}}, {}, rho=0.2)
    assert [sign(known, "best", (row, "b")) for row in "acd"] == ["+", "diverged", None]
    assert not holds(known, "signs")
    assert holds(known, "signs", rows="a")


def test_an_undecided_pair_may_be_allowed() -> None:
    noisy = ScoreSheet(
        {"best": {("a",): [0.9, 0.8, 0.7], ("b",): [0.8, 0.9, 0.72]}}, {"sign": {("a", "b"): "="}}, {}, rho=1 / 3
    )
    assert sign(noisy, "best", ("a", "b")) == "?"
    assert not holds(noisy, "signs")
    assert holds(noisy, "signs", undecided=[["b", "a"]])


def test_a_misspelt_check_is_named() -> None:
    with pytest.raises(UnknownName, match="orderings"):
        RecipeCheck.make({"kind": "orderings", "says": "x"})
    with pytest.raises(BadValue, match="has no tolerance"):
        holds(sheet({"mlp_slow": 1}, mlp_slow=[1.0]), "within")


# The verdict (docs/reference/metrics.md#agreement-with-published-numbers)

NUMBER = RecipeCheck.make({"kind": "within", "says": "the number", "measure": "best", "tolerance": 0.01})
ORDER = RecipeCheck.make({"kind": "ordering", "says": "the order", "measure": "best", "choices": ["slow", "fast"]})
PRINTED = {"mlp_slow": 0.5}


@pytest.mark.parametrize(
    ("slow", "smaller", "verdict"),
    [
        (0.5, False, "agrees"),
        (0.4, False, "ordering agrees"),  # the number is off, the order holds
        (0.8, False, "differs"),
        (0.5, True, "ordering agrees"),  # never more, of a smaller run
        (0.4, True, "ordering agrees"),
        (0.8, True, "differs"),
    ],
)
def test_verdict(slow: float, smaller: bool, verdict: str) -> None:
    known = sheet(PRINTED, mlp_slow=[slow], mlp_fast=[0.6])
    judged = judge(known, [NUMBER, ORDER], smaller=smaller)
    assert judged.verdict == verdict
    if verdict == "differs":
        assert "the order (mlp: slow 0.8000 > fast 0.6000)" in judged.reason


def test_a_number_alone_makes_no_ordering() -> None:
    known = sheet(PRINTED, mlp_slow=[0.4])
    assert judge(known, [NUMBER], smaller=False).verdict == "differs"
    assert judge(known, [NUMBER], smaller=True).verdict == "not comparable"


def test_what_cannot_be_compared_says_why() -> None:
    known = sheet(PRINTED, mlp_slow=[0.5], mlp_fast=[0.6])
    judged = judge(known, [NUMBER, ORDER], smaller=False, why_not="two runs failed")
    assert (judged.verdict, judged.reason) == ("not comparable", "two runs failed")


def test_reported_checks_decide_nothing() -> None:
    broken = RecipeCheck.make({"kind": "range", "says": "x", "measure": "best", "high": 0.0, "told": True})
    known = sheet(PRINTED, mlp_slow=[0.5], mlp_fast=[0.6])
    judged = judge(known, [NUMBER, ORDER, broken], smaller=False)
    assert judged.verdict == "agrees"
    assert not judged.checks[2][1][0].held


def test_a_part_that_was_run_is_no_whole() -> None:
    judged = judge(sheet(PRINTED, mlp_slow=[0.5]), [NUMBER, ORDER], smaller=False, part="1 of 4 cells were run")
    assert judged.reason.endswith("(1 of 4 cells were run, 1 of 2 checks could not be made)")
    assert judged.verdict == "ordering agrees"  # never more, though the one check that was made holds


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.97, "0.9700"), (87.0, "87"), (199210, "199,210"), (math.inf, "never"), (None, ""), ("+", "+"), (8e-5, "8e-05")],
)
def test_numbers_are_shown_as_people_write_them(value: Any, text: str) -> None:
    assert format_number(value) == text


# Unknown values satisfy no check


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("range", {"high": 1.0}),
        ("within", {"tolerance": 1.0}),
        ("spread", {"axis": "lr", "most": 9.0}),
        ("ordering", {"choices": ["slow", "fast"]}),
        ("difference", {"of": "fast", "minus": "slow", "between": [-9, 9]}),
        ("ratio", {"of": "fast", "to": "slow", "between": [0, math.inf]}),
        ("top", {"axis": "lr", "among": ["fast"]}),
    ],
)
def test_a_run_that_diverged_holds_nothing(kind: str, how: dict[str, Any]) -> None:
    printed = {"mlp_slow": 0.5, "mlp_fast": 0.5}
    assert holds(sheet(printed, mlp_slow=[0.5], mlp_fast=[0.6]), kind, **how)
    assert holds(sheet(printed, mlp_slow=[0.5], mlp_fast=[math.nan]), kind, **how) is False


def waiting(slow: float, fast: float, limit: float) -> ScoreSheet:
    """Rounds to a target, waited for so long."""
    scores = {"best": {("mlp", "slow"): [slow], ("mlp", "fast"): [fast]}}
    return ScoreSheet(scores, {}, AXES, limits={"best": {("mlp", "slow"): [limit], ("mlp", "fast"): [limit]}})


def test_a_target_never_reached_took_longer_than_was_waited_for_it() -> None:
    """20 rounds against never in 100: at least 5 times as many, perhaps more."""
    known = waiting(slow=math.inf, fast=20.0, limit=100.0)
    assert holds(known, "ratio", of="slow", to="fast", between=[5, math.inf])
    assert not holds(known, "ratio", of="slow", to="fast", between=[6, math.inf])
    assert not holds(known, "ratio", of="slow", to="fast", between=[4, 8])  # it may be more than 8
    assert holds(known, "ratio", of="fast", to="slow", between=[0, 0.2])
    assert not holds(known, "ratio", of="fast", to="slow", between=[0.1, 0.2])
    assert holds(known, "difference", of="slow", minus="fast", between=[80, math.inf])
    how = {"measure": "best", "of": "slow", "to": "fast", "between": [5, math.inf]}
    found = RecipeCheck.make({"kind": "ratio", "says": "so", **how})
    assert [f.value for f in found.findings(known)] == ["at least 5"]
    assert holds(waiting(math.inf, math.inf, 100.0), "ratio", of="slow", to="fast", between=[0, 9]) is None


def test_what_was_not_waited_for_long_enough_may_have_come_first() -> None:
    assert holds(waiting(slow=math.inf, fast=20.0, limit=100.0), "ordering", choices=["fast", "slow"])
    assert not holds(waiting(slow=math.inf, fast=20.0, limit=10.0), "ordering", choices=["fast", "slow"])


def test_a_spread_with_one_that_never_came_is_not_narrow() -> None:
    assert holds(sheet(mlp_slow=[9.0], mlp_fast=[math.inf]), "spread", axis="lr", most=1e9) is False
    assert holds(sheet(mlp_slow=[math.inf], mlp_fast=[math.inf]), "spread", axis="lr", most=1e9) is None


def test_an_ordering_is_asked_of_the_choices_that_were_run() -> None:
    how = {"choices": ["slow", "medium", "fast"]}
    assert holds(sheet(mlp_slow=[0.1], mlp_fast=[0.2]), "ordering", **how)
    assert not holds(sheet(mlp_slow=[0.1], mlp_medium=[0.3], mlp_fast=[0.2]), "ordering", **how)
    assert holds(sheet(mlp_slow=[0.1]), "ordering", **how) is None


def test_top_trend_and_effects_must_hold_on_every_split() -> None:
    assert not holds(sheet(mlp_slow=[0.1, 0.3], mlp_fast=[0.9, 0.2]), "top", axis="lr", among=["fast"])
    axes = {"lr": ["1", "2", "3"]}
    rising = ScoreSheet({"best": {("1",): [0.1, 0.3], ("2",): [0.5, 0.2], ("3",): [0.9, 0.1]}}, {}, axes)
    assert not holds(rising, "trend", axis="lr", sign=1)  # though the means rise
    known = sheet(mlp_slow=[0.1, 0.1], mlp_fast=[0.2, 0.9], cnn_slow=[0.9, 0.1], cnn_fast=[1.0, 0.9])
    assert not holds(known, "effects", larger=["model"], than="lr")  # the second split: 0 against 0.8


def test_top_of_all_cells_needs_no_axis() -> None:
    known = sheet(mlp_slow=[0.1], cnn=[0.4])
    assert holds(known, "top", among=["cnn"])
    assert not holds(known, "top", among=["mlp slow"])


def test_signs_may_be_those_of_some_rows_and_columns() -> None:
    a, b = [0.9, 0.91, 0.89], [0.8, 0.81, 0.79]
    published = {"sign": {("a", "b"): "+", ("b", "c"): "+"}}  # the second is wrong: b and c are the same
    known = ScoreSheet({"best": {("a",): a, ("b",): b, ("c",): b}}, published, {}, rho=0.2)
    assert holds(known, "signs", about=["a"])
    assert not holds(known, "signs", about=["c"])


LOW = {"kind": "range", "measure": "best", "high": 0.5}
READINGS = {"above": {"model": "mlp", "lr": "slow"}, "below": {"model": "cnn", "lr": "slow"}}


def test_of_several_readings_one_must_fit() -> None:
    asked = [{**LOW, "says": "low if {model}", "cells": "{model} *"}]
    judged = judge(sheet(mlp_slow=[0.9], cnn_slow=[0.1]), checks_of(asked, READINGS), smaller=False)
    assert judged.verdict == "agrees"
    assert judged.reason == "the check holds: low if cnn (the reading that fits: below)"
    asked.append({**LOW, "says": "low, {model} or not", "cells": ["{model} fast", "mlp slow"]})
    both = judge(sheet(mlp_slow=[0.9], cnn_slow=[0.1]), checks_of(asked, READINGS), smaller=False)
    assert both.verdict == "differs"  # a reading fits with all of its checks, or not at all


def test_readings_with_the_same_words_share_a_check_and_one_without_words_decides_for_all() -> None:
    readings = {**READINGS, "further below": {"model": "cnn", "lr": "fast"}}
    asked = [{**LOW, "says": "{model}", "cells": "{model} slow"}, {**LOW, "says": "{lr}", "cells": "cnn {lr}"}]
    checks = checks_of([*asked, {**LOW, "says": "all", "cells": "* slow"}], readings)
    assert [(c.says, c.readings) for c in checks] == [
        ("mlp", ("above",)),
        ("cnn", ("below", "further below")),
        ("slow", ("above", "below")),
        ("fast", ("further below",)),
        ("all", ()),
    ]
    known = sheet(mlp_slow=[0.3], cnn_slow=[0.1], cnn_fast=[0.9])
    assert judge(known, checks, smaller=False).reason.endswith("(the reading that fits: above, below)")
    assert judge(sheet(mlp_slow=[0.9], cnn_slow=[0.1]), checks, smaller=False).verdict == "differs"


def test_a_reading_does_not_fit_by_what_was_not_run() -> None:
    asked = [
        {**LOW, "says": "slow {model}", "cells": "{model} slow"},
        {**LOW, "says": "{model}", "cells": "{model} fast"},
    ]
    known = sheet(mlp_slow=[0.1], mlp_fast=[0.9], cnn_slow=[0.1])
    judged = judge(known, checks_of(asked, READINGS), smaller=False)
    assert judged.verdict == "differs"
    assert "mlp fast: 0.9000" in judged.reason


def test_if_no_reading_fits_all_are_reported() -> None:
    asked = [{**LOW, "says": "low if {model}", "cells": "{model} *"}]
    judged = judge(sheet(mlp_slow=[0.9], cnn_slow=[0.8]), checks_of(asked, READINGS), smaller=False)
    assert judged.verdict == "differs"
    assert "low if mlp (mlp slow: 0.9000); low if cnn (cnn slow: 0.8000)" in judged.reason


def test_a_reason_names_three_checks_at_most() -> None:
    asked = [{**LOW, "says": f"check {i}", "cells": "mlp *"} for i in range(5)]
    judged = judge(sheet(mlp_slow=[0.9]), checks_of(asked, {}), smaller=False)
    assert judged.reason.startswith("0 of 5 checks hold; not: check 0 (")
    assert judged.reason.endswith("check 2 (mlp slow: 0.9000); and 2 more")
