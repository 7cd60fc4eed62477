"""`make federation`, shortened: real processes, keys and TLS, on the table that comes with scikit-learn."""

from __future__ import annotations

import runpy
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked_processes

DEMO = Path(__file__).parents[1] / "examples" / "federation.py"


@pytest.mark.slow
def test_four_hospitals_end_in_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr", reason="needs flwr: pip install 'fedarena[flower]'")
    for name in ("FEDARENA_DATA", "XDG_CACHE_HOME"):  # no data set but scikit-learn's
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(DEMO), "--times", "2"])
    processes: list[forked_processes.Popen] = []

    def start(command: list[str], **_: Any) -> forked_processes.Popen:
        processes.append(forked_processes.Popen(command, capture=True))
        return processes[-1]

    demo = runpy.run_path(str(DEMO))
    forked = {"Popen": start, "run": lambda command, **_: forked_processes.run(command, check=True)}
    demo["main"].__globals__["subprocess"] = types.SimpleNamespace(**(vars(subprocess) | forked))
    demo["main"]()
    out = capfd.readouterr().out
    assert out.count("  the same bits as the same experiment in one process") == 2
    assert "site-a: " in out
    assert "together, against each hospital alone: " in out
    assert "together, against all files in one place: " in out
    assert "4 of 4 answered" in processes[0].written("stderr")
    assert len(processes) == 10
