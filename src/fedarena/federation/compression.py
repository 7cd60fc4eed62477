"""Compress arrays without loss: zeros left by top-k are not sent, few distinct values travel as a table and short codes,
small integers in as few bits as they need. So the bytes that the uplink counts are about those on the wire."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

SMALLEST = 64  # numbers below which compression does not pay
PIECE = 1 << 16  # numbers that are packed at once; a multiple of eight, so that a piece ends with a byte
KINDS = ("float32", "float64", "uint32")  # by their number in a form
DENSE, PLACES, BITMAP = range(3)


def compress(arrays: Arrays) -> Arrays:
    """Return each array, or its parts under names with a colon where these are smaller."""
    found: Arrays = {}
    for name, array in arrays.items():
        parts = _parts(array) if array.size >= SMALLEST and array.dtype.name in KINDS else {}
        smaller = parts and sum(part.nbytes for part in parts.values()) < array.nbytes
        found |= {f"{name}:{part}": value for part, value in parts.items()} if smaller else {name: array}
    return found


def _parts(array: NDArray[Any]) -> Arrays:
    bits = np.ascontiguousarray(array).reshape(-1).view(f"u{array.itemsize}")  # minus zero is not zero
    used = np.flatnonzero(bits)
    mode, where = _places(used, bits.size)
    values = bits if mode == DENSE else bits[used]
    if array.dtype == np.uint32:  # codes already
        table, codes = values[:0], values
    else:
        table, codes = np.unique(values, return_inverse=True)
    width = max(int(codes.max(initial=0)).bit_length(), 1)
    parts: Arrays = {
        "form": np.array([KINDS.index(array.dtype.name), mode, len(values), width, *array.shape], np.int64)
    }
    if mode != DENSE:
        parts["where"] = where
    if table.nbytes + len(codes) * width / 8 >= values.nbytes:
        return {**parts, "raw": values}
    return {**parts, "codes": _packed(codes.astype(np.uint32), width), "table": table}


def _places(used: NDArray[np.int64], size: int) -> tuple[int, NDArray[Any]]:
    """Return how the positions of nonzero values are sent (all, as a list or as a bitmap), and the positions."""
    if len(used) > 0.9 * size:
        return DENSE, np.empty(0, np.uint32)
    if 4 * len(used) < size / 8:
        return PLACES, used.astype(np.uint32)
    bitmap = np.zeros(size, bool)
    bitmap[used] = True
    return BITMAP, np.packbits(bitmap)


def _packed(codes: NDArray[np.uint32], width: int) -> NDArray[np.uint8]:
    """Pack the lowest bits of each code, piece by piece."""
    places, pieces = np.arange(width, dtype=np.uint32), [np.empty(0, np.uint8)]
    for start in range(0, len(codes), PIECE):
        bits = (codes[start : start + PIECE, None] >> places) & np.uint32(1)
        pieces.append(np.packbits(bits.astype(np.uint8)))
    return np.concatenate(pieces)


def _unpacked(packed: NDArray[np.uint8], count: int, width: int) -> NDArray[np.uint32]:
    if len(packed) != -(-count * width // 8):
        raise ValueError("codes that do not fit")
    places, codes = np.arange(width, dtype=np.uint32), np.empty(count, np.uint32)
    for start in range(0, count, PIECE):
        many = min(PIECE, count - start)
        piece = packed[start * width // 8 : -(-(start + many) * width // 8)]
        bits = np.unpackbits(piece, count=many * width).reshape(many, width).astype(np.uint32)
        codes[start : start + many] = (bits << places).sum(axis=1, dtype=np.uint32)
    return codes


def decompress(arrays: Arrays, limit: int) -> Arrays:
    """Return the original arrays; raise ValueError for parts that do not fit together, or beyond the limit of bytes."""
    names = list(dict.fromkeys(name.partition(":")[0] for name in arrays))
    found: Arrays = {}
    for name in names:
        found[name] = arrays[name] if name in arrays else _whole(arrays, name, limit)
        limit -= found[name].nbytes
        if limit < 0:
            raise ValueError("arrays that are too large together")
    return found


def _whole(arrays: Arrays, name: str, limit: int) -> NDArray[Any]:
    form = arrays[f"{name}:form"]
    if form.dtype != np.int64 or form.ndim != 1 or len(form) < 4:
        raise ValueError("a form that is not valid")
    kind, mode, count, width, *shape = form.tolist()
    size = math.prod(shape)
    dtype = np.dtype(KINDS[kind])
    fits = kind >= 0 and mode in (DENSE, PLACES, BITMAP) and 0 <= count <= size and 1 <= width <= 32
    if not fits or min(shape, default=0) < 0 or size * dtype.itemsize > limit:
        raise ValueError("a form that does not fit")
    values = _values(arrays, name, count, width, dtype.itemsize)
    if mode == DENSE:
        flat = values if count == size else np.empty(0, values.dtype)
    else:
        flat = np.zeros(size, values.dtype)
        where = arrays[f"{name}:where"]
        at = where if mode == PLACES else np.flatnonzero(np.unpackbits(where, count=size))
        if len(at) != count or (count and int(at.max()) >= size):
            raise ValueError("places that do not fit")
        flat[at] = values
    return flat.view(dtype).reshape(shape)


def _values(arrays: Arrays, name: str, count: int, width: int, itemsize: int) -> NDArray[Any]:
    unsigned = np.dtype(f"u{itemsize}")
    if f"{name}:raw" in arrays:
        raw = arrays[f"{name}:raw"]
        if raw.dtype != unsigned or raw.shape != (count,):
            raise ValueError("numbers that do not fit")
        return raw
    codes, table = _unpacked(arrays[f"{name}:codes"], count, width), arrays[f"{name}:table"]
    if not len(table):
        return codes.astype(unsigned)
    if table.dtype != unsigned or table.ndim != 1 or (count and int(codes.max()) >= len(table)):
        raise ValueError("a table that does not fit")
    found: NDArray[Any] = table[codes]
    return found
