"""Sums of float64 values are exact integers, in any order, and masks cancel in them to the bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedarena.config.errors import BadValue
from fedarena.federation.statistics_release import StatisticsLayout, StatisticsMask, Totals, encoded, signed_total
from fedarena.statistics.exact_sums import POINT, SQUARE_POINT, exact_sum, exact_sum_of_squares

VALUES = st.lists(st.floats(-(2.0**500), 2.0**500, allow_subnormal=True), max_size=40)


@pytest.mark.slow
@given(VALUES)
@settings(max_examples=200)
def test_sums_are_those_of_fractions(values: list[float]) -> None:
    array = np.array(values, np.float64)
    assert exact_sum(array) == sum(map(Fraction, values)) * 2**POINT
    assert exact_sum_of_squares(array) == sum(Fraction(v) ** 2 for v in values) * 2**SQUARE_POINT


def test_many_values_of_one_exponent_do_not_overflow() -> None:
    """64-bit sums of mantissas would wrap around after 512 squares of this size."""
    value, n = np.nextafter(2.0, 0.0), 200_000
    assert exact_sum(np.full(n, -value)) == -n * Fraction(value) * 2**POINT
    assert exact_sum_of_squares(np.full(n, value)) == n * Fraction(value) ** 2 * 2**SQUARE_POINT


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e200])
def test_values_that_would_overflow_are_refused(value: float) -> None:
    with pytest.raises(BadValue, match="above 2"):
        exact_sum(np.array([1.0, value]))


def of(values: np.ndarray, y: np.ndarray) -> Totals:
    return Totals(
        (len(values),),
        (exact_sum(values),),
        (exact_sum_of_squares(values),),
        tuple(np.bincount(y, minlength=3).tolist()),
    )


@pytest.mark.parametrize("clients", [3, 7])
def test_masks_cancel_in_the_total_and_hide_each_client(clients: int) -> None:
    rng, layout = np.random.default_rng(0), StatisticsLayout(1, True, 3)
    values = [rng.standard_normal(20) * 10.0 ** rng.integers(-300, 140) for _ in range(clients)]
    labels = [rng.integers(0, 3, 20) for _ in range(clients)]
    plain = [of(x, y).integers for x, y in zip(values, labels, strict=True)]
    masks = [StatisticsMask() for _ in plain]
    keys = {k: mask.public for k, mask in enumerate(masks)}
    sent = [mask.masked(integers, k, keys) for k, (mask, integers) in enumerate(zip(masks, plain, strict=True))]
    total = Totals.of(signed_total(sent, layout.size), layout)
    assert total == of(np.concatenate(values), np.concatenate(labels))
    for k, (vector, integers) in enumerate(zip(sent, plain, strict=True)):
        others = [v for i, v in enumerate(sent) if i != k]
        assert not (vector == encoded(integers)).all(axis=1).any()
        rest = [a - b for a, b in zip(total.integers, integers, strict=True)]
        assert Totals.of(signed_total(others, layout.size), layout) != Totals.of(rest, layout)


def test_a_key_masks_one_release_for_one_list_of_clients() -> None:
    """The difference of two vectors under one key would be the difference of two masks, one of them the server's."""
    mine, others = StatisticsMask(), [StatisticsMask().public for _ in range(3)]
    keys = {0: mine.public, 1: others[0], 2: others[1]}
    assert np.array_equal(mine.masked([5], 0, keys), mine.masked([5], 0, keys))
    with pytest.raises(BadValue, match="one release, for one list"):
        mine.masked([5], 0, {**keys, 2: others[2]})
    for wrong in ({0: others[0], 1: others[1]}, {0: mine.public, 1: mine.public}):
        with pytest.raises(BadValue, match="not those of this exchange"):
            mine.masked([5], 0, wrong)


def test_means_and_deviations_are_rounded_once() -> None:
    """Two passes in floating point lose digits where the mean is large; the exact sums do not."""
    values = 1e9 + np.random.default_rng(1).standard_normal(1000)
    total = of(values, np.zeros(1000, np.int64))
    exact = [Fraction(v) for v in values.tolist()]
    mean = sum(exact) / 1000
    assert total.means() == (float(mean),)
    assert total.variances(1000) == (float(sum((v - mean) ** 2 for v in exact) / 1000),)
