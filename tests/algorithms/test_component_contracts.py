"""The contract of every personalised, fair or selective algorithm, and the same bits after a kill in the midst of a round."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support import forked_processes
from tests.support.trainings import records

import fedarena as fa
from fedarena.experiments.component_checks import check_component
from fedarena.results.run_status import read_status

ALGORITHMS = (
    "finetune", "ditto", "fedbn", "fedper", "fedrep", "apfl", "pfedme", "perfedavg", "moon", "fedproto", "ifca", "qfedavg",
    "afl",
)  # fmt: skip
RULES = ("power_of_choice", "oort")

KILLED = """
import os, signal, sys
import fedarena as fa
from fedarena.engine.checkpoint import CheckpointStore
save = CheckpointStore.save
def dying(self, snapshot, record):
    if record["round"] == 2:  # client states of round 2 are written, the server's state is not
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, snapshot, record)
CheckpointStore.save = dying
fa.run(sys.argv[1], out=sys.argv[2], runtime="serial")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_contract(name: str) -> None:
    report = check_component(name)
    assert not report["broken"]
    assert len(report["held"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ALGORITHMS, *RULES])
def test_a_kill_within_a_round_changes_no_bit(name: str, tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"select": name} if name in RULES else {"algorithm": name}
    settings: dict[str, Any] = {
        "model": {"name": "cnnnet", "norm": "bn"} if name == "fedbn" else "mlp_2nn", "clients": 4, "share": 0.5,
        "rounds": 3, "local": {"lr": 0.05, "batch": 64}, "evaluate": {"every": 3}, **chosen,
    }  # fmt: skip
    whole = fa.run("digits", out=tmp_path / "whole", runtime="serial", **settings)
    file, folder = tmp_path / "exp.toml", tmp_path / "run"
    file.write_text(whole.experiment.to_toml())
    ended = forked_processes.run([sys.executable, "-c", KILLED, str(file), str(folder)])
    assert ended.returncode == -signal.SIGKILL
    assert read_status(folder).round == 1
    resumed = fa.run(resume=folder, runtime="processes", workers=2)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert records(resumed) == records(whole)
    assert resumed.own_metrics == whole.own_metrics
