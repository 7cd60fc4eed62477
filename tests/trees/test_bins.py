"""Bins: quantiles of the training rows, no bin empty, missing values apart, infinity refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedarena.config.errors import BadValue
from fedarena.trees.bins import ColumnSplit, check_columns, goes_left, list_candidates, make_bins, threshold

COLUMN = arrays(np.float64, st.tuples(st.integers(1, 60), st.just(1)), elements=st.sampled_from([0, 1, 2.5, 7, np.nan]))


def all_rows(x: np.ndarray) -> np.ndarray:
    return np.ones(len(x), bool)


def test_equal_shares_of_a_column_without_ties() -> None:
    x = np.arange(1000.0)[:, None]
    bins = make_bins(x, all_rows(x), 10)
    assert bins.cuts[0].tolist() == [99, 199, 299, 399, 499, 599, 699, 799, 899]
    assert np.bincount(bins.codes(x)[0]).tolist() == [100] * 10


@pytest.mark.slow
@given(COLUMN, st.integers(2, 6))
def test_no_bin_is_empty_and_missing_has_its_own(x: np.ndarray, bins: int) -> None:
    made = make_bins(x, all_rows(x), bins)
    codes = made.codes(x)[0]
    known = codes[~np.isnan(x[:, 0])]
    assert np.all(codes[np.isnan(x[:, 0])] == made.counts[0])
    if len(known):
        assert np.unique(known).tolist() == list(range(made.counts[0]))
        assert made.counts[0] <= bins


@given(COLUMN)
def test_a_threshold_sends_the_same_rows_left_as_its_bin(x: np.ndarray) -> None:
    bins = make_bins(x, all_rows(x), 4)
    codes = bins.codes(x)
    candidates = list_candidates(bins, codes, all_rows(x))
    for last, missing in zip(candidates.bin.tolist(), candidates.missing_left.tolist(), strict=True):
        by_bin = goes_left(codes, bins, 0, last, missing)
        assert np.array_equal(by_bin, ColumnSplit(0, last, threshold(bins, 0, last), missing).left(x[:, 0]))


def test_bins_come_from_training_rows_alone() -> None:
    x = np.array([[1.0], [2.0], [3.0], [100.0]])
    bins = make_bins(x, np.array([True, True, True, False]), 8)
    assert bins.cuts[0].tolist() == [1, 2]
    assert bins.codes(x)[0].tolist() == [0, 1, 2, 2]


def test_small_bins_are_merged() -> None:
    x = np.repeat(np.arange(6.0), [1, 1, 5, 1, 4, 1])[:, None]
    for least in (1, 2, 3, 6):
        bins = make_bins(x, all_rows(x), 32, min_count=least)
        assert np.bincount(bins.codes(x)[0]).min() >= least
    assert len(make_bins(x, all_rows(x), 32, min_count=2).cuts[0]) > 0


def test_constant_and_empty_columns_offer_nothing_and_gaps_offer_two_ways() -> None:
    nan = np.nan
    x = np.array([[5.0, nan, 5.0, 1.0], [5.0, nan, nan, 2.0], [5.0, nan, 5.0, nan]])
    bins = make_bins(x, all_rows(x), 32)
    found = list_candidates(bins, bins.codes(x), all_rows(x))
    offers = list(zip(found.column.tolist(), found.bin.tolist(), found.missing_left.tolist(), strict=True))
    # column 2: the constant left and the gap right, or the other way; column 3: also between 1 and 2, both ways
    assert offers == [(2, 0, False), (2, -1, True), (3, 0, False), (3, 1, False), (3, 0, True), (3, -1, True)]


def test_few_missing_values_stay_with_the_last_bin() -> None:
    """Else their sum would be seen alone: of ten rows with two gaps, none of the candidates is only about the two."""
    x = np.array([[v] for v in (0.0, 0, 0, 1, 1, 1, 2, 2, np.nan, np.nan)])
    bins = make_bins(x, all_rows(x), 32, min_count=2)
    codes = bins.codes(x)

    def sizes(min_count: int) -> list[int]:
        found = list_candidates(bins, codes, all_rows(x), min_count)
        offers = zip(found.column.tolist(), found.bin.tolist(), found.missing_left.tolist(), strict=True)
        return sorted(int(goes_left(codes, bins, *offer).sum()) for offer in offers)

    assert sizes(2) == [2, 3, 5, 6, 8, 8], "two are enough: the gap alone, both ways"
    assert sizes(3) == [3, 6], "they go right with the last bin"


def test_infinity_is_refused_by_column() -> None:
    with pytest.raises(BadValue, match="income of bank holds infinity in 1 rows"):
        check_columns(np.array([[1.0, np.inf], [2.0, 3.0]]), ["age", "income"], "bank")
    with pytest.raises(BadValue, match="not all numbers"):
        check_columns(np.array([["a"]]), None, "bank")
