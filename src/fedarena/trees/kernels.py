"""The two loops over all rows: which child each row goes to, and the sums of g and h by node and bin.

Both are compiled when the package is installed, if there is a compiler (native/boost.cpp); numpy does the same otherwise,
and gives the same bits, because integers are exact in any order.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SWITCH = "FEDARENA_KERNELS"  # "off": use numpy
Float32Array = NDArray[np.float32]


@functools.cache
def _library() -> ctypes.CDLL | None:
    path = Path(__file__).parent / f"_native{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    if not path.exists():
        return None
    kernels = ctypes.CDLL(str(path))
    at, whole = ctypes.c_void_p, ctypes.c_int64
    kernels.descend.argtypes = [at, whole, whole, at, at, whole]
    kernels.add_sums.argtypes = [at, whole, whole, at, at, at, at, whole, at]
    kernels.descend.restype = kernels.add_sums.restype = None
    return kernels


def library() -> ctypes.CDLL | None:
    """Return the compiled kernels; None where they are not built, or switched off."""
    return None if os.environ.get(SWITCH) == "off" else _library()


def descend(x: Float32Array, tree: Float32Array, node: NDArray[np.int32], levels: int) -> None:
    """Move every row of x [rows, columns] down the tree [nodes, 4] by up to so many levels, from its `node` (in place)."""
    kernels = library()
    if kernels is not None:
        assert all(a.flags.c_contiguous and a.dtype == np.float32 for a in (x, tree))
        kernels.descend(x.ctypes.data, len(x), x.shape[1], tree.ctypes.data, node.ctypes.data, levels)
        return
    rows = np.arange(len(x))
    column, threshold, missing_left = tree[:, 0].astype(np.int64), tree[:, 1], tree[:, 2] > 0
    for _ in range(levels):
        at = column[node]
        inner = at >= 0
        if not inner.any():
            return
        value = x[rows, np.maximum(at, 0)]
        left = np.where(np.isnan(value), missing_left[node], value <= threshold[node])
        node[:] = np.where(inner, 2 * node + np.where(left, 1, 2), node)


def add_sums(
    codes: NDArray[np.uint16],
    first: NDArray[np.int64],
    slot_of: NDArray[np.int32],
    node: NDArray[np.int32],
    integers: NDArray[np.int64],
    sums: NDArray[np.int64],
) -> None:
    """Add g and h [rows, 2] of every row to the sums [slots, bins, 2] of its node and of its bin in every column.

    `codes` [rows, columns] are bins, `first` the first bin of each column, `slot_of` the slot of each node or -1.
    """
    kernels = library()
    if kernels is not None:
        width = sums.shape[1]
        arrays = (codes, first, slot_of, node, integers, sums)
        assert all(a.flags.c_contiguous for a in arrays)
        at_codes, at_first, at_slots, at_nodes, at_integers, at_sums = (a.ctypes.data for a in arrays)
        kernels.add_sums(at_codes, *codes.shape, at_first, at_slots, at_nodes, at_integers, width, at_sums)
        return
    slot = slot_of[node]
    inside = np.flatnonzero(slot >= 0)
    base = slot[inside].astype(np.int64) * sums.shape[1]
    g, h = (np.ascontiguousarray(integers[inside, part]) for part in (0, 1))
    flat_g, flat_h = np.zeros(sums.shape[:2], np.int64).reshape(-1), np.zeros(sums.shape[:2], np.int64).reshape(-1)
    for column, start in enumerate(first.tolist()):
        at = base + start + codes[inside, column]
        np.add.at(flat_g, at, g)
        np.add.at(flat_h, at, h)
    sums += np.stack([flat_g, flat_h], axis=-1).reshape(sums.shape)
