"""A real cluster of several nodes gives the bits of `serial`, even if workers and nodes die in the middle of a round."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtimes.test_bits import facts, wait_for_rounds
from tests.support.federations import blobs
from tests.support.ray_clusters import PATIENCE, SIZE, cluster, head, others, stop, stop_node, wait_for_workers

import fedarena as fa
from fedarena.config.experiment import Experiment
from fedarena.engine.async_loop import open_loop
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.client import Broadcast
from fedarena.engine.record import TIMES
from fedarena.engine.setup import open_context
from fedarena.models.task import sha256
from fedarena.runtimes.client_runtime import RayRuntime
from fedarena.runtimes.pool import LostWorker
from fedarena.runtimes.ray_connection import connected
from fedarena.runtimes.ray_nodes import ClusterNodes

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'fedarena[ray]'")

LONG = {"lr": 0.05, "epochs": 10, "batch": 8}
SOME = {"data": "digits", "clients": 9, "rounds": 2, "seed": 3, "dropouts": 0.2, "local": LONG}
EACH: dict[str, dict[str, Any]] = {
    "scaffold": {
        **SOME,
        "model": "mlp_2nn",
        "algorithm": "scaffold",
    },  # answers of 440 kB: they lie in the object store
    "batchnorm": {**SOME, "model": {"name": "cnnnet", "norm": "bn"}, "local": {**LONG, "epochs": 1, "momentum": 0.9}},
    "coop": {**SOME, "model": "logreg", "algorithm": "coop"},
    "bundles": {**SOME, "model": "logreg", "clients": 250, "partition": "iid"},
}


@pytest.fixture(scope="module", autouse=True)
def _the_cluster_ends() -> Iterator[None]:
    yield
    stop()


@pytest.fixture
def nodes() -> Iterator[ClusterNodes]:
    """Connect to the cluster, with the nodes that are alive."""
    with connected(head().address) as nodes:
        yield nodes


class WorkerKiller:
    """A runtime that kills after the first result of an exchange in which workers are busy: first a worker, then a node."""

    def __init__(self, runtime: RayRuntime) -> None:
        self.runtime, self.killed, self.lost = runtime, [], 0
        self._receive, runtime.pool._receive = runtime.pool._receive, self._count_lost  # type: ignore[method-assign]

    @property
    def workers(self) -> int:
        return self.runtime.workers

    def map(self, tasks: Any, common: Any) -> Any:
        for i, answer in enumerate(self.runtime.map(tasks, common)):
            if i == 0:
                self._kill()
            yield answer

    def _count_lost(self, timeout: float) -> Any:
        found = self._receive(timeout)
        self.lost += sum(isinstance(result, LostWorker) for _, result in found)
        return found

    def _kill(self) -> None:
        if len(self.killed) == 2:
            return
        busy = [w for w in self.runtime.pool._ready if w.load and w.node.id in others()]
        if not busy:
            return
        if not self.killed:
            os.kill(busy[0].pid, signal.SIGKILL)
        else:
            stop_node(busy[0].node.id)
        self.killed.append(busy[0].node.id)


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_a_killed_worker_and_a_lost_node_change_nothing(
    name: str, nodes: ClusterNodes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    context = open_context(Experiment.make(EACH[name]))
    runtime = RayRuntime(context, nodes)
    try:
        cluster()  # nodes that join now are used
        wait_for_workers(runtime.pool, 3)
        killer = WorkerKiller(runtime)
        loop = open_loop(context, killer, CheckpointStore(tmp_path, context.algorithm))
        records = [{k: v for k, v in vars(r).items() if k not in TIMES} for r in loop.rounds()]
    finally:
        runtime.close()
    assert len(killer.killed) == 2
    assert killer.lost >= 2
    serial = fa.run(context.experiment, out=False, runtime="serial")
    assert (sha256(*loop.result_vectors()), records) == facts(serial)
    assert capfd.readouterr().out == ""  # Ray would report all that dies


@pytest.mark.slow
def test_a_custom_class_reads_the_samples_in_the_store(nodes: ClusterNodes) -> None:
    """No node can import it, and results are of the same class; workers read the samples without a copy."""

    @dataclass(frozen=True)
    class Sum:
        dw: np.ndarray

    class Mine(fa.FedAvg):
        def client(self, got: Any, kept: Any, work: Any) -> Any:
            rows = work.context.data.x
            if os.getpid() != driver:
                assert not rows.flags.writeable
                assert not rows.flags.owndata
            return fa.Reply(send=Sum(work.train(got.w).w - got.w), weight=work.rows)

        def server(self, state: Any, mean: Any, cohort: Any) -> Any:
            assert type(mean) is Sum
            return fa.Model(state.w + mean.dw)

    driver = os.getpid()
    how = {"algorithm": Mine(), "model": "logreg", "rounds": 2, "clients": 4, "out": False}
    assert facts(fa.run("digits", runtime="ray", workers=1, **how)) == facts(fa.run("digits", runtime="serial", **how))


@pytest.mark.slow
def test_the_store_removes_old_objects(nodes: ClusterNodes) -> None:
    """Vectors of 220 kB, which travel through the store: 60 go up, 60 come down, 5 are broadcast. In the end the store holds
    the experiment and the last message, each on two nodes at most."""

    @dataclass(frozen=True)
    class Echo:
        """A task as large as a client's state, whose result is as large as a model."""

        vector: np.ndarray

        def run(self, context: Any, common: Broadcast) -> np.ndarray:
            return common.message.w + self.vector

    before = stored_objects()  # of earlier tests
    context = open_context(Experiment.make("digits", clients=4))
    ones = np.ones_like(context.initial)
    runtime = RayRuntime(context, nodes, workers=1)
    try:
        for round in range(5):
            common = Broadcast(fa.Model(round * ones), context.task.buffers())
            for position, answer in runtime.map([Echo(k * ones) for k in range(12)], common):
                assert np.array_equal(answer, (round + position) * ones)
                assert answer.flags.writeable  # a copy, so that the store can remove it
        deadline = time.monotonic() + PATIENCE
        while stored_objects() > before + 4:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        runtime.close()


