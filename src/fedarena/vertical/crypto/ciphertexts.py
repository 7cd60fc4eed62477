"""What is encrypted, and what comes of it: rows of words.

A ciphertext c < n² is written as two digits base n, c = low + n high: as many bytes as c itself, and products modulo n²
cost five eighths of what they cost otherwise (native/pairs.h).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedarena.config.errors import BadValue
from fedarena.vertical.crypto.limbs import WORD, Words, from_raw, to_numbers, to_raw, to_words


class Receiver(Protocol):
    """Whoever knows what a ciphertext must look like: a public key."""

    @property
    def width(self) -> int:
        """Words of a ciphertext."""

    def refuse_bad(self, data: Words) -> None:
        """Raise if a row is no ciphertext of this key."""


@dataclass(frozen=True, eq=False)
class Plaintexts:
    """Whole numbers from 0, a row of words each; as few words as the largest needs will do."""

    data: Words

    def __post_init__(self) -> None:
        if self.data.ndim != 2 or self.data.dtype != np.uint64:
            raise ValueError(f"plaintexts are rows of uint64, not {self.data.dtype} of shape {self.data.shape}")

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, rows: slice) -> Plaintexts:
        return Plaintexts(self.data[rows])

    def to_list(self) -> list[int]:
        """As numbers of Python."""
        return to_numbers(self.data)


def plaintexts(numbers: Sequence[int]) -> Plaintexts:
    """Numbers of Python as plaintexts.

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
        """Some of them, in this order."""
        return Ciphertexts(self.data[np.asarray(rows, np.int64)])

    def to_bytes(self) -> bytes:
        """As they travel."""
        return to_raw(self.data)

    @classmethod
    def from_bytes(cls, public: Receiver, raw: bytes) -> Ciphertexts:
        """What has arrived, refused if it is not a whole number of ciphertexts of this key."""
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
        """One after the other."""
        return Ciphertexts(np.concatenate([part.data for part in parts]))


def unpack(numbers: Sequence[int], width: int, count: int, total: int) -> list[int]:
    """The `total` slots of packed numbers, `count` to a number, the first in the lowest bits.

    >>> unpack([0x030201, 0x04], width=8, count=3, total=4)
    [1, 2, 3, 4]
    """
    mask = (1 << width) - 1
    return [(numbers[slot // count] >> (width * (slot % count))) & mask for slot in range(total)]
