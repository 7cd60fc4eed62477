"""Read the fields of a frame: each must be there, of its type and within its bounds, or the frame is refused."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedarena.transport.frames import refused

T = TypeVar("T")


def whole(fields: dict[str, Any], name: str, low: int = 0, high: int = 2**31 - 1) -> int:
    """Return an integer from low to high."""
    value = fields.get(name)
    if not isinstance(value, int) or not low <= value <= high:
        raise refused(f"the field '{name}' is not an integer from {low} to {high}")
    return value


def text(fields: dict[str, Any], name: str) -> str:
    """Return a text field, or refuse the frame."""
    return _typed(fields, name, str, "a text")


def raw(fields: dict[str, Any], name: str) -> bytes:
    """Return a field of bytes, or refuse the frame."""
    return _typed(fields, name, bytes, "bytes")


def _typed(fields: dict[str, Any], name: str, kind: type[T], called: str) -> T:
    value = fields.get(name)
    if not isinstance(value, kind):
        raise refused(f"the field '{name}' is not {called}")
    return value


def numbers(
    fields: dict[str, Any], name: str, low: int, high: int, length: int | None = None, most: int | None = None
) -> NDArray[np.int64]:
    """Return an array of integers from low to high, of this length, or with at most `most` entries."""
    value = fields.get(name)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or value.ndim != 1:
        raise refused(f"the field '{name}' is not a list of integers")
    if (length is not None and len(value) != length) or (most is not None and len(value) > most):
        raise refused(f"the field '{name}' has {len(value)} entries, {length if length is not None else most} expected")
    if len(value) and (int(value.min()) < low or int(value.max()) > high):
        raise refused(f"the field '{name}' has entries beyond {low} to {high}")
    return value.astype(np.int64)


def starts(fields: dict[str, Any], name: str, segments: int, end: int) -> NDArray[np.int64]:
    """Return the start of each segment, and the end of the last."""
    value = numbers(fields, name, 0, end, length=segments + 1)
    if value[0] != 0 or value[-1] != end or (np.diff(value) < 0).any():
        raise refused(f"the field '{name}' does not cut {end} entries into {segments} segments")
    return value


def bits(fields: dict[str, Any], name: str, length: int) -> NDArray[np.bool_]:
    """Return so many booleans, which travel as eight in a byte."""
    value = raw(fields, name)
    if len(value) != -(-length // 8):
        raise refused(f"the field '{name}' has {len(value)} bytes, {-(-length // 8)} expected")
    return np.unpackbits(np.frombuffer(value, np.uint8), count=length).astype(bool)


def as_bits(values: NDArray[np.bool_]) -> bytes:
    """Return booleans in the form that `bits` reads."""
    return np.packbits(values).tobytes()
