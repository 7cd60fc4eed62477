"""Tables of users, one sample per row, in files and DataFrames."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, located_at, quoted, quoted_list
from fedarena.config.registry import register
from fedarena.config.seeds import stream
from fedarena.data.dataset import Dataset, Rows, strata_of
from fedarena.data.sources.class_codes import SplitSeed, TestShare, names_alike, numbered, split_rows
from fedarena.data.sources.label_columns import LabelTask, read_labels
from fedarena.data.sources.several_files import JoinedTable, read_files, title_of_path
from fedarena.data.sources.standardised_once import FittedOn, load_once, moments
from fedarena.data.split_encoding import encode_first
from fedarena.data.stratification import blocks_in_time, cells_of, whole_groups
from fedarena.data.table_columns import Kind, as_arrow
from fedarena.data.table_encoding import EncodingSettings, Missing, Normalise, RawTable
from fedarena.data.table_reader import check_table, read_table, require_columns

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TableFile(ABC):
    """A table in one or several files: labels, features, and optionally columns with the client, group or time of a row."""

    path: str | tuple[str, ...]  # several files: every file is a client, unless `client` names a column
    label: str | tuple[str, ...] | None = None
    client: str | None = None
    drop: tuple[str, ...] = ()
    test: TestShare = 0.2
    test_path: str | None = None
    missing: Missing = "median"
    standardise: bool = True
    one_hot: bool = True  # False refuses columns of texts
    split_seed: SplitSeed = 0
    group: str | None = None  # samples of one group are never in both parts of a split
    time: str | None = None  # no split trains on later samples than it tests
    weight: str | None = None  # column with the weight of a sample
    task: LabelTask | None = None  # None: inferred from the labels
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    missing_indicator: bool = False
    normalise: Normalise = "pooled"
    fitted_on: FittedOn = "split"

    @property
    def defaults(self) -> dict[str, Any]:
        """Return the defaults of an experiment: the clients of the table, or ten equal ones."""
        natural = self.client is not None or len(self.paths) > 1
        owned = {"partition": {"name": "natural"}} if natural else {"partition": {"name": "iid"}, "clients": 10}
        return {**owned, "model": "logreg", "rounds": 20, "local": {"lr": 0.05, "epochs": 1, "batch": 16}}

    @property
    def paths(self) -> tuple[Any, ...]:
        """Return the files in the order in which they are given."""
        return self.path if isinstance(self.path, tuple) else (self.path,)

    @property
    def label_names(self) -> tuple[str, ...]:
        """Return the names of all label columns."""
        return (self.label,) if isinstance(self.label, str) else self.label or ()

    @property
    def kinds(self) -> dict[str, Kind]:
        """Return the kinds of the columns whose kind is set."""
        both = {*self.categorical} & {*self.numeric}
        if both:
            raise BadValue(
                f"column '{quoted(min(both))}' is named in categorical and in numeric",
                remedy="name it in one of them",
                where="data.categorical",
            )
        kinds: dict[str, Kind] = dict.fromkeys(self.categorical, "categorical")
        return kinds | dict.fromkeys(self.numeric, "numeric")

    def load(self, seed: int) -> Dataset:
        """Read and check the table, number labels and clients, and split it into training and test rows."""
        if self.group and self.time:
            raise BadValue(
                "a table has groups or times, not both", remedy="remove data.group or data.time", where="data.time"
            )
        if self.fitted_on == "file":
            return load_once(self)
        if not self.label_names:
            names = self.checked(self.paths[0]).column_names
            raise BadValue(
                "no label is given",
                remedy=f"name the column to predict: --label NAME, or data.label; it has: {quoted_list(names)}",
                where=quoted(title_of_path(self.paths[0])),
            )
        table = read_files(self)
        with located_at(table.title):
            return self._dataset(table)

    def _dataset(self, table: JoinedTable) -> Dataset:
        """Return the data set of a table that has been read."""
        client = f"column '{quoted(self.client)}'"
        labels = read_labels({f"column '{quoted(name)}'": table.others[name] for name in self.label_names}, self.task)
        owner, owner_names = table.owners(self.client)
        group = numbered(table.others[self.group], f"column '{quoted(self.group)}'", 1)[0] if self.group else None
        time = moments(table.others[self.time]) if self.time else None
        if self.test_path:
            train, test = np.split(np.arange(len(labels.y)), [table.train_rows])
        else:
            train, test = self.split(strata_of(labels.task, labels.y), owner, group, time)
        order = np.concatenate([train, test])
        names = self.label_names if labels.task == "multilabel" else labels.names
        settings = EncodingSettings(
            self.missing,
            self.standardise,
            self.missing_indicator,
            self.normalise,
            labels.task,
            self.label_names,
            names,
            self.kinds,
        )
        return encode_first(
            Dataset(
                table.name,
                np.empty((len(order), 0), np.float32),
                labels.y[order],
                len(train),
                labels.classes,
                owner=None if owner is None else owner[order],
                owner_names=owner_names,
                class_names=names,
                notes=(*table.notes, *names_alike(names, "the label"), *names_alike(owner_names, client)),
                group=None if group is None else group[order],
                time=None if time is None else time[order],
                task=labels.task,
                weight=None if self.weight is None else _weights(self.weight, table.others[self.weight])[order],
                table=RawTable(table.features, settings)[order],
            )
        )

    def split(self, y: Rows, owner: Rows | None, group: Rows | None, time: Rows | None) -> tuple[Rows, Rows]:
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
    def whole(self, path: Any) -> pa.Table:
        """Return the table in a file, with rows, and no column twice."""

    def checked(self, path: Any, *, is_test: bool = False) -> pa.Table:
        """Return the table in a file; raise `UnknownName` if a column of the settings is missing."""
        table = self.whole(path)
        own = {"client": self.client, "group": self.group, "time": self.time, "weight": self.weight}
        named = {"data.label": [*self.label_names]} | {f"data.{key}": [name] for key, name in own.items() if name}
        if len(self.paths) == 1 and not is_test:  # a test file may lack what is dropped anyway
            named["data.drop"] = [*self.drop]
        named |= {"data.categorical": [*self.categorical], "data.numeric": [*self.numeric]}
        require_columns(path, table, named, "data.separator" if hasattr(self, "separator") else "")
        return table

    def feature_names(self, names: Sequence[str]) -> list[str]:
        """Return those of the columns that are features, in their order."""
        aside = {*self.label_names, self.client, self.group, self.time, self.weight, *self.drop}
        return [name for name in names if name not in aside]


@register("dataset", "csv")
@dataclass(frozen=True)
class Csv(TableFile):
    """A table in CSV files of yours; `label` is the column to predict, `client` the column with the client of a row.

    >>> import fedarena as fa
    >>> import sklearn.datasets
    >>> table = sklearn.datasets.load_iris(as_frame=True).frame
    >>> table.to_csv("iris.csv", index=False)
    >>> fa.run(fa.csv("iris.csv", label="target"), clients=3, rounds=2, out=False).final.round
    2
    """

    separator: str = ","

    def whole(self, path: str) -> pa.Table:
        """Return the table in a CSV file, with the types of its columns inferred, or in a Parquet file."""
        return read_table(path, separator=self.separator, where="data.path")


@register("dataset", "parquet")
@dataclass(frozen=True)
class Parquet(TableFile):
    """A table in Parquet files of yours; `label` is the column to predict, `client` the column with the client of a row.

    >>> import fedarena as fa
    >>> import sklearn.datasets
    >>> table = sklearn.datasets.load_iris(as_frame=True).frame
    >>> table.to_parquet("iris.parquet")
    >>> fa.run(fa.parquet("iris.parquet", label="target"), clients=3, rounds=2, out=False).final.round
    2
    """

    def whole(self, path: str) -> pa.Table:
        """Return the table in a Parquet file, or in a CSV file."""
        return read_table(path, where="data.path")


@register("dataset", "frame")
@dataclass(frozen=True, eq=False)
class DataFrameTable(TableFile):
    """A DataFrame of pandas or polars, an Arrow table, or a dict of columns; given in Python as `path`."""

    path: Any

    def whole(self, path: Any) -> pa.Table:
        """Return the DataFrame as an Arrow table."""
        return read_table(path) if isinstance(path, str) else check_table(as_arrow(path))


def _weights(name: str, values: NDArray[Any]) -> NDArray[np.float32]:
    """Return the weights of samples; raise `BadValue` unless they are finite, not negative, and not all zero."""
    sound = np.zeros(len(values), bool) if values.dtype.kind not in "biuf" else (values >= 0) & (values < 1e30)
    if not sound.all():
        row = int(np.argmin(sound))
        raise BadValue(
            f"column '{quoted(name)}' is {quoted(str(values[row]))} in row {row + 1}, which is not a weight",
            remedy="give numbers of at least 0",
            where="data.weight",
        )
    if not values.any():
        raise BadValue(f"column '{quoted(name)}' is 0 in all rows", remedy="give positive weights", where="data.weight")
    return values.astype(np.float32)
