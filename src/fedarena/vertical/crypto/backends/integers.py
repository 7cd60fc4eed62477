"""Arithmetic with integers of Python or gmpy2, for machines without the compiled kernels."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.vertical.crypto.limbs import WORD, Words, to_numbers, to_words

Integer = Callable[[int], Any]  # int, or gmpy2.mpz
Power = Callable[[Any, int, Any], Any]

WINDOW = 6  # bits of an exponent per product of the fixed base


@dataclass(frozen=True)
class IntegerBackend:
    """A backend with integers of Python or gmpy2."""

    name: str
    integer: Integer
    power: Power
    uses_threads = False  # Python's lock allows one at a time

    def ring(self, n: int) -> IntegerRing:
        """Return the arithmetic modulo n²."""
        return IntegerRing(n, self.integer, self.power)

    def join(self, p: int, q: int) -> IntegerJoin:
        """Return the encryption from residues modulo p² and q²."""
        return IntegerJoin(self.ring(p), self.ring(q), self.ring(p * q))


class IntegerRing:
    """Arithmetic modulo n²; a number is a row of words, its two digits base n."""

    def __init__(self, n: int, integer: Integer, power: Power) -> None:
        self.n, self.square = integer(n), integer(n * n)
        self.words = -(-n.bit_length() // WORD)
        self.integer, self.power = integer, power

    def numbers(self, data: Words) -> list[Any]:
        """Return the integers that rows of words stand for."""
        low, high = (to_numbers(digits) for digits in (data[:, : self.words], data[:, self.words :]))
        return [self.integer(a) + self.n * b for a, b in zip(low, high, strict=True)]

    def pairs(self, numbers: list[Any]) -> Words:
        """Return integers as rows of words, two digits base n."""
        split = [divmod(number, self.n) for number in numbers]
        low = to_words((int(a) for _, a in split), self.words)
        return np.hstack([low, to_words((int(b) for b, _ in split), self.words)])

    def products(self, data: Words, rows: NDArray[np.int32], starts: NDArray[np.int64]) -> Words:
        """Return the product of each segment of rows; 1 where it is empty."""
        numbers, order = self.numbers(data), rows.tolist()
        return self.pairs([self._product(numbers, order[start:end]) for start, end in pairwise(starts.tolist())])

    def _product(self, numbers: list[Any], rows: list[int]) -> Any:
        product = self.integer(1)
        for row in rows:
            product = product * numbers[row] % self.square
        return product

    def powers(self, data: Words, exponent: int) -> Words:
        """Return each number to the same power."""
        return self.pairs([self.power(number, exponent, self.square) for number in self.numbers(data)])

    def pack(self, data: Words, width: int, count: int) -> Words:
        """Return for every `count` numbers c_0, c_1, ... the product of c_i to the power 2^(width i)."""
        numbers, packed = self.numbers(data), []
        for start in range(0, len(numbers), count):
            product = self.integer(1)
            for number in reversed(numbers[start : start + count]):
                product = self.power(product, 1 << width, self.square) * number % self.square
            packed.append(product)
        return self.pairs(packed)

    def fixed_base(self, base: int, bits: int) -> IntegerPowers:
        """Return the powers of one base, for exponents of at most `bits` bits."""
        return IntegerPowers(self, base, bits)


class IntegerPowers:
    """Powers of one base from a table: entry [i][d] is base to the d 2^(i WINDOW)."""

    def __init__(self, ring: IntegerRing, base: int, bits: int) -> None:
        self.ring, self.table = ring, []
        step = ring.integer(base)
        for _ in range(-(-bits // WINDOW)):
            entries = [ring.integer(1)]
            for _ in range(1 << WINDOW):
                entries.append(entries[-1] * step % ring.square)
            step = entries.pop()
            self.table.append(entries)

    def powers(self, exponents: Words) -> Words:
        """Return the base to each of these exponents."""
        return self.ring.pairs([self._power(exponent) for exponent in to_numbers(exponents)])

    def _power(self, exponent: int) -> Any:
        product, square = self.ring.integer(1), self.ring.square
        for entries in self.table:
            product = product * entries[exponent & ((1 << WINDOW) - 1)] % square
            exponent >>= WINDOW
        return product


@dataclass(frozen=True)
class IntegerJoin:
    """Encryption by the Chinese remainder theorem, from masks modulo p² and q² to ciphertexts modulo n²."""

    p: IntegerRing
    q: IntegerRing
    n: IntegerRing

    def encrypt(self, mask_p: Words, mask_q: Words, plain: Words) -> Words:
        """Return (1 + m n) times the masks with these residues."""
        n, square, q_square = self.n.n, self.n.square, self.q.square
        inverse = self.n.power(q_square, -1, self.p.square)
        residues = zip(self.p.numbers(mask_p), self.q.numbers(mask_q), to_numbers(plain), strict=True)
        return self.n.pairs(
            [(1 + m * n) * (b + q_square * ((a - b) * inverse % self.p.square)) % square for a, b, m in residues]
        )


def python() -> IntegerBackend:
    """Return the backend with Python integers, which is always available."""
    return IntegerBackend("python", int, pow)


def gmpy2() -> IntegerBackend | None:
    """Return the backend with gmpy2, if it is installed."""
    if importlib.util.find_spec("gmpy2") is None:
        return None
    library = importlib.import_module("gmpy2")
    return IntegerBackend("gmpy2", library.mpz, library.powmod)


def inverses(numbers: list[int], modulus: int) -> list[int]:
    """Return the inverse of each number, with one inversion and three products each (Montgomery's trick)."""
    integer = (gmpy2() or python()).integer
    products = [integer(1)]
    for number in numbers:
        products.append(products[-1] * number % modulus)
    rest, out = integer(pow(int(products.pop()), -1, modulus)), []
    for number, product in zip(reversed(numbers), reversed(products), strict=True):
        out.append(int(rest * product % modulus))
        rest = rest * number % modulus
    return out[::-1]
