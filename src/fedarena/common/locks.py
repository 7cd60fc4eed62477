"""File locks, by which a folder is used by one process at a time, and safe opening of files."""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from pathlib import Path
from typing import BinaryIO

HELD_FOLDERS: set[Path] = set()  # folders that this process has locked: file locks do not separate its threads


def take_lock(file: int) -> bool:
    """Take a lock that is released when this process ends, even if killed, and that its workers do not inherit."""
    try:
        import fcntl
    except ImportError:  # the platform has no such locks, so folders are not protected
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_locked(folder: Path, unknown: bool = True) -> bool:
    """Return whether a process holds the lock of this folder; `unknown` where the platform cannot determine it."""
    if folder.resolve() in HELD_FOLDERS:  # opening and closing its file here would release our lock
        return True
    if sys.platform != "linux":
        return unknown
    import fcntl

    try:
        with open_regular(folder / "lock") as file:
            request = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)  # struct flock: type, whence, start, length, pid
            answer = fcntl.fcntl(file.fileno(), fcntl.F_GETLK, request)
    except OSError:
        return False
    return bool(struct.unpack("hhqqi", answer)[0] != fcntl.F_UNLCK)


def open_regular(file: Path) -> BinaryIO:
    """Open a regular file for reading; raise OSError for a pipe, device or socket without opening it."""
    _check_regular(os.stat(file), file)
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    stream = os.fdopen(descriptor, "rb")
    try:
        _check_regular(os.fstat(descriptor), file)  # it may have been replaced since
    except OSError:
        stream.close()
        raise
    return stream


def _check_regular(status: os.stat_result, file: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(file))
