"""Write files atomically, report a full disk with a remedy, and remove folders in one step."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from fedarena.config.errors import CannotWrite

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a full disk or a folder without write permission into `CannotWrite`, which says what is still safe."""
    try:
        yield
    except FileExistsError:  # not a problem of space or permission
        raise
    except (OSError, SafetensorError) as error:
        if (number := getattr(error, "errno", None)) in FULL:
            more = (
                "free some space or raise the limit on the size of files (ulimit -f)"
                if number == errno.EFBIG
                else "free some space"
            )
            raise CannotWrite(
                f"the disk is full: {path}",
                remedy=f"{more}, then continue with --resume; the last finished round is safe",
            ) from error
        raise CannotWrite(
            f"cannot write {path}: {error}", remedy="choose another folder with --out"
        ) from error


@contextlib.contextmanager
def atomic_write(path: Path, *, sync: bool = False, suffix: str = ".tmp") -> Iterator[BinaryIO]:
    """Open a file that takes its name when the block ends without an error: readers see the old content or the new one.

    With `sync` the content is on the disk before the file takes its name. Several processes that write the same file at
    once need a `suffix` each.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "weights.bin"
    >>> with atomic_write(path) as file:
    ...     _ = file.write(b"content")
    >>> path.read_bytes()
    b'content'
    """
    temporary = path.with_name(path.name + suffix)
    with writing(path):
        try:
            with temporary.open("wb") as file:
                yield file
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def remove_folder(folder: Path) -> None:
    """Remove a folder in one step: a partly removed one, left by a kill, could look like a run that can be resumed."""
    aside = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if folder.exists():
        with writing(folder):
            folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
