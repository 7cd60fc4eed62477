"""The data that users give: files of tables, DataFrames, arrays, torch data sets and folders of images."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedarena.config.errors import quoted
from fedarena.config.registry import components, find

TABLE_ENDINGS = (".csv", ".parquet")
ONCE_STANDARDISED = ("csv", "parquet", "breast_cancer", "heart_disease")  # before version 0.3
# Settings of a table that may be given as keywords of `run` and `compare`: label="y" is data={"label": "y"}.
TABLE_KEYS = (
    "label",
    "client",
    "drop",
    "group",
    "time",
    "weight",
    "task",
    "categorical",
    "numeric",
    "missing",
    "missing_indicator",
    "normalise",
    "one_hot",
    "standardise",
    "separator",
)


def read_data_source(source: Any) -> tuple[Any, str] | None:
    """Return the data set of an experiment, and its place for messages; None if `source` is something else."""
    if is_table_file(source):
        return {"name": _kind(source), "path": str(source)}, quoted(str(source))
    if are_table_files(source):
        if len(source) == 1:
            return read_data_source(source[0])
        names = [str(path) for path in source]
        return {"name": _kind(names[0]), "path": names}, ""
    if isinstance(source, tuple) and len(source) in (2, 3):  # (x, y) or (x, y, client)
        return find("dataset", "arrays").make(*source), ""
    if is_frame(source):
        return {"name": "frame", "path": source}, ""
    if is_torch_dataset(source):
        return {"name": "torch_dataset", "samples": source}, ""
    if is_folder(source) and str(source) not in components("dataset"):
        return {"name": "image_folder", "path": str(source)}, quoted(str(source))
    return None


def is_folder(source: Any) -> bool:
    """Return whether this is the path of a folder."""
    try:
        return isinstance(source, str | Path) and Path(source).is_dir()
    except (OSError, ValueError):  # a name that no folder can have
        return False


def is_table_file(source: Any) -> bool:
    """Return whether this is the name of a CSV or Parquet file."""
    return isinstance(source, str | Path) and str(source).lower().endswith(TABLE_ENDINGS)


def are_table_files(source: Any) -> bool:
    """Return whether this is a list of CSV and Parquet files, which are the clients of one federation."""
    return isinstance(source, list | tuple) and bool(source) and all(map(is_table_file, source))


def is_frame(source: Any) -> bool:
    """Return whether this is a DataFrame of pandas or polars or an Arrow table, without importing any of them."""
    package = type(source).__module__.partition(".")[0]
    return package in ("pandas", "polars", "pyarrow") and type(source).__name__ in ("DataFrame", "Table")


def is_torch_dataset(source: Any) -> bool:
    """Return whether this is a map-style data set of torch."""
    torch_data = sys.modules.get("torch.utils.data")
    return (
        torch_data is not None
        and isinstance(source, torch_data.Dataset)
        and not isinstance(source, type | Mapping)
        and hasattr(source, "__getitem__")
        and hasattr(source, "__len__")
    )


def with_recorded_form(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table of an experiment that a folder has recorded, in the form that its run was made in.

    Versions before 0.3 standardised a table once per file, and recorded no `fitted_on`. A file that a user writes has none
    either, but is read as a new experiment.
    """
    data = table.get("data")
    if not isinstance(data, Mapping) or data.get("name") not in ONCE_STANDARDISED or "fitted_on" in data:
        return table
    return {**table, "data": {**data, "fitted_on": "file"}}


def _kind(path: Any) -> str:
    return str(path).lower().rpartition(".")[2]
