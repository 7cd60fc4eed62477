"""For all tests: one thread for torch (two are slower on models this small, and change the bits), examples of hypothesis
that a slow machine cannot fail, and no threads that outlive their module. CI repeats the same examples; at a desk they are
new every time."""

import os
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture(scope="module", autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Fail if a module leaves a thread: later tests could not fork worker processes, and take many times as long."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 10
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"left at the end of the module: {sorted(thread.name for thread in left)}"
