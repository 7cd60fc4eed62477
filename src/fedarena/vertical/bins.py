"""Each party's own columns as small codes: quantile bins of the training rows, and one more for what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue

Codes = NDArray[np.uint16]


@dataclass(frozen=True)
class Bins:
    """Cut values of each column. Code j of a column holds the values above cut j-1 and up to cut j."""

    cuts: tuple[NDArray[np.float64], ...]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Bins of each column, the one for missing values not counted."""
        return np.array([len(c) + 1 for c in self.cuts], dtype=np.int64)

    def codes(self, x: NDArray[np.floating]) -> Codes:
        """[columns, rows]; a missing value has the code after the last bin."""
        out = np.empty((len(self.cuts), len(x)), dtype=np.uint16)
        for f, cuts in enumerate(self.cuts):
            column = x[:, f].astype(np.float64)
            out[f] = np.where(np.isnan(column), len(cuts) + 1, np.searchsorted(cuts, column, side="left"))
        return out


def checked_columns(x: NDArray[np.floating], names: Sequence[str] | None, party: str) -> NDArray[np.float64]:
    """A table of numbers with two dimensions; missing values are NaN, and infinity is refused by column."""
    try:
        table = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadValue(f"the columns of {party} are not all numbers", remedy="turn texts into numbers first") from None
    if table.ndim != 2:
        raise BadValue(f"the columns of {party} have {table.ndim} dimensions", remedy="give rows x columns")
    infinite = np.flatnonzero(np.isinf(table).any(axis=0))
    if len(infinite):
        name = names[infinite[0]] if names else f"column {infinite[0]}"
        raise BadValue(
            f"{name} of {party} holds infinity in {np.count_nonzero(np.isinf(table[:, infinite[0]]))} rows",
            remedy="replace it by a number, or by NaN for a missing value",
        )
    return table


def make_bins(x: NDArray[np.float64], training: NDArray[np.bool_], bins: int, min_count: int = 1) -> Bins:
    """Quantile bins of the training rows; a column with few distinct values has a bin for each.

    >>> make_bins(np.array([[1.0], [2.0], [3.0], [np.nan]]), np.ones(4, bool), bins=2).cuts
    (array([2.]),)
    """
    return Bins(tuple(_cuts(x[training, f], bins, min_count) for f in range(x.shape[1])))


def _cuts(column: NDArray[np.float64], bins: int, min_count: int) -> NDArray[np.float64]:
    values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    if len(values) > bins:
        upto = np.cumsum(counts)
        # The smallest value with at least a share i / bins of the rows at or below it: a cut is always a value that
        # occurs, hence no bin is empty.
        wanted = np.arange(1, bins) * upto[-1] / bins
        last = np.unique(np.searchsorted(upto, wanted - 1e-9))
    else:
        last = np.arange(len(values))
    last = last[last < len(values) - 1]
    return values[_merged(last, np.cumsum(counts), min_count)] if len(last) else values[:0]


def _merged(last: NDArray[np.intp], upto: NDArray[np.intp], min_count: int) -> NDArray[np.intp]:
    """Only those cuts that leave at least `min_count` rows on each side up to the next."""
    kept: list[int] = []
    below = 0
    for cut in last.tolist():
        if upto[cut] - below >= min_count and upto[-1] - upto[cut] >= min_count:
            kept.append(cut)
            below = int(upto[cut])
    return np.array(kept, dtype=np.intp)


@dataclass(frozen=True)
class Candidates:
    """All splits that a party can offer, in the order in which ties are settled.

    Column by column: first the cuts from low to high with missing values to the right, then from high to low with
    missing values to the left, as XGBoost goes through them. `bin` is the last bin on the left; -1 means that only
    missing values go left.
    """

    column: NDArray[np.int64]
    bin: NDArray[np.int64]
    missing_left: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.column)


def candidates_of(bins: Bins, codes: Codes, training: NDArray[np.bool_], min_count: int = 1) -> Candidates:
    """A column without missing values has one candidate less than bins: a constant one has none.

    Fewer than `min_count` missing values stay with the last bin: no candidate tells them apart from it.
    """
    column: list[int] = []
    last: list[int] = []
    missing: list[bool] = []
    for f, count in enumerate(bins.counts.tolist()):
        known = int(np.count_nonzero(codes[f, training] < count))
        gaps, any_value = np.count_nonzero(training) - known >= min_count, known > 0
        forward = list(range(count if gaps else count - 1)) if any_value else []
        backward = list(range(count - 2, -2, -1)) if gaps and any_value else []
        column += [f] * (len(forward) + len(backward))
        last += forward + backward
        missing += [False] * len(forward) + [True] * len(backward)
    return Candidates(np.array(column, np.int64), np.array(last, np.int64), np.array(missing, bool))


def goes_left(codes: Codes, bins: Bins, column: int, last: int, missing_left: bool) -> NDArray[np.bool_]:
    """Which rows a split sends to the left."""
    code = codes[column].astype(np.int64)
    missing = code > len(bins.cuts[column])
    return np.where(missing, missing_left, code <= last)


def threshold(bins: Bins, column: int, last: int) -> float:
    """The split as a value: rows at or below it go left."""
    cuts = bins.cuts[column]
    if last < 0:
        return -np.inf
    return float(cuts[last]) if last < len(cuts) else np.inf
