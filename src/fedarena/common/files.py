"""Write files atomically, report a full disk with a remedy, and remove folders in one step."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from fedarena.config.errors import CannotWrite

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def writing(path: Path, remedy: str = "") -> Iterator[None]:
    """Turn a full disk or a folder without write permission into `CannotWrite`.

    Without a `remedy` of its own, the message is about the folder of a run: which rounds are safe, and how to resume.
    """
    try:
        yield
    except FileExistsError:  # not a problem of space or permission
        raise
    except (OSError, SafetensorError) as error:
        if remedy:
            reason = getattr(error, "strerror", None) or error
            raise CannotWrite(f"cannot write {path}: {reason}", remedy=remedy) from error
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
        raise CannotWrite(f"cannot write {path}: {error}", remedy="choose another folder with --out") from error


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they exist."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def atomic_write(path: Path, *, sync: bool = False, suffix: str = ".tmp", remedy: str = "") -> Iterator[BinaryIO]:
    """Open a file that takes its name when the block ends without an error: readers see the old content or the new one.

    With `sync` the content is on the disk before the file takes its name. Processes that write the same file at the same
    time need different values of `suffix`. `remedy` is that of `writing`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "weights.bin"
    >>> with atomic_write(path) as file:
    ...     _ = file.write(b"content")
    >>> path.read_bytes()
    b'content'
    """
    temporary = path.with_name(path.name + suffix)
    with writing(path, remedy):
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


def free_folder(stem: str) -> Path:
    """Create the next free folder under runs/ and return it; creating it reserves the name against other processes."""
    for path in numbered_folders(stem):
        with contextlib.suppress(FileExistsError), writing(path):
            path.mkdir(parents=True)
            return path
    raise AssertionError("the numbers never end")


def numbered_folders(stem: str) -> Iterator[Path]:
    """Yield runs/STEM, runs/STEM-2, runs/STEM-3 and so on."""
    yield Path("runs") / stem
    yield from (Path("runs") / f"{stem}-{number}" for number in itertools.count(2))
