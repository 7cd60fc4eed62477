"""Long numbers as rows of 64-bit words, the lowest word first."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

WORD = 64


def to_words(numbers: Iterable[int], words: int) -> Words:
    """Return one row of `words` words for each number.

    >>> to_words([1, 2**64 + 5], 2).tolist()
    [[1, 0], [5, 1]]
    """
    raw = b"".join(int(number).to_bytes(8 * words, "little") for number in numbers)
    return from_raw(raw, words)


def from_raw(raw: bytes, words: int) -> Words:
    """Return rows of `words` words from their bytes."""
    return np.frombuffer(raw, "<u8").astype(np.uint64, copy=False).reshape(-1, words)


def to_raw(rows: Words) -> bytes:
    """Return the bytes of rows, the lowest first."""
    return rows.astype("<u8", copy=False).tobytes()


def to_numbers(rows: Words) -> list[int]:
    """Return the integer that each row stands for."""
    size = 8 * rows.shape[1]
    raw = to_raw(rows)
    return [int.from_bytes(raw[start : start + size], "little") for start in range(0, len(raw), size)]


def is_below(rows: Words, bound: int) -> NDArray[np.bool_]:
    """Return which rows stand for an integer less than `bound`."""
    limit = to_words([bound], rows.shape[1])[0]
    below = np.zeros(len(rows), bool)
    equal = np.ones(len(rows), bool)  # so far, from the top
    for word in reversed(range(rows.shape[1])):
        below |= equal & (rows[:, word] < limit[word])
        equal &= rows[:, word] == limit[word]
        if not equal.any():
            break
    return below


def random_bits(count: int, bits: int) -> Words:
    """Return random integers of at most `bits` bits from the operating system."""
    words = -(-bits // WORD)
    rows = from_raw(secrets.token_bytes(8 * words * count), words).copy()
    rows[:, -1] >>= np.uint64(words * WORD - bits)
    return rows


def random_below(count: int, bound: int) -> Words:
    """Return integers uniform in [0, bound) from the operating system, by rejection sampling."""
    rows = random_bits(count, (bound - 1).bit_length())
    while len(bad := np.flatnonzero(~is_below(rows, bound))):
        rows[bad] = random_bits(len(bad), (bound - 1).bit_length())
    return rows


def contiguous(rows: Any) -> Words:
    """Return rows in the memory layout that the kernels read."""
    return np.ascontiguousarray(rows, np.uint64)
