"""Measure the cost of each Paillier operation in each backend in one run: ratios are reliable, microseconds drift.

    python benchmarks/paillier.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedarena.vertical.crypto import backends
from fedarena.vertical.crypto.ciphertexts import Ciphertexts, plaintexts
from fedarena.vertical.crypto.keys import PrivateKey, generate
from fedarena.vertical.crypto.limbs import random_bits, to_numbers

LANES = 16  # numbers of the smallest measurement: two full vectors of the widest kernel
WIDTH = 128  # bits of a packed sum: g and h, 64 bits each
TEXTBOOK = "mask again"  # r^n and a product: the cost of textbook encryption

Operation = Callable[[PrivateKey, Ciphertexts], object]


@dataclass(frozen=True)
class Cost:
    """The cost of one operation on one thread; `ratio` is the speed-up over the reference."""

    operation: str
    backend: str
    microseconds: float
    ratio: float


def measure(bits: int = 2048, names: Sequence[str] | None = None, rounds: int = 3, seconds: float = 0.1) -> list[Cost]:
    """Return the best of several rounds, in which the backends alternate.

    Ratios are to the same operation with gmpy2 (with Python integers where it is missing), those of encryption to
    textbook encryption there.
    """
    key = generate(bits, allow_1024=bits == 1024)
    names = list(names or backends.available())
    best: dict[tuple[str, str], float] = {}
    for _ in range(rounds):
        for name in names:
            with _forced(name):
                for operation, (run, units) in _operations(key).items():
                    cost = _once(run, units, key, seconds)
                    best[operation, name] = min(cost, best.get((operation, name), cost))
    reference = "gmpy2" if "gmpy2" in names else names[-1]
    return [
        Cost(operation, name, 1e6 * cost, best[_compared(operation), reference] / cost)
        for (operation, name), cost in sorted(best.items(), key=lambda item: item[0][0])
    ]


def show(costs: Sequence[Cost]) -> None:
    """Print the costs as a table on the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table("operation", "backend", title="Paillier, one thread")
    for column in ("µs", "times faster"):
        table.add_column(column, justify="right")
    for cost in costs:
        table.add_row(cost.operation, cost.backend, f"{cost.microseconds:,.2f}", f"{cost.ratio:,.1f}")
    Console().print(table)


def _compared(operation: str) -> str:
    return TEXTBOOK if operation.startswith("encrypt") else operation


def _operations(key: PrivateKey) -> dict[str, tuple[Operation, int]]:
    """Return the operations on ciphertexts, and the units of each per ciphertext."""
    slots = key.public.capacity // WIDTH
    return {
        "add": (_add, 4),
        "decrypt": (lambda key, c: key.decrypt(c, threads=1), 1),
        "encrypt, full": (lambda key, c: key.encrypt(_plain(len(c)), "full", threads=1), 1),
        "encrypt, short": (lambda key, c: key.encrypt(_plain(len(c)), "short", threads=1), 1),
        TEXTBOOK: (lambda key, c: key.public.rerandomise(c, threads=1), 1),
        f"pack {slots} slots": (lambda key, c: key.public.pack(_repeated(c, slots), WIDTH, slots, threads=1), 1),
    }


def _add(key: PrivateKey, c: Ciphertexts) -> Ciphertexts:
    order = np.tile(np.arange(len(c), dtype=np.int32), 4)
    return key.public.sums(c, order, np.linspace(0, len(order), 9).astype(np.int64), threads=1)


def _plain(count: int) -> Any:
    return plaintexts(to_numbers(random_bits(count, WIDTH)))


def _repeated(c: Ciphertexts, times: int) -> Ciphertexts:
    return Ciphertexts(np.repeat(c.data, times, axis=0))


def _once(operation: Operation, units: int, key: PrivateKey, seconds: float) -> float:
    """Return the seconds of a unit: on few ciphertexts first, then on as many as fill the time."""
    few = key.encrypt(_plain(LANES), "short")
    operation(key, few)  # compute tables, warm the memory
    cost = _timed(operation, key, few)
    repeats = int(min(256, seconds / max(cost, 1e-6)))
    if repeats < 2:
        return cost / (units * LANES)
    return _timed(operation, key, _repeated(few, repeats)) / (units * LANES * repeats)


def _timed(operation: Operation, key: PrivateKey, c: Ciphertexts) -> float:
    start = time.thread_time()  # of this thread alone: others on the machine do not count
    operation(key, c)
    return time.thread_time() - start


@contextmanager
def _forced(name: str) -> Iterator[None]:
    before = os.environ.get(backends.SWITCH)
    os.environ[backends.SWITCH] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[backends.SWITCH]
        else:
            os.environ[backends.SWITCH] = before


if __name__ == "__main__":
    show(measure())
