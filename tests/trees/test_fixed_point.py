"""Fixed point: exact sums, no slot that overflows, and the offset is subtracted from sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena.config.errors import BadValue
from fedarena.trees.fixed_point import SLOT, ExactSums, fixed_point

RNG = np.random.default_rng(0)


@given(st.integers(1, 10**5), st.floats(1e-9, 1e9), st.floats(1e-9, 1e9))
def test_no_slot_can_overflow(rows: int, g: float, h: float) -> None:
    """For any number of rows the sum of the largest possible values stays below half a slot."""
    bits = SLOT - 2 - rows.bit_length()
    point = fixed_point(np.broadcast_to(g, (rows, 1)), np.broadcast_to(h, (rows, 1)), None)
    assert rows * max(point.top) < 1 << (SLOT - 1)
    assert point.top[0] >= 1 << (bits - 1)  # and no bit is wasted


def test_values_come_back_within_half_a_step() -> None:
    g, h = RNG.normal(size=(1000, 2)), RNG.random((1000, 2))
    point = fixed_point(g, h, None)
    back = point.decode(point.encode(g, h))
    assert np.abs(back[0] - g).max() <= 2.0 ** -(point.g_shift + 1)
    assert np.abs(back[1] - h).max() <= 2.0 ** -(point.h_shift + 1)


def test_slots_are_positive_and_the_offset_is_subtracted() -> None:
    g, h = RNG.normal(size=(50, 1)), RNG.random((50, 1))
    point = fixed_point(g, h, 30)
    integers = point.encode(g, h)
    slots = point.to_slots(integers)
    assert (slots.astype(np.int64) >= 0).all()
    assert (slots <= np.array(point.top, np.uint64)).all()
    total = slots.sum(axis=0, dtype=np.uint64)[None]
    assert np.array_equal(point.from_slots(total, np.array([50])), integers.sum(axis=0)[None])


def test_too_much_precision_is_refused_with_what_fits() -> None:
    g = np.ones((150_000, 1))
    with pytest.raises(BadValue, match="150000 rows leave 44 in a slot"):
        fixed_point(g, g, 45)
    assert fixed_point(g, g, 44).g_shift == fixed_point(g, g, None).g_shift


def test_gradients_that_are_no_longer_finite_are_refused() -> None:
    with pytest.raises(BadValue, match="no longer finite"):
        fixed_point(np.array([[np.inf]]), np.array([[1.0]]), None)


def test_sums_by_group_are_exact() -> None:
    """Floating-point sums of such numbers would round: 2^53 is long passed."""
    integers = RNG.integers(-(2**44), 2**44, size=(100_000, 1, 2))
    group = RNG.integers(0, 7, 100_000)
    expected = np.zeros((7, 1, 2), np.int64)
    np.add.at(expected, group, integers)
    assert np.array_equal(ExactSums(integers).by_group(group, 7), expected)
    rows = np.flatnonzero(group < 3)
    assert np.array_equal(ExactSums(integers).by_group(group[rows], 7, rows)[:3], expected[:3])
