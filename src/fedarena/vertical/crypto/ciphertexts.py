"""Plaintexts and ciphertexts as rows of 64-bit words.

A ciphertext c < n² is stored as two digits base n, c = low + n high: it takes as many bytes as c itself, and products
modulo n² cost five eighths of the usual cost (native/pairs.h).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedarena.config.errors import BadValue
from fedarena.vertical.crypto.limbs import WORD, Words, from_raw, to_raw, to_words

if TYPE_CHECKING:
    from fedarena.vertical.crypto.plain import PlainPublicKey
    from fedarena.vertical.crypto.public import PublicKey


@dataclass(frozen=True, eq=False)
class Plaintexts:
    """Non-negative integers, a row of words each, with as many words as the largest needs."""

    data: Words

    def __post_init__(self) -> None:
        if self.data.ndim != 2 or self.data.dtype != np.uint64:
            raise ValueError(f"plaintexts are rows of uint64, not {self.data.dtype} of shape {self.data.shape}")

    def __len__(self) -> int:
        return len(self.data)


def plaintexts(numbers: Sequence[int]) -> Plaintexts:
    """Return Python integers as plaintexts.

    >>> plaintexts([3, 2**64]).data.tolist()
    [[3, 0], [0, 1]]
    """
    longest = max((number.bit_length() for number in numbers), default=1)
    return Plaintexts(to_words(numbers, max(1, -(-longest // WORD))))


@dataclass(frozen=True, eq=False)
class Ciphertexts:
    """Encrypted numbers, a row of words each: low digits base n, then high digits."""

    data: Words

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, rows: slice) -> Ciphertexts:
        return Ciphertexts(self.data[rows])

    def __iter__(self) -> Iterator[Ciphertexts]:
        return (self[row : row + 1] for row in range(len(self)))

    def take(self, rows: Sequence[int] | np.ndarray) -> Ciphertexts:
        """Return these ciphertexts, in this order."""
        return Ciphertexts(self.data[np.asarray(rows, np.int64)])

    def to_bytes(self) -> bytes:
        """Return the bytes that are sent to another party."""
        return to_raw(self.data)

    @classmethod
    def from_bytes(cls, public: PublicKey | PlainPublicKey, raw: bytes) -> Ciphertexts:
        """Read ciphertexts of this key from bytes, and refuse all others."""
        if len(raw) % (8 * public.width):
            raise BadValue(
                f"{len(raw)} bytes are not a whole number of ciphertexts of {8 * public.width} bytes",
                remedy="the other party uses another key size, or the message was damaged",
            )
        data = from_raw(raw, public.width)
        public.refuse_bad(data)
        return cls(data)

    @staticmethod
    def concatenate(parts: Iterable[Ciphertexts]) -> Ciphertexts:
        """Return all ciphertexts, one part after the other."""
        return Ciphertexts(np.concatenate([part.data for part in parts]))


def unpack(numbers: Sequence[int], width: int, count: int, total: int) -> list[int]:
    """Return the `total` slots of packed numbers, `count` to a number, the first in the lowest bits.

    >>> unpack([0x030201, 0x04], width=8, count=3, total=4)
    [1, 2, 3, 4]
    """
    mask = (1 << width) - 1
    return [(numbers[slot // count] >> (width * (slot % count))) & mask for slot in range(total)]
