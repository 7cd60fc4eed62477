"""The loops of boosted trees: which child each row goes to, sums of g and h by node and bin, and the best candidates.

They are compiled when the package is installed, if there is a compiler (native/boost.cpp); numpy does the same otherwise,
and gives the same bits: integers are exact in any order, and gains are computed in the same order of operations.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.common.arrays import address

SWITCH = "FEDARENA_KERNELS"  # "off": use numpy
Float32Array = NDArray[np.float32]


@functools.cache
def _library() -> ctypes.CDLL | None:
    path = Path(__file__).parent / f"_native{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    if not path.exists():
        return None
    kernels = ctypes.CDLL(str(path))
    if not hasattr(kernels, "best_candidates"):  # built before this function was, when the others had fewer arguments
        return None
    at, whole = ctypes.c_void_p, ctypes.c_int64
    kernels.descend.argtypes = [at, whole, whole, at, at, whole]
    kernels.add_sums.argtypes = [at, *[whole] * 2, at, at, whole, *[at] * 3, *[whole] * 3, at, whole, at]
    number = ctypes.c_double
    kernels.best_candidates.argtypes = [at, at, *[whole] * 2, *[at] * 4, whole, *[number] * 4, *[at] * 4]
    kernels.descend.restype = kernels.add_sums.restype = kernels.best_candidates.restype = None
    return kernels


def library() -> ctypes.CDLL | None:
    """Return the compiled kernels; None where they are not built, or switched off."""
    return None if os.environ.get(SWITCH) == "off" else _library()


def _at(array: NDArray[Any], dtype: type[np.generic]) -> int | None:
    assert array.flags.c_contiguous
    assert array.dtype == dtype
    return address(array)


def descend(x: Float32Array, tree: Float32Array, node: NDArray[np.int32], levels: int) -> None:
    """Move every row of x [rows, columns] down the tree [nodes, 4] by up to so many levels, from its `node` (in place)."""
    kernels = library()
    if kernels is not None:
        kernels.descend(_at(x, np.float32), len(x), x.shape[1], _at(tree, np.float32), _at(node, np.int32), levels)
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
    x: Float32Array,
    tree: Float32Array,
    node: NDArray[np.int32],
    levels: int,
    codes: NDArray[np.uint16],
    first: NDArray[np.int64],
    build: NDArray[np.int64],
    number: int,
    integers: NDArray[np.int64],
    sums: NDArray[np.int64],
) -> None:
    """Move rows down like `descend`, then add g and h [rows, 2] of each to the sums [build, bins, 2] of its node and bins.

    `codes` [rows, columns] are bins, `first` the first bin of each column, `build` [build, (tree, node)] the nodes of all
    trees that are summed, and `number` that of this tree.
    """
    kernels = library()
    if kernels is not None:
        kernels.add_sums(
            _at(x, np.float32), *codes.shape, _at(tree, np.float32), _at(node, np.int32), levels, _at(codes, np.uint16),
            _at(first, np.int64), _at(build, np.int64), len(build), number, len(tree), _at(integers, np.int64),
            sums.shape[1], _at(sums, np.int64),
        )  # fmt: skip
        return
    descend(x, tree, node, levels)
    slots = np.flatnonzero(build[:, 0] == number)
    slot_of = np.full(len(tree), -1)
    slot_of[build[slots, 1]] = slots
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


def best_candidates(
    sums: NDArray[np.int64],
    totals: NDArray[np.int64],
    ranges: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]],
    units: tuple[float, float],
    penalty: float,
    least_weight: float,
) -> tuple[NDArray[np.int64], Float32Array, NDArray[np.int64]] | None:
    """Return the first candidate with the largest gain of each node, this gain, and the sums [nodes, 2] to its left.

    `sums` [nodes, bins, 2] and `totals` [nodes, 2] are integers in `units`. `ranges` are the first and the last bin on the
    left of each candidate, its missing bin, and whether both go left. Without kernels there is no result: `growth` computes
    the same with numpy.
    """
    kernels = library()
    if kernels is None:
        return None
    (nodes, width, _), (start, last, missing, both) = sums.shape, ranges
    best, gains, left = np.empty(nodes, np.int64), np.empty(nodes, np.float32), np.empty((nodes, 2), np.int64)
    upto = np.empty((width + 1, 2), np.int64)  # sums of the bins before each
    kernels.best_candidates(
        _at(sums, np.int64), _at(totals, np.int64), nodes, width, _at(start, np.int64), _at(last, np.int64),
        _at(missing, np.int64), _at(both, np.bool_), len(last), *units, penalty, least_weight,
        _at(upto, np.int64), _at(best, np.int64), _at(gains, np.float32), _at(left, np.int64),
    )  # fmt: skip
    return best, gains, left
