"""Every backend against numbers of Python: all sizes, the smallest and the largest modulus, edge values, uneven counts."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest

from fedarena.vertical.crypto import backends
from fedarena.vertical.crypto.limbs import Words, is_below, random_below, to_numbers, to_words

SIZES = [512, 1024, 1536, 2048, 3072]  # bits of n, and of p and q, for keys of 1024, 2048 and 3072 bits


def moduli(bits: int) -> list[int]:
    """One that is all but a power of two from either side, where reductions are hardest, and one at random."""
    return [(1 << (bits - 1)) + 1, (1 << bits) - 1, random.Random(bits).getrandbits(bits) | 1 | 1 << (bits - 1)]


def numbers(n: int, count: int, seed: int = 0) -> list[int]:
    """Modulo n²: the edges of both digits, then random ones."""
    dice = random.Random(seed)
    edges = [n * n - 1, 1, n - 1, n, n + 1, n * n - n, 0, (n // 2) * n + n - 1]
    return (edges + [dice.randrange(n * n) for _ in range(count)])[:count]


def pairs(values: list[int], n: int) -> Words:
    words = -(-n.bit_length() // 64)
    return to_words((d for x in values for d in reversed(divmod(x, n))), words).reshape(-1, 2 * words)


def values(data: Words, n: int) -> list[int]:
    digits = to_numbers(data.reshape(-1, data.shape[1] // 2))
    assert all(digit < n for digit in digits)
    return [low + n * high for low, high in zip(digits[::2], digits[1::2], strict=True)]


def made(backend: str) -> backends.Backend:
    found = backends.backend()
    assert found.name == backend
    return found


@pytest.mark.parametrize("bits", SIZES)
def test_products_of_segments(backend: str, bits: int) -> None:
    for n in moduli(bits):
        xs = numbers(n, 21)
        lengths = [1, 0, 2, 0, 0, 300, 7, 1, 1, 1, 1, 1, 1, 600, 3, 0]  # longer than a kernel takes at once, and empty
        rows = np.array(random.Random(1).choices([i for i, x in enumerate(xs) if x], k=sum(lengths)), np.int32)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        got = values(made(backend).ring(n).products(pairs(xs, n), rows, starts), n)
        wanted = []
        for start, end in pairwise(starts.tolist()):
            product = 1
            for row in rows[start:end].tolist():
                product = product * xs[row] % (n * n)
            wanted.append(product)
        assert got == wanted


@pytest.mark.parametrize("bits", SIZES)
def test_all_products_of_edge_values(backend: str, bits: int) -> None:
    for n in moduli(bits):
        xs = numbers(n, 8)
        rows = np.array([(i, j) for i in range(8) for j in range(8)], np.int32).ravel()
        got = values(made(backend).ring(n).products(pairs(xs, n), rows, np.arange(0, 129, 2)), n)
        assert got == [a * b % (n * n) for a in xs for b in xs]


def test_a_segment_may_be_very_long(backend: str) -> None:
    n = moduli(512)[2]
    count = 70_000 if made(backend).uses_threads else 300  # more than 256 times 256: cut twice
    got = made(backend).ring(n).products(pairs([3], n), np.zeros(count, np.int32), np.array([0, count]))
    assert values(got, n) == [pow(3, count, n * n)]


@pytest.mark.slow
@pytest.mark.parametrize("bits", SIZES)
def test_powers(backend: str, bits: int) -> None:
    for n in moduli(bits):
        xs, ring = numbers(n, 9), made(backend).ring(n)
        for exponent in (0, 1, 2, 31, 32, 1 << 70, random.Random(2).getrandbits(131)):
            assert values(ring.powers(pairs(xs, n), exponent), n) == [pow(x, exponent, n * n) for x in xs]


@pytest.mark.parametrize("bits", SIZES)
@pytest.mark.parametrize(("count", "slots", "width"), [(1, 3, 5), (3, 3, 64), (25, 2, 7), (8, 1, 9)])
def test_packing(backend: str, bits: int, count: int, slots: int, width: int) -> None:
    n = moduli(bits)[1]
    xs = numbers(n, count)
    got = values(made(backend).ring(n).pack(pairs(xs, n), width, slots), n)
    wanted = [
        math.prod(pow(x, 1 << (width * i), n * n) for i, x in enumerate(xs[at : at + slots]))
        for at in range(0, count, slots)
    ]
    assert got == [product % (n * n) for product in wanted]


@pytest.mark.slow
@pytest.mark.parametrize("bits", SIZES)
@pytest.mark.parametrize("length", [5, 64, 320])
def test_powers_of_a_fixed_base(backend: str, bits: int, length: int) -> None:
    n = moduli(bits)[2]
    base = numbers(n, 20)[-1]
    exponents = [0, 1, (1 << length) - 1, *(random.Random(i).getrandbits(length) for i in range(8))]
    table = made(backend).ring(n).fixed_base(base, length)
    got = values(table.powers(to_words(exponents, -(-length // 64))), n)
    assert got == [pow(base, e, n * n) for e in exponents]


@pytest.mark.parametrize("bits", [512, 1024, 1536])
def test_halves_are_put_together(backend: str, bits: int) -> None:
    p, q = (1 << bits) - 1, (1 << bits) - 3  # odd, two apart: they have no factor in common; as large as they can be
    n = p * q
    xs, ys = numbers(p, 11, seed=3), numbers(q, 11, seed=4)
    for words in (1, 3, 2 * bits // 64):
        dice = random.Random(words)
        plain = [0, 1, min(n, 1 << (64 * words)) - 1, *(dice.randrange(min(n, 1 << (64 * words))) for _ in range(8))]
        got = values(made(backend).join(p, q).encrypt(pairs(xs, p), pairs(ys, q), to_words(plain, words)), n)
        assert [c % (p * p) for c in got] == [(1 + m * n) * x % (p * p) for m, x in zip(plain, xs, strict=True)]
        assert [c % (q * q) for c in got] == [(1 + m * n) * y % (q * q) for m, y in zip(plain, ys, strict=True)]


def test_comparison_looks_at_every_word() -> None:
    bound = (5 << 128) + (7 << 64) + 9
    rows = [bound - 1, bound, bound + 1, bound - (1 << 64), bound + (1 << 64), 4 << 128, 6 << 128, 0]
    assert is_below(to_words(rows, 3), bound).tolist() == [x < bound for x in rows]


def test_random_numbers_fill_their_range_evenly() -> None:
    drawn = random_below(30_000, 3)
    counts = np.bincount(drawn[:, 0].astype(int))
    assert len(counts) == 3
    assert np.abs(counts - 10_000).max() < 500  # six standard deviations of 82
    long = to_numbers(random_below(200, 3 << 100))
    assert max(x.bit_length() for x in long) == 102
    assert all(x < 3 << 100 for x in long)
