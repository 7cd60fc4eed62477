"""`make federation`, shortened: real processes, keys and TLS, on the table that comes with scikit-learn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "examples" / "federation.py"


@pytest.mark.slow
def test_four_hospitals_end_in_a_verdict(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs flwr: pip install 'fedarena[flower]'")
    elsewhere = {"FEDARENA_DATA": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}  # no data set but scikit-learn's
    env = {**os.environ, **elsewhere, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(DEMO), "--times", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("  the same bits as the same experiment in one process") == 2
    assert "site-a: " in done.stdout
    assert "together, against each hospital alone: " in done.stdout
    assert "together, against all files in one place: " in done.stdout
    assert "4 of 4 answered" in done.stderr
