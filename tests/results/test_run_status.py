"""The status of a run, read from its folder while another process may work in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedarena as fa
from fedarena.common.locks import is_locked
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.experiments.plan import build_plan
from fedarena.results.run_status import RunStatus, comparison_cells, read_status, records

SMALL: dict[str, Any] = {"rounds": 4, "clients": 4, "model": "logreg", "runtime": "serial"}


def stopped(folder: Path) -> None:
    """A run that was begun and left after two of four rounds."""
    for record in fa.rounds("digits", out=folder, **SMALL):
        if record.round == 2:
            break


def test_waiting_running_stopped_done(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    assert read_status(folder) == RunStatus("waiting")
    rounds = fa.rounds("digits", out=folder, **SMALL)
    first, second = next(rounds), next(rounds)
    now = read_status(folder)
    assert (now.state, now.round, now.rounds, now.share) == ("running", 2, 4, 0.5)
    assert now.accuracy == second.accuracy
    assert now.best == max(first.accuracy or 0, second.accuracy or 0)
    rounds.close()  # type: ignore[attr-defined]
    assert read_status(folder).state == "stopped"
    assert records(folder) == [first, second]
    run = fa.run(resume=folder, runtime="serial")
    over = read_status(folder)
    assert (over.state, over.round, over.accuracy, over.best) == ("done", 4, run.final.accuracy, run.best.accuracy)
    assert over.over
    assert over.share == 1
    assert records(folder) == run.records


def test_diverged_and_failed(tmp_path: Path) -> None:
    fa.run("digits", rounds=1, clients=4, local={"lr": 1e30}, out=tmp_path / "wild", runtime="serial")
    assert read_status(tmp_path / "wild").state == "diverged"
    stopped(tmp_path / "r")
    (tmp_path / "r" / "failure.txt").write_text("client 3 in round 3 failed\n")
    now = read_status(tmp_path / "r")
    assert (now.state, now.why, now.round, now.over) == ("failed", "client 3 in round 3 failed", 2, True)


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    stopped(tmp_path / "r")
    log = tmp_path / "r" / "checkpoint" / "rounds.jsonl"
    with log.open("a") as file:
        file.write('{"round": 3, "accur')
    assert read_status(tmp_path / "r").round == 2
    assert len(records(tmp_path / "r")) == 2


def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    stopped(tmp_path / "r")
    log = tmp_path / "r" / "checkpoint" / "rounds.jsonl"
    line = json.loads(log.read_text().splitlines()[0])
    log.write_text("".join(json.dumps({**line, "round": t, "accuracy": t / 3000}) + "\n" for t in range(1, 2001)))
    now = read_status(tmp_path / "r")
    assert (now.round, now.accuracy) == (2000, 2000 / 3000)


def test_a_budget_of_uploads_is_shown_in_rounds(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": None, "uploads": 10, "share": 0.5}  # two clients a round
    rounds = fa.rounds("digits", out=tmp_path / "r", **settings)
    next(rounds)
    assert read_status(tmp_path / "r").rounds == 5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who holds a lock")
def test_the_lock_of_another_process_is_seen_and_left_alone(tmp_path: Path) -> None:
    """Checks from outside do not release the lock."""
    hold = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert [is_locked(tmp_path) for _ in range(3)] == [True] * 3
        with pytest.raises(fa.FedarenaError, match="another process is using"):
            CheckpointStore(tmp_path, fa.FedAvg())
        holder.kill()
    assert not is_locked(tmp_path)
    assert not is_locked(tmp_path / "nothing")


def test_asking_after_ones_own_lock_does_not_lose_it(tmp_path: Path) -> None:
    """To close any file of one's own that is the lock would let it go: it must not be opened."""
    keeper = CheckpointStore(tmp_path, fa.FedAvg())
    assert is_locked(tmp_path)
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    taken = subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], capture_output=True, text=True)
    assert "BlockingIOError" in taken.stderr
    keeper.close()
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")]).returncode == 0


def test_cells_come_split_by_split(tmp_path: Path) -> None:
    plan = build_plan(fa.Experiment.make("digits"), {n: {"algorithm": n} for n in ("fedavg", "fedprox")}, folds=2)
    assert [(cell.label, cell.split.fold) for cell in comparison_cells(plan, tmp_path)] == [
        ("fedavg", 0), ("fedprox", 0), ("fedavg", 1), ("fedprox", 1),
    ]  # fmt: skip
    assert comparison_cells(plan, tmp_path)[0].folder == tmp_path / "cells" / "fedavg" / "repeat0-fold0"
