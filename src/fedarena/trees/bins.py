"""Columns as bin codes: quantile bins of the training rows, and one more bin for missing values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainSerializer

from fedarena.config.errors import BadValue

Codes = NDArray[np.uint16]


@dataclass(frozen=True)
class Bins:
    """Cut values of each column. Code j of a column holds the values above cut j-1 and up to cut j."""

    cuts: tuple[NDArray[np.float64], ...]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The number of bins of each column, without the bin for missing values."""
        return np.array([len(c) + 1 for c in self.cuts], dtype=np.int64)

    def codes(self, x: NDArray[np.floating]) -> Codes:
        """Return codes [columns, rows]; a missing value has the code after the last bin."""
        out = np.empty((len(self.cuts), len(x)), dtype=np.uint16)
        for f, cuts in enumerate(self.cuts):
            column = x[:, f].astype(np.float64)
            out[f] = np.where(np.isnan(column), len(cuts) + 1, np.searchsorted(cuts, column, side="left"))
        return out


def check_columns(x: NDArray[np.floating], names: Sequence[str] | None, party: str) -> NDArray[np.float64]:
    """Return a two-dimensional table of numbers; missing values are NaN, and infinity is refused by column."""
    try:
        table = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadValue(f"the columns of {party} are not all numbers", remedy="encode text as numbers first") from None
    if table.ndim != 2:
        raise BadValue(f"the columns of {party} have {table.ndim} dimensions", remedy="use an array [rows, columns]")
    infinite = np.flatnonzero(np.isinf(table).any(axis=0))
    if len(infinite):
        name = names[infinite[0]] if names else f"column {infinite[0]}"
        raise BadValue(
            f"{name} of {party} holds infinity in {np.count_nonzero(np.isinf(table[:, infinite[0]]))} rows",
            remedy="replace it by a number, or by NaN for a missing value",
        )
    return table


def make_bins(x: NDArray[np.float64], training: NDArray[np.bool_], bins: int, min_count: int = 1) -> Bins:
    """Return quantile bins of the training rows; a column with few distinct values has a bin for each.

    >>> make_bins(np.array([[1.0], [2.0], [3.0], [np.nan]]), np.ones(4, bool), bins=2).cuts
    (array([2.]),)
    """
    return Bins(tuple(_cuts(x[training, f], bins, min_count) for f in range(x.shape[1])))


def _cuts(column: NDArray[np.float64], bins: int, min_count: int) -> NDArray[np.float64]:
    values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    if len(values) > bins:
        cumulative = np.cumsum(counts)
        # The smallest value with at least a share i / bins of the rows at or below it: a cut is always a value that
        # occurs, so no bin is empty.
        wanted = np.arange(1, bins) * cumulative[-1] / bins
        last = np.unique(np.searchsorted(cumulative, wanted - 1e-9))
    else:
        last = np.arange(len(values))
    last = last[last < len(values) - 1]
    return values[_merge_small(last, np.cumsum(counts), min_count)] if len(last) else values[:0]


def _merge_small(last: NDArray[np.intp], cumulative: NDArray[np.intp], min_count: int) -> NDArray[np.intp]:
    """Return the cuts that leave at least `min_count` rows between neighbours."""
    cuts: list[int] = []
    below = 0
    for cut in last.tolist():
        if cumulative[cut] - below >= min_count and cumulative[-1] - cumulative[cut] >= min_count:
            cuts.append(cut)
            below = int(cumulative[cut])
    return np.array(cuts, dtype=np.intp)


@dataclass(frozen=True)
class Candidates:
    """All possible splits of columns, in the order that breaks ties.

    Column by column: first the cuts from low to high with missing values to the right, then from high to low with
    missing values to the left, in the order of XGBoost. `bin` is the last bin on the left; -1 means that only missing
    values go left.
    """

    column: NDArray[np.int64]
    bin: NDArray[np.int64]
    missing_left: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.column)


def list_candidates(bins: Bins, codes: Codes, training: NDArray[np.bool_], min_count: int = 1) -> Candidates:
    """Return all candidate splits; a column without missing values has one less than bins, a constant one none.

    Fewer than `min_count` missing values stay with the last bin: no candidate separates them from it.
    """
    known = np.array([np.count_nonzero(c[training] < count) for c, count in zip(codes, bins.counts, strict=True)])
    return make_candidates(bins, known > 0, np.count_nonzero(training) - known >= min_count)


def make_candidates(bins: Bins, has_values: NDArray[np.bool_], has_missing: NDArray[np.bool_]) -> Candidates:
    """Return all candidate splits of columns of which it is known whether they have values and missing values."""
    found: list[tuple[int, int, bool]] = []
    for f, count in enumerate(bins.counts.tolist()):
        forward = range(count if has_missing[f] else count - 1) if has_values[f] else ()
        backward = range(count - 2, -2, -1) if has_missing[f] and has_values[f] else ()
        found += [(f, last, False) for last in forward] + [(f, last, True) for last in backward]
    column, last, missing = np.array(found, np.int64).reshape(-1, 3).T.copy()
    return Candidates(column, last, missing.astype(bool))


def goes_left(codes: Codes, bins: Bins, column: int, last: int, missing_left: bool) -> NDArray[np.bool_]:
    """Return which rows a split sends to the left."""
    code = codes[column].astype(np.int64)
    missing = code > len(bins.cuts[column])
    return np.where(missing, missing_left, code <= last)


def threshold(bins: Bins, column: int, last: int) -> float:
    """Return the value of a split: rows at or below it go left."""
    cuts = bins.cuts[column]
    if last < 0:
        return -np.inf
    return float(cuts[last]) if last < len(cuts) else np.inf


def _finite_or_text(value: float) -> float | str:
    """Return infinity as text, because JSON has no infinity."""
    return value if math.isfinite(value) else str(value)


@dataclass(frozen=True)
class ColumnSplit:
    """One split of a column: values at or below the threshold go left."""

    column: int
    bin: int
    threshold: Annotated[float, PlainSerializer(_finite_or_text)]
    missing_left: bool

    def left(self, values: NDArray[np.floating]) -> NDArray[np.bool_]:
        """Return which of these values of the column go left."""
        return np.where(np.isnan(values), self.missing_left, values <= self.threshold)


@dataclass(frozen=True)
class BinnedColumns:
    """Columns during training: their bins, the codes of all rows and the candidate splits."""

    bins: Bins
    codes: Codes
    candidates: Candidates

    @classmethod
    def of(cls, x: NDArray[np.float64], training: NDArray[np.bool_], bins: int, min_count: int) -> BinnedColumns:
        """Return these columns in bins of the training rows."""
        found = make_bins(x, training, bins, min_count)
        codes = found.codes(x)
        return cls(found, codes, list_candidates(found, codes, training, min_count))

    def split(self, candidate: int) -> ColumnSplit:
        """Return the split that this candidate number stands for."""
        column, last = int(self.candidates.column[candidate]), int(self.candidates.bin[candidate])
        missing_left = bool(self.candidates.missing_left[candidate])
        return ColumnSplit(column, last, threshold(self.bins, column, last), missing_left)

    def goes_left(self, rows: NDArray[np.int64], split: ColumnSplit) -> NDArray[np.bool_]:
        """Return which of these rows a split sends to the left."""
        return goes_left(self.codes[:, rows], self.bins, split.column, split.bin, split.missing_left)
