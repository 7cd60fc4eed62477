"""The encoding of a table as numbers for a model, fitted on training rows and saved with a run as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fedarena.config.errors import BadValue, DataBroken, quoted, quoted_list
from fedarena.data.table_columns import Categories, Column, Columns, Kind, as_arrow, read_feature, rows_missing
from fedarena.statistics.exact_sums import exact_moments

Rows = NDArray[np.int64]
Missing = Literal["median", "mean", "error"]
Normalise = Literal["pooled", "client"]
FORM = 2  # of the JSON; form 1, of versions before 0.3, was not saved


@dataclass(frozen=True)
class EncodingSettings:
    """How columns become numbers, and the labels that the model is trained to predict."""

    missing: Missing = "median"  # of numeric columns; of categorical ones it is the most frequent level
    standardise: bool = True
    missing_indicator: bool = False
    normalise: Normalise = "pooled"
    task: str = "classification"
    label: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # of columns whose kind was set


@dataclass(frozen=True, eq=False)
class RawTable:
    """The feature columns of all samples before they are encoded, and how to encode them."""

    columns: Columns
    settings: EncodingSettings

    def __getitem__(self, rows: Any) -> RawTable:
        return replace(self, columns={name: column[rows] for name, column in self.columns.items()})


@dataclass(frozen=True)
class ColumnEncoding:
    """The encoding of one column; `fill` replaces missing values, which are refused if it is None."""

    name: str
    kind: Kind
    fill: float | str | None
    mean: float = 0.0
    deviation: float = 1.0
    levels: tuple[str, ...] = ()
    indicator: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the encoded columns."""
        own = (self.name,) if self.kind == "numeric" else tuple(f"{self.name} = {level}" for level in self.levels)
        return (*own, f"{self.name} is missing") if self.indicator else own


