"""Objects in shared memory: arrays are laid out once and seen by every process, the small rest goes through a pipe.

`pickle` with protocol 5 hands over the large buffers of an object apart from its structure. The structure travels, the
buffers lie in a shared block. Only processes that this run has started read them.
"""

from __future__ import annotations

import errno
import os
import pickle
import sys
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import cloudpickle

from fedarena.config.errors import CannotWrite
from fedarena.runtimes.cleanup import owned_name

ALIGN = 64
UNTRACKED: Any = {"track": False} if sys.version_info >= (3, 13) else {}  # before, all our processes share one tracker


@dataclass(frozen=True)
class PackedObject:
    """An object: its structure, and where in a shared block its buffers lie. Without a block they travel along."""

    structure: bytes
    places: tuple[tuple[int, int], ...]  # (start, length) of each buffer
    block: str | None
    inline: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that its buffers need."""
        return max((start + length for start, length in self.places), default=0)


class SharedBlock:
    """A shared block that this process made and will remove; it grows when asked for more than it has."""

    def __init__(self) -> None:
        self._memory: SharedMemory | None = None

    def pack(self, thing: Any) -> PackedObject:
        """Lay the object's buffers out here. What was here before is overwritten."""
        structure, buffers, places = _parts(thing)
        size = places[-1][0] + places[-1][1] if places else 0
        memory = self.reserve(size)
        _fill(memory, buffers, places)
        return PackedObject(structure, places, memory.name)

    def reserve(self, size: int) -> SharedMemory:
        """The block, at least this large."""
        if self._memory is None or self._memory.size < size:
            self.close()
            self._memory = _allocated(max(size * 5 // 4, 1 << 12))
        return self._memory

    @property
    def name(self) -> str:
        """What another process opens it by."""
        return self.reserve(1).name

    def close(self) -> None:
        """Remove it; processes that still look at it keep what they see."""
        if self._memory is not None:
            self._memory.unlink()
            _forget(self._memory)
            self._memory = None


def _allocated(size: int) -> SharedMemory:
    """A block whose pages are there: writing to a page that the system cannot give would end the process."""
    memory: SharedMemory | None = None
    try:
        _check_limit(size)  # first: Python's tracker of shared blocks prints a traceback where making one fails
        memory = SharedMemory(owned_name(), create=True, size=size)
        if hasattr(os, "posix_fallocate") and sys.platform == "linux":
            os.posix_fallocate(memory._fd, 0, size)  # type: ignore[attr-defined]
    except OSError as error:
        if memory is not None:
            memory.unlink()
            memory.close()
        more = "raise the limit on the size of files (ulimit -f)" if error.errno == errno.EFBIG else "give more"
        raise CannotWrite(
            f"no shared memory for {size / 1e6:.0f} MB: {error.strerror}",
            remedy=f"{more} (Docker: --shm-size), or use --runtime serial",
        ) from error
    return memory


def _check_limit(size: int) -> None:
    """Raise an OSError where the system's limit on the size of files is smaller; it holds for shared blocks, too."""
    if sys.platform != "win32":
        import resource

        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if most != resource.RLIM_INFINITY and most < size:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


class SharedWindow:
    """Blocks of another process, opened by name and kept open."""

    def __init__(self) -> None:
        self._open: dict[str, SharedMemory] = {}

    def _get(self, name: str) -> SharedMemory:
        if name not in self._open:
            self._open[name] = SharedMemory(name=name, **UNTRACKED)
        return self._open[name]

    def unpack(self, packed: PackedObject) -> Any:
        """The object; its arrays look straight into the shared block, read-only."""
        if packed.block is None:
            return pickle.loads(packed.structure, buffers=packed.inline)
        view = _bytes(self._get(packed.block)).toreadonly()
        return pickle.loads(packed.structure, buffers=[view[start : start + n] for start, n in packed.places])

    def pack(self, thing: Any, block: str) -> PackedObject:
        """Lay an answer out in a block of the other process, or send it along where it does not fit."""
        structure, buffers, places = _parts(thing, by_reference=True)
        size = places[-1][0] + places[-1][1] if places else 0
        memory = self._get(block)
        if size > memory.size:
            return PackedObject(structure, places, None, tuple(bytes(b.raw()) for b in buffers))
        _fill(memory, buffers, places)
        return PackedObject(structure, places, block)


def own_copy(packed: PackedObject, block: SharedBlock) -> Any:
    """The object with arrays of its own, so that the block can be used again."""
    if packed.block is None:
        return pickle.loads(packed.structure, buffers=[bytearray(b) for b in packed.inline])
    view = _bytes(block.reserve(packed.size))
    return pickle.loads(packed.structure, buffers=[bytearray(view[start : start + n]) for start, n in packed.places])


def _parts(
    thing: Any, by_reference: bool = False
) -> tuple[bytes, list[pickle.PickleBuffer], tuple[tuple[int, int], ...]]:
    buffers: list[pickle.PickleBuffer] = []
    structure = as_structure(thing, buffers, by_reference)
    places, at = [], 0
    for buffer in buffers:
        length = buffer.raw().nbytes
        places.append((at, length))
        at += -(-length // ALIGN) * ALIGN
    return structure, buffers, tuple(places)


def as_structure(thing: Any, buffers: list[pickle.PickleBuffer], by_reference: bool = False) -> bytes:
    """An object without its large buffers, which are put into `buffers`.

    An answer names its classes where it can, for the asker has them; a question brings them along.
    """
    if by_reference:
        try:
            return pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
        except (pickle.PicklingError, AttributeError, TypeError):  # a class made inside a function
            buffers.clear()
    return bytes(cloudpickle.dumps(thing, protocol=5, buffer_callback=buffers.append))


def _fill(memory: SharedMemory, buffers: list[pickle.PickleBuffer], places: tuple[tuple[int, int], ...]) -> None:
    for buffer, (start, length) in zip(buffers, places, strict=True):
        _bytes(memory)[start : start + length] = buffer.raw()


def _bytes(memory: SharedMemory) -> memoryview[int]:
    assert memory.buf is not None, "closed"
    return memory.buf


def _forget(memory: SharedMemory) -> None:
    """Unmap, unless arrays still look into it: then the mapping goes with the last of them."""
    try:
        memory.close()
    except BufferError:
        memory._mmap = None  # type: ignore[attr-defined]
        memory.close()
