"""Primes have the wanted form, and generators generate all residues."""

from __future__ import annotations

import pytest

from fedarena.vertical.crypto import primes


def test_known_primes_and_composites() -> None:
    assert [x for x in range(60) if primes.is_prime(x)] == [
        2,
        3,
        5,
        7,
        11,
        13,
        17,
        19,
        23,
        29,
        31,
        37,
        41,
        43,
        47,
        53,
        59,
    ]
    assert len(primes.small_primes(1 << 16)) == 6542
    assert all(primes.is_prime(2**e - 1) for e in (61, 89, 107, 127, 521, 607))  # Mersenne's
    assert not any(primes.is_prime(2**e - 1) for e in (67, 101, 257, 509))
    assert not primes.is_prime((2**127 - 1) * (2**89 - 1))
    # (6k+1)(12k+1)(18k+1) with prime factors: Fermat's test calls these prime for every base without a common factor
    for k in range(10**9, 10**9 + 4000):
        factors = [6 * k + 1, 12 * k + 1, 18 * k + 1]
        if all(map(primes.is_prime, factors)):
            assert not primes.is_prime(factors[0] * factors[1] * factors[2])
            return
    raise AssertionError("no Carmichael number in range")


@pytest.mark.parametrize("attempt", range(20))
def test_a_key_prime_has_a_known_group(attempt: int) -> None:
    p = primes.key_prime(256)
    assert p.bit_length() == 256
    assert p >> 254 == 3
    factors = primes.factors_of_order(p)
    assert factors is not None
    rest = p - 1
    for factor in factors:
        assert primes.is_prime(factor)
        while rest % factor == 0:
            rest //= factor
    assert rest == 1
    assert max(factors).bit_length() == 256 - primes.SHORTER
    g = primes.generator(p, factors)
    assert all(pow(g, (p - 1) // factor, p) != 1 for factor in factors)


def test_a_foreign_prime_is_distinguished_from_ours() -> None:
    assert primes.factors_of_order(2 * (2**89 - 1) * (2**107 - 1) + 1) is None  # two large factors