def stored_objects() -> int:
    """Return the number of objects in the stores of all nodes."""
    from ray._private.internal_api import memory_summary

    found = re.search(r"Plasma memory usage \d+ MiB, (\d+) objects", memory_summary(stats_only=True))
    assert found is not None
    return int(found[1])


@pytest.mark.slow
def test_a_task_that_kills_every_worker_fails_the_run(nodes: ClusterNodes, tmp_path: Path) -> None:
    class Deadly(fa.FedAvg):
        def client(self, got: Any, kept: Any, work: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(fa.FedarenaError, match="died 3 times"):
        fa.run("digits", algorithm=Deadly(), rounds=1, runtime="ray", workers=1, out=tmp_path / "r")


def wait_for_versions(nodes: ClusterNodes, count: int) -> None:
    """Wait until this number of nodes has reported its versions."""
    deadline = time.monotonic() + PATIENCE
    while nodes._asked or len(nodes._known) < count:
        assert time.monotonic() < deadline, "a node does not answer"
        nodes.refresh()
        time.sleep(0.1)


@pytest.mark.slow
def test_a_node_with_other_versions(nodes: ClusterNodes, tmp_path: Path) -> None:
    """A node that joins later is ignored; a run does not start with it."""
    (tmp_path / "fedarena").mkdir()
    (tmp_path / "fedarena" / "__init__.py").write_text('__version__ = "0.0.1"\n')
    other = head().add_node(**SIZE, env_vars={"PYTHONPATH": str(tmp_path)})
    try:
        before = set(nodes.usable)
        with pytest.warns(UserWarning, match=r"node \S+ \(\S+\) has fedarena 0\.0\.1, here is .*not used"):
            wait_for_versions(nodes, len(nodes._known) + 1)
        assert set(nodes.usable) == before
        with pytest.raises(fa.FedarenaError, match=r"has fedarena 0\.0\.1") as refused:
            fa.run("digits", rounds=1, out=tmp_path / "r", runtime="ray")
        assert "install the same" in refused.value.remedy
        assert not (tmp_path / "r").exists()
    finally:
        head().remove_node(other)


@pytest.mark.slow
def test_driver_killed_and_resumed(tmp_path: Path) -> None:
    """After kill -9 of the command its workers end, and the resumed run gives the bits of `serial`."""
    exp = Experiment.make({**EACH["scaffold"], "rounds": 12, "local": {"lr": 0.05, "epochs": 3, "batch": 8}})
    (tmp_path / "exp.toml").write_text(exp.to_toml())
    where = ["--runtime", "ray", "--address", head().address, "--workers", "1"]
    command = [sys.executable, "-m", "fedarena", "run", "--json", *where]
    process = subprocess.Popen([*command, "exp.toml", "--out", "r", "-q"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    wait_for_rounds(tmp_path / "r", 2, process)
    process.kill()
    process.wait()
    assert not (tmp_path / "r" / "result.json").exists()
    done = subprocess.run([*command, "--resume", "r"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert json.loads(done.stdout)["rounds"] == 12  # and nothing else is there
    assert all(re.match("scaffold|round|note: ", line) for line in done.stderr.splitlines()), done.stderr
    assert facts(fa.load(tmp_path / "r")) == facts(fa.run(exp, out=False, runtime="serial"))


@pytest.mark.slow
def test_without_an_address_it_is_started_here_and_ended(tmp_path: Path) -> None:
    def on_term(*_: Any) -> None: ...

    before, environment = signal.signal(signal.SIGTERM, on_term), dict(os.environ)
    try:
        x, y = blobs()
        how = {"clients": 3, "rounds": 2, "model": "logreg"}
        run = fa.run((x, y), runtime="ray", workers=1, out=tmp_path / "r", **how)
        assert signal.getsignal(signal.SIGTERM) is on_term
    finally:
        signal.signal(signal.SIGTERM, before)
    assert dict(os.environ) == environment
    assert not ray.is_initialized()
    assert facts(run) == facts(fa.run((x, y), runtime="serial", out=False, **how))


def answer(listener: socket.socket, text: bytes) -> None:
    line, _ = listener.accept()
    line.recv(64)
    line.sendall(text)
    line.close()


@pytest.mark.slow
@pytest.mark.parametrize("listens", ["nothing", "another service"])
def test_out_of_reach(listens: str, tmp_path: Path) -> None:
    """One message, soon, and no folder is left."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        if listens != "nothing":
            listener.listen()
            threading.Thread(target=answer, args=(listener, b"HTTP/1.1 400 Bad Request\r\n\r\n"), daemon=True).start()
        began = time.monotonic()
        with pytest.raises(fa.FedarenaError, match=f"no Ray cluster can be reached at {address}"):
            fa.run("digits", rounds=1, out=tmp_path / "r", runtime="ray", address=address)
    assert time.monotonic() - began < 20
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"runtime": "ray", "address": "somewhere"}, "is not the address of a cluster"),
        ({"address": "auto"}, "only a cluster has an address"),
        ({"runtime": "rai"}, "no runtime is called 'rai'"),
    ],
)
def test_mistakes(how: dict[str, Any], message: str) -> None:
    with pytest.raises(fa.FedarenaError, match=message):
        fa.run("digits", rounds=1, out=False, **how)


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(fa.FedarenaError, match="the runtime ray needs the package ray") as missing:
        fa.run("digits", rounds=1, out=False, runtime="ray")
    assert "pip install 'fedarena[ray]'" in missing.value.remedy
