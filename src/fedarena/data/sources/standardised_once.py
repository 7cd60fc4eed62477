"""Tables whose columns are standardised once, on the training rows of the file: the form of versions before 0.3.

Runs that were recorded in this form are verified and resumed in it (`fitted_on = "file"`). New runs fit the encoding on the
training rows of each split (data/split_encoding.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, UnknownName, quoted
from fedarena.data import published_files
from fedarena.data.dataset import Dataset, Rows
from fedarena.data.sources.class_codes import labels, names_alike, numbered
from fedarena.data.table_columns import MOST_LEVELS
from fedarena.data.table_encoding import Missing
from fedarena.data.table_reader import holds_numbers, read_column, read_numbers

if TYPE_CHECKING:
    import pyarrow as pa

    from fedarena.data.sources.table_files import TableFile

FittedOn = Literal["split", "file"]  # which training samples an encoding is fitted on; "file": the form of this module


def load_once(source: TableFile) -> Dataset:
    """Return the table of a file with the columns encoded and standardised once."""
    if not isinstance(source.path, str) or not isinstance(source.label, str) or source.missing == "median":
        raise BadValue(
            'fitted_on = "file" is the form of runs before version 0.3: one file, one label, and no medians',
            remedy="leave it out",
            where="data.fitted_on",
        )
    table, n_first = _rows(source, source.path)
    label, client = f"column '{quoted(source.label)}'", f"column '{quoted(source.client)}'"
    y, class_names = labels(read_column(table, source.label), label, first_row=1)
    owner, owner_names = (
        numbered(read_column(table, source.client), client, first_row=1) if source.client else (None, ())
    )
    group = numbered(read_column(table, source.group), f"column '{quoted(source.group)}'")[0] if source.group else None
    time = moments(read_column(table, source.time)) if source.time else None
    if source.test_path:
        train, test = np.split(np.arange(len(y)), [n_first])
    else:
        train, test = source.split(y, owner, group, time)
    x = features(_feature_columns(source, table), train, test, source.missing, source.standardise)
    order = np.concatenate([train, test])
    return Dataset(
        Path(source.path).stem,
        x,
        y[order],
        len(train),
        len(class_names),
        owner=None if owner is None else owner[order],
        owner_names=owner_names,
        class_names=class_names,
        notes=(*names_alike(class_names, label), *names_alike(owner_names, client)),
        group=None if group is None else group[order],
        time=None if time is None else time[order],
    )


def _rows(source: TableFile, path: str) -> tuple[pa.Table, int]:
    """Return all rows, those of `test_path` last, and the number of rows before them."""
    import pyarrow as pa

    first = source.checked(path)
    if source.test_path is None:
        return first, len(first)
    second = source.checked(source.test_path)
    for name in first.column_names:
        if name not in second.column_names and name not in source.drop:
            raise UnknownName(
                f"{source.test_path} has no column '{quoted(name)}'",
                remedy=f"give it the columns of {path}, or drop '{quoted(name)}'",
                where="data.test_path",
            )
    shared = [name for name in first.column_names if name in second.column_names]
    with published_files.reading(source.test_path, remedy=f"give its columns the types they have in {path}"):
        joined = pa.concat_tables([first.select(shared), second.select(shared)], promote_options="permissive")
    return joined, len(first)


def _feature_columns(source: TableFile, table: pa.Table) -> dict[str, NDArray[np.float64]]:
    """Return the features as numbers."""
    columns: dict[str, NDArray[np.float64]] = {}
    for name in source.feature_names(table.column_names):
        if holds_numbers(table, name):
            columns[name] = read_numbers(table, name)
            continue
        codes, kinds = numbered(table[name].to_numpy())
        if not source.one_hot or len(kinds) > MOST_LEVELS:
            raise BadValue(f"column '{quoted(name)}' is not numeric", remedy="drop it", where="data.drop")
        columns |= {f"{name} = {kind}": (codes == code).astype(np.float64) for code, kind in enumerate(kinds)}
    return columns


def moments(values: NDArray[Any]) -> Rows:
    """Number times in ascending order: numbers, dates, or texts that sort like dates."""
    if values.dtype.kind == "f":
        sortable = values
    elif values.dtype.kind in "iubM":
        sortable = values.astype(np.int64) if values.dtype.kind != "M" else values.view(np.int64)
    else:
        sortable = np.array([str(value) for value in values.tolist()])
    codes: Rows = np.unique(sortable, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return codes


def features(
    columns: Mapping[str, NDArray[Any]],
    train: Rows,
    test: Rows,
    missing: Missing = "error",
    standardise: bool = True,
) -> NDArray[np.float32]:
    """Return the columns as a matrix, training rows first, standardised by the training rows."""
    if not columns:
        raise BadValue("there is no feature column", remedy="drop fewer columns", where="data.drop")
    order = np.concatenate([train, test])
    x = np.empty((len(order), len(columns)), dtype=np.float32)
    for i, (name, raw) in enumerate(columns.items()):
        values = filled(name, raw.astype(np.float64), train, missing)
        if standardise:
            mean, deviation = values[train].mean(), values[train].std()
            values = (values - mean) / (deviation if deviation > 0 else 1.0)
        if not (np.abs(values) < np.finfo(np.float32).max).all():
            raise BadValue(
                f"column '{quoted(name)}' holds values too large for 32-bit floats", remedy="rescale it, or drop it"
            )
        x[:, i] = values[order]
    return x


def filled(name: str, values: NDArray[np.float64], train: Rows, missing: Missing) -> NDArray[np.float64]:
    """Fill missing values with the mean of the training rows; raise `BadValue` unless `missing` is "mean"."""
    infinite, empty = np.isinf(values), np.isnan(values)
    if infinite.any():
        raise BadValue(
            f"column '{quoted(name)}' is infinite in row {infinite.argmax() + 1}", remedy="correct that value"
        )
    if not empty.any():
        return values
    if missing == "error":
        raise BadValue(
            f"column '{quoted(name)}' is empty in row {empty.argmax() + 1}",
            remedy='set missing = "mean" to fill missing values with the mean of the training rows, or drop the column',
            where="data.missing",
        )
    if empty[train].all():
        raise BadValue(f"column '{quoted(name)}' has no value in any training row", remedy="drop it", where="data.drop")
    return np.where(empty, values[train][~empty[train]].mean(), values)
