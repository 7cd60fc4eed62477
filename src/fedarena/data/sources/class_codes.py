"""Labels and clients as numbers, and the split into training and test rows, for all data sets."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Interval
from numpy.typing import NDArray

from fedarena.config import seeds
from fedarena.config.errors import BadValue, quoted
from fedarena.data.dataset import Rows
from fedarena.data.stratification import spread_over

TestShare = Annotated[float, Interval(gt=0, lt=1)]
SplitSeed = Annotated[int, Ge(0)]
MOST_CLASSES = 1000
NO_CLASS = ("inf", "-inf", "+inf", "infinity", "-infinity", "+infinity", "nan", "-nan", "+nan")
WHOLE = 2.0**63  # larger numbers are not 64-bit integers


def numbered(
    values: NDArray[Any], what: str = "client", first_row: int = 0
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return names or numbers of any kind as 0..J-1 in sorted order, and the name of each code."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise BadValue(
            f"{what} is {values[row]} in row {row + first_row}", remedy="correct that value, or remove that row"
        )
    if values.dtype.kind in "SO":  # bytes of another encoding stay readable
        words = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values.tolist()]
        values = np.array(words)
    if values.dtype.kind == "f" and (values == np.trunc(values)).all() and (np.abs(values) < WHOLE).all():
        values = values.astype(np.int64)  # integers that missing values or a spreadsheet turned into 1.0, 2.0
    kinds, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64), tuple(str(k) for k in kinds)


def labels(values: NDArray[Any], what: str, first_row: int = 0) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the codes and names of classes, like `numbered`; raise `BadValue` for values that are not classes."""
    codes, names = numbered(values, what, first_row)
    for code, name in enumerate(names):
        if values.dtype.kind != "f" and name.strip().casefold() in NO_CLASS:
            row = int(np.argmax(codes == code))
            raise BadValue(
                f"{what} is '{name}' in row {row + first_row}, which is not a class",
                remedy="fill it, or remove that row",
            )
    whole = values.dtype.kind != "f" or bool((values == np.trunc(values)).all())
    if not whole or len(names) > MOST_CLASSES:
        amount = f"{len(names)} distinct values" if whole else "fractions"
        raise BadValue(
            f"{what} holds {amount}: that looks like a quantity, not like classes",
            remedy="predict it as a number (--task regression), choose a column of classes, or cut it into a few ranges",
        )
    if len(names) < 2:
        raise BadValue(f"{what} holds one class only", remedy="give rows of at least two classes")
    return codes, names


def names_alike(names: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Return a note about names that differ only in surrounding spaces, which is usually a mistake."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name.strip(), []).append(name)
    several = [group for group in alike.values() if len(group) > 1]
    if not several:
        return ()
    first = " and ".join(f"'{quoted(name)}'" for name in several[0][:2])
    return (f"{what}: {first} differ only in surrounding spaces, and count as different",)


def split_rows(codes: Rows, owner: Rows | None, share: float, seed: int) -> tuple[Rows, Rows]:
    """Return training and test rows, each in file order, with the same share of test rows for every owner, or else class.

    Every owner (class) has at least one training row. The others are ordered by owner and class, at random within, and
    test rows are taken at equal distances.
    """
    strata = codes if owner is None else owner
    shuffled = seeds.stream(seed, "split").permutation(len(codes))
    line = shuffled[np.lexsort((codes[shuffled], strata[shuffled]))]
    test = np.sort(spread_over(line, strata, share * len(codes)))
    if not len(test):
        raise BadValue(
            f"test = {share} of {len(codes)} rows leaves no row to test on",
            remedy="raise test, or give more rows for each client",
            where="data.test",
        )
    return np.setdiff1d(np.arange(len(codes)), test), test
