"""Trees in a real federation: the forest of a simulation to the bit, and nothing of a row but what was agreed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.federation.test_only_what_was_agreed import answer, changed, requests_to_alfa
from tests.federation.test_regression import HEAD as QUANTITY_HEAD
from tests.federation.test_regression import Quantities
from tests.federation.test_rows_stay import forms_of_row
from tests.support.federation_clients import LABELS, SIZES, Federation, differences, write

import fedarena as fa
from fedarena.algorithms.base import Model
from fedarena.config.errors import BadValue
from fedarena.engine.setup import partition_data
from fedarena.federation import messages
from fedarena.federation.client_data import ClientFile, statistics_layout
from fedarena.federation.consent import federated_experiment
from fedarena.federation.reply_pattern import check_model
from fedarena.federation.requests import TooFewAnswers
from fedarena.federation.what_leaves import what_leaves
from fedarena.federation.wire_format import WireRefused, unpack_body

HIST: dict[str, Any] = {"name": "histboost", "trees": 3, "depth": 4, "bins": 16}


class Mixed(Federation):
    """A federation with texts and missing values, and a level that only one test row has."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        rng = np.random.default_rng(3)
        for rows in self.rows.values():
            for row in rows:
                row[2] = "" if rng.random() < 0.2 else row[2]
                row[3] = "" if rng.random() < 0.1 else str(rng.choice(["low", "mid", "high"]))
        _, partition = partition_data(self.experiment())  # labels alone decide on the division
        [row for rows in self.rows.values() for row in rows][partition.test[0]][3] = "in between"
        for name, rows in self.rows.items():
            write(self.files[name], rows)
        write(self.pooled, [row for rows in self.rows.values() for row in rows])


RUNS: dict[str, dict[str, Any]] = {
    "histboost": {"algorithm": HIST},
    "masked, clients drop out": {
        "algorithm": {**HIST, "trees": 5}, "uplink": {"secure": True}, "share": 0.75, "dropouts": 0.2,
    },
    "half of the rows": {"algorithm": {**HIST, "subsample": 0.5}},
    "treebag": {"algorithm": {**HIST, "name": "treebag"}, "share": 0.75, "dropouts": 0.2},
    "treecyclic": {"algorithm": {**HIST, "name": "treecyclic"}, "share": 0.75},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS.keys())
def test_a_federation_grows_the_forest_of_a_simulation(settings: dict[str, Any], tmp_path: Path) -> None:
    """With texts and missing values: forest, accuracy and bytes of every round; no clients' models are left out."""
    federated, serial = Mixed(tmp_path).both(**settings)
    assert differences(federated, serial) == []
    assert len(federated.records) == settings["algorithm"]["trees"]  # and not the rounds of the experiment


@pytest.mark.slow
@pytest.mark.parametrize("uplink", ["plain", {"secure": True}], ids=["plain", "masked"])
def test_a_regression_with_an_agreed_largest_label(uplink: Any, tmp_path: Path) -> None:
    """With files of test rows, since clients and a pooled table divide the rows of a regression differently."""
    federation = Quantities(tmp_path)
    held = {name: rows[:8] for name, rows in federation.rows.items()}
    rest = {name: rows[8:] for name, rows in federation.rows.items()}
    write(federation.pooled, [row for rows in rest.values() for row in rows], QUANTITY_HEAD)
    tests = write(tmp_path / "tests.csv", [row for rows in held.values() for row in rows], QUANTITY_HEAD)
    for name in federation.rows:
        write(federation.files[name], rest[name], QUANTITY_HEAD)
        file = ClientFile(federation.files[name], write(tmp_path / f"{name}-test.csv", held[name], QUANTITY_HEAD))
        federation.start(name, file=file)
    algorithm = {**HIST, "label_max": 30.0}
    experiment = federation.experiment(data={"test_path": str(tests)}, algorithm=algorithm, uplink=uplink)
    serial = fa.run(experiment, out=False, runtime="serial")
    found = federation.serve(experiment)
    assert found.weights_sha256 == serial.weights_sha256
    assert found.metrics["rmse"] == pytest.approx(serial.metrics["rmse"], rel=1e-9)