@dataclass(frozen=True)
class TableEncoding:
    """The encoding of all columns, which no longer depends on any table."""

    columns: tuple[ColumnEncoding, ...]
    task: str = "classification"
    label: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    # means and deviations of the numeric columns by the name of a client, with normalise = "client"
    clients: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        table: Any,
        rows: Rows,
        settings: EncodingSettings | None = None,
        clients: Mapping[str, Rows] | None = None,
    ) -> TableEncoding:
        """Fit the encoding on these rows of a table; with `clients`, also the means and deviations of each one's rows."""
        settings = settings or EncodingSettings()
        known = _read(table, settings.kinds)[0]
        columns = {name: column[rows] for name, column in known.items()}
        if not columns:
            raise BadValue("there is no feature column", remedy="drop fewer columns", where="data.drop")
        fitted = tuple(_fit(name, column, settings, rows) for name, column in columns.items())
        own = {}
        if settings.standardise and settings.normalise == "client":
            for name, part in (clients or {}).items():
                own[name] = tuple(
                    _moments(one, known[one.name][part], len(part)) for one in fitted if one.kind == "numeric"
                )
        return cls(fitted, settings.task, settings.label, settings.classes, own)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Return the names of the columns of the encoded matrix."""
        return tuple(name for column in self.columns for name in column.names)

    def encode(
        self, table: Any, client: str | Sequence[str | None] | None = None
    ) -> tuple[NDArray[np.float32], tuple[str, ...]]:
        """Return the matrix of a table (columns by name, an Arrow table or a DataFrame), and notes about it.

        `client` names the client of all rows or of each row, whose own means and deviations are used where there are any.
        """
        found, known_notes, length = read_columns(self, table)
        notes = list(known_notes)
        x = np.empty((length, len(self.column_names)), np.float32)
        moments, at = self._moments_of_rows(client, length), 0
        for encoding in self.columns:
            column = found.get(encoding.name)
            if column is None:
                column = np.full(length, np.nan)
            part, more = _encoded(encoding, column, moments.get(encoding.name))
            x[:, at : at + part.shape[1]] = part
            notes += more
            at += part.shape[1]
        return x, tuple(notes)

    def _moments_of_rows(self, client: str | Sequence[str | None] | None, length: int) -> dict[str, NDArray[Any]]:
        """Return the mean and deviation of every row for each numeric column; empty where all rows have the same."""
        if client is None or not self.clients:
            return {}
        names = [client] * length if isinstance(client, str) else list(client)
        known = {name: position for position, name in enumerate(self.clients)}
        at = np.array([known.get(name or "", len(known)) for name in names], np.int64)
        numeric = [column for column in self.columns if column.kind == "numeric"]
        return {
            column.name: np.array([*(own[i] for own in self.clients.values()), (column.mean, column.deviation)])[at]
            for i, column in enumerate(numeric)
        }

    def to_json(self) -> dict[str, Any]:
        """Return the encoding as plain values, from which `from_json` gives the same bits."""
        columns = []
        for column in self.columns:
            numbers = {"mean": column.mean, "deviation": column.deviation}
            own = numbers if column.kind == "numeric" else {"levels": list(column.levels)}
            known = {"name": column.name, "kind": column.kind, "missing": column.fill}
            columns.append({**known, **own, **({"indicator": True} if column.indicator else {})})
        clients = {name: [list(pair) for pair in pairs] for name, pairs in self.clients.items()}
        return {
            "form": FORM,
            "task": self.task,
            "label": list(self.label),
            "classes": list(self.classes),
            "columns": columns,
            **({"clients": clients} if clients else {}),
        }

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> TableEncoding:
        """Return the encoding that `to_json` wrote."""
        if table.get("form") != FORM:
            raise DataBroken(
                f"the preprocessing has form {quoted(table.get('form'))}, and this version reads form {FORM}",
                remedy="use the version of fedarena that wrote it",
            )
        try:
            columns = [{"fill": one["missing"], **one} for one in table["columns"]]
            return TypeAdapter(cls).validate_python({**table, "columns": columns})
        except (KeyError, TypeError, ValueError) as error:
            raise DataBroken(
                f"the preprocessing is damaged: {type(error).__name__}: {quoted(str(error))}",
                remedy="restore the file from a copy",
            ) from None


def read_columns(encoding: TableEncoding, table: Any) -> tuple[dict[str, Column], tuple[str, ...], int]:
    """Return the columns of a table that an encoding knows, notes about the others, and the number of rows."""
    kinds = {c.name: c.kind for c in encoding.columns}
    found, notes = _read(table, kinds, {*kinds})
    length = len(next(iter(found.values()))) if found else _length(table)
    ignored = [name for name in _names(table) if name not in {*kinds, *encoding.label}]
    notes += [f"columns that the model does not use: {quoted_list(ignored)}"] if ignored else []
    absent = [name for name in kinds if name not in found]
    notes += [f"columns that are not there count as missing values: {quoted_list(absent)}"] if absent else []
    return found, tuple(notes), length


def _names(table: Any) -> list[str]:
    names = table.columns if isinstance(table, RawTable) else table if isinstance(table, Mapping) else None
    return [str(name) for name in (as_arrow(table).column_names if names is None else names)]


def _length(table: Any) -> int:
    return len(next(iter(table.values()))) if isinstance(table, Mapping) else len(as_arrow(table))


def _read(table: Any, kinds: Mapping[str, Kind], only: set[str] | None = None) -> tuple[dict[str, Column], list[str]]:
    """Return the columns of a table, of the given kinds where these are known, and notes."""
    if isinstance(table, RawTable):
        return dict(table.columns), []
    ready: dict[str, Column] = {}
    if isinstance(table, Mapping):
        ready = {n: c for n, c in table.items() if isinstance(c, Categories) and (only is None or n in only)}
        others = {n: c for n, c in table.items() if n not in ready and (only is None or n in only)}
        if not others:
            return ready, []
        table = as_arrow(others)
    else:
        table = as_arrow(table)
    notes: list[str] = []
    for name in table.column_names:
        if only is None or name in only:
            ready[name], more = read_feature(table, name, kinds.get(name))
            notes += more
    return ready, notes


def _fit(name: str, column: Column, settings: EncodingSettings, rows: Rows) -> ColumnEncoding:
    """Return the encoding of a column, of which only the training rows are given."""
    empty = rows_missing(column)
    if empty.any() and settings.missing == "error":
        raise no_value(name, int(rows[empty.argmax()]))
    if empty.all():
        raise BadValue(
            f"column '{quoted(name)}' has no value in any training row",
            remedy=f"drop it (--drop {quoted(name)})",
            where="data.drop",
        )
    indicator = settings.missing_indicator and bool(empty.any())
    if isinstance(column, Categories):
        counts = np.bincount(column.codes[~empty], minlength=len(column.levels))
        levels = tuple(level for level, count in zip(column.levels, counts, strict=True) if count)
        frequent = None if settings.missing == "error" else column.levels[int(counts.argmax())]
        return ColumnEncoding(name, "categorical", frequent, levels=levels, indicator=indicator)
    present, fill = column[~empty], None
    if settings.missing != "error":
        fill = float(np.median(present)) if settings.missing == "median" else exact_moments(present, 1)[0]
    fitted = ColumnEncoding(name, "numeric", fill, indicator=indicator)
    if not settings.standardise:
        return fitted
    mean, deviation = _moments(fitted, column, len(column), at_mean=settings.missing == "mean")
    return replace(fitted, mean=mean, deviation=deviation)


def _moments(encoding: ColumnEncoding, column: Column, samples: int, at_mean: bool = False) -> tuple[float, float]:
    """Return mean and deviation of a numeric column; missing values are at its mean, or at the value that fills them."""
    assert not isinstance(column, Categories)
    empty = np.isnan(column)
    values = column[~empty] if at_mean else np.where(empty, np.nan if encoding.fill is None else encoding.fill, column)
    mean, deviation = exact_moments(values, samples)
    return mean, deviation if deviation > 0 else 1.0


def _encoded(
    encoding: ColumnEncoding, column: Column, moments: NDArray[np.float64] | None
) -> tuple[NDArray[np.float64], list[str]]:
    """Return the encoded columns of one column, and notes."""
    empty, notes = rows_missing(column), []
    if empty.any() and encoding.fill is None:
        raise no_value(encoding.name, int(empty.argmax()))
    if encoding.kind == "numeric":
        assert not isinstance(column, Categories)
        mean, deviation = (encoding.mean, encoding.deviation) if moments is None else moments.T
        values = (np.where(empty, float(encoding.fill or 0.0), column) if empty.any() else column) - mean
        values = values / deviation
        if not (np.abs(values) < np.finfo(np.float32).max).all():
            raise BadValue(
                f"column '{quoted(encoding.name)}' holds values too large for 32-bit floats",
                remedy="rescale it, or drop it",
            )
        parts = values[:, None]
    else:
        if not isinstance(column, Categories):  # a column that is not there
            column = Categories(np.full(len(column), -1), ())
        codes = column.recoded(encoding.levels)
        codes[empty] = encoding.levels.index(str(encoding.fill)) if empty.any() else 0
        unknown = codes == -2
        if unknown.any():
            words = sorted({column.levels[code] for code in column.codes[unknown]})
            notes.append(
                f"column '{quoted(encoding.name)}': {int(unknown.sum())} rows have levels that no training row has, "
                f"and are zero in all its columns: {quoted_list(words, 5)}"
            )
        parts = (codes[:, None] == np.arange(len(encoding.levels))).astype(np.float64)
    return np.column_stack([parts, empty]) if encoding.indicator else parts, notes


def no_value(name: str, row: int) -> BadValue:
    """Return the error about a missing value where `missing` is "error"; rows count from 1 in its message."""
    return BadValue(
        f"column '{quoted(name)}' is empty in row {row + 1}",
        remedy='set missing = "median" or "mean" to fill missing values (--missing median), or drop the column',
        where="data.missing",
    )
