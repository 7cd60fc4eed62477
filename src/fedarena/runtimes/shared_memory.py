"""Objects in shared memory: large arrays are written once and read by every process, the small rest goes through a pipe.

`pickle` with protocol 5 separates the large buffers of an object from its structure. The structure goes through the pipe,
the buffers are in a shared block, which only worker processes of this process read.
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

Places = tuple[tuple[int, int], ...]  # (start, length) of each buffer
ALIGN = 64
UNTRACKED: Any = {"track": False} if sys.version_info >= (3, 13) else {}  # before, all workers share one tracker


@dataclass(frozen=True)
class PackedObject:
    """The structure of an object, and where in a shared block its buffers are; without a block they are in `inline`."""

    structure: bytes
    places: Places
    block: str | None
    inline: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """The number of bytes that its buffers need."""
        return max((start + length for start, length in self.places), default=0)


class SharedBlock:
    """A block of shared memory that this process creates, makes larger when needed, and removes."""

    def __init__(self) -> None:
        self._memory: SharedMemory | None = None

    def pack(self, value: Any) -> PackedObject:
        """Write the object's buffers into the block, over the previous ones; an object without buffers needs no block."""
        structure, buffers, places = _parts(value)
        if not places:
            return PackedObject(structure, places, None)
        memory = self.reserve(sum(places[-1]))
        _fill(memory, buffers, places)
        return PackedObject(structure, places, memory.name)

    def reserve(self, size: int) -> SharedMemory:
        """Return the block, made larger if it is smaller than `size` bytes."""
        if self._memory is None or self._memory.size < size:
            self.close()
            self._memory = _allocated(max(size * 5 // 4, 1 << 12))
        return self._memory

    @property
    def name(self) -> str | None:
        """The name by which another process opens the block; None before there is one."""
        return None if self._memory is None else self._memory.name

    def close(self) -> None:
        """Remove the block; processes that have it open can still read it."""
        if self._memory is not None:
            self._memory.unlink()
            _forget(self._memory)
            self._memory = None


def _allocated(size: int) -> SharedMemory:
    """Create a block and allocate its pages: writing to a page that the system cannot provide would end the process."""
    memory: SharedMemory | None = None
    try:
        _check_limit(size)  # first: if creation fails, Python's tracker of shared blocks prints a traceback
        memory = SharedMemory(owned_name(), create=True, size=size)
        if hasattr(os, "posix_fallocate") and sys.platform == "linux":
            os.posix_fallocate(memory._fd, 0, size)  # type: ignore[attr-defined]
    except OSError as error:
        if memory is not None:
            memory.unlink()
            memory.close()
        more = "raise the limit on the size of files (ulimit -f)" if error.errno == errno.EFBIG else "provide more"
        raise CannotWrite(
            f"no shared memory for {size / 1e6:.0f} MB: {error.strerror}",
            remedy=f"{more} (Docker: --shm-size), or use --runtime serial",
        ) from error
    return memory


def _check_limit(size: int) -> None:
    """Raise an OSError if the system's limit on the size of files, which also limits shared blocks, is smaller."""
    if sys.platform != "win32":
        import resource

        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if most != resource.RLIM_INFINITY and most < size:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


class SharedWindow:
    """Blocks of another process, which stay open once they are used."""

    def __init__(self) -> None:
        self._open: dict[str, SharedMemory] = {}

    def _get(self, name: str) -> SharedMemory:
        if name not in self._open:
            self._open[name] = SharedMemory(name=name, **UNTRACKED)
        return self._open[name]

    def unpack(self, packed: PackedObject) -> Any:
        """Return the object; its arrays are read-only views of the shared block."""
        if packed.block is None:
            return pickle.loads(packed.structure, buffers=packed.inline)
        view = _bytes(self._get(packed.block)).toreadonly()
        return pickle.loads(packed.structure, buffers=[view[start : start + n] for start, n in packed.places])

    def pack(self, value: Any, block: str | None) -> PackedObject:
        """Write a result into a block of the other process, or return it with its buffers where it does not fit."""
        structure, buffers, places = _parts(value, by_reference=True)
        memory = None if block is None else self._get(block)
        if memory is None or not places or sum(places[-1]) > memory.size:
            return _inline(structure, buffers, places)
        _fill(memory, buffers, places)
        return PackedObject(structure, places, block)


def pack_inline(value: Any) -> PackedObject:
    """Return an object with its buffers, without shared memory."""
    return _inline(*_parts(value))


def own_copy(packed: PackedObject, block: SharedBlock) -> Any:
    """Return the object with arrays of its own, so that the block can be used again."""
    if packed.block is None:
        return pickle.loads(packed.structure, buffers=[bytearray(b) for b in packed.inline])
    view = _bytes(block.reserve(packed.size))
    return pickle.loads(packed.structure, buffers=[bytearray(view[start : start + n]) for start, n in packed.places])


def _inline(structure: bytes, buffers: list[pickle.PickleBuffer], places: Places) -> PackedObject:
    return PackedObject(structure, places, None, tuple(bytes(buffer.raw()) for buffer in buffers))


def _parts(value: Any, by_reference: bool = False) -> tuple[bytes, list[pickle.PickleBuffer], Places]:
    buffers: list[pickle.PickleBuffer] = []
    structure = as_structure(value, buffers, by_reference)
    places, at = [], 0
    for buffer in buffers:
        length = buffer.raw().nbytes
        places.append((at, length))
        at += -(-length // ALIGN) * ALIGN
    return structure, buffers, tuple(places)


def as_structure(value: Any, buffers: list[pickle.PickleBuffer], by_reference: bool = False) -> bytes:
    """Pickle an object without its large buffers, which are put into `buffers`.

    A result refers to its classes by name where it can, since the receiver has them; arguments bring them along.
    """
    if by_reference:
        try:
            return pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        except (pickle.PicklingError, AttributeError, TypeError):  # a class made inside a function
            buffers.clear()
    return bytes(cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append))


def _fill(memory: SharedMemory, buffers: list[pickle.PickleBuffer], places: Places) -> None:
    for buffer, (start, length) in zip(buffers, places, strict=True):
        _bytes(memory)[start : start + length] = buffer.raw()


def _bytes(memory: SharedMemory) -> memoryview[int]:
    assert memory.buf is not None, "closed"
    return memory.buf


def _forget(memory: SharedMemory) -> None:
    """Unmap the block; if arrays still use it, it is unmapped with the last of them."""
    try:
        memory.close()
    except BufferError:
        memory._mmap = None  # type: ignore[attr-defined]
        memory.close()
