"""A comparison that is killed, at any moment and as often as one likes, ends with the same bits."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support import forked_processes

import fedarena as fa
from fedarena.results.plan_file import read_plan
from fedarena.results.run_status import RunStatus, comparison_cells, read_status

EXPERIMENT = """
data = "digits"
model = "logreg"
clients = 5
share = 0.6
rounds = 12
dropouts = 0.2
local = { lr = 0.1 }
"""
ASKED = ["exp.toml", "-a", "fedavg", "-a", "scaffold:option=i", "--folds", "2", "--no-baseline"]
ENDLESS = "rounds=10000000"  # on any machine, they are not done before the kill
PATIENCE = 120.0  # seconds, after which something is wrong


def start(folder: Path, *arguments: str) -> forked_processes.Popen:
    command = [sys.executable, "-m", "fedarena", "compare", *arguments, "-q"]
    return forked_processes.Popen(command, cwd=folder, capture=True)


def seen(root: Path) -> list[RunStatus]:
    """All cells as a bystander sees them; nothing before the plan is there."""
    if not (root / "comparison.json").exists():
        return []
    return [read_status(cell.folder) for cell in comparison_cells(read_plan(root), root)]


def wait_for(process: forked_processes.Popen, has_come: Callable[[], bool]) -> None:
    """Until something is so; it must be something that stays so, however late we look."""
    deadline = time.monotonic() + PATIENCE
    while not has_come():
        assert process.poll() is None, f"it ended with exit code {process.poll()}"
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.01)


@dataclass(frozen=True)
class Moment:
    """The end of a round, clients' memories written and the server's state not, with so many cells over."""

    round: int
    over: int = 0

    def hold(self, folder: Path) -> Path:
        """A file for `--file`: all who work wait there to be killed, and say so by a file each."""
        for file in folder.glob("held-*"):
            file.unlink()
        file = folder / "hold.py"
        file.write_text(HOLD.format(round=self.round, over=self.over))
        return file


HOLD = """
import os, time
from pathlib import Path
from fedarena.engine.checkpoint import CheckpointStore

save = CheckpointStore.save

def hold(keeper, snapshot, record):
    while snapshot.round == {round} and len(list(Path("c/cells").glob("*/*/result.json"))) == {over}:
        Path(f"held-{{os.getpid()}}").touch()
        time.sleep(1)
    save(keeper, snapshot, record)

CheckpointStore.save = hold
"""


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs workers that begin as copies of their process")
@pytest.mark.parametrize(
    ("workers", "moments"), [(1, [Moment(4), Moment(7, over=1)]), (2, [Moment(1), Moment(4)])], ids=["one", "two"]
)
def test_killed_twice_and_resumed(
    workers: int, moments: list[Moment], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    arguments = [*ASKED, "--out", "c"]
    for moment in moments:
        hold = moment.hold(tmp_path)
        process = start(tmp_path, *arguments, "--workers", str(workers), "--file", str(hold))
        wait_for(process, lambda: len(list(tmp_path.glob("held-*"))) == workers)
        process.kill()
        process.communicate()
        now = [(g.over, g.round) for g in seen(tmp_path / "c")]
        assert now[moment.over :][:workers] == [(False, moment.round - 1)] * workers
        assert [over for over, _ in now].count(True) == moment.over
        arguments = ["--resume", "c"]
    resumed = fa.compare(resume=tmp_path / "c", workers=workers)  # at once: workers may still be on their way out
    assert facts(resumed) == facts(fa.Comparison.load(tmp_path / "c")) == undisturbed


@pytest.mark.slow
def test_workers_leave_with_a_killed_comparison(tmp_path: Path) -> None:
    """Even in the middle of a run: a lock ends with its process, so that of a cell is soon free."""
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    process = start(tmp_path, *ASKED, "--set", ENDLESS, "--out", "c", "--workers", "2")
    wait_for(process, lambda: [g.state for g in seen(tmp_path / "c") if g.round > 1] == ["running"] * 2)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + PATIENCE
    while any(g.state == "running" for g in seen(tmp_path / "c")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [g.state for g in seen(tmp_path / "c")] == ["stopped", "stopped", "waiting", "waiting"]


@pytest.mark.slow
def test_interrupted_it_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    process = start(tmp_path, *ASKED, "--set", ENDLESS, "--out", "c")
    wait_for(process, lambda: any(g.round > 1 for g in seen(tmp_path / "c")))
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert output == ""
    assert "fedarena compare --resume c" in said
    assert "Traceback" not in said
    assert not any(g.state == "running" for g in seen(tmp_path / "c"))
