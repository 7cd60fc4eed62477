"""Tables, one sample per row, with float32 features that are standardised on the training rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, UnknownName, quoted
from fedarena.config.registry import register
from fedarena.config.seeds import stream
from fedarena.data import published_files
from fedarena.data.dataset import Dataset, Rows
from fedarena.data.sources.class_codes import SplitSeed, TestShare, labels, names_alike, numbered, split_rows
from fedarena.data.stratification import blocks_in_time, cells_of, whole_groups
from fedarena.data.table_reader import (
    holds_numbers,
    read_column,
    read_csv,
    read_numbers,
    read_parquet,
    require_columns,
)

if TYPE_CHECKING:
    import pyarrow as pa

Missing = Literal["error", "mean"]
MOST_CATEGORIES = 20


@register("dataset", "breast_cancer", paper="Street, Wolberg and Mangasarian 1993")
@dataclass(frozen=True)
class BreastCancer:
    """569 tumours, 30 features, benign or malignant; part of scikit-learn: nothing to download."""

    defaults: ClassVar[dict[str, Any]] = {
        "model": "logreg",
        "clients": 10,
        "share": 1.0,
        "rounds": 20,
        "partition": {"name": "label_dirichlet", "beta": 0.5, "min_size": 5},
        "local": {"lr": 0.1, "epochs": 1, "batch": 16},
        "evaluate": {"every": 1, "target": 0.95},
    }

    def load(self, seed: int) -> Dataset:
        """Return four fifths for training and one fifth for testing, the same for every seed."""
        from sklearn.datasets import load_breast_cancer

        bunch = load_breast_cancer()
        y = bunch.target.astype(np.int64)
        train, test = split_rows(y, None, 0.2, seed=0)
        x = features(dict(zip(bunch.feature_names, bunch.data.T, strict=True)), train, test)
        order = np.concatenate([train, test])
        return Dataset("breast_cancer", x, y[order], len(train), 2, class_names=tuple(map(str, bunch.target_names)))


@register("dataset", "heart_disease", paper="Detrano et al. 1989; four hospitals as in FLamby, arXiv:2210.04620")
@dataclass(frozen=True)
class HeartDisease:
    """920 patients of four hospitals, 13 features, heart disease or not; every hospital is a client."""

    defaults: ClassVar[dict[str, Any]] = {
        "model": "logreg",
        "share": 1.0,
        "rounds": 30,
        "partition": {"name": "natural"},
        "local": {"lr": 0.05, "epochs": 1, "batch": 16},
        "evaluate": {"every": 1, "target": 0.8},
    }

    def load(self, seed: int) -> Dataset:
        """Return four fifths of each hospital for training; missing values become the mean of the training rows."""
        arrays = published_files.load_published("heart_disease")
        y, owner = arrays["y"].astype(np.int64), arrays["site"].astype(np.int64)
        train, test = split_rows(y, owner, 0.2, seed=0)
        x = features({f"feature {i}": c for i, c in enumerate(arrays["X"].T)}, train, test, missing="mean")
        order = np.concatenate([train, test])
        return Dataset(
            "heart_disease",
            x,
            y[order],
            len(train),
            2,
            owner=owner[order],
            owner_names=published_files.HEART_SITES,
            class_names=("healthy", "disease"),
        )


@dataclass(frozen=True)
class TableFile(ABC):
    """A table in a file: labels, features, and optionally columns with the client, group or time of a row."""

    path: str
    label: str
    client: str | None = None
    drop: tuple[str, ...] = ()
    test: TestShare = 0.2
    test_path: str | None = None
    missing: Missing = "error"
    standardise: bool = True
    one_hot: bool = False
    split_seed: SplitSeed = 0
    group: str | None = None  # samples of one group are never in both parts of a split
    time: str | None = None  # no split trains on later samples than it tests

    @property
    def defaults(self) -> dict[str, Any]:
        """Return the defaults of an experiment: the clients of the table, or ten equal ones."""
        owned = {"partition": {"name": "natural"}} if self.client else {"partition": {"name": "iid"}, "clients": 10}
        return {**owned, "model": "logreg", "rounds": 20, "local": {"lr": 0.05, "epochs": 1, "batch": 16}}

    def load(self, seed: int) -> Dataset:
        """Read and check the table, number labels and clients, and split it into training and test rows."""
        if self.group and self.time:
            raise BadValue(
                "a table has groups or times, not both", remedy="remove data.group or data.time", where="data.time"
            )
        table, n_first = self._rows()
        label, client = f"column '{quoted(self.label)}'", f"column '{quoted(self.client)}'"
        y, class_names = labels(read_column(table, self.label), label, first_row=1)
        owner, owner_names = (
            numbered(read_column(table, self.client), client, first_row=1) if self.client else (None, ())
        )
        group = numbered(read_column(table, self.group), f"column '{quoted(self.group)}'")[0] if self.group else None
        time = _moments(table, self.time) if self.time else None
        if self.test_path:
            train, test = np.split(np.arange(len(y)), [n_first])
        else:
            train, test = self._split(y, owner, group, time)
        x = features(self.feature_columns(table), train, test, self.missing, self.standardise)
        order = np.concatenate([train, test])
        return Dataset(
            Path(self.path).stem,
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

    def _split(self, y: Rows, owner: Rows | None, group: Rows | None, time: Rows | None) -> tuple[Rows, Rows]:
        """Return training and test rows; by whole groups or by time if the table has such columns."""
        shares = np.array([1 - self.test, self.test])
        if group is not None:
            part = whole_groups(cells_of(y, owner), group, shares, stream(self.split_seed, "split"))
        elif time is not None:
            part = blocks_in_time(time, shares)
        else:
            return split_rows(y, owner, self.test, self.split_seed)
        return np.flatnonzero(part == 0), np.flatnonzero(part == 1)

    @abstractmethod
    def whole(self, path: str) -> pa.Table:
        """Return the table in a file, with rows, and no column twice."""

    def _rows(self) -> tuple[pa.Table, int]:
        """Return all rows, those of `test_path` last, and the number of rows before them."""
        first = self._checked(self.path)
        if self.test_path is None:
            return first, len(first)
        return self.joined(first, self._checked(self.test_path), self.test_path), len(first)

    def joined(self, first: pa.Table, second: pa.Table, test_path: str) -> pa.Table:
        """Return the training rows followed by the rows of a test file."""
        import pyarrow as pa

        for name in first.column_names:
            if name not in second.column_names and name not in self.drop:
                raise UnknownName(
                    f"{test_path} has no column '{quoted(name)}'",
                    remedy=f"give it the columns of {self.path}, or drop '{quoted(name)}'",
                    where="data.test_path",
                )
        shared = [name for name in first.column_names if name in second.column_names]
        with published_files.reading(test_path, remedy=f"give its columns the types they have in {self.path}"):
            return pa.concat_tables([first.select(shared), second.select(shared)], promote_options="permissive")

    def _checked(self, path: str) -> pa.Table:
        """Return the table in a file; raise `UnknownName` if a column of the settings is missing."""
        table = self.whole(path)
        own = {"label": self.label, "client": self.client, "group": self.group, "time": self.time}
        named = {key: [name] if name or key == "label" else [] for key, name in own.items()}
        if path == self.path:  # a test file may lack what is dropped anyway
            named["drop"] = [*self.drop]
        columns = {f"data.{setting}": names for setting, names in named.items()}
        require_columns(path, table, columns, "data.separator" if hasattr(self, "separator") else "")
        return table

    def feature_names(self, table: pa.Table) -> list[str]:
        """Return the columns that are features, in the order of the table."""
        aside = {self.label, self.client, self.group, self.time, *self.drop}
        return [name for name in table.column_names if name not in aside]

    def feature_columns(
        self, table: pa.Table, words: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """Return the features as numbers; `words` are the categories of columns, if more than this table determines them."""
        columns: dict[str, NDArray[np.float64]] = {}
        for name in self.feature_names(table):
            if holds_numbers(table, name):
                columns[name] = read_numbers(table, name)
            else:
                codes, kinds = self.categories(table, name)
                at = {kind: code for code, kind in enumerate(kinds)}
                every = kinds if words is None else words[name]
                columns |= {f"{name} = {kind}": (codes == at.get(kind, -1)).astype(np.float64) for kind in every}
        return columns

    def categories(self, table: pa.Table, name: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return a column of words as codes, and their names; raise `BadValue` without `one_hot` or with too many words."""
        codes, kinds = numbered(table[name].to_numpy())
        if not self.one_hot or len(kinds) > MOST_CATEGORIES:
            encode = f"set one_hot = true (at most {MOST_CATEGORIES} distinct values; it has {len(kinds)})"
            row, word = next(
                ((i, kinds[c]) for i, c in enumerate(codes) if not _is_number(kinds[c])), (0, kinds[codes[0]])
            )
            raise BadValue(
                f"column '{quoted(name)}' is not numeric: it holds '{quoted(word)}' in row {row + 1}",
                remedy=f"add '{quoted(name)}' to drop, encode it as numbers, or {encode}",
                where="data.drop",
            )
        return codes, kinds


