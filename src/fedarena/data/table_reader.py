"""Read CSV and Parquet files into Arrow tables and check them: the same reader for horizontal and vertical data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, DataMissing, check_known, quoted, quoted_list
from fedarena.data.published_files import reading

if TYPE_CHECKING:
    import pyarrow as pa


def read_table(
    path: str | Path, *, separator: str = ",", text_columns: Iterable[str] = (), where: str = ""
) -> pa.Table:
    """Return the table of a Parquet file, if the name ends with .parquet, or else of a CSV file with a header.

    The types of a CSV file are inferred, except for `text_columns`. A file that is missing or damaged is refused, and so
    are a table without rows and a column name that occurs twice.
    """
    import pyarrow as pa
    from pyarrow import csv, parquet

    is_parquet = Path(path).suffix.lower() in (".parquet", ".pq")
    if not Path(path).is_file():
        raise DataMissing(f"there is no file {path}", remedy="check the path", where=where)
    kind = "parquet" if is_parquet else "csv"
    with reading(path, remedy=f"check that it is a {kind} file with a header and rows"):
        if is_parquet:
            return check_table(parquet.read_table(path))
        whole = min(Path(path).stat().st_size + 1, 2**30)  # types are inferred from the first block: make it the file
        table = csv.read_csv(
            path,
            csv.ReadOptions(block_size=whole),
            csv.ParseOptions(delimiter=separator),
            csv.ConvertOptions(column_types=dict.fromkeys(text_columns, pa.string())),
        )
        return check_table(table)


def check_table(table: pa.Table) -> pa.Table:
    """Return the table; raise ValueError if it has no rows, or a column twice."""
    if not len(table):
        raise ValueError("it has no rows")
    twice = [name for name, times in Counter(table.column_names).items() if times > 1]
    if twice:
        raise ValueError(f"it has two columns '{quoted(twice[0])}'")
    return table


def require_columns(
    path: str | Path, table: pa.Table, columns: Mapping[str, Iterable[str | None]], separator_setting: str = ""
) -> None:
    """Refuse a table without the columns that settings name; `columns` lists them by setting, None is skipped."""
    for setting, names in columns.items():
        for name in names:
            if name is None:
                continue
            known = f"it has: {quoted_list(table.column_names)}"
            one_column = len(table.column_names) == 1 and any(sign in table.column_names[0] for sign in ";\t|")
            if one_column and separator_setting:
                known += f"; if the separator is not a comma, set {separator_setting}"
            check_known(name, table.column_names, f"{path} has no column '{quoted(name)}'", known, setting)


def holds_numbers(table: pa.Table, name: str) -> bool:
    """Return whether a column can be a feature without encoding."""
    import pyarrow as pa

    types = pa.types
    numeric = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null)
    return any(is_kind(table.schema.field(name).type) for is_kind in numeric)


def read_numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    """Return a numeric column as floats; missing values are NaN."""
    import pyarrow as pa

    values: NDArray[np.float64] = table[name].cast(pa.float64(), safe=False).to_numpy()
    return values


def read_column(table: pa.Table, name: str, *, allow_empty_text: bool = False) -> NDArray[Any]:
    """Return a column of labels or names, and refuse missing values."""
    import pyarrow.compute as pc

    empty = pc.is_null(table[name], nan_is_null=True)
    if not allow_empty_text and str(table.schema.field(name).type) in ("string", "large_string"):
        empty = pc.or_kleene(empty, pc.equal(table[name], ""))
    at = pc.index(empty, True).as_py()
    if at >= 0:
        raise BadValue(f"column '{quoted(name)}' is empty in row {at + 1}", remedy="fill it, or delete that row")
    values: NDArray[Any] = table[name].to_numpy()
    return values
