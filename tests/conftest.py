"""For all tests: one thread for torch (two are slower on models this small, and change the bits), examples of hypothesis
that a slow machine cannot fail, and no threads or processes that outlive their module. CI repeats the same examples; at a
desk they are new every time."""

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

gc.disable()  # until the tests are collected: what is imported stays, and going through all of it takes seconds
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell, also by what is started
torch.set_num_threads(1)
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


def pytest_collection_finish() -> None:
    """Start the garbage collector, which need not look at modules and tests again: they stay to the end."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Fail if a module leaves a thread: later tests could not fork worker processes, and take many times as long."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 10
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"left at the end of the module: {sorted(thread.name for thread in left)}"
