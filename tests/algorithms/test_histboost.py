"""histboost: its trees are those of XGBoost on the pooled rows, whatever the partition, the workers or the masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.pooled_trees import forest_splits, pooled_splits

import fedarena as fa
from fedarena.algorithms.base import Cohort
from fedarena.algorithms.histboost import Cells, Counts, HistBoost
from fedarena.config.errors import BadValue, DataMissing
from fedarena.data.raw_columns import raw_columns
from fedarena.engine.setup import open_context
from fedarena.results.run import Run
from fedarena.trees.cut_search import PASSES, count_cells, ordered_keys
from fedarena.trees.cut_table import CutPoints
from fedarena.trees.forest import Forest

QUIET: dict[str, Any] = {"out": False, "runtime": "serial"}
SKEWED = {"name": "quantity_dirichlet", "beta": 0.5, "min_size": 1}


def run(data: str, trees: int = 3, clients: int = 4, partition: Any = "iid", **more: Any) -> Run:
    settings = {"name": "histboost", "trees": trees, "depth": 5, "bins": 32, **more.pop("algorithm", {})}
    given: dict[str, Any] = {"partition": partition, "algorithm": settings, **QUIET, **more}
    try:
        return fa.run(data, **({} if partition == "natural" else {"clients": clients}), **given)
    except DataMissing as error:
        pytest.skip(str(error))


def forest(of: Run) -> Forest:
    return Forest.of(of.state["forest"].numpy())


def check_against_xgboost(data: str, parameters: dict[str, Any], partition: Any = "iid", **more: Any) -> Run:
    """Compare every split and every margin with XGBoost on the pooled training rows, in the quantile bins of these rows."""
    found = run(data, partition=partition, **more)
    context = open_context(found.experiment)
    rows = np.sort(context.owners.train_rows)
    x, y = raw_columns(context.data)[rows], context.data.y[rows]
    grown, table = forest(found), CutPoints.of_rows(x, bins=32).table
    base = {"max_depth": 5, "eta": 0.3, "lambda": 1.0, "min_child_weight": 1.0, "base_score": 0.5, **parameters}
    if base["objective"] == "reg:squarederror":
        base["base_score"] = float(grown.base)
    splits, margins = pooled_splits(table, x, y, trees=3, **base)
    ours = forest_splits(table, grown)
    assert sum(len(tree) for tree in ours) > 5 * len(ours)
    assert ours == splits
    assert np.abs(grown.margins(x) - margins).max() <= 1e-5 * max(1.0, float(np.abs(margins).max()))
    return found


TWO_CLASSES = {"objective": "binary:logistic"}


@pytest.mark.slow
@pytest.mark.parametrize("data", ["breast_cancer", "heart_disease", "adult", "bank"])
def test_trees_of_two_classes_are_those_of_pooled_xgboost(data: str) -> None:
    """heart_disease has missing values."""
    pytest.importorskip("xgboost")
    check_against_xgboost(data, TWO_CLASSES, partition="natural" if data == "heart_disease" else "iid")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "objective"), [("diabetes", {}), ("california_housing", {}), ("wine", {"num_class": 3})]
)
def test_numbers_and_several_classes_too(data: str, objective: dict[str, Any]) -> None:
    pytest.importorskip("xgboost")
    name = {"objective": "multi:softprob", "base_score": 0.0} if objective else {"objective": "reg:squarederror"}
    check_against_xgboost(data, {**name, **objective})


@pytest.mark.slow
def test_gamma_and_min_child_weight_have_the_meaning_of_xgboost() -> None:
    pytest.importorskip("xgboost")
    penalties = {"gamma": 2.0, "min_child_weight": 5.0, "lambda": 3.0}
    check_against_xgboost("breast_cancer", {**TWO_CLASSES, **penalties}, algorithm=penalties)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["breast_cancer", "adult", "bank", "california_housing", "heart_disease", "diabetes"])
def test_the_partition_does_not_change_one_bit(data: str) -> None:
    """Equal parts, and parts of unequal size or with unequal labels; heart_disease has missing values."""
    once = run(data, clients=1).weights_sha256
    skewed: list[Any] = [SKEWED]
    if data not in ("california_housing", "diabetes"):  # numbers have no labels to divide unequally
        skewed.append({"name": "label_dirichlet", "beta": 0.5, "min_size": 1})
    for clients in (4, 50):
        for partition in ("iid", *skewed):
            assert run(data, clients=clients, partition=partition).weights_sha256 == once
    centralized = run(data, algorithm={"name": "centralized_trees"})
    assert centralized.weights_sha256 == once
    assert centralized.final.bytes_up == 0


@pytest.mark.slow
def test_masks_workers_and_a_resume_do_not_change_one_bit(tmp_path: Path) -> None:
    plain = run("breast_cancer")
    masked = run("breast_cancer", uplink={"secure": True})
    assert masked.weights_sha256 == plain.weights_sha256
    assert masked.final.bytes_up > plain.final.bytes_up  # keys and shares
    assert run("breast_cancer", runtime="processes", workers=2).weights_sha256 == plain.weights_sha256
    run("breast_cancer", out=tmp_path / "run", on_round=lambda record: record.round == 2)
    assert fa.run(resume=tmp_path / "run", runtime="serial").weights_sha256 == plain.weights_sha256


@pytest.mark.slow
def test_numpy_gives_the_bits_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = run("wine").weights_sha256
    monkeypatch.setenv("FEDARENA_KERNELS", "off")
    assert run("wine").weights_sha256 == compiled


def test_bytes_of_a_tree_of_one_level() -> None:
    """Up: 8 bytes for each count of a cell, 16 for each bin of the root, 8 for each response."""
    once = run("wine", trees=1, clients=2, algorithm={"depth": 1})
    twice = run("wine", trees=2, clients=2, algorithm={"depth": 1})
    context = open_context(once.experiment)
    x = raw_columns(context.data)[context.owners.train_rows]
    width = CutPoints.of_rows(x, 32).table.width
    assert twice.final.bytes_up - once.final.bytes_up == 2 * (3 * width * 16 + 8)  # three classes
    first_pass = x.shape[1] * 2 ** PASSES[0] * 8 + 8
    assert once.final.bytes_up > 2 * (first_pass + (len(PASSES) - 1) * 8 + 3 * width * 16 + 8)
    assert twice.final.uploads - once.final.uploads == 2


class Leaving:
    """Clients with two rows each of one column, of which the second leaves after some exchanges."""

    def __init__(self, rows: list[list[float]], leaves_after: int) -> None:
        self.rows, self.leaves_after, self.exchanges = rows, leaves_after, 0
        self.cohort = self._cohort(len(rows))

    def _cohort(self, answered: int) -> Cohort:
        n = [len(own) for own in self.rows]
        return Cohort((0, 1), tuple(range(answered)), 2, sum(n[:answered]), sum(n), 0.1)

    def __call__(self, message: Cells, do: str = "client", everyone: bool = False) -> Counts:
        self.exchanges += 1
        self.cohort = self._cohort(1 if self.exchanges > self.leaves_after else 2)
        there = self.rows[: len(self.cohort.answered)]
        cells = message.cells or [np.zeros(1, np.uint32)]
        keys = [[ordered_keys(np.array(own, np.float32))] for own in there]
        return Counts(sum((count_cells(key, cells, message.passes) for key in keys), np.int64(0)))  # type: ignore[arg-type]


def test_cut_points_are_never_found_from_the_rows_of_different_clients() -> None:
    """A client that leaves between two passes ends the search, and the next round begins it again."""
    rows = [[1.0, 2.0], [3.0, np.nan]]
    algorithm = HistBoost(bins=2)
    for after in range(1, len(PASSES)):
        assert algorithm._find_cuts(Leaving(rows, after)) is None  # type: ignore[arg-type]
    found = algorithm._find_cuts(Leaving(rows, len(PASSES)))  # type: ignore[arg-type]
    assert found is not None
    assert (found.values.tolist(), found.has_missing.tolist()) == ([2.0], [1])


@pytest.mark.slow
def test_subsample_draws_by_client_and_round() -> None:
    half = {"subsample": 0.5}
    first, again = (run("wine", algorithm=half) for _ in range(2))
    assert first.weights_sha256 == again.weights_sha256
    assert first.weights_sha256 != run("wine").weights_sha256


@pytest.mark.slow
def test_trees_count_in_place_of_rounds() -> None:
    assert len(run("wine", trees=2, rounds=7).records) == 2
    assert len(run("wine", trees=None, rounds=3).records) == 3  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_table_is_predicted_from_the_run_folder(tmp_path: Path) -> None:
    """Raw columns with texts and missing values; a level that training did not have counts as missing."""
    rng = np.random.default_rng(0)
    table = {"age": rng.normal(50, 10, 200), "sex": rng.choice(["f", "m"], 200).tolist()}
    table["age"][::7] = np.nan
    table["y"] = np.where((np.nan_to_num(table["age"], nan=60) > 52) ^ (np.array(table["sex"]) == "f"), "ill", "well")
    import pandas

    frame = pandas.DataFrame(table)
    folder = tmp_path / "run"
    settings: dict[str, Any] = {"algorithm": {"name": "histboost", "trees": 20}, "clients": 3, "partition": "iid"}
    file = tmp_path / "people.csv"
    frame.to_csv(file, index=False)
    done = fa.run(
        str(file), out=folder, runtime="serial", data={"name": "csv", "path": str(file), "label": "y"}, **settings
    )
    new = {"age": [40.0, 60.0, 60.0, None], "sex": ["m", "m", "f", "other"]}
    found = fa.predict(folder, pandas.DataFrame(new))
    assert found["prediction"].tolist()[:3] == ["well", "ill", "well"]
    assert np.allclose(found["p_ill"] + found["p_well"], 1)
    assert any("trees" in note for note in done.notes)
    with pytest.raises(BadValue, match="forest cannot be exported"):
        done.export(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"uplink": {"clip": 1.0}}, "exact sums"),
        ({"uplink": {"quantise": 8}}, "exact sums"),
        ({"local": {"privacy": {"noise": 1.0, "clip": 1.0}}}, "local.privacy"),
        ({"algorithm": {"name": "histboost", "with": ["fedvc"]}}, "without companions"),
        ({"algorithm": {"name": "histboost", "base_score": 1.5}}, "no probability"),
        ({"loss": "huber", "data": "diabetes"}, "loss of its task"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"data": "breast_cancer", "algorithm": "histboost", **settings}
    with pytest.raises(BadValue, match=message):
        fa.run(given, **QUIET)


def test_a_text_is_no_table() -> None:
    with pytest.raises(BadValue, match="not for the task 'next_symbol'"):
        fa.run((np.zeros((40, 5), np.int64), np.zeros((40, 5), np.int64)), algorithm="histboost", **QUIET)
