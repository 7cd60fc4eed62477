"""Primes p for which the factors of p - 1 are known, so that a generator of all residues can be found.

p = 2 a k + 1 with a random prime a that is 16 bits shorter than p and a k that trial division factors. With a generator
g of the residues modulo p, powers of g with uniform exponents are uniform over all residues: encryption from a table of
powers then has exactly the distribution of textbook Paillier.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import secrets
from typing import Any

SHORTER = 16  # bits of p that a lacks: k is below LARGEST_COFACTOR
ROUNDS = 16  # of Miller-Rabin; FIPS 186-5 requires 5 for random candidates of 1024 bits
SIEVE = 1 << 11
LARGEST_COFACTOR = 1 << 16


@functools.cache
def small_primes(below: int) -> tuple[int, ...]:
    """Return all primes below a bound, by the sieve of Eratosthenes."""
    is_prime_at = bytearray([0, 0]) + bytearray([1]) * (below - 2)
    for number in range(2, math.isqrt(below) + 1):
        if is_prime_at[number]:
            is_prime_at[number * number :: number] = bytes(len(range(number * number, below, number)))
    return tuple(number for number in range(below) if is_prime_at[number])


@functools.cache
def _power() -> Any:
    """Return `pow`, or gmpy2's function, which is several times faster."""
    return importlib.import_module("gmpy2").powmod if importlib.util.find_spec("gmpy2") else pow


@functools.cache
def _small_product() -> int:
    return math.prod(small_primes(SIEVE))


def is_prime(number: int, rounds: int = ROUNDS) -> bool:
    """Return whether `number` is prime, by the Miller-Rabin test with random bases."""
    if number < SIEVE**2:
        return number > 1 and all(number % p for p in small_primes(SIEVE) if p * p <= number)
    if math.gcd(number, _small_product()) != 1:
        return False
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    odd, power = (number - 1) >> twos, _power()
    return all(_passes(number, odd, twos, secrets.randbelow(number - 3) + 2, power) for _ in range(rounds))


def _passes(number: int, odd: int, twos: int, base: int, power: Any) -> bool:
    x = power(base, odd, number)
    for _ in range(twos):
        if x in (1, number - 1):
            return True
        x = x * x % number
        if x == 1:
            return False
    return False


def random_prime(bits: int) -> int:
    """Return a random prime of exactly `bits` bits."""
    while True:
        number = secrets.randbits(bits) | (1 << (bits - 1)) | 1
        if is_prime(number):
            return number


def key_prime(bits: int) -> int:
    """Return a random prime p = 2 a k + 1 of exactly `bits` bits, with the two highest bits set."""
    least, most = 3 << (bits - 2), (1 << bits) - 1
    while True:
        step = 2 * random_prime(bits - SHORTER)
        smallest, largest = -(-least // step), (most - 1) // step
        for _ in range(20 * bits):  # a prime is found after 0.35 bits of tries, on average
            p = step * (smallest + secrets.randbelow(largest - smallest + 1)) + 1
            if is_prime(p):
                return p


def factors_of_order(p: int) -> list[int] | None:
    """Return the primes that divide p - 1, or None if p is not of the form of `key_prime`."""
    rest, found = p - 1, []
    for small in small_primes(LARGEST_COFACTOR):
        if rest % small == 0:
            found.append(small)
            while rest % small == 0:
                rest //= small
    return [*found, rest] if is_prime(rest) else None


def generator(p: int, factors: list[int]) -> int:
    """Return a random generator of all residues modulo p, given the primes that divide p - 1."""
    while True:
        g = 2 + secrets.randbelow(p - 3)
        if all(pow(g, (p - 1) // factor, p) != 1 for factor in factors):
            return g
