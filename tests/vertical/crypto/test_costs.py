"""The table of costs is complete."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fedarena.vertical.crypto import backends

FILE = Path(__file__).parents[3] / "benchmarks" / "paillier.py"


def load_benchmark() -> Any:
    """Return benchmarks/paillier.py as a module."""
    spec = importlib.util.spec_from_file_location("paillier", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["paillier"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a key of 1024 bits")
def test_every_operation_of_every_backend_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(backends.SWITCH, "python")
    names = [backends.available()[0], "python"]
    timing = load_benchmark()
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
