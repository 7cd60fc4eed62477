"""The file of a client: its description, and the samples for training and testing, which stay on this machine.

The test samples follow from the experiment and from the position that the file would have in one table of all clients, one
file after the other in the order of their names. So they are those that a run on that table tests on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.tree_algorithm import TreeAlgorithm
from fedarena.config import seeds
from fedarena.config.errors import BadValue, DataMissing, UnknownName, suggest
from fedarena.config.experiment import Experiment
from fedarena.data.client_tests import hold_out
from fedarena.data.dataset import Dataset, Partition, Rows, strata_of
from fedarena.data.raw_columns import encode_raw
from fedarena.data.sources.class_codes import MOST_CLASSES, numbered
from fedarena.data.sources.label_columns import LabelTask, label_numbers, time_and_event, zeros_and_ones
from fedarena.data.sources.several_files import JoinedTable, read_files
from fedarena.data.sources.table_files import Csv, Parquet, TableFile
from fedarena.data.table_columns import Categories, Column, rows_missing
from fedarena.data.table_encoding import ColumnEncoding, EncodingSettings, RawTable, TableEncoding
from fedarena.federation.messages import Agreement, ColumnDescription, SampleCounts, TableDescription
from fedarena.federation.redaction import ShareableError
from fedarena.federation.statistics_release import StatisticsLayout, Totals
from fedarena.statistics.exact_sums import exact_sum, exact_sum_of_squares
from fedarena.statistics.metric_registry import TaskName

MOST_ROWS = 10**8  # of all clients: each draws an order of as many numbers
FEW = 10  # classes that are few however few the rows


@dataclass(frozen=True)
class ClientFile:
    """The paths of a client's samples, and its name of the label."""

    path: Path
    test: Path | None = None  # rows to test on, in a file of their own
    label: str | tuple[str, ...] | None = None  # None: as the server calls it
    separator: str | None = None

    def check(self) -> None:
        """Refuse a missing file before the server is contacted."""
        for path in filter(None, (self.path, self.test)):
            if not path.is_file():
                raise DataMissing(f"there is no file {path}", remedy="check the path", where="--data")

    def read_table(self, source: TableFile, trees: bool = False) -> ClientTable:
        """Read the samples as the data set of the experiment prescribes; `trees` take missing values as they are."""
        same = ("missing", "standardise", "one_hot", "split_seed", "categorical", "numeric", "test")
        settings: dict[str, Any] = {name: getattr(source, name) for name in same} | {"task": task_of_table(source)}
        labels, drop = self._label_names(source), (*source.drop, *([source.client] if source.client else []))
        label = labels if len(labels) > 1 else labels[0]
        self._check_test(source)
        path, settings["test_path"] = str(self.path), None if self.test is None else str(self.test)
        own: TableFile
        if self.path.suffix == ".parquet":
            own = Parquet(path, label, drop=drop, **settings)
        else:
            separator = self.separator or (source.separator if isinstance(source, Csv) else ",")
            own = Csv(path, label, drop=drop, separator=separator, **settings)
        names = own.whole(path).column_names
        for label_name in labels:
            if label_name not in names:
                raise UnknownName(
                    f"{self.path} has no column '{label_name}'",
                    remedy=suggest(label_name, names, "say what the label is called here: --label"),
                    where="--label",
                )
        own = replace(own, drop=tuple(name for name in drop if name in names))  # a client may lack what is dropped
        table = read_files(own, of_all_clients=False)
        missing = [name for name, column in table.features.items() if rows_missing(column).any()]
        if missing and own.missing == ("error" if trees else "median"):
            raise ShareableError(
                f"column '{missing[0]}' has missing values, which the experiment refuses"
                if trees
                else f"column '{missing[0]}' has missing values, and a federation computes no medians to fill them",
                remedy='ask the server to set data.missing = "mean", or drop the column',
                where="data.missing",
            )
        return ClientTable(own, table)

    def _label_names(self, source: TableFile) -> tuple[str, ...]:
        """Return how this client calls the label columns of the experiment, in their order."""
        if self.label is None:
            return source.label_names
        own = (self.label,) if isinstance(self.label, str) else tuple(self.label)
        if len(own) != len(source.label_names):
            raise ShareableError(
                f"the experiment has {len(source.label_names)} label columns, and {len(own)} are named here",
                remedy="give one --label for each, in the order of the experiment",
                where="--label",
            )
        return own

    def _check_test(self, source: TableFile) -> None:
        """Refuse a test file where the experiment uses none, and a missing one where it does."""
        if source.test_path is not None and self.test is None:
            raise ShareableError(
                "the experiment tests on rows of their own file", remedy="name it: --test", where="--test"
            )
        if source.test_path is None and self.test is not None:
            raise ShareableError(
                f"the experiment takes {source.test:g} of the rows to test on, and no file of test rows",
                remedy="leave out --test, or ask the server to set data.test_path",
                where="--test",
            )