@register("dataset", "csv")
@dataclass(frozen=True)
class Csv(TableFile):
    """A table in a CSV file of yours; `label` is the column to predict, `client` the column with the client of a row."""

    separator: str = ","

    def whole(self, path: str) -> pa.Table:
        """Return the table in a CSV file, with the types of its columns inferred."""
        return read_csv(path, separator=self.separator, where="data.path")


@register("dataset", "parquet")
@dataclass(frozen=True)
class Parquet(TableFile):
    """A table in a Parquet file of yours; `label` is the column to predict, `client` the column with the client of a row."""

    def whole(self, path: str) -> pa.Table:
        """Return the table in a Parquet file."""
        return read_parquet(path, where="data.path")


def _moments(table: pa.Table, name: str) -> Rows:
    """Number the times of a column in ascending order: numbers, dates, or texts that sort like dates."""
    values = read_column(table, name)
    if values.dtype.kind == "f":
        sortable = values
    elif values.dtype.kind in "iubM":
        sortable = values.astype(np.int64) if values.dtype.kind != "M" else values.view(np.int64)
    else:
        sortable = np.array([str(value) for value in values.tolist()])
    codes: Rows = np.unique(sortable, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return codes


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def features(
    columns: Mapping[str, NDArray[Any]],
    train: Rows,
    test: Rows,
    missing: Missing = "error",
    standardise: bool = True,
    known: Mapping[str, tuple[float, float]] | None = None,
) -> NDArray[np.float32]:
    """Return the columns as a matrix, training rows first, standardised by the training rows or by `known` values."""
    if not columns:
        raise BadValue("there is no feature column", remedy="drop fewer columns", where="data.drop")
    order = np.concatenate([train, test])
    x = np.empty((len(order), len(columns)), dtype=np.float32)
    for i, (name, raw) in enumerate(columns.items()):
        values = filled(name, raw.astype(np.float64), train, missing, None if known is None else known[name][0])
        if standardise:
            mean, deviation = (values[train].mean(), values[train].std()) if known is None else known[name]
            values = (values - mean) / (deviation if deviation > 0 else 1.0)
        if not (np.abs(values) < np.finfo(np.float32).max).all():
            raise BadValue(
                f"column '{quoted(name)}' holds values too large for 32-bit floats", remedy="rescale it, or drop it"
            )
        x[:, i] = values[order]
    return x


def filled(
    name: str, values: NDArray[np.float64], train: Rows, missing: Missing, mean: float | None = None
) -> NDArray[np.float64]:
    """Fill missing values with the mean of the training rows, or with `mean`; raise `BadValue` unless `missing` is "mean"."""
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
    if mean is not None:
        return np.where(empty, mean, values)
    if empty[train].all():
        raise BadValue(f"column '{quoted(name)}' has no value in any training row", remedy="drop it", where="data.drop")
    return np.where(empty, values[train][~empty[train]].mean(), values)
