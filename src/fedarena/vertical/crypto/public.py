"""The public key of a host: add, pack, re-randomise and check ciphertexts that it cannot read."""

from __future__ import annotations

import functools
import hashlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.vertical.crypto import backends, parallel, primes
from fedarena.vertical.crypto.backends import integers
from fedarena.vertical.crypto.ciphertexts import Ciphertexts
from fedarena.vertical.crypto.limbs import WORD, Words, is_below, random_below, to_numbers, to_words

SIZES = (2048, 3072)
WORTH_A_THREAD = 512  # additions
CHECKED = 512  # ciphertexts whose product is tested for a factor of n at once
OLD_SIZE = 1024  # of older papers; only to compare with their timings


def check_size(bits: int, allow_1024: bool) -> None:
    """Refuse a key that is too short, or of a size without a kernel."""
    if bits == OLD_SIZE and allow_1024:
        warnings.warn("a key of 1024 bits can be broken; use it to compare with old figures only", stacklevel=3)
    elif bits not in SIZES:
        raise BadValue(
            f"a key of {bits} bits is not offered",
            remedy="use 2048 or 3072 bits (1024 only under a flag of its own, to compare with old figures)",
            where="key_bits",
        )


@dataclass(frozen=True)
class PublicKey:
    """The part of a key that a host knows: it can add ciphertexts and cannot decrypt them."""

    n: int

    @functools.cached_property
    def bits(self) -> int:
        """The size of the key in bits."""
        return self.n.bit_length()

    @property
    def words(self) -> int:
        """The number of words of one digit base n."""
        return -(-self.bits // WORD)

    @property
    def width(self) -> int:
        """The number of words of a ciphertext."""
        return 2 * self.words

    @functools.cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that identify the key."""
        return hashlib.sha256(b"fedarena paillier" + self.to_bytes()).hexdigest()[:16]

    @property
    def capacity(self) -> int:
        """The number of bits that any plaintext may have."""
        return self.bits - 1

    def to_bytes(self) -> bytes:
        """Return the bytes that are sent to another party."""
        return self.n.to_bytes(8 * self.words, "little")

    @classmethod
    def from_bytes(cls, raw: bytes, *, allow_1024: bool = False) -> PublicKey:
        """Read the key of another party, checked."""
        return cls(int.from_bytes(raw, "little")).check(allow_1024=allow_1024)

    def check(self, *, allow_1024: bool = False) -> PublicKey:
        """Refuse a modulus that cannot be the product of two large primes."""
        check_size(self.bits, allow_1024)
        has_small_factor = any(self.n % p == 0 for p in primes.small_primes(primes.LARGEST_COFACTOR))
        if has_small_factor or math.isqrt(self.n) ** 2 == self.n or primes.is_prime(self.n, rounds=2):
            raise BadValue(
                "the public key is not the product of two large primes",
                remedy="the guest must send a key made by fedarena",
            )
        return self

    def refuse_bad(self, data: Words) -> None:
        """Raise if a row is not in range, or shares a factor with n."""
        halves = data.reshape(-1, self.words)
        if not is_below(halves, self.n).all():
            raise BadValue("a ciphertext is out of range", remedy="the other party uses another key, or is not honest")
        starts = np.append(np.arange(0, len(data), CHECKED), len(data))
        products = self.sums(Ciphertexts(data), np.arange(len(data), dtype=np.int32), starts)
        if any(math.gcd(low, self.n) != 1 for low, _ in self.digits(products)):
            raise BadValue(
                "a ciphertext shares a factor with the modulus", remedy="no honest party sends one; end the session"
            )

    def sums(
        self, c: Ciphertexts, rows: NDArray[np.int32], starts: NDArray[np.int64], threads: int | None = None
    ) -> Ciphertexts:
        """Return the encrypted sum of each segment rows[starts[i]:starts[i + 1]]; an empty one is 0 without a mask."""
        rows, starts = np.ascontiguousarray(rows, np.int32), np.ascontiguousarray(starts, np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(c):
            raise IndexError(f"rows must lie in [0, {len(c)})")
        if len(starts) < 1 or starts[0] < 0 or starts[-1] > len(rows) or (np.diff(starts) < 0).any():
            raise IndexError("starts must not decrease, and end within the rows")
        ring, data = self._ring, self._data(c)
        shares = min(pieces(threads), 1 + len(rows) // WORTH_A_THREAD)
        even = np.linspace(starts[0], starts[-1], shares + 1)
        cuts = [0, *np.searchsorted(starts, even[1:-1]).tolist(), len(starts) - 1]
        multiply = lambda start, end: ring.products(data, rows, starts[start : end + 1])
        return Ciphertexts(parallel.run_in_pieces(multiply, cuts))

    def add(self, a: Ciphertexts, b: Ciphertexts) -> Ciphertexts:
        """Return a + b, element by element."""
        if len(a) != len(b):
            raise ValueError(f"{len(a)} and {len(b)} ciphertexts cannot be added")
        rows = np.arange(2 * len(a), dtype=np.int32).reshape(2, -1).T.ravel()
        return self.sums(Ciphertexts.concatenate([a, b]), rows, np.arange(0, 2 * len(a) + 1, 2))

    def subtract(self, a: Ciphertexts, b: Ciphertexts) -> Ciphertexts:
        """Return a - b modulo n, element by element."""
        inverses = integers.inverses([low + self.n * high for low, high in self.digits(b)], self.n * self.n)
        digits = [digit for inverse in inverses for digit in reversed(divmod(inverse, self.n))]
        return self.add(a, Ciphertexts(to_words(digits, self.words).reshape(-1, self.width)))

    def digits(self, c: Ciphertexts) -> list[tuple[int, int]]:
        """Return the two digits base n of each ciphertext."""
        numbers = to_numbers(self._data(c).reshape(-1, self.words))
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def pack(self, c: Ciphertexts, width: int, count: int, threads: int | None = None) -> Ciphertexts:
        """Pack every `count` consecutive sums of `width` bits in one ciphertext, the first in the lowest bits."""
        if width * count > self.capacity:
            raise BadValue(
                f"{count} slots of {width} bits do not fit in a key of {self.bits} bits",
                remedy=f"at most {self.capacity // width} slots fit",
            )
        ring, data = self._ring, self._data(c)
        pack = lambda start, end: ring.pack(data[start * count : end * count], width, count)
        return Ciphertexts(run_evenly(pack, -(-len(c) // count), threads))

    def rerandomise(self, c: Ciphertexts, threads: int | None = None) -> Ciphertexts:
        """Return the same plaintexts under fresh masks r^n, each with its own r.

        The owner of the private key may know all masks of a sum, and the factors of n. A mask from a short exponent, or
        from the powers of one base, could be tested against them; r^n with uniform r cannot.
        """
        found, n = self._ring, self.n

        def fresh_masks(start: int, end: int) -> Words:
            fresh = np.zeros((end - start, self.width), np.uint64)
            fresh[:, : self.words] = random_below(end - start, n)
            return found.powers(fresh, n)

        return self.add(c, Ciphertexts(run_evenly(fresh_masks, len(c), threads)))

    def _data(self, c: Ciphertexts) -> Words:
        """Return the words of ciphertexts; a kernel does not check their shape."""
        if c.data.ndim != 2 or c.data.shape[1] != self.width:
            raise ValueError(f"ciphertexts of this key have {self.width} words, not shape {c.data.shape}")
        return c.data

    @property
    def _ring(self) -> backends.Ring:
        return backends.ring(backends.backend().name, self.n)


def run_evenly(task: Callable[[int, int], Words], count: int, threads: int | None) -> Words:
    """Run task(start, end) for pieces of a range of this length, one per thread."""
    return parallel.run_in_pieces(task, parallel.even_cuts(count, pieces(threads)))


def pieces(threads: int | None) -> int:
    """Return the number of threads: by default that of the cores, if the backend uses threads."""
    return (threads or parallel.cores()) if backends.backend().uses_threads else 1
