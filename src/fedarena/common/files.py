"""Writing files and folders: errors that say what to do, and removal at once."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from fedarena.config.errors import CannotWrite

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a full disk or a forbidden folder into an error that says what is still safe."""
    try:
        yield
    except FileExistsError:  # a question of names, not of room
        raise
    except (OSError, SafetensorError) as error:
        if (number := getattr(error, "errno", None)) in FULL:
            more = (
                "make room or raise the limit on the size of files (ulimit -f)"
                if number == errno.EFBIG
                else "make room"
            )
            raise CannotWrite(
                f"the disk is full: {path}",
                remedy=f"{more}, then go on with --resume; the last finished round is safe",
            ) from error
        raise CannotWrite(
            f"cannot write {path}: {error}", remedy="choose a folder you may write to with --out"
        ) from error


def remove_folder(folder: Path) -> None:
    """At once, as others see it: half a folder, left by a kill, might look like a run that can be gone on with."""
    aside = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if folder.exists():
        with writing(folder):
            folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
