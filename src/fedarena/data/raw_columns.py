"""The columns of a table as trees take them: numbers as they are, categories by number, NaN where a value is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.data.dataset import Dataset
from fedarena.data.table_columns import Categories
from fedarena.data.table_encoding import TableEncoding, read_columns


def raw_columns(data: Dataset) -> NDArray[np.float32]:
    """Return all rows of a data set, [rows, columns]; pixels and encoded features where it is not a table."""
    if data.table is not None and data.encoding is not None:
        return encode_raw(data.encoding, data.table)[0]
    return np.ascontiguousarray(np.asarray(data.x).reshape(len(data.x), -1), np.float32)


def encode_raw(encoding: TableEncoding, table: Any) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Return the columns of a table by the kinds and levels of an encoding, and notes; other levels count as missing."""
    found, notes, rows = read_columns(encoding, table)
    x = np.full((rows, len(encoding.columns)), np.nan, np.float32)
    for at, known in enumerate(encoding.columns):
        column = found.get(known.name)
        if isinstance(column, Categories):
            codes = column.recoded(known.levels)
            x[:, at] = np.where(codes < 0, np.nan, codes)
        elif column is not None:
            x[:, at] = column
    return x, notes
