"""A real federation reports the metrics that follow from the counts and sums that its clients send, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.federation.houses import Federation

from fedarena.errors import BadValue


def test_a_federation_has_accuracy_and_loss_and_no_metric_that_needs_scores(tmp_path: Path) -> None:
    federated, serial = Federation(tmp_path).both(algorithm="fedavg")
    assert set(federated.metrics) == {"accuracy", "loss", "log_loss"}
    assert federated.metrics["accuracy"] == serial.metrics["accuracy"]
    assert federated.metrics["log_loss"] == pytest.approx(serial.metrics["log_loss"], rel=1e-6)
    assert federated.own_metrics == pytest.approx({"accuracy": serial.own_metrics["accuracy"]})
    assert federated.measured.confusion is None


def test_a_federation_refuses_to_follow_a_metric_that_sums_do_not_give(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="'auc' cannot be computed"):
        Federation(tmp_path).both(evaluate={"metric": "auc"})
