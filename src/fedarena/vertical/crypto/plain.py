"""No encryption at all, behind the same methods: INSECURE, for tests of the trees and for quick simulation."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.vertical.crypto.ciphertexts import Ciphertexts, Plaintexts
from fedarena.vertical.crypto.limbs import WORD, Words, to_numbers, to_words

HALF = 32  # sums of halves of words leave room for 2^32 rows


@dataclass(frozen=True)
class PlainPublicKey:
    """Adds numbers modulo 2^bits that anybody can read."""

    bits: int = 2048

    @property
    def words(self) -> int:
        """Words of a number."""
        return self.bits // WORD

    @property
    def width(self) -> int:
        """Words of what stands for a ciphertext."""
        return self.words

    @property
    def capacity(self) -> int:
        """As a real key of this size has it."""
        return self.bits - 1

    @property
    def fingerprint(self) -> str:
        """A name that no real key has."""
        return hashlib.sha256(b"fedarena without encryption" + self.to_bytes()).hexdigest()[:16]

    def to_bytes(self) -> bytes:
        """As it travels."""
        return self.bits.to_bytes(8, "little")

    @classmethod
    def from_bytes(cls, raw: bytes) -> PlainPublicKey:
        """What has arrived."""
        return cls(int.from_bytes(raw, "little")).check()

    def check(self) -> PlainPublicKey:
        """Refuse what no key of ours is."""
        if self.bits not in (1024, 2048, 3072):
            raise BadValue(f"a key of {self.bits} bits is not offered", remedy="use 2048 or 3072 bits")
        return self

    def refuse_bad(self, data: Words) -> None:
        """Every number will do."""

    def sums(
        self, c: Ciphertexts, rows: NDArray[np.int32], starts: NDArray[np.int64], threads: int | None = None
    ) -> Ciphertexts:
        """The sum of each segment of rows."""
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
        return Ciphertexts(self._carried(out))

    def _carried(self, halves: Words) -> Words:
        """Halves that have grown too long, as words again."""
        for place in range(halves.shape[1] - 1):
            halves[:, place + 1] += halves[:, place] >> np.uint64(HALF)
            halves[:, place] &= np.uint64((1 << HALF) - 1)
        words = halves[:, 0::2] | (halves[:, 1::2] << np.uint64(HALF))
        out = np.zeros((len(halves), self.words), np.uint64)
        kept = min(self.words, words.shape[1])
        out[:, :kept] = words[:, :kept]
        return out

    def add(self, a: Ciphertexts, b: Ciphertexts) -> Ciphertexts:
        """Element by element, a + b."""
        return self._numbers([x + y for x, y in zip(to_numbers(a.data), to_numbers(b.data), strict=True)])

    def subtract(self, a: Ciphertexts, b: Ciphertexts) -> Ciphertexts:
        """Element by element, a - b."""
        return self._numbers([x - y for x, y in zip(to_numbers(a.data), to_numbers(b.data), strict=True)])

    def pack(self, c: Ciphertexts, width: int, count: int, threads: int | None = None) -> Ciphertexts:
        """Every `count` consecutive sums of `width` bits in one number, the first in the lowest bits."""
        if width * count > self.capacity:
            raise BadValue(
                f"{count} slots of {width} bits do not fit in a key of {self.bits} bits",
                remedy=f"at most {self.capacity // width} slots fit",
            )
        numbers = to_numbers(c.data)
        groups = [numbers[start : start + count] for start in range(0, len(numbers), count)]
        return self._numbers([sum(x << (width * slot) for slot, x in enumerate(group)) for group in groups])

    def rerandomise(self, c: Ciphertexts, threads: int | None = None) -> Ciphertexts:
        """There is nothing to hide."""
        return c

    def _numbers(self, numbers: list[int]) -> Ciphertexts:
        return Ciphertexts(to_words((x % (1 << self.bits) for x in numbers), self.words))


@dataclass(frozen=True)
class PlainKey:
    """Reads what `PlainPublicKey` adds."""

    public: PlainPublicKey = PlainPublicKey()

    def encrypt(self, plain: Plaintexts, exponents: str = "full", threads: int | None = None) -> Ciphertexts:
        """The numbers themselves."""
        if plain.data.shape[1] > self.public.words:
            raise BadValue("a plaintext is larger than the key allows", remedy="use fewer bits, or a longer key")
        out = np.zeros((len(plain), self.public.words), np.uint64)
        out[:, : plain.data.shape[1]] = plain.data
        return Ciphertexts(out)

    def decrypt(self, c: Ciphertexts, threads: int | None = None) -> list[int]:
        """The numbers themselves."""
        return to_numbers(c.data)
