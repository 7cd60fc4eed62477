"""Keys with the same methods and no encryption: INSECURE, for tests of the trees and for fast simulation."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.vertical.crypto.ciphertexts import Ciphertexts, Plaintexts
from fedarena.vertical.crypto.limbs import WORD, Words, to_numbers, to_words

HALF = 32  # bits: sums of half words leave room for 2^32 rows


@dataclass(frozen=True)
class PlainPublicKey:
    """Adds numbers modulo 2^bits without encryption."""

    bits: int = 2048

    @property
    def words(self) -> int:
        """The number of words of a plaintext."""
        return self.bits // WORD

    @property
    def width(self) -> int:
        """The number of words in place of a ciphertext."""
        return self.words

    @property
    def capacity(self) -> int:
        """The bits that a plaintext may have, as with a Paillier key of this size."""
        return self.bits - 1

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that no Paillier key has."""
        return hashlib.sha256(b"fedarena without encryption" + self.to_bytes()).hexdigest()[:16]

    def to_bytes(self) -> bytes:
        """Return the bytes that are sent to another party."""
        return self.bits.to_bytes(8, "little")

    @classmethod
    def from_bytes(cls, raw: bytes) -> PlainPublicKey:
        """Read the key of another party, checked."""
        return cls(int.from_bytes(raw, "little")).check()

    def check(self) -> PlainPublicKey:
        """Refuse a size that no key has."""
        if self.bits not in (1024, 2048, 3072):
            raise BadValue(f"a key of {self.bits} bits is not offered", remedy="use 2048 or 3072 bits")
        return self

    def refuse_bad(self, data: Words) -> None:
        """Accept all data, because every number is valid."""

    def sums(
        self, c: Ciphertexts, rows: NDArray[np.int32], starts: NDArray[np.int64], threads: int | None = None
    ) -> Ciphertexts:
        """Return the sum of each segment of rows."""
        used = np.flatnonzero(c.data.any(axis=0))
        words = int(used[-1]) + 1 if len(used) else 1
        halves = np.ascontiguousarray(c.data[:, :words]).view(np.uint32).astype(np.uint64)
        starts = np.asarray(starts, np.int64)
        out = np.zeros((len(starts) - 1, 2 * words + 2), np.uint64)
        filled = np.flatnonzero(np.diff(starts))
        if len(filled):
            # Between two filled segments there are only empty ones, so that each ends where the next begins.
            in_order = halves[np.asarray(rows, np.int64)[: starts[-1]]]
            out[filled, : 2 * words] = np.add.reduceat(in_order, starts[filled], axis=0)
        return Ciphertexts(self._carry(out))

    def _carry(self, halves: Words) -> Words:
        """Return words from sums of half words, with their carries."""
        for i in range(halves.shape[1] - 1):
            halves[:, i + 1] += halves[:, i] >> np.uint64(HALF)
            halves[:, i] &= np.uint64((1 << HALF) - 1)
        words = halves[:, 0::2] | (halves[:, 1::2] << np.uint64(HALF))
        out = np.zeros((len(halves), self.words), np.uint64)
        kept = min(self.words, words.shape[1])
        out[:, :kept] = words[:, :kept]
        return out

    def add(self, a: Ciphertexts, b: Ciphertexts) -> Ciphertexts:
        """Return a + b, element by element."""
        return self._numbers([x + y for x, y in zip(to_numbers(a.data), to_numbers(b.data), strict=True)])

    def subtract(self, a: Ciphertexts, b: Ciphertexts) -> Ciphertexts:
        """Return a - b, element by element."""
        return self._numbers([x - y for x, y in zip(to_numbers(a.data), to_numbers(b.data), strict=True)])

    def pack(self, c: Ciphertexts, width: int, count: int, threads: int | None = None) -> Ciphertexts:
        """Pack every `count` consecutive sums of `width` bits in one number, the first in the lowest bits."""
        if width * count > self.capacity:
            raise BadValue(
                f"{count} slots of {width} bits do not fit in a key of {self.bits} bits",
                remedy=f"at most {self.capacity // width} slots fit",
            )
        numbers = to_numbers(c.data)
        groups = [numbers[start : start + count] for start in range(0, len(numbers), count)]
        return self._numbers([sum(x << (width * slot) for slot, x in enumerate(group)) for group in groups])

    def rerandomise(self, c: Ciphertexts, threads: int | None = None) -> Ciphertexts:
        """Return the numbers unchanged: there is no mask."""
        return c

    def _numbers(self, numbers: list[int]) -> Ciphertexts:
        return Ciphertexts(to_words((x % (1 << self.bits) for x in numbers), self.words))


@dataclass(frozen=True)
class PlainKey:
    """Encrypts and decrypts for `PlainPublicKey` by copying the numbers."""

    public: PlainPublicKey = PlainPublicKey()

    def encrypt(self, plain: Plaintexts, exponents: str = "full", threads: int | None = None) -> Ciphertexts:
        """Return the plaintexts, padded to the width of the key."""
        if plain.data.shape[1] > self.public.words:
            raise BadValue("a plaintext is larger than the key allows", remedy="use fewer bits, or a longer key")
        out = np.zeros((len(plain), self.public.words), np.uint64)
        out[:, : plain.data.shape[1]] = plain.data
        return Ciphertexts(out)

    def decrypt(self, c: Ciphertexts, threads: int | None = None) -> list[int]:
        """Return the numbers as Python integers."""
        return to_numbers(c.data)
