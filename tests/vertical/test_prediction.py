"""Prediction: few requests, the margins of training, and models of different trainings are refused."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.vertical_tables import breast_cancer, with_gaps

from fedarena.config.errors import BadValue, FedarenaError
from fedarena.transport.channel import LocalChannel
from fedarena.transport.frames import Fields, FrameKind
from fedarena.vertical import prediction
from fedarena.vertical.prediction import PredictingHost, predict_margins, predictions
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.simulation import simulate

TABLES, Y = breast_cancer(hosts=2)
TABLES = [with_gaps(t, seed=i) for i, t in enumerate(TABLES)]
MODEL = simulate(TABLES, Y, BoostSettings(trees=8, depth=4), cipher="none")


class Counting(LocalChannel):
    """Counts the requests of each kind."""

    steps = 0

    def ask(self, kind: FrameKind, fields: Fields | None = None, *, tree: int = 0, level: int = 0) -> dict[str, Any]:
        self.steps += kind is FrameKind.PREDICT_STEP
        return super().ask(kind, fields, tree=tree, level=level)


def channels(rows: slice = slice(None)) -> list[Counting]:
    hosts = [PredictingHost(h, t[rows]) for h, t in zip(MODEL.hosts, TABLES[1:], strict=True)]
    made = [Counting(h, n) for h, n in zip(hosts, MODEL.guest.hosts, strict=True)]
    for channel in made:
        channel.ask(FrameKind.HELLO)
    return made


def test_all_trees_in_at_most_depth_exchanges() -> None:
    lines = channels()
    assert np.array_equal(predict_margins(MODEL.guest, TABLES[0], lines), MODEL.margins)
    assert all(0 < line.steps <= 4 for line in lines)


def test_batches_do_not_change_the_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "BATCH", 8 * 100)  # a hundred rows at once
    assert np.array_equal(predict_margins(MODEL.guest, TABLES[0], channels()), MODEL.margins)


def test_no_rows_and_one_row() -> None:
    assert predict_margins(MODEL.guest, TABLES[0][:0], channels(slice(0, 0))).shape == (0, 1)
    one = predict_margins(MODEL.guest, TABLES[0][:1], channels(slice(0, 1)))
    assert one[0, 0] == MODEL.margins[0, 0]


def test_probabilities_of_both_classes() -> None:
    p = predictions(MODEL.guest, MODEL.margins)
    assert np.allclose(p.sum(axis=1), 1)
    assert np.array_equal(p[:, 1] > 0.5, MODEL.margins[:, 0] > 0)


def test_halves_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadValue, match="trained with hosts host1, host2"):
        predict_margins(MODEL.guest, TABLES[0], channels()[::-1])
    with pytest.raises(BadValue, match="trained on 10 columns, these rows have 9"):
        PredictingHost(MODEL.hosts[0], TABLES[1][:, :9])
    with pytest.raises(BadValue, match="this host has 5 rows"):
        predict_margins(MODEL.guest, TABLES[0], channels(slice(0, 5)))
    with pytest.raises(BadValue, match="the guest's model has 8 trees, this host's 1"):
        PredictingHost(MODEL.hosts[0].first_trees(1), TABLES[1]).answer(
            FrameKind.PREDICT_START, {"rows": 569, "trees": 8}, 0, 0
        )


@pytest.mark.slow
def test_models_of_two_trainings_are_not_used_together() -> None:
    """The same tables and settings, hence the same number of trees, but other labels: they would predict nonsense."""
    other = simulate(TABLES, 1 - Y, MODEL.guest.settings, cipher="none")
    assert other.guest.training_id != MODEL.guest.training_id
    with pytest.raises(BadValue, match="host 'host1': the guest's model is from another training"):
        replace(other, hosts=MODEL.hosts).predict_margins(TABLES)


def test_a_question_costs_no_more_memory_than_its_rows() -> None:
    """One value is read of each row, for any number of columns, and a request has an upper limit."""
    x = np.zeros((1000, 100))
    host = PredictingHost(replace(MODEL.hosts[0], columns=tuple(f"c{i}" for i in range(100))), x)
    rows = np.zeros(400_000, np.uint8)
    request = {"records": np.zeros(1, np.int32), "starts": np.array([0, len(rows)]), "rows": rows}
    tracemalloc.start()
    host.answer(FrameKind.PREDICT_STEP, request, 0, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * len(rows)  # a few numbers a row; its hundred columns would be 800 bytes
    many = np.zeros(prediction.BATCH + 1, np.uint8)
    with pytest.raises(FedarenaError, match=f"{prediction.BATCH} expected"):
        host.answer(FrameKind.PREDICT_STEP, {**request, "starts": np.array([0, len(many)]), "rows": many}, 0, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"records": np.array([10**6]), "starts": np.array([0, 1]), "rows": np.array([0])},
        {"records": np.array([0]), "starts": np.array([0, 1]), "rows": np.array([569])},
        {"records": np.array([0]), "starts": np.array([1, 0]), "rows": np.array([0])},
        {"records": np.array([0.0]), "starts": np.array([0, 1]), "rows": np.array([0])},
        {},
    ],
)
def test_a_predicting_host_refuses_nonsense(fields: dict[str, Any]) -> None:
    with pytest.raises(FedarenaError):
        PredictingHost(MODEL.hosts[0], TABLES[1]).answer(FrameKind.PREDICT_STEP, fields, 0, 0)
    with pytest.raises(FedarenaError):
        PredictingHost(MODEL.hosts[0], TABLES[1]).answer(FrameKind.LEVEL, fields, 0, 0)
