"""Workers: all that is given is done once, by processes that may die, and that never outlive us."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedarena.runtimes.pool import LostTask
from fedarena.runtimes.process_pool import ProcessPool


@pytest.fixture(params=["forked", "fresh"])
def start(request: pytest.FixtureRequest) -> Iterator[str]:
    """With another thread about, workers are not forked."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    if request.param == "fresh":
        thread.start()
    yield request.param
    end.set()
    if request.param == "fresh":
        thread.join()


def test_everything_is_done_once() -> None:
    factor = 3
    pool = ProcessPool(lambda n: factor * n, 2)
    assert [pool.submit(n) for n in range(5)] == [0, 1, 2, 3, 4]
    assert dict(filter(None, pool.results(60))) == {n: 3 * n for n in range(5)}
    assert pool.running == []
    pool.close()


def test_more_may_be_given_while_it_works() -> None:
    pool = ProcessPool(lambda n: n + 1, 2)
    pool.submit(0)
    seen = []
    for news in pool.results(60):
        assert news is not None
        seen.append(news[1])
        if len(seen) < 4:
            pool.submit(len(seen))
    pool.close()
    assert sorted(seen) == [1, 2, 3, 4]


def test_a_worker_that_dies_is_replaced(start: str, tmp_path: Path) -> None:
    """Its work is done again, here by one who finds the note it left."""

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


def test_what_kills_everyone_is_given_up() -> None:
    def deadly(n: int) -> int:
        if n == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    pool = ProcessPool(deadly, 2)
    for n in range(3):
        pool.submit(n)
    assert dict(filter(None, pool.results(60))) == {0: 0, 1: LostTask(3, "last exit code -9"), 2: 2}
    pool.close()


def test_closing_ends_work_under_way(tmp_path: Path) -> None:
    def endless(n: int) -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        threading.Event().wait()

    pool = ProcessPool(endless, 1)
    pool.submit(0)
    for news in pool.results(0.01):  # a tick, now and then
        assert news is None
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
    assert pool.running == [0]
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
