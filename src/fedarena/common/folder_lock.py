"""One process at a time works in a folder, and may be interrupted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedarena.common.files import writing
from fedarena.common.locks import HELD_FOLDERS, is_locked, take_lock
from fedarena.config.errors import CannotWrite

PATIENCE = 10.0  # seconds for workers of a killed process to be gone


@contextlib.contextmanager
def hold_folder(root: Path) -> Iterator[None]:
    """The folder is ours as long as this lasts, or it is refused."""
    place = root.resolve()
    with contextlib.ExitStack() as stack:
        busy = place in HELD_FOLDERS
        if not busy:
            with writing(root):
                lock = stack.enter_context((root / "lock").open("w"))
            busy = not take_lock(lock.fileno())
        if busy:
            raise CannotWrite(f"another process is at work in {root}", remedy="wait for it, or choose another folder")
        HELD_FOLDERS.add(place)
        stack.callback(HELD_FOLDERS.discard, place)
        yield


@contextlib.contextmanager
def interruptible(command: str, root: Path | None) -> Iterator[None]:
    """Ctrl-C loses at most the rounds under way; say how to go on, if something is kept."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        if root is not None:
            stopped.add_note(f"saved; go on with: fedarena {command} --resume {root}")
        raise


def wait_until_released(runs: Iterable[Path]) -> None:
    """Workers of a process that was killed notice it at once, but not in no time."""
    deadline = time.monotonic() + PATIENCE
    for run in runs:
        while is_locked(run / "checkpoint", unknown=False):
            if time.monotonic() > deadline:
                raise CannotWrite(f"another process is at work in {run}", remedy="end it, then resume")
            time.sleep(0.02)
