"""The process pool: every task is run once, by workers that may die, and that never outlive the pool."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedarena.engine.tasks import FailedTask
from fedarena.runtimes.pool import LostTask
from fedarena.runtimes.process_pool import ProcessPool


@pytest.fixture(params=["forked", "fresh"])
def start(request: pytest.FixtureRequest) -> Iterator[str]:
    """Start another thread for fresh workers: forking is then not safe."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    if request.param == "fresh":
        thread.start()
    yield request.param
    end.set()
    if request.param == "fresh":
        thread.join()


def test_every_task_has_one_result() -> None:
    factor = 3
    pool = ProcessPool(lambda n: factor * n, 2)
    assert [pool.submit(n) for n in range(5)] == [0, 1, 2, 3, 4]
    assert dict(filter(None, pool.results(60))) == {n: 3 * n for n in range(5)}
    assert pool.running == []
    pool.close()


def test_tasks_can_be_submitted_while_others_run() -> None:
    pool = ProcessPool(lambda n: n + 1, 2)
    pool.submit(0)
    seen = []
    for finished in pool.results(60):
        assert finished is not None
        seen.append(finished[1])
        if len(seen) < 4:
            pool.submit(len(seen))
    pool.close()
    assert sorted(seen) == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced(start: str, tmp_path: Path) -> None:
    """Its task runs again, and finds the file that the first attempt wrote."""

    def once(n: int) -> int:
        note = tmp_path / str(n)
        if n == 1 and not note.exists():
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    pool = ProcessPool(once, 1)
    for n in range(3):
        pool.submit(n)
    assert dict(filter(None, pool.results(60))) == {0: 0, 1: 1, 2: 2}
    pool.close()


@pytest.mark.slow
def test_a_task_that_kills_every_worker_is_lost() -> None:
    def deadly(n: int) -> int:
        if n == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    pool = ProcessPool(deadly, 2)
    for n in range(3):
        pool.submit(n)
    assert dict(filter(None, pool.results(60))) == {0: 0, 1: LostTask(3, "last exit code -9"), 2: 2}
    pool.close()


def test_closing_ends_running_tasks(tmp_path: Path) -> None:
    def endless(n: int) -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        threading.Event().wait()

    pool = ProcessPool(endless, 1)
    pool.submit(0)
    for finished in pool.results(0.01):  # ticks
        assert finished is None
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
    assert pool.running == [0]
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.slow
def test_an_error_of_the_function_is_its_result(start: str) -> None:
    def divide(n: int) -> float:
        return 1 / n

    pool = ProcessPool(divide, 1)
    pool.submit(0)
    pool.submit(2)
    failed, half = (result for _, result in sorted(filter(None, pool.results(60))))
    pool.close()
    assert isinstance(failed, FailedTask)
    assert failed.error == "ZeroDivisionError: division by zero"
    assert half == 0.5


@pytest.mark.slow
def test_a_shared_value_and_a_folder_reach_the_function(start: str, tmp_path: Path) -> None:
    """In shared memory, where a later value replaces it; large results come back as arrays of their own."""

    def fill(number: int, folder: Path, values: Any) -> Any:
        (folder / str(number)).touch()
        assert not values.flags.writeable
        return number * values

    pool = ProcessPool(fill, 2)
    for scale in (1.0, 2.0):
        shared = pool.share(np.full(10_000, scale))
        numbers = {pool.submit(n, folder=tmp_path, shared=shared): n for n in range(3)}
        for position, result in filter(None, pool.results(60)):
            assert np.array_equal(result, np.full(10_000, numbers[position] * scale))
            assert result.flags.writeable
    pool.close()
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2"}
