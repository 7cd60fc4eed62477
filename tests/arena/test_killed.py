"""A comparison that is killed, at any moment and as often as one likes, ends with the same bits."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedarena as fa
from fedarena.results.comparison import Plan
from fedarena.results.watch import Glance, cells, glance

EXPERIMENT = """
data = "digits"
model = "logreg"
clients = 5
share = 0.6
rounds = 100
dropouts = 0.2
local = { lr = 0.1 }
"""
ASKED = ["exp.toml", "-a", "fedavg", "-a", "scaffold:option=i", "--folds", "2", "--no-baseline"]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedarena", "compare", *arguments, "-q"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def seen(root: Path) -> list[Glance]:
    """All cells as a bystander sees them; nothing before the plan is there."""
    if not (root / "comparison.json").exists():
        return []
    return [glance(cell.folder) for cell in cells(Plan.read(root), root)]


def wait_for(process: subprocess.Popen[str], root: Path, moment: Callable[[list[Glance]], bool]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if moment(seen(root)):
            return
        time.sleep(0.02)
    pytest.fail(f"the moment did not come (exit code {process.poll()}): {seen(root)}")


def planned(now: list[Glance]) -> bool:
    """The plan is written, nothing else."""
    return bool(now)


def in_the_first(now: list[Glance]) -> bool:
    """Some rounds of the first cell are done, its end is far."""
    return any(g.state == "running" and 3 <= g.round < 85 for g in now)


def in_a_later_one(now: list[Glance]) -> bool:
    """At least one cell is over and another is in the middle."""
    return any(g.over for g in now) and any(g.state == "running" and 5 <= g.round < 85 for g in now)


def facts(comparison: fa.Comparison) -> dict[str, Any]:
    runs = {
        label: [(r.weights_sha256, r.curve, r.monotone_curve, r.bytes, r.final.loss) for r in runs]
        for label, runs in comparison.runs.items()
    }
    return {"runs": runs, "scores": comparison.scores(), "final": comparison.scores("final")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "exp.toml").write_text(EXPERIMENT)
    names = ["fedavg", "scaffold:option=i"]
    return facts(fa.compare(folder / "exp.toml", names, folds=2, workers=1, baseline=False, out=folder / "c"))


@pytest.mark.parametrize(
    ("workers", "moments"), [("1", [in_the_first, in_a_later_one]), ("2", [planned, in_the_first])]
)
def test_killed_twice_and_resumed(
    workers: str, moments: list[Callable[[list[Glance]], bool]], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    arguments = [*ASKED, "--out", "c"]
    for moment in moments:
        process = start(tmp_path, *arguments, "--workers", workers)
        wait_for(process, tmp_path / "c", moment)
        process.kill()
        process.communicate()
        arguments = ["--resume", "c"]
    assert not all(g.over for g in seen(tmp_path / "c"))
    resumed = fa.compare(resume=tmp_path / "c", workers=int(workers))  # at once: workers may still be on their way out
    assert facts(resumed) == facts(fa.Comparison.load(tmp_path / "c")) == undisturbed


def test_workers_leave_with_a_killed_comparison(tmp_path: Path) -> None:
    """Even in the middle of a run: afterwards nobody is at work in the cell."""
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    process = start(tmp_path, *ASKED, "--set", "rounds=100000", "--out", "c", "--workers", "2")
    wait_for(process, tmp_path / "c", lambda now: [g.state for g in now].count("running") == 2)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(g.state == "running" for g in seen(tmp_path / "c")):
        time.sleep(0.01)
    assert [g.state for g in seen(tmp_path / "c")].count("stopped") == 2
    logs = [cell.folder / "checkpoint" / "rounds.jsonl" for cell in cells(Plan.read(tmp_path / "c"), tmp_path / "c")]
    before = [log.stat().st_size for log in logs if log.exists()]
    time.sleep(0.3)  # a round takes a tenth of this
    assert [log.stat().st_size for log in logs if log.exists()] == before


def test_interrupted_it_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    process = start(tmp_path, *ASKED, "--set", "rounds=100000", "--out", "c")
    wait_for(process, tmp_path / "c", lambda now: any(g.state == "running" and g.round >= 2 for g in now))
    process.send_signal(signal.SIGINT)
    told, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert told == ""
    assert "fedarena compare --resume c" in said
    assert "Traceback" not in said
    assert not any(g.state == "running" for g in seen(tmp_path / "c"))
