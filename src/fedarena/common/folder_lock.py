"""Reserve a folder for one process at a time, and say how to resume after an interruption."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedarena.common.files import writing
from fedarena.common.locks import HELD_FOLDERS, is_locked, take_lock
from fedarena.config.errors import CannotWrite

PATIENCE = 10.0  # seconds for the workers of a killed process to end


@contextlib.contextmanager
def hold_folder(root: Path) -> Iterator[None]:
    """Lock a folder for the duration of the block; raise `CannotWrite` if another process uses it."""
    place = root.resolve()
    with contextlib.ExitStack() as stack:
        busy = place in HELD_FOLDERS
        if not busy:
            with writing(root):
                lock = stack.enter_context((root / "lock").open("w"))
            busy = not take_lock(lock.fileno())
        if busy:
            raise CannotWrite(f"another process is using {root}", remedy="wait until it ends, or choose another folder")
        HELD_FOLDERS.add(place)
        stack.callback(HELD_FOLDERS.discard, place)
        yield


@contextlib.contextmanager
def interruptible(command: str, root: Path | None) -> Iterator[None]:
    """Add the command that resumes to a KeyboardInterrupt, if there is a folder to resume."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        if root is not None:
            stopped.add_note(f"saved; resume with: fedarena {command} --resume {root}")
        raise


def wait_until_released(runs: Iterable[Path]) -> None:
    """Wait until the workers of a killed process have released the folders of its runs."""
    deadline = time.monotonic() + PATIENCE
    for run in runs:
        while is_locked(run / "checkpoint", unknown=False):
            if time.monotonic() > deadline:
                raise CannotWrite(f"another process is using {run}", remedy="end it, then resume")
            time.sleep(0.02)
