"""Generated input, from fixed seeds: every case is refused with an error of ours, or works and repeats."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

SECONDS = 60  # a case that takes longer hangs


@contextlib.contextmanager
def limited(what: str) -> Iterator[None]:
    """Fail where a case hangs."""

    def late(*_: Any) -> None:
        raise AssertionError(f"{what} hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
