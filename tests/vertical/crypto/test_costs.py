"""The table of costs is complete."""

from __future__ import annotations

import os

import pytest

from fedarena.vertical.crypto import backends, timing


@pytest.mark.filterwarnings("ignore:a key of 1024 bits")
def test_every_operation_of_every_backend_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(backends.SWITCH, "python")
    names = [backends.available()[0], "python"]
    costs = timing.measure(bits=1024, names=names, rounds=1, seconds=0.0)
    assert len({cost.operation for cost in costs}) == 6
    assert {(cost.operation, cost.backend) for cost in costs} == {
        (cost.operation, name) for cost in costs for name in names
    }
    assert all(cost.microseconds > 0 for cost in costs)
    assert all(
        cost.ratio == 1 for cost in costs if cost.backend == "python" and not cost.operation.startswith("encrypt")
    )
    assert os.environ[backends.SWITCH] == "python"  # as it was
    timing.show(costs)
    assert "mask again" in capsys.readouterr().out
