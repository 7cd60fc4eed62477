"""The same bits from any runtime, any number of workers, after a worker is killed, after the run itself is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support import forked_processes

import fedarena as fa
from fedarena.config.experiment import Experiment
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.loop import TrainingLoop
from fedarena.engine.record import TIMES
from fedarena.engine.setup import open_context
from fedarena.models.task import sha256
from fedarena.runtimes.client_runtime import ProcessRuntime

MLP = {"data": "digits", "model": "mlp_2nn", "local": {"lr": 0.05, "epochs": 1, "batch": 16}}
CNN = {"data": "digits", "model": {"name": "cnnnet", "norm": "bn", "dropout": 0.25}, "clients": 6,
       "local": {"lr": 0.05, "epochs": 1, "batch": 32, "momentum": 0.9, "reset_momentum": False}}  # fmt: skip
LSTM = {"model": "char_lstm", "partition": {"name": "natural"}, "local": {"lr": 0.5, "epochs": 1, "batch": 4}}
COMMON = {"share": 0.5, "rounds": 4, "dropouts": 0.2, "seed": 3}


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four speakers with a few lines each."""
    path = tmp_path_factory.mktemp("text") / "play.txt"
    words = ["to be or not to be", "that is the question", "whether tis nobler", "in the mind to suffer", "the slings"]
    path.write_text("".join(f"ROLE{k}: {words[(k + i) % 5]} {i}\n" for i in range(10) for k in range(4)))
    return path


@pytest.fixture(params=["mlp", "cnn", "lstm"])
def experiment(request: pytest.FixtureRequest, play: Path) -> dict[str, Any]:
    lstm = {**LSTM, "data": {"name": "lines", "path": str(play), "length": 12}}
    return {**COMMON, **{"mlp": MLP, "cnn": CNN, "lstm": lstm}[request.param]}


def facts(run: fa.Run) -> tuple[str, list[dict[str, Any]]]:
    """Return everything that a run records except times."""
    return run.weights_sha256, [{k: v for k, v in vars(r).items() if k not in TIMES} for r in run.records]


@pytest.mark.slow
def test_serial_and_any_number_of_workers(experiment: dict[str, Any]) -> None:
    serial = facts(fa.run(experiment, out=False, runtime="serial"))
    for workers in (1, 2, 3):
        assert facts(fa.run(experiment, out=False, runtime="processes", workers=workers)) == serial


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_forked_or_started_fresh(experiment: dict[str, Any], start: Any, tmp_path: Path) -> None:
    exp = Experiment.make(experiment)
    context = open_context(exp)
    runtime = ProcessRuntime(context, 2, start)
    try:
        loop = TrainingLoop(context, runtime, CheckpointStore(tmp_path, context.algorithm))
        list(loop.rounds())
    finally:
        runtime.close()
    serial = fa.run(exp, out=False, runtime="serial")
    assert sha256(loop.state.w, loop.buffers.values) == serial.weights_sha256


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_killed_worker_changes_nothing(start: Any, tmp_path: Path) -> None:
    """A worker is killed in the middle of every round; it is replaced, and its client runs again."""
    exp = Experiment.make({**COMMON, **MLP, "local": {"lr": 0.05, "epochs": 20, "batch": 8}})
    context = open_context(exp)
    runtime = ProcessRuntime(context, 2, start)
    killed = []

    class WorkerKiller:
        """A runtime that kills a busy worker after the first result of each exchange."""

        def map(self, tasks: Any, common: Any) -> Any:
            for i, item in enumerate(runtime.map(tasks, common)):
                busy = [w.pid for w in runtime.pool._processes if w.position is not None]
                if i == 0 and busy:
                    os.kill(busy[0], signal.SIGKILL)
                    killed.append(busy[0])
                yield item

    try:
        loop = TrainingLoop(context, WorkerKiller(), CheckpointStore(tmp_path, context.algorithm))
        list(loop.rounds())
    finally:
        runtime.close()
    assert len(killed) >= 3
    assert sha256(loop.state.w, loop.buffers.values) == fa.run(exp, out=False, runtime="serial").weights_sha256


@pytest.mark.slow
def test_a_task_that_kills_every_worker_fails_the_run(tmp_path: Path) -> None:
    class Deadly(fa.FedAvg):
        def client(self, got: Any, kept: Any, work: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

    exp = Experiment.make("digits", algorithm=Deadly(), rounds=1)
    context = open_context(exp)
    runtime = ProcessRuntime(context, 2, "fork")
    try:
        with pytest.raises(fa.FedarenaError, match="died 3 times"):
            list(TrainingLoop(context, runtime, CheckpointStore(tmp_path, context.algorithm)).rounds())
    finally:
        runtime.close()


def start_command(arguments: list[str], folder: Path) -> forked_processes.Popen:
    return forked_processes.Popen([sys.executable, "-m", "fedarena", *arguments], cwd=folder)


def wait_for_rounds(run: Path, count: int, process: forked_processes.Popen) -> None:
    log = run / "checkpoint" / "rounds.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if log.exists() and len(log.read_text().splitlines()) >= count:
            return
        time.sleep(0.005)
    pytest.fail(f"the run did not reach round {count} alive (exit code {process.poll()})")


@pytest.mark.slow
def test_killed_and_resumed(experiment: dict[str, Any], tmp_path: Path) -> None:
    """The whole run is killed twice; resumed, it gives the same result, and no worker is left over."""
    exp = Experiment.make({**experiment, "rounds": 25})
    (tmp_path / "exp.toml").write_text(exp.to_toml())
    process = start_command(["run", "exp.toml", "--out", "r", "-q", "--workers", "2"], tmp_path)
    wait_for_rounds(tmp_path / "r", 2, process)
    process.kill()
    process.wait()
    process = start_command(["run", "--resume", "r", "-q", "--workers", "2"], tmp_path)
    wait_for_rounds(tmp_path / "r", 6, process)
    process.kill()
    process.wait()
    assert not (tmp_path / "r" / "result.json").exists()
    resumed = fa.run(resume=tmp_path / "r", workers=1)
    assert facts(resumed) == facts(fa.run(exp, out=False, runtime="serial"))
    assert facts(fa.load(tmp_path / "r")) == facts(resumed)


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedarena", "run", "digits", "--set", "rounds=5000", "--out", "r"]
    process = forked_processes.Popen(command, cwd=tmp_path, capture=True)
    wait_for_rounds(tmp_path / "r", 3, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "fedarena run --resume r" in said
    assert "Traceback" not in said
    saved = (tmp_path / "r" / "checkpoint" / "rounds.jsonl").read_text().splitlines()
    assert json.loads(saved[-1])["round"] == len(saved)


@pytest.mark.slow
def test_workers_end_with_a_killed_run(tmp_path: Path) -> None:
    process = start_command(["run", "digits", "--set", "rounds=5000", "--out", "r", "-q"], tmp_path)
    wait_for_rounds(tmp_path / "r", 1, process)
    children = [int(p) for p in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) >= 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(alive(p) for p in children):
        time.sleep(0.05)
    assert not any(alive(p) for p in children)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
