"""A range of work in pieces, one a thread; the kernels do not hold Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from fedarena.vertical.crypto.limbs import Words

LANES = 8  # numbers that a kernel takes at a time


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def even_cuts(count: int, threads: int) -> list[int]:
    """Where to cut `count` numbers so that every thread has whole lanes."""
    lanes = -(-count // LANES)
    return [min(count, LANES * (lanes * piece // threads)) for piece in range(threads + 1)]


def in_pieces(work: Callable[[int, int], Words], cuts: Sequence[int]) -> Words:
    """work(from, to) for every piece, side by side, one after the other in the answer."""
    pieces = [(start, end) for start, end in pairwise(cuts) if start < end] or [(cuts[0], cuts[0])]
    if len(pieces) == 1:
        return work(*pieces[0])
    with ThreadPoolExecutor(len(pieces)) as pool:
        return np.concatenate(list(pool.map(lambda piece: work(*piece), pieces)))
