"""Run a kernel on pieces of a range, one per thread; the kernels release Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from fedarena.vertical.crypto.limbs import Words

LANES = 8  # numbers that a kernel processes at a time


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def even_cuts(count: int, threads: int) -> list[int]:
    """Return where to cut `count` numbers so that every thread has whole lanes."""
    lanes = -(-count // LANES)
    return [min(count, LANES * (lanes * piece // threads)) for piece in range(threads + 1)]


def run_in_pieces(task: Callable[[int, int], Words], cuts: Sequence[int]) -> Words:
    """Run task(start, end) for every piece in parallel, and return the results in order."""
    pieces = [(start, end) for start, end in pairwise(cuts) if start < end] or [(cuts[0], cuts[0])]
    if len(pieces) == 1:
        return task(*pieces[0])
    with ThreadPoolExecutor(len(pieces)) as pool:
        return np.concatenate(list(pool.map(lambda piece: task(*piece), pieces)))
