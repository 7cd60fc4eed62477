"""What is concluded from the runs of a comparison, on runs made by hand."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import fedarena as fa
from fedarena.config.comparison_plan import Split, folder_name
from fedarena.config.experiment import Experiment
from fedarena.engine.record import RoundRecord
from fedarena.experiments.plan import build_plan
from fedarena.reports.terminal_tables import show_comparison
from fedarena.results.comparison import Comparison
from fedarena.results.json_files import as_json
from fedarena.results.plan_file import read_plan, write_plan
from fedarena.results.run import Run
from fedarena.results.scoring import Scoring

EXPERIMENT = Experiment.make("digits", rounds=3, evaluate={"target": None})


def run(label: str, curve: list[float], *, own: tuple[float, ...] = (0.4, 0.8), loss: float = 1.0) -> Run:
    """A run with this accuracy after every round, 10 uploads and 1000 bytes each way a round."""
    records = [
        RoundRecord(
            t, a, loss, weighted_accuracy=a, best_accuracy=max(curve[:t]), uploads=10 * t,
            bytes_up=1000 * t, bytes_down=1000 * t, clock=2.5 * t, wall_seconds=0.1 * t, answered=10,
        )
        for t, a in enumerate(curve, 1)
    ]  # fmt: skip
    return Run(EXPERIMENT.with_(algorithm=label), records, "sha", np.array(own), np.array([50, 50]))


def comparison(curves: dict[str, list[list[float]]], **how: Any) -> Comparison:
    contestants = {label: {"algorithm": label} for label in curves}
    n = len(next(iter(curves.values())))
    plan = build_plan(EXPERIMENT, contestants, **{"folds": n, **how})
    return Comparison(plan, {label: [run(label, c) for c in each] for label, each in curves.items()})


THREE = {
    "fedavg": [[0.5, 0.70, 0.69], [0.5, 0.72, 0.72], [0.5, 0.71, 0.70]],
    "scaffold": [[0.6, 0.80, 0.80], [0.6, 0.82, 0.81], [0.6, 0.81, 0.81]],
    "fedprox": [[0.5, 0.71, 0.69], [0.5, 0.71, 0.71], [0.5, 0.71, 0.70]],
}


def test_scores_are_the_best_or_the_final_of_each_split() -> None:
    found = comparison(THREE)
    assert found.scores() == {"fedavg": [0.70, 0.72, 0.71], "scaffold": [0.80, 0.82, 0.81], "fedprox": [0.71] * 3}
    assert found.scores("final")["fedavg"] == [0.69, 0.72, 0.70]


def test_the_table_mirrors() -> None:
    found = comparison(THREE)
    mirror = {"+": "-", "-": "+", "=": "=", "?": "?"}
    duels = {(d.row, d.column): d for d in found.duels()}
    assert len(duels) == 6
    for (row, column), duel in duels.items():
        other = duels[column, row]
        assert other.verdict == mirror[duel.verdict]
        assert other.p_better == pytest.approx(duel.p_worse, abs=1e-12)
        assert other.mean == pytest.approx(-duel.mean)
    assert duels["scaffold", "fedavg"].verdict == "+"  # always 0.1 apart, no doubt at all
    assert duels["scaffold", "fedavg"].p_better == 1


def test_the_correlation_is_that_of_the_folds() -> None:
    """d = (1, -1, 0) / 100 for fedprox minus fedavg: s = 0.01, and scale^2 = (1/3 + rho / (1 - rho)) s^2.

    3 folds: rho = 1/3. 3 random divisions of digits: 359 of 1797 are tested. The same test samples: rho = 0.
    """
    assert comparison(THREE).posterior("fedprox", "fedavg").scale == pytest.approx(0.01 * math.sqrt(5 / 6))
    seeds = comparison(THREE, folds=None, repeats=3)
    assert seeds.posterior("fedprox", "fedavg").scale == pytest.approx(0.01 * math.sqrt(1 / 3 + 359 / 1438))
    assert seeds.plan.test == "correlated Bayesian t-test, n = 3 random divisions, correlation 0.2"
    same = comparison(THREE, folds=None, repeats=3, fixed=("test",))
    assert same.posterior("fedprox", "fedavg").scale == pytest.approx(0.01 * math.sqrt(1 / 3))
    assert same.plan.test == "Bayesian t-test for independent repetitions, n = 3 seeds"
    assert "correlated Bayesian t-test, 1 x 3 folds, n = 3" in comparison(THREE).plan.test


def test_rope_and_threshold_decide() -> None:
    found = comparison(THREE)
    assert found.duel("scaffold", "fedavg", rope=0.2).verdict == "="
    assert found.versus("fedavg", rope=0.2)[0].verdict == "="
    assert found.duel("fedprox", "fedavg").verdict == "?"
    daring = Comparison(replace(found.plan, threshold=0.5), found.runs)
    assert daring.duel("fedprox", "fedavg").verdict == "="


def test_rows_by_hand() -> None:
    """The target is what all reach on average: 0.71, fedavg's and fedprox's mean best."""
    found = comparison(THREE)
    assert found.target == 0.71
    rows = {row["algorithm"]: row for row in found.rows()}
    fedavg = rows["fedavg"]
    assert fedavg["best"] == pytest.approx(0.71)
    assert fedavg["best_sd"] == pytest.approx(0.01)
    assert fedavg["final"] == pytest.approx(np.mean([0.69, 0.72, 0.70]))
    assert fedavg["reached"] == 2  # the first run never did
    assert fedavg["rounds_to_target"] == 2
    assert fedavg["uploads_to_target"] == 20
    assert fedavg["bytes_to_target"] == 4000
    assert fedavg["clock_to_target"] == 5.0
    assert fedavg["client_worst"] == pytest.approx(0.4)
    assert fedavg["relative_accuracy"] is None  # nothing to relate it to
    assert rows["scaffold"]["reached"] == 3


def test_a_target_that_most_runs_miss_is_not_reached() -> None:
    curves = {"fedavg": [[0.5], [0.5], [0.9]], "scaffold": [[0.9], [0.9], [0.9]]}
    rows = {row["algorithm"]: row for row in comparison(curves).rows()}
    assert comparison(curves).target == 0.63
    assert rows["fedavg"]["reached"] == 1
    assert rows["fedavg"]["rounds_to_target"] is None
    assert rows["scaffold"]["rounds_to_target"] == 1


def test_relative_accuracy_is_weighted_over_centralized() -> None:
    curves = {**THREE, "centralized": [[0.9, 0.9, 0.9]] * 3}
    found = comparison(curves, reference="centralized")
    assert found.labels == ["fedavg", "scaffold", "fedprox"]  # the reference is not judged
    assert "centralized" not in found.as_dict()["scores"]
    rows = {row["algorithm"]: row for row in found.rows()}
    assert rows["scaffold"]["relative_accuracy"] == pytest.approx(np.mean([0.80, 0.81, 0.81]) / 0.9)
    assert list(rows)[-1] == "centralized"
    assert comparison(curves).labels[-1] == "centralized"  # unless it was named itself


@pytest.mark.slow
def test_the_verdict_in_words() -> None:
    words = " ".join(comparison(THREE).words)
    assert words.startswith("scaffold is the best choice: 81.0% (best accuracy on the common test samples), P(best) 1.00")
    assert "better than fedprox and fedavg by more than 1 point, with over 95% probability each." in words
    equal = comparison({"fedavg": [[0.5], [0.6]], "fedprox": [[0.5], [0.6]]})
    assert "practically equal to fedprox (within 1 point)" in " ".join(equal.words)
    open_ = comparison({"fedavg": [[0.5], [0.6]], "fedprox": [[0.55], [0.5]]})
    assert "These 2 splits do not decide between it and fedprox" in " ".join(open_.words)
    assert Scoring().difference(0.005) == "0.5 points"


def test_diverged_runs_keep_their_score_and_are_reported() -> None:
    found = comparison(THREE)
    broken = [run("fedavg", [0.5, 0.3, 0.1], loss=math.nan), *found.runs["fedavg"][1:]]
    found = Comparison(found.plan, {**found.runs, "fedavg": broken})
    assert found.diverged("fedavg") == 1
    assert found.scores()["fedavg"][0] == 0.5
    assert "fedavg diverged in 1 of 3 runs." in found.words


def test_failures_are_reported_and_one_alone_gives_no_conclusion() -> None:
    found = comparison(THREE)
    alone = Comparison(found.plan, {"fedavg": found.runs["fedavg"]}, {"scaffold": "client 3 in round 1 failed"})
    assert alone.words == [
        "There is nothing to compare: fewer than two algorithms have results.",
        "scaffold has no result: client 3 in round 1 failed",
    ]
    empty = Comparison(found.plan, {}, {"scaffold": "x", "fedavg": "y", "fedprox": "z"})
    assert json.loads(as_json(empty.as_dict()))["target"] is None
    with pytest.raises(fa.FedarenaError, match="'fedavg' was not compared"):
        empty.duel("fedavg", "scaffold")


def test_json_has_the_contracts_keys() -> None:
    output = json.loads(as_json(comparison(THREE).as_dict()))
    assert output["algorithms"] == [*THREE]
    assert output["scores"]["fedprox"] == [0.71, 0.71, 0.71]
    assert all(d.keys() >= {"row", "column", "p_better", "p_equal", "p_worse", "verdict"} for d in output["table"])
    assert {d["verdict"] for d in output["table"]} <= {*"+=-?"}


NAMES = ["fedavg", "scaffold", "fedprox", "fednova", "fedavgm", "feddyn", "fedadam", "fedyogi", "fedadagrad", "median"]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "width"), [(2, 100), (6, 100), (10, 100), (3, 80), (10, 60)])
def test_the_tables_fit(count: int, width: int) -> None:
    """Nothing is cut off; six algorithms have their probabilities in the table, of more the undecided below it."""
    names = NAMES[:count]
    found = comparison({name: [[0.5 + i / 100], [0.6]] for i, name in enumerate(names)})
    terminal = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, highlight=False)
    show_comparison(found, terminal)
    text = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert all(text.count(name) >= 2 for name in names)
    assert found.words[0] in " ".join(text.split())
    duel = found.duel("fedavg", "scaffold")
    assert duel.verdict == "?"
    assert f"{duel.p_equal:.2f}"[1:] in text
    assert ("fedavg against scaffold" in text) == (count > 6)


# The plan


def test_a_plan_reads_back(tmp_path: Path) -> None:
    """Also what JSON does not know: a batch of all rows."""
    exp = Experiment.make("digits", local={"batch": math.inf}, freeze="0.*", seed=3)
    contestants: dict[str, Any] = {
        "fedavgm+fedir": {"algorithm": {"name": "fedavgm", "with": ["fedir"]}},
        "slow": {"algorithm": fa.FedProx(mu=0.5), "local": {"lr": 0.01}},
    }
    plan = build_plan(exp, contestants, folds=3, repeats=2, notes=("tuned",))
    write_plan(plan, tmp_path)
    again = read_plan(tmp_path)
    assert again == plan
    for label in contestants:
        for split in plan.splits:
            assert again.cell(label, split) == plan.cell(label, split)
    cell = again.cell("slow", Split(1, 2))
    assert (cell.folds, cell.fold, cell.local.batch, cell.local.lr) == (3, 2, math.inf, 0.01)
    assert cell.algorithm.settings["mu"] == 0.5
    assert again.contestants["slow"]["local"] == {"lr": 0.01}  # what differs, no more


def test_splits_are_repetition_by_repetition() -> None:
    plan = build_plan(EXPERIMENT, {"fedavg": {"algorithm": "fedavg"}}, folds=2, repeats=2)
    assert [split.name for split in plan.splits] == ["repeat0-fold0", "repeat0-fold1", "repeat1-fold0", "repeat1-fold1"]
    seeds = replace(plan, folds=None, repeats=3)
    assert [split.name for split in seeds.splits] == ["seed0", "seed1", "seed2"]
    assert len({seeds.cell("fedavg", split).seed for split in seeds.splits}) == 3


@dataclass(frozen=True)
class Mine(fa.FedAvg):
    """Only Python knows it."""


def test_what_came_from_python_must_be_given_again(tmp_path: Path) -> None:
    plan = build_plan(EXPERIMENT, {"mine": {"algorithm": Mine()}, "fedavg": {"algorithm": "fedavg"}}, folds=2)
    assert plan.cell("mine", Split(0, 0)).algorithm.made == Mine()
    write_plan(plan, tmp_path)
    again = read_plan(tmp_path)
    assert again.cell("fedavg", Split(0, 0)).algorithm.name == "fedavg"
    with pytest.raises(fa.FedarenaError, match=r"algorithm mine of this comparison \('Mine'\) came from Python"):
        again.cell("mine", Split(0, 0))


def test_folders_have_plain_names() -> None:
    assert folder_name("fedavgm:beta=0.9+fedir") == "fedavgm-beta=0.9+fedir"
    assert "/" not in folder_name("a/b")


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fa.FedarenaError, match="holds no comparison"):
        Comparison.load(tmp_path)
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(fa.FedarenaError, match="compare again in a new folder"):
        Comparison.load(tmp_path)


def test_an_unfinished_comparison_says_how_to_go_on(tmp_path: Path) -> None:
    plan = build_plan(EXPERIMENT, {"fedavg": {"algorithm": "fedavg"}, "fedprox": {"algorithm": "fedprox"}}, folds=2)
    write_plan(plan, tmp_path)
    with pytest.raises(fa.FedarenaError, match="2 of 2 runs of fedavg are not finished") as error:
        Comparison.load(tmp_path)
    assert f"fedarena compare --resume {tmp_path}" in error.value.remedy