@pytest.mark.slow
def test_a_stopped_server_continues_with_the_same_forest(tmp_path: Path) -> None:
    federation = Mixed(tmp_path)
    experiment = federation.experiment(algorithm=HIST)
    federation.start()
    federation.serve(experiment, on_round=lambda record: record.round == 2)
    federation.start()
    resumed = federation.serve(experiment, resume=tmp_path / "run")
    assert differences(resumed, fa.run(experiment, out=False, runtime="serial")) == []


@pytest.mark.slow
def test_every_client_predicts_raw_columns_with_the_final_forest(tmp_path: Path) -> None:
    federation = Mixed(tmp_path)
    federation.start()
    run = federation.serve(federation.experiment(algorithm=HIST))
    (own,) = (tmp_path / "clients" / "alfa").glob("*/model")
    new = {"a": [0.0, 2.0], "b": [None, 1.0], "c": ["mid", "never seen"], "d": [0.5, 2.5]}
    here, there = fa.predict(own, new), fa.predict(tmp_path / "run", new)
    assert {*here} == {*there}
    for column in here:
        assert np.array_equal(here[column], there[column])
    assert fa.load(own).weights_sha256 == run.weights_sha256
    assert fa.verify(tmp_path / "run").same
    assert fa.report(tmp_path / "run", out=tmp_path / "report.html").exists()


# What leaves


