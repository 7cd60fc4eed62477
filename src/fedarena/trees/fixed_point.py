"""Encode g and h as integers in slots of 64 bits, so that sums are exact in any order.

G = round(g 2^s). A sum never overflows: rows x largest value is checked to stay below 2^63, so all sums fit numpy's
integers. Where integers are encrypted, an offset makes G positive: the guest subtracts offset x count from a sum.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue

SLOT = 64  # bits

Sums = NDArray[np.int64]  # [..., outputs, 2]: g and h


@dataclass(frozen=True)
class FixedPoint:
    """How the g and h of a tree are encoded as integers: value = integer / 2^shift."""

    g_shift: int
    h_shift: int
    offset: int  # added to each G
    top: tuple[int, int]  # the largest G + offset, and the largest H

    @property
    def units(self) -> tuple[float, float]:
        """Return the values of the integer 1 in G and in H: powers of two, by which all products are exact."""
        return math.ldexp(1.0, -self.g_shift), math.ldexp(1.0, -self.h_shift)

    def encode(self, g: NDArray[np.floating], h: NDArray[np.floating]) -> Sums:
        """Return g and h as integers [rows, outputs, 2]."""
        integers = np.empty((*g.shape, 2), np.int64)
        for part, (values, shift) in enumerate(((g, self.g_shift), (h, self.h_shift))):
            scaled = np.multiply(values, math.ldexp(1.0, shift), dtype=np.float64)  # by a power of two: exact
            integers[..., part] = np.rint(scaled, out=scaled)
        return integers

    def decode(self, sums: Sums) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return G and H of sums as floats, each rounded once."""
        g_unit, h_unit = self.units
        return sums[..., 0] * np.float64(g_unit), sums[..., 1] * np.float64(h_unit)

    def to_slots(self, integers: Sums) -> NDArray[np.uint64]:
        """Return positive words [rows, 2 outputs] for encryption."""
        shifted: Sums = integers + np.array([self.offset, 0])
        return shifted.reshape(len(integers), -1).astype(np.uint64)

    def from_slots(self, slots: NDArray[np.uint64], counts: NDArray[np.int64]) -> Sums:
        """Return sums from the slots of their ciphertexts [..., 2 outputs], given the number of rows of each."""
        sums: Sums = slots.astype(np.int64).reshape(*counts.shape, slots.shape[-1] // 2, 2)
        offsets: Sums = counts[..., None, None] * np.array([self.offset, 0])
        return sums - offsets


def fixed_point(g: NDArray[np.floating], h: NDArray[np.floating], precision: int | None) -> FixedPoint:
    """Return the finest fixed point whose sums over all these rows fit a slot.

    >>> fixed_point(np.array([-1.0, 1.0]), np.array([0.25, 0.25]), None).g_shift
    59
    """
    return bounded_fixed_point(
        float(np.abs(g).max(initial=0)), float(np.abs(h).max(initial=0)), max(len(g), 1), precision
    )


@functools.lru_cache(maxsize=64)
def bounded_fixed_point(g_top: float, h_top: float, rows: int, precision: int | None = None) -> FixedPoint:
    """Return the finest fixed point whose sums over so many rows fit a slot, from bounds of |g| and h.

    >>> bounded_fixed_point(1.0, 0.25, rows=30_000).g_shift
    46
    """
    if not (math.isfinite(g_top) and math.isfinite(h_top)):
        raise BadValue("the gradients are no longer finite", remedy="lower lr, or check for extreme labels or weights")
    # |value| <= 2^(exponent): with the offset G is below 2^(exponent + 1)
    g_exp, h_exp = (math.frexp(top)[1] if top > 0 else 0 for top in (g_top, h_top))
    room = SLOT - 2 - rows.bit_length()
    bits = room if precision is None else precision
    if bits > room:
        raise BadValue(
            f"{precision} bits of precision do not fit: {rows} rows leave {room} in a slot",
            remedy=f"choose precision {room} or less, or leave it out",
            where="precision",
        )
    offset = math.ceil(math.ldexp(g_top, bits - g_exp))
    top = (2 * offset, math.ceil(math.ldexp(h_top, bits - h_exp)))
    if rows * max(top) >= 1 << (SLOT - 1):
        raise BadValue("a slot would overflow", remedy="choose a lower precision", where="precision")
    return FixedPoint(bits - g_exp, bits - h_exp, offset, top)


class ExactSums:
    """Exact sums of integers by group: floating-point sums of their high and low bits, which do not round."""

    LOW_BITS = 24

    def __init__(self, integers: Sums) -> None:
        flat = integers.reshape(len(integers), -1)
        self.shape = integers.shape[1:]
        self._high = [np.ascontiguousarray(c) for c in (flat >> self.LOW_BITS).astype(np.float64).T]
        self._low = [np.ascontiguousarray(c) for c in (flat & ((1 << self.LOW_BITS) - 1)).astype(np.float64).T]

    def by_group(self, group: NDArray[np.integer], groups: int, rows: NDArray[np.integer] | None = None) -> Sums:
        """Return the sums [groups, outputs, 2] of these rows (or all); `group` is the group of each."""
        out = np.empty((groups, len(self._high)), dtype=np.int64)
        for i, (high, low) in enumerate(zip(self._high, self._low, strict=True)):
            a, b = (high, low) if rows is None else (high[rows], low[rows])
            upper = np.bincount(group, a, groups).astype(np.int64)
            out[:, i] = (upper << self.LOW_BITS) + np.bincount(group, b, groups).astype(np.int64)
        return out.reshape(groups, *self.shape)
