"""Locks of folders: one process at a time works in a folder."""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from pathlib import Path
from typing import BinaryIO

HELD_FOLDERS: set[Path] = set()  # folders at work in this process: the system's locks only tell processes apart


def take_lock(file: int) -> bool:
    """Take a lock that ends with this process, however it ends, and that its workers do not inherit."""
    try:
        import fcntl
    except ImportError:  # no such locks on this platform: nothing is guarded
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_locked(folder: Path, unknown: bool = True) -> bool:
    """Does a process hold the lock of this folder? `unknown` is the answer where the system cannot say."""
    if folder.resolve() in HELD_FOLDERS:  # ours; and closing a file of our own would let the lock go
        return True
    if sys.platform != "linux":
        return unknown
    import fcntl

    try:
        with open_regular(folder / "lock") as file:
            asked = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)  # struct flock: type, whence, start, length, pid
            answer = fcntl.fcntl(file.fileno(), fcntl.F_GETLK, asked)
    except OSError:
        return False
    return bool(struct.unpack("hhqqi", answer)[0] != fcntl.F_UNLCK)


def open_regular(file: Path) -> BinaryIO:
    """Open a regular file for reading; a pipe, a device or a socket is refused without being opened."""
    _check_regular(os.stat(file), file)
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    stream = os.fdopen(descriptor, "rb")
    try:
        _check_regular(os.fstat(descriptor), file)  # it may have been replaced in between
    except OSError:
        stream.close()
        raise
    return stream


def _check_regular(status: os.stat_result, file: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(file))