@pytest.mark.slow
@pytest.mark.parametrize("name", ["histboost", "treebag"])
def test_rows_and_labels_never_leave(name: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()
    federation.serve(federation.experiment(algorithm={**HIST, "name": name}))
    for client, rows in federation.rows.items():
        sent = b"".join(content for sender, content in federation.link.up if sender == client)
        for row in np.array([[float(value) for value in row[1:5]] for row in rows]):
            assert not any(form in sent for form in forms_of_row(row))
        y = [LABELS.index(row[5]) for row in rows]
        for order in (y, [sorted(LABELS).index(LABELS[label]) for label in y]):
            whole = [np.array(order, dtype).tobytes() for dtype in ("<i8", "<i4", "<i2", "<i1", "<f4")]
            assert not any(form in sent for form in whole)  # eight of them are in counts by chance


@pytest.mark.slow
def test_no_sums_of_numbers_are_asked_for(tmp_path: Path) -> None:
    """Networks need means of numbers; trees need to know of levels alone whether a training row has them."""
    federation = Mixed(tmp_path)
    federation.start()
    trees = federation.experiment(algorithm=HIST, data={"standardise": True})
    federation.serve(trees)
    agreed = federation.clients["alfa"]._joined.worker.context.agreed  # type: ignore[union-attr]
    assert statistics_layout(trees, agreed).size == 2 * 4  # how many rows have a level, and how many each of the four
    assert agreed.means is not None
    assert len(agreed.means) == 4
    assert min(agreed.means) == 0  # of the level that no training row has
    assert agreed.deviations is None
    (tmp_path / "plain").mkdir()
    plain = Federation(tmp_path / "plain")
    plain.start()
    plain.serve(plain.experiment(algorithm=HIST, data={"standardise": True}))
    kinds = {unpack_body(content).body.what for _, content in plain.link.up}
    assert "statistics" not in kinds  # without text columns there is nothing to ask for
    assert "done" in kinds


def leaving(algorithm: dict[str, Any], clients: int = 3, **settings: Any) -> str:
    data = {"name": "csv", "label": "y", **settings.pop("data", {})}
    return " ".join(
        what_leaves(federated_experiment({"data": data, "algorithm": algorithm, **settings}, []), False, clients)
    )


def test_consent_lists_cut_points_sums_and_the_largest_label() -> None:
    plain = leaving(HIST)
    assert "to find cut points that all clients share" in plain
    assert "the server knows up to 16 values of each column; the server reads your own" in plain
    assert "the sums of the first and second derivatives of the loss" in plain
    assert "a change of the model's weights" not in plain
    assert "how many training rows have each level" in plain
    assert "the sum of their squares" not in plain
    assert "masked, so that the server reads only the sums over clients" in leaving(HIST, uplink={"secure": True})
    regression = leaving({**HIST, "label_max": 250.0}, data={"task": "regression"})
    assert "that no label of its training rows is larger than 250, which is agreed" in regression
    bag = leaving({**HIST, "name": "treebag"})
    assert "the trees that it grows on its training rows alone" in bag
    assert "cut points that all clients share" not in bag


# Refusals


def test_a_regression_without_an_agreed_largest_label_is_refused() -> None:
    data = {"name": "csv", "label": "y", "task": "regression"}
    with pytest.raises(BadValue, match="the largest label, which no client sends"):
        federated_experiment({"data": data, "algorithm": HIST}, [])


def test_a_pooled_forest_is_refused() -> None:
    with pytest.raises(BadValue, match="centralized_trees needs all samples in one place"):
        federated_experiment({"data": {"name": "csv", "label": "y"}, "algorithm": "centralized_trees"}, [])


@pytest.mark.slow
def test_a_client_with_a_larger_label_does_not_take_part_and_does_not_send_it(tmp_path: Path) -> None:
    federation = Quantities(tmp_path)
    federation.start()
    largest = max(abs(float(row[-1])) for rows in federation.rows.values() for row in rows)
    experiment = federation.experiment(algorithm={**HIST, "label_max": 0.5 * largest})
    with pytest.raises(TooFewAnswers):
        federation.serve(experiment, terms={"wait": 2.0})
    refused = [text for text in federation.server_messages if "algorithm.label_max" in text or "BadValue" in text]
    assert refused
    assert not any(repr(largest) in text for text in federation.server_messages)


@pytest.mark.slow
@pytest.mark.parametrize(("uplink", "answers"), [("plain", False), ({"secure": True}, True)], ids=["read", "masked"])
def test_few_rows_are_added_up_under_masks_alone(uplink: Any, answers: bool, tmp_path: Path) -> None:
    """Of 24 rows of a client a quarter is for testing; --least asks for 20 to train on."""
    assert SIZES["delta"] == 24
    federation = Federation(tmp_path)
    experiment = federation.experiment(algorithm=HIST, uplink=uplink)
    federation.start("alfa", "bravo", "charlie")
    federation.start("delta", least=20)
    assert federation.serve(experiment).final.answered == (4 if answers else 3)
    refused = [text for text in federation.server_messages if "19 training rows that the server can read" in text]
    assert bool(refused) != answers


@pytest.mark.slow
def test_a_round_has_no_more_exchanges_than_levels_and_passes(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()
    experiment = federation.experiment(algorithm=HIST)
    federation.serve(experiment)
    worker = federation.clients["alfa"]._joined.worker  # type: ignore[union-attr]
    assert worker is not None
    assert worker.context.algorithm.most_exchanges == 7 + 4  # seven passes over the cells, four levels
    asked = requests_to_alfa(federation, messages.RoundRequest)
    assert {unpack_body(content).body.exchange for content in asked} == {*range(11)}  # type: ignore[attr-defined]
    assert "asked for exchange 12 of a round" in answer(federation, changed(asked[-1], exchange=11))
    assert "asked for round 4 of 3" in answer(federation, changed(asked[-1], round=3))


def test_only_forests_that_began_as_agreed_are_models(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()
    federation.serve(federation.experiment(algorithm={**HIST, "trees": 1}))
    context = federation.clients["alfa"]._joined.worker.context  # type: ignore[union-attr]
    good = fa.load(tmp_path / "run").state["forest"].numpy()
    check_model(Model(good), context)
    other_start = good.copy()
    other_start[3] += 1
    for bad in (good[:-1], other_start, good.astype(np.float64), good[:, None]):
        with pytest.raises(WireRefused):
            check_model(Model(bad), context)
    with pytest.raises(WireRefused):
        check_model(replace(Model(good), w=None), context)  # type: ignore[arg-type]
