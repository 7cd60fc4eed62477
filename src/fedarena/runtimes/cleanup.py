"""Shared memory and temporary folders with the owner in their name, so that those of a killed process can be removed.

A name is `fedarena-SCOPE-PID-START-RANDOM`. START is when the process began, since the number of a process is used again.
SCOPE stands for the boot of the machine and for the process and time namespaces in which PID and START have their meaning:
containers may share a folder, and names from another scope are left alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # where Linux shows shared memory as files
PROCESSES = Path("/proc")
NAME = re.compile(r"fedarena-(?P<scope>[0-9a-f]{16})-(?P<pid>\d{1,10})-(?P<start>\d{1,20})-\w+")


def owned_name() -> str | None:
    """Return a new name for shared memory of this process, or None where the owner cannot be put into a name."""
    prefix = _prefix()
    return None if prefix is None else prefix + secrets.token_hex(8)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder that is removed at the end, or by `remove_leftovers` if this process is killed before."""
    prefix = _prefix() or "fedarena-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def remove_leftovers() -> None:
    """Remove the shared memory and the temporary folders of this user whose owners are dead, and nothing else."""
    if _scope() is None:
        return
    for name in _of_dead_owners(SHARED_MEMORY, stat.S_ISREG):
        with contextlib.suppress(OSError):  # another process may remove it at the same time
            os.unlink(name)
    for name in _of_dead_owners(Path(tempfile.gettempdir()), stat.S_ISDIR):
        shutil.rmtree(name, ignore_errors=True)


def _of_dead_owners(folder: Path, is_kind: Callable[[int], bool]) -> list[str]:
    """List what dead processes of this user left in a folder; links are not followed."""
    try:
        with os.scandir(folder) as entries:
            ours = [entry for entry in entries if entry.name.startswith("fedarena-")]
    except OSError:
        return []
    dead = []
    for entry in ours:
        owner = NAME.fullmatch(entry.name)
        if owner is None or owner["scope"] != _scope() or not _is_dead(int(owner["pid"]), int(owner["start"])):
            continue
        with contextlib.suppress(OSError):
            status = os.lstat(entry.path)
            if status.st_uid == os.geteuid() and is_kind(status.st_mode):
                dead.append(entry.path)
    return dead


def _is_dead(pid: int, start: int) -> bool:
    """Return whether the process that began at `start` is gone; where the system does not say, it counts as alive."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # it belongs to another user
        pass
    seen = _started(str(pid))
    return seen is not None and seen != start


def _prefix() -> str | None:
    scope, start = _scope(), _started("self")
    return None if scope is None or start is None else f"fedarena-{scope}-{os.getpid()}-{start}-"


def _started(process: str) -> int | None:
    """Return when a process began, in clock ticks since boot; -1 for one that has ended and waits for its parent."""
    try:
        text = (PROCESSES / process / "stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = text.rpartition(")")[2].split()  # the name before it may contain any character
        return -1 if state in ("Z", "X") else int(fields[18])
    except (OSError, ValueError, IndexError):
        return None


def _scope() -> str | None:
    """Return an identifier of the boot and the namespaces of this process; None where the system does not say."""
    return _scope_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _scope_of(pid: int) -> str | None:
    """Compute the scope once for each process: a forked one may have moved to another namespace."""
    if not SHARED_MEMORY.is_dir():
        return None
    try:
        if os.readlink(PROCESSES / "self") != str(pid):  # /proc of another namespace
            return None
        boot = (PROCESSES / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        spaces = [os.stat(PROCESSES / "self/ns/pid").st_ino]
        with contextlib.suppress(FileNotFoundError):  # kernels before 5.6 have one time for all
            spaces.append(os.stat(PROCESSES / "self/ns/time").st_ino)
    except (OSError, ValueError):
        return None
    return hashlib.sha256(f"{boot} {spaces}".encode()).hexdigest()[:16]
