"""Survival in a federation: the weights of a simulation, and the C-index of each client on its own samples."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.federation.test_rows_stay import forms_of_row
from tests.support.federation_clients import Federation, differences, write

import fedarena as fa
from fedarena.config.errors import BadValue
from fedarena.federation.client_data import ClientFile
from fedarena.federation.what_leaves import what_leaves
from fedarena.statistics.metrics import c_index

SIZES = {"alfa": 61, "bravo": 75, "charlie": 53, "delta": 55}
HEAD = ["site", "a", "b", "c", "d", "months", "died"]


class Trial(Federation):
    """A federation whose label is a time and whether the event was observed; one client has observed none."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SIZES)
        rng = np.random.default_rng(1)
        for name, rows in self.rows.items():
            for row in rows:
                months = rng.exponential(20 * np.exp(0.8 * float(row[3]) - 0.8 * float(row[1])))
                died = int(months < 30 and name != "delta")
                row[5:] = [repr(min(months, 30.0)), str(died)]
            self.files[name] = write(folder / f"{name}.csv", rows, HEAD)
        write(self.pooled, [row for rows in self.rows.values() for row in rows], HEAD)

    def experiment(self, **settings: Any) -> Any:
        data = {"label": ["months", "died"], "task": "survival", **settings.pop("data", {})}
        return super().experiment(data=data, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("fedavg", {"data": {"standardise": True}, "loss": "cox_order"}),
        ("scaffold", {}),
        ("fedavg", {"uplink": {"secure": True}}),
    ],
)
def test_a_federation_has_the_weights_of_a_simulation(algorithm: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """The loss on test samples compares those of one client with each other, so it is not that of a simulation."""
    federation = Trial(tmp_path)
    run, serial = federation.both(algorithm=algorithm, rounds=4, **settings)
    assert differences(run, serial, but=("loss", "metric", "bytes_up")) == []
    assert [*run.metrics] == ["loss"]
    mine, theirs = run.client_metrics["c_index"], serial.client_metrics["c_index"]
    np.testing.assert_allclose(mine[:3], theirs[:3], rtol=1e-12)
    assert np.isnan([mine[3], theirs[3]]).all()  # no event was observed there
    sizes = run.measured.client_tests[:3]
    assert run.own_metrics["c_index"] == pytest.approx(np.average(mine[:3], weights=sizes))
    assert run.summary()["final_metric"] == run.final.loss == run.metrics["loss"]


@pytest.mark.slow
def test_the_c_index_is_that_of_each_clients_own_samples_and_no_label_leaves(tmp_path: Path) -> None:
    federation = Trial(tmp_path)
    federation.start()
    run = federation.serve(federation.experiment())
    weights, bias = (run.state[name].numpy() for name in run.state)
    for k, (name, client) in enumerate(federation.clients.items()):
        context = client._joined.worker.context  # type: ignore[union-attr]
        own, x = context.data.y[context.data.n_train :], context.data.x[context.data.n_train :]
        expected = c_index(own, (x @ weights.T + bias)[:, 0].astype(np.float64))
        assert run.client_metrics["c_index"][k] == pytest.approx(expected, nan_ok=True)
        sent = b"".join(content for sender, content in federation.link.up if sender == name)
        times = [time for time in context.data.y[:, 0] if time != 30]
        assert not any(form in sent for two in pairwise(times) for form in forms_of_row(np.array(two)))
    assert any(text.startswith("round 3/3  loss ") for text in federation.server_messages)
    assert fa.verify(tmp_path / "run").same
    assert fa.report(tmp_path / "run", out=tmp_path / "report.html").exists()
    folder = next((tmp_path / "clients" / "alfa").glob("*/model"))
    assert fa.load(folder).weights_sha256 == run.weights_sha256
    assert set(fa.load(folder).metrics) == {"c_index", "loss"}
    table = {name: np.array([float(r[i]) for r in federation.rows["bravo"]]) for i, name in enumerate("abcd", start=1)}
    np.testing.assert_array_equal(fa.load(folder).predict(table)["risk"], run.predict(table)["risk"])
    tuned = fa.finetune(folder, federation.files["alfa"], epochs=1)
    assert set(tuned.after) == {"c_index", "loss"}
    log = (tmp_path / "clients" / "alfa" / "releases.jsonl").read_text()
    assert "C-index of this client, readable by the server" in log
    assert "masked" not in log  # there are no sums, and columns are not standardised


def test_consent_names_the_c_index(tmp_path: Path) -> None:
    announced = " ".join(what_leaves(Trial(tmp_path).experiment(), False, 4))
    assert "its own C-index over its test rows (none with fewer than --least): the server reads it" in announced
    assert "confusion" not in announced
    assert "labels that occur" not in announced


def test_what_survival_has_no_sums_for_is_refused(tmp_path: Path) -> None:
    federation = Trial(tmp_path)
    with pytest.raises(BadValue, match="'c_index' cannot be computed") as error:
        federation.experiment(evaluate={"metric": "c_index"})
    assert "leave it out: the loss is followed" in str(error.value)
    with pytest.raises(BadValue, match="the task 'survival' has none"):
        federation.experiment(evaluate={"histograms": 20})


def test_times_and_events_of_a_client_are_checked(tmp_path: Path) -> None:
    federation = Trial(tmp_path)
    source = federation.experiment().data.made
    for place, value, problem in (
        (5, "-1", "is negative in row 1"),
        (6, "3", "is '3' in row 1, and this label is 0 or 1"),
    ):
        rows = [[*row] for row in federation.rows["alfa"]]
        rows[0][place] = value
        table = ClientFile(write(tmp_path / "odd.csv", rows, HEAD)).read_table(source)
        with pytest.raises(BadValue, match=problem):
            table.describe("")
