"""Arithmetic in the compiled kernels (native/), for AVX512-IFMA or for any processor.

They are built when the package is installed, if there is a compiler; this module chooses one by the features of the
processor.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.vertical.crypto.limbs import WORD, Words, contiguous, to_words

FOLDER = Path(__file__).parent.parent
WINDOW = 10  # bits of an exponent per product of the fixed base


class KernelBackend:
    """A backend with one build of the kernels."""

    uses_threads = True

    def __init__(self, name: str, library: ctypes.CDLL) -> None:
        self.name, self.library = name, library
        for maker in (library.fedarena_ring, library.fedarena_table):
            maker.restype = ctypes.c_void_p

    def ring(self, n: int) -> KernelRing:
        """Return the arithmetic modulo n²."""
        return KernelRing(self.library, n)

    def join(self, p: int, q: int) -> KernelJoin:
        """Return the encryption from residues modulo p² and q²."""
        return KernelJoin(self.ring(p * q), p, q)


class KernelRing:
    """Arithmetic modulo n²; a number is a row of words, its two digits base n."""

    def __init__(self, library: Any, n: int) -> None:
        self.library, self.n = library, n
        self.words = -(-n.bit_length() // WORD)
        self.radix = 1 << library.fedarena_radix(self.words)
        if self.radix == 1:
            raise ValueError(f"there is no kernel for numbers of {n.bit_length()} bits")
        self.longest = int(library.fedarena_longest())
        powers = [1]
        while len(powers) <= self.longest:
            powers.append(powers[-1] * self.radix % (n * n))
        constants = [to_words([x], self.words) for x in (n, -self.radix % n)] + [self.pairs(powers)]
        self.handle = ctypes.c_void_p(library.fedarena_ring(self.words, *map(_address, constants)))
        weakref.finalize(self, library.fedarena_ring_free, self.handle)

    def pairs(self, numbers: list[int]) -> Words:
        """Return Python integers as rows."""
        digits = [digit for number in numbers for digit in reversed(divmod(number, self.n))]
        return to_words(digits, self.words).reshape(-1, 2 * self.words)

    def empty(self, count: int) -> Words:
        """Return uninitialised rows for a result."""
        return np.empty((count, 2 * self.words), np.uint64)

    def products(self, data: Words, rows: NDArray[np.int32], starts: NDArray[np.int64]) -> Words:
        """Return the product of each segment of rows; 1 where it is empty."""
        pieces = np.maximum(1, -(-np.diff(starts) // self.longest))
        if not len(data) or len(pieces) == pieces.sum():
            return self._short_products(data, rows, starts)
        firsts = np.concatenate([[0], np.cumsum(pieces)])
        inside = np.arange(firsts[-1]) - np.repeat(firsts[:-1], pieces)
        cuts = np.append(np.repeat(starts[:-1], pieces) + self.longest * inside, starts[-1])
        partial = self._short_products(data, rows, cuts)
        return self.products(partial, np.arange(len(partial), dtype=np.int32), firsts)

    def _short_products(self, data: Words, rows: NDArray[np.int32], starts: NDArray[np.int64]) -> Words:
        """Return the products of segments that are short enough for the kernel."""
        out, data, starts = self.empty(len(starts) - 1), contiguous(data), np.ascontiguousarray(starts, np.int64)
        arrays = [_address(array) for array in (out, data, rows, starts)]
        self.library.fedarena_products(self.handle, *arrays, _size(len(out)))
        return out

    def powers(self, data: Words, exponent: int) -> Words:
        """Return each number to the same power."""
        out, data, bits = self.empty(len(data)), contiguous(data), max(1, exponent.bit_length())
        digits = to_words([exponent], -(-bits // WORD))
        self.library.fedarena_powers(
            self.handle, _address(out), _address(data), _size(len(data)), _address(digits), bits
        )
        return out

    def pack(self, data: Words, width: int, count: int) -> Words:
        """Return for every `count` numbers c_0, c_1, ... the product of c_i to the power 2^(width i)."""
        out, data = self.empty(-(-len(data) // count)), contiguous(data)
        self.library.fedarena_pack(self.handle, _address(out), _address(data), _size(len(data)), width, count)
        return out

    def fixed_base(self, base: int, bits: int) -> KernelPowers:
        """Return the powers of one base, for exponents of at most `bits` bits."""
        return KernelPowers(self, base, bits)


class KernelPowers:
    """Powers of one base from a table in the kernel's memory."""

    def __init__(self, ring: KernelRing, base: int, bits: int) -> None:
        self.ring, self.words = ring, -(-bits // WORD)
        start = ring.pairs([base])
        self.handle = ctypes.c_void_p(
            ring.library.fedarena_table(ring.handle, _address(start), WINDOW, -(-bits // WINDOW))
        )
        if not self.handle:
            raise MemoryError("there is no memory for the table of powers")
        weakref.finalize(self, ring.library.fedarena_table_free, self.handle)

    def powers(self, exponents: Words) -> Words:
        """Return the base to each of these exponents."""
        out, exponents = self.ring.empty(len(exponents)), contiguous(exponents)
        self.ring.library.fedarena_fixed(
            self.ring.handle, _address(out), self.handle, _address(exponents), self.words, _size(len(exponents))
        )
        return out


class KernelJoin:
    """Encryption by the Chinese remainder theorem, from masks modulo p² and q² to ciphertexts modulo n²."""

    def __init__(self, ring: KernelRing, p: int, q: int) -> None:
        square, r_squared = ring.n**2, ring.radix**2
        # 1 modulo p² and 0 modulo q², and the other way round; the kernel divides by R twice
        factors = [b * pow(b, -1, a) * r_squared % square for a, b in ((p * p, q * q), (q * q, p * p))]
        self.ring, self.factors = ring, ring.pairs(factors)
        self.primes = [to_words([prime], ring.words // 2) for prime in (p, q)]

    def encrypt(self, mask_p: Words, mask_q: Words, plain: Words) -> Words:
        """Return (1 + m n) times the masks with these residues."""
        out, plain = self.ring.empty(len(plain)), contiguous(plain)
        arrays = (out, mask_p, mask_q, *self.primes, self.factors, plain)
        self.ring.library.fedarena_encrypt(self.ring.handle, *map(_address, arrays), plain.shape[1], _size(len(plain)))
        return out


def portable() -> KernelBackend | None:
    """Return the backend for any processor, if it was built."""
    library = _library("portable")
    return None if library is None else KernelBackend("portable", library)


def ifma() -> KernelBackend | None:
    """Return the backend for AVX512-IFMA, if it was built and this processor has it."""
    generic, library = _library("portable"), _library("ifma")
    if generic is None or library is None or not generic.fedarena_has_ifma():
        return None
    return KernelBackend("ifma", library)


def _library(build: str) -> ctypes.CDLL | None:
    path = FOLDER / f"_paillier_{build}{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    return ctypes.CDLL(str(path)) if path.exists() else None


def _address(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _size(count: int) -> ctypes.c_int64:
    return ctypes.c_int64(count)
