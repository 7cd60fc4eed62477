"""Exact sums of float64 values as integers in fixed point.

Such a sum does not depend on the order of its terms, and masks that cancel in it leave every bit as it was. The sums of the
clients of a federation therefore give the bits of the mean over all their samples in one table.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue

POINT = 1074  # binary places of a sum: every float64 is a multiple of 2**-1074
SQUARE_POINT = 2 * POINT  # binary places of a sum of squares
LARGEST_POWER = 500  # values up to 2**500: their sums of squares fit into WIDTH bits for 10**8 samples
WORDS = 102  # 32-bit words of a masked integer
WIDTH = 32 * WORDS
MANTISSA = 53  # bits of a float64's mantissa
HALF = 27  # bits of the lower half of a mantissa
LOW = (1 << HALF) - 1

Integers = NDArray[np.int64]


def exact_sum(values: NDArray[np.float64]) -> int:
    """Return the sum of finite values times 2**1074, as an integer.

    >>> exact_sum(np.array([0.1, 1e100, -1e100])) == exact_sum(np.array([0.1]))
    True
    """
    mantissas, exponents, starts = _grouped(values)
    return _weighted(_sums(mantissas, starts), exponents, POINT - MANTISSA)


def exact_sum_of_squares(values: NDArray[np.float64]) -> int:
    """Return the sum of squares of finite values times 2**2148, as an integer.

    >>> exact_sum_of_squares(np.array([3.0, -4.0])) == 25 << SQUARE_POINT
    True
    """
    mantissas, exponents, starts = _grouped(values)
    high, low = np.abs(mantissas) >> HALF, np.abs(mantissas) & LOW
    parts = (_sums(product, starts) for product in (high * high, high * low, low * low))
    totals = [(a << 2 * HALF) + (b << HALF + 1) + c for a, b, c in zip(*parts, strict=True)]
    return _weighted(totals, 2 * exponents, SQUARE_POINT - 2 * MANTISSA)


def exact_moments(values: NDArray[np.float64], samples: int) -> tuple[float, float]:
    """Return the mean of the values and their standard deviation among `samples`, of which the others are at the mean.

    Both follow from exact sums and are rounded once (the deviation a second time, by the square root).

    >>> exact_moments(np.array([1.0, 3.0]), 2), exact_moments(np.array([1.0, 3.0]), 8)
    ((2.0, 1.0), (2.0, 0.5))
    """
    n, total, squares = len(values), exact_sum(values), exact_sum_of_squares(values)
    variance = (squares * n - total * total) / ((n * samples) << SQUARE_POINT)
    return total / (n << POINT), math.sqrt(variance)


def _grouped(values: NDArray[np.float64]) -> tuple[Integers, Integers, Integers]:
    """Return integer mantissas sorted by exponent, the distinct exponents, and where each of them starts."""
    if not (np.abs(values) <= 2.0**LARGEST_POWER).all():
        raise BadValue(
            "a column holds values above 2**500: sums of squares would overflow", remedy="rescale or drop it"
        )
    fractions, powers = np.frexp(values)
    order = np.argsort(powers, kind="stable")
    exponents, starts = np.unique(powers[order], return_index=True)
    return np.ldexp(fractions[order], MANTISSA).astype(np.int64), exponents.astype(np.int64), starts


def _sums(integers: Integers, starts: Integers) -> list[int]:
    """Return the sum of each group; halves are added apart, so that 64 bits suffice."""
    if not len(starts):
        return []
    high, low = (np.add.reduceat(part, starts) for part in (integers >> HALF, integers & LOW))
    return [(int(a) << HALF) + int(b) for a, b in zip(high, low, strict=True)]


def _weighted(totals: list[int], exponents: Integers, shift: int) -> int:
    """Return the sum of totals times powers of two; a negative shift drops zeros only."""
    shifts = [int(exponent) + shift for exponent in exponents]
    return sum(total << s if s >= 0 else total >> -s for total, s in zip(totals, shifts, strict=True))
