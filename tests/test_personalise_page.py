"""The page on personalised algorithms: its tables are those of the committed scores, and its statements follow from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedarena.statistics.bayes import posterior
from tests.support.benchmark_scripts import script

study, page = script("personalise"), script("personalise_page")
PERSONALISED = set(study.ALGORITHMS) - {"fedavg", "local"}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return json.loads(page.RESULTS.read_text(encoding="utf-8"))


def test_the_tables_are_those_of_the_committed_scores(found: dict[str, Any]) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.written(text, page.tables(found)) == text


def test_every_study_is_there_with_all_its_algorithms_and_splits(found: dict[str, Any]) -> None:
    assert list(found) == list(study.STUDIES)
    for name, one in study.STUDIES.items():
        splits = one.splits.get("seeds") or one.splits["folds"] * one.splits["repeats"]
        assert found[name]["algorithms"] == list(one.algorithms)
        assert {len(scores) for scores in found[name]["scores"].values()} == {splits}


def test_tuned_algorithms_had_equal_trials_of_spaces_of_equal_size(found: dict[str, Any]) -> None:
    tuned = {name: found[name] for name, one in study.STUDIES.items() if one.tune}
    assert tuned.keys() == {"digits", "heart_disease", "heart_disease_norm"}
    for one in tuned.values():
        assert one["tuning"]["trials"] == 6
        assert {len(space) for space in one["tuning"]["spaces"].values()} == {2}
        assert one["tuned"].keys() == set(one["algorithms"])


def test_signs_follow_from_the_scores(found: dict[str, Any]) -> None:
    """A sign is the only region of the posterior of the paired differences with more than the threshold."""
    one = found["heart_disease"]
    for label in one["algorithms"]:
        worse, equal, better = posterior(one["scores"]["local"], one["scores"][label], one["rho"]).regions(one["rope"])
        likely = [sign for sign, p in zip("-=+", (worse, equal, better), strict=True) if p > one["threshold"]]
        assert page.difference(one, label, "local")[1] == (likely[0] if likely else "?")


def signs(one: dict[str, Any], other: str) -> dict[str, str]:
    return {label: page.difference(one, label, other)[1] for label in one["algorithms"] if label != other}


def test_what_the_page_says_of_digits(found: dict[str, Any]) -> None:
    """All but moon, whose model is common, beat FedAvg; none is shown to beat local training."""
    beating = {label for label, sign in signs(found["digits"], "fedavg").items() if sign == "+"}
    assert beating - {"local"} == PERSONALISED - {"moon"}
    alone = signs(found["digits"], "local")
    assert "+" not in alone.values()
    assert {label for label, sign in alone.items() if sign == "="} == {"ditto"}


def test_what_the_page_says_of_skew_and_of_the_other_federations(found: dict[str, Any]) -> None:
    assert signs(found["digits_0.1"], "local")["fedavg"] == "-"
    assert {signs(found[name], "local")["fedavg"] for name in ("digits_1", "digits_10")} == {"+"}
    few = signs(found["digits_few"], "local")
    assert {label for label, sign in few.items() if sign == "+"} == {"finetune:lr=0.01"}
    assert set(signs(found["heart_disease"], "local").values()) == {"?"}
    assert set(signs(found["heart_disease_norm"], "local").values()) == {"?"}
    for other in ("local", "fedavg"):
        assert signs(found["cifar10"], other)["fedper"] == "+"
    assert {sign for label, sign in signs(found["cifar10"], "local").items() if label != "fedper"} == {"?"}


@pytest.mark.slow
def test_the_command_compares_and_summarises(tmp_path: Path) -> None:
    tiny = replace(study.STUDIES["digits"], algorithms=("fedavg", "local", "fedper"), splits={"seeds": 2}, tune=1)
    settings = {**study.digits(0.3), "clients": 4, "rounds": 1}
    tiny = replace(tiny, settings=settings)
    summary = json.loads(json.dumps(study.summary(tiny.compare(tmp_path / "runs"))))
    assert summary["common"]["fedper"] is None
    assert summary["bytes_per_client"]["local"] == 0
    assert np.isfinite([summary["worst_client"][label] for label in tiny.algorithms]).all()
    again = study.summary(tiny.compare(tmp_path / "runs"))  # from its folder
    assert again["scores"] == summary["scores"]
    assert len(page.algorithm_rows(summary)) == 2 + 3
