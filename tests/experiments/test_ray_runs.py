"""Whole runs on a real cluster: samples and folders travel, and the scores are those of `processes`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.experiments.test_killed import facts
from tests.support.federations import blobs
from tests.support.ray_clusters import PATIENCE, cluster, head, others, stop, stop_node

import fedarena as fa
from fedarena.config import registry
from fedarena.data.sources import arrays
from fedarena.runtimes.folder_transfer import read_files, write_files
from fedarena.runtimes.pool import LostTask
from fedarena.runtimes.ray_connection import connected
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.ray_pool import RayPool

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'fedarena[ray]'")


@pytest.fixture(scope="module", autouse=True)
def _the_cluster_ends() -> Iterator[None]:
    yield
    stop()


@pytest.fixture
def nodes() -> Iterator[ClusterNodes]:
    with connected(head().address) as nodes:
        yield nodes


@pytest.fixture
def only_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A data set that no other process can read, until it is published."""
    driver, published = os.getpid(), tmp_path / "published"

    @dataclass(frozen=True)
    class OnlyHere:
        def load(self, seed: int) -> Any:
            assert os.getpid() == driver or published.exists(), "a node has no such file"
            return arrays(*blobs()).load(seed)

    monkeypatch.setitem(registry._entries["dataset"], "only_here", registry.Entry("dataset", "only_here", OnlyHere, ""))
    OnlyHere.registered_name = "only_here"  # type: ignore[attr-defined]
    return "only_here"


@pytest.mark.slow
def test_a_comparison_whose_worker_is_killed(nodes: ClusterNodes, only_here: str, tmp_path: Path) -> None:
    """Its cell runs again; the samples travelled to the node."""
    note = tmp_path / "killed"

    class Once(fa.Scaffold):
        def client(self, got: Any, kept: Any, work: Any) -> Any:
            if work.round == 1 and not note.exists():
                note.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().client(got, kept, work)

    who = {"fedavg": "fedavg", "once": Once()}
    how = {"seeds": 2, "rounds": 3, "clients": 4, "model": "logreg", "baseline": False, "workers": 2}
    there = fa.compare(only_here, who, out=tmp_path / "there", runtime="ray", **how)
    assert note.exists()
    (tmp_path / "published").touch()
    here = fa.compare(only_here, who, out=tmp_path / "here", **{**how, "workers": 1})
    assert facts(there) == facts(here)
    names = [{path.relative_to(root) for path in root.rglob("*")} for root in (there.dir, here.dir)]
    assert names[0] == names[1]


@pytest.mark.slow
def test_a_search_makes_the_same_trials(nodes: ClusterNodes) -> None:
    how = {"trials": 4, "rounds": 2, "model": "logreg", "clients": 5, "workers": 1, "out": False}
    there, here = (fa.search("digits", runtime=runtime, **how) for runtime in ("ray", "processes"))
    assert there.trials == here.trials


@pytest.mark.slow
def test_a_node_is_lost_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """The folder of the task goes to the next node, and comes back with what was written there."""
    begun = tmp_path / "begun"

    def count(name: str, folder: Path) -> str:
        before = (folder / "deep" / "file").read_text()
        (folder / "empty").mkdir()
        if name == "first" and not begun.exists():
            begun.with_suffix(".new").write_text(ray.get_runtime_context().get_node_id())
            begun.with_suffix(".new").rename(begun)
            time.sleep(PATIENCE)
        (folder / "deep" / "file").write_text(f"{before} {name}")
        return name

    done, lost, deadline = {}, "", time.monotonic() + PATIENCE
    with connected(cluster().address) as nodes:
        everyone, nodes.usable = nodes.usable, {id: nodes.usable[id] for id in [*others()][:1]}
        pool = RayPool(count, None, nodes)
        for name in ("first", "second"):
            write_files(packed_text("was here"), tmp_path / name)
            pool.submit(name, folder=tmp_path / name)
        for finished in pool.results(0.1):
            assert time.monotonic() < deadline
            if finished is not None:
                done[finished[0]] = finished[1]
            if begun.exists() and not lost:
                lost = begun.read_text()
                stop_node(lost)
                nodes.usable = everyone
        pool.close()
    assert lost
    assert done == {0: "first", 1: "second"}
    for name in ("first", "second"):
        assert (tmp_path / name / "deep" / "file").read_text() == f"was here {name}"
        assert (tmp_path / name / "empty").is_dir()
        assert read_files(tmp_path / name).keys() == {"deep/", "deep/file", "empty/"}


def packed_text(text: str) -> Any:
    return {"deep/file": np.frombuffer(text.encode(), np.uint8)}


@pytest.mark.slow
def test_a_task_that_kills_every_worker_is_lost(nodes: ClusterNodes) -> None:
    def deadly(n: int) -> int:
        if n == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    pool = RayPool(deadly, 1, nodes)
    for n in range(3):
        pool.submit(n)
    done = dict(filter(None, pool.results(60)))
    pool.close()
    assert isinstance(lost := done.pop(1), LostTask)
    assert str(lost).startswith("died 3 times (")
    assert done == {0: 0, 2: 2}
