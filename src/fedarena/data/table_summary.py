"""A summary of a user's table before training: the kind of every column, its missing values, and its levels or range."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedarena.data.dataset import Dataset
from fedarena.data.sources.several_files import read_files
from fedarena.data.sources.table_files import TableFile
from fedarena.data.table_columns import Categories, Column, rows_missing

MOST_SHOWN = 6  # levels that a summary lists


@dataclass(frozen=True)
class ColumnSummary:
    """A column: numeric, categorical, label, client, group, time, weight or ignored; `values` is its range or its levels."""

    name: str
    kind: str
    missing: int | None = None
    values: str = ""


@dataclass(frozen=True)
class TableSummary:
    """The columns of a table, and its clients with their rows where they are known."""

    title: str
    rows: int
    columns: tuple[ColumnSummary, ...]
    clients: dict[str, int]
    notes: tuple[str, ...] = ()

    def as_dict(self, data: Dataset | None = None) -> dict[str, Any]:
        """Return plain values for JSON, with the task if the data set is given."""
        return asdict(self) | ({} if data is None else {"task": data.task})

    def __str__(self) -> str:
        width = max(len(column.name) for column in self.columns)
        return "\n".join(
            f"{column.name:{width}}  {column.kind:11}  {column.missing or 0} missing  {column.values}".rstrip()
            for column in self.columns
        )


def summarise_table(source: TableFile) -> TableSummary:
    """Read the files of a table and return what their columns are taken for."""
    table = read_files(source)
    roles = dict.fromkeys(source.label_names, "label")
    named = {"client": source.client, "group": source.group, "time": source.time, "weight": source.weight}
    roles |= {name: role for role, name in named.items() if name}
    owner, names = table.owners(source.client)
    clients = {} if owner is None else dict(zip(names, np.bincount(owner[owner >= 0]).tolist(), strict=True))
    columns = [ColumnSummary(name, *_feature(column)) for name, column in table.features.items()]
    columns += [ColumnSummary(name, role, 0, _values(table.others[name])) for name, role in roles.items()]
    columns += [ColumnSummary(name, "ignored") for name in source.drop]
    rows = len(next(iter([*table.features.values(), *table.others.values()])))
    return TableSummary(table.title, rows, tuple(columns), clients, table.notes)


def _feature(column: Column) -> tuple[str, int, str]:
    """Return kind, missing values, and levels or range of a feature."""
    missing = rows_missing(column)
    if isinstance(column, Categories):
        return "categorical", int(missing.sum()), _listed(column.levels)
    present = column[~missing]
    return "numeric", int(missing.sum()), f"{present.min():.6g} to {present.max():.6g}"


def _values(values: Any) -> str:
    """Return the range of numbers that are many, or else the distinct values."""
    distinct = np.unique(
        values if values.dtype.kind in "biufM" else np.array([str(value) for value in values.tolist()])
    )
    if values.dtype.kind in "iuf" and len(distinct) > MOST_SHOWN:
        return f"{distinct[0]:.6g} to {distinct[-1]:.6g}"
    return _listed([f"{v:g}" if values.dtype.kind == "f" else str(v) for v in distinct])


def _listed(levels: Any) -> str:
    shown = ", ".join(str(level)[:40] for level in levels[:MOST_SHOWN])
    return f"{shown}, ... ({len(levels)} levels)" if len(levels) > MOST_SHOWN else shown