@dataclass(frozen=True)
class ClientTable:
    """The table of a client, with the samples of its test file last."""

    source: TableFile
    table: JoinedTable

    @property
    def labels(self) -> dict[str, NDArray[Any]]:
        """Return the label columns as they are in the file."""
        return {name: self.table.others[name] for name in self.source.label_names}

    @property
    def test_rows(self) -> int:
        """Return the number of rows of the test file."""
        return len(next(iter(self.labels.values()))) - self.table.train_rows

    @property
    def task(self) -> TaskName:
        """Return the task of the experiment."""
        return task_of_table(self.source)

    @cached_property
    def _labels(self) -> tuple[NDArray[Any], tuple[str, ...], Any]:
        """Return numbers of classes, their names and the kind of label; of other tasks the labels as they are."""
        if self.task == "multilabel":
            return zeros_and_ones(self.labels), (), "zeros and ones"
        if self.task == "survival":
            return time_and_event(self.labels), (), "time and event"
        ((_, values),) = self.labels.items()
        if self.task == "regression":
            return label_numbers("the label", values, 1).astype(np.float32), (), "quantity"
        if values.dtype.kind == "f" and not (values == np.trunc(values)).all():
            raise BadValue(
                f"column '{self.source.label}' holds fractions: that is a regression, and the experiment has classes",
                remedy='ask the server to set data.task = "regression", or choose a column of classes',
                where="--label",
            )
        kind = "numbers" if values.dtype.kind in "iuf" else "truths" if values.dtype.kind == "b" else "words"
        codes, names = numbered(values)
        if len(names) > min(MOST_CLASSES, max(FEW, len(values) // 2)):  # all clients would learn them
            raise ShareableError(
                f"the label has {len(names)} distinct values in {len(values)} rows: that looks like a name, not like a class",
                remedy="choose a column of classes",
                where="--label",
            )
        return codes, names, kind

    def class_counts(self) -> dict[str, int]:
        """Return how many rows have each class, or each of several labels; nothing for other tasks."""
        y, names, _ = self._labels
        if self.task == "multilabel":
            return dict(zip(self.labels, y.sum(axis=0).astype(int).tolist(), strict=True))
        return dict(zip(names, np.bincount(y, minlength=len(names)).tolist(), strict=True)) if names else {}

    def describe(self, session: str) -> TableDescription:
        """Return the description that the server needs for the agreement."""
        _, classes, kind = self._labels
        rows = self.table.train_rows
        return TableDescription(
            session=session,
            rows=rows,
            test_rows=self.test_rows,
            label_kind=kind,
            classes=classes,
            columns=tuple(_described(name, column) for name, column in self.table.features.items()),
        )

    def to_samples(self, agreed: Agreement) -> AgreedSamples:
        """Return the samples at the agreed position."""
        y, classes, _ = self._labels
        if self.task == "multilabel" and len(agreed.classes) != y.shape[1]:
            raise ShareableError(f"{len(agreed.classes)} labels, and the experiment has {y.shape[1]}")
        if self.task == "classification":
            numbers = {label: number for number, label in enumerate(agreed.classes)}
            y = np.array([numbers[label] for label in classes], np.int64)[y]
        rows = self.table.train_rows
        if not agreed.rows_before + rows <= agreed.rows <= MOST_ROWS:
            raise ShareableError(f"a table of {agreed.rows} rows in all")
        if self.test_rows:
            train, test = np.split(np.arange(len(y)), [rows])
        else:
            train, test = split_samples(strata_of(self.task, y), agreed, self.source.test, self.source.split_seed)
        columns = {column.name: _as_agreed(self.table.features[column.name], column) for column in agreed.columns}
        return AgreedSamples(self.source, columns, y, train, test)


def _described(name: str, column: Column) -> ColumnDescription:
    """Return the description of a column; one without any value may be of either kind."""
    if isinstance(column, Categories):
        return ColumnDescription(name=name, kind="words" if column.levels else "empty", words=column.levels)
    return ColumnDescription(name=name, kind="empty" if np.isnan(column).all() else "numbers")


def _as_agreed(column: Column, agreed: ColumnDescription) -> Column:
    """Return a column with the kind and the levels of all clients."""
    if agreed.kind == "numbers":
        return np.full(len(column), np.nan) if isinstance(column, Categories) else column
    own = column if isinstance(column, Categories) else Categories(np.full(len(column), -1), ())
    return Categories(own.recoded(agreed.words), agreed.words)


@dataclass(frozen=True)
class AgreedSamples:
    """The samples as numbers, split into training and test samples."""

    source: TableFile
    columns: dict[str, Column]
    y: NDArray[Any]
    train: Rows
    test: Rows

    def sample_counts(self) -> SampleCounts:
        """Return how many samples there are."""
        return SampleCounts(train=len(self.train), test=len(self.test))

    def without_held_out(self, agreed: Agreement, experiment: Experiment) -> AgreedSamples:
        """Return the samples without those that are held out of the training samples for tuning."""
        if experiment.validate_share is None:
            return self
        whole = Partition(_only(agreed.client, agreed.clients, self.train), self.test)
        kept, _ = hold_out(whole, experiment.validate_share, experiment.seed_for("valid"))
        return replace(self, train=kept.clients[agreed.client])

    def statistics(self, layout: StatisticsLayout, least: int) -> Totals:
        """Return exact sums over the training samples, as many of them as the experiment needs."""
        self._refuse_few(least)
        present, sums, squares = [], [], []
        for values in self._numbers(layout.levels_only) if layout.features else ():
            present.append(len(values))
            sums.append(exact_sum(values))
            squares += [exact_sum_of_squares(values)] if layout.squares else []
        counts = np.bincount(self.y[self.train], minlength=layout.classes).tolist() if layout.classes else []
        label = Totals.of_values(self.y[self.train].astype(np.float64)) if layout.label else None
        return Totals(tuple(present), tuple(sums), tuple(squares), tuple(counts), label)

    def _numbers(self, levels_only: bool) -> Iterator[NDArray[np.float64]]:
        """Yield the values of every feature in the training samples that have one; of a level, 1 where a sample has it."""
        for column in self.columns.values():
            own = column[self.train]
            if isinstance(own, Categories):
                codes = own.codes[~own.missing]
                yield from ((codes == level).astype(np.float64) for level in range(len(own.levels)))
            elif not levels_only:
                yield own[~np.isnan(own)]

    def _refuse_few(self, least: int) -> None:
        """Refuse sums over few samples: a sum over one sample is that sample."""
        if len(self.train) < least:
            raise ShareableError(
                f"sums over {len(self.train)} training rows would reveal too much of each, and the experiment needs sums",
                remedy=f"have {least} rows or more, lower --least, or ask the server to set standardise = false",
                where="--least",
            )

    def to_dataset(self, agreed: Agreement, experiment: Experiment) -> tuple[Dataset, Partition]:
        """Return data set and partition for the engine: all clients exist, and only this one has samples."""
        order = np.concatenate([self.train, self.test])
        table = RawTable(self.columns, EncodingSettings())[order]
        trees = grows_trees(experiment)
        encoding = agreed_encoding(agreed, self.source, trees)
        n, me, name = len(self.train), agreed.client, Path(str(self.source.path)).stem
        data = Dataset(
            name,
            (encode_raw(encoding, table) if trees else encoding.encode(table))[0],
            self.y[order],
            n,
            len(agreed.classes) or 1,
            class_names=agreed.classes,
            task=task_of_table(self.source),
            encoding=encoding,
        )
        partition = Partition(
            _only(me, agreed.clients, np.arange(n)), data.test_rows, _only(me, agreed.clients, data.test_rows)
        )
        if experiment.validate_share is not None:
            partition, held = hold_out(partition, experiment.validate_share, experiment.seed_for("valid"))
            partition = replace(partition, test=held[me], client_tests=held)
        return data, partition


def task_of_table(source: TableFile) -> LabelTask:
    """Return the task of a federation on such tables; where none is set, it follows from the number of label columns."""
    return source.task or ("multilabel" if len(source.label_names) > 1 else "classification")


def needs_means(source: TableFile) -> bool:
    """Return whether preparing a sample takes the means of all training samples."""
    return source.standardise or source.missing == "mean"


def grows_trees(experiment: Experiment) -> bool:
    """Return whether clients grow trees, which take columns as they are and need statistics of levels alone."""
    return isinstance(experiment.algorithm.made, TreeAlgorithm)


def statistics_layout(experiment: Experiment, agreed: Agreement) -> StatisticsLayout:
    """Return which statistics the experiment needs of every client."""
    source, trees, task = experiment.data.made, grows_trees(experiment), task_of_table(experiment.data.made)
    if trees:
        features = sum(len(column.words) for column in agreed.columns)
    else:
        features = features_of(agreed.columns) if needs_means(source) else 0
    counts = experiment.algorithm.made.counts_classes and task == "classification"
    classes = len(agreed.classes) if counts else 0
    squares = source.standardise and not trees
    return StatisticsLayout(features, squares, classes, task == "regression", levels_only=trees)


def agreed_encoding(agreed: Agreement, source: TableFile, trees: bool = False) -> TableEncoding:
    """Return the encoding that all clients use, which is that of a table of all their training samples.

    Missing numbers become the mean. Without sums, which are needed for means, every level of the table has a column.
    `trees` take numbers as they are, so that there are sums of levels alone.
    """
    columns: list[ColumnEncoding] = []
    place = 0
    for column in agreed.columns:
        if trees and column.kind == "numbers":
            columns.append(ColumnEncoding(column.name, "numeric", None))
            continue
        width = max(len(column.words), 1)
        means = None if agreed.means is None else agreed.means[place : place + width]
        fills = means is not None and source.missing == "mean"
        if column.kind == "words":
            found = column.words if means is None else [w for w, m in zip(column.words, means, strict=True) if m > 0]
            frequent = column.words[int(np.argmax(means))] if fills and means is not None else None
            columns.append(ColumnEncoding(column.name, "categorical", frequent, levels=tuple(found)))
        else:
            mean = 0.0 if means is None else means[0]
            one = ColumnEncoding(column.name, "numeric", mean if fills else None)
            if source.standardise:
                deviation = agreed.deviations[place] if agreed.deviations else 1.0
                one = replace(one, mean=mean, deviation=deviation if deviation > 0 else 1.0)
            columns.append(one)
        place += width
    return TableEncoding(tuple(columns), task_of_table(source), source.label_names, agreed.classes)


def features_of(columns: Sequence[ColumnDescription]) -> int:
    """Return how many numbers a sample has."""
    return sum(max(len(column.words), 1) for column in columns)


def split_samples(codes: Rows, agreed: Agreement, share: float, seed: int) -> tuple[Rows, Rows]:
    """Return training and test rows of one client, as `split_rows` splits a table of all clients."""
    order = seeds.stream(seed, "split").permutation(agreed.rows) - agreed.rows_before
    mine = order[(order >= 0) & (order < len(codes))]
    spare = mine[np.argsort(codes[mine], kind="stable")][1:]  # the first is always for training
    spare_of_all = agreed.rows - agreed.clients
    step = min(1.0, share * agreed.rows / max(1, spare_of_all))
    first = agreed.rows_before - agreed.client
    marks = np.floor(np.arange(first, first + len(spare) + 1) * step + 0.5)
    test = np.sort(spare[np.diff(marks) > 0])
    return np.setdiff1d(np.arange(len(codes)), test), test


def _only(client: int, clients: int, rows: Rows) -> list[Rows]:
    """Return a partition that has rows for one client only."""
    nothing = np.empty(0, np.int64)
    return [rows if k == client else nothing for k in range(clients)]
