"""A data set, with its samples in one array and the training samples first, and its partition among clients.

Training and test samples share one index space, so that a partition, a fold or the test set of a client is an array of row
numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import PartitionImpossible
from fedarena.data.table_columns import Categories
from fedarena.data.table_encoding import RawTable, TableEncoding
from fedarena.statistics.metric_registry import TaskName

Rows = NDArray[np.int64]
Preparation = Literal["scale", "standardise", "mcmahan", "niid", "none"]

PADDING = -100  # stands for no label (torch's `ignore_index`), at positions after the end of a sequence


@dataclass(frozen=True)
class Dataset:
    """Rows `x`, labels `y`; rows 0..n_train-1 are for training, the rest (or `n_test` of it) is the global test set.

    Images are uint8, N x C x H x W; tables float32, N x features; texts int64, N x length.

    Labels depend on the task: `classification` has one class per sample (int64), `next_symbol` one per position of a
    text, `regression` one number per sample (float32), `multilabel` N x labels of 0 and 1 (float32), `survival` N x 2:
    the time, and 1 if the event was observed or 0 if the sample was censored (float32).

    >>> import numpy as np
    >>> import fedarena as fa
    >>> x, y = np.zeros((5, 2), np.float32), np.array([0, 1, 1, 0, 1])
    >>> data = fa.Dataset("mine", x, y, n_train=4, classes=2)
    >>> data.shape, data.train_labels.tolist(), data.test_rows.tolist()
    ((2,), [0, 1, 1, 0], [4])
    """

    name: str
    x: NDArray[np.generic]
    y: NDArray[Any]
    n_train: int
    classes: int  # outputs of a model: classes, symbols or labels; 1 for a number or a risk
    prepare: Preparation = "none"  # preparation of a batch for the model, see data/preprocessing.py
    # means and standard deviations of the channels, for `standardise`
    pixel_stats: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    owner: NDArray[np.int64] | None = None  # natural client of every sample, training and test, -1 for none
    owner_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # for the user, about how the data was read
    group: NDArray[np.int64] | None = None  # samples of one group are never in both parts of a split
    # order of the samples in time: no split trains on later samples than it tests
    time: NDArray[np.int64] | None = None
    task: TaskName = "classification"
    weight: NDArray[np.float32] | None = None  # of every sample in the training loss
    table: RawTable | None = None  # of which `x` is the encoding, fitted on the training samples of a split
    encoding: TableEncoding | None = None
    # samples of the global test set, after the training samples; those after them are clients' own views of test samples
    n_test: int | None = None
    clean_sha256: str | None = None  # fingerprint of the data before an attack changed samples of attackers

    def __post_init__(self) -> None:
        if self.task == "classification" and self.y.ndim == 2:
            object.__setattr__(self, "task", "next_symbol")

    @property
    def has_classes(self) -> bool:
        """Return whether every sample has one class."""
        return self.task == "classification"

    @cached_property
    def strata(self) -> NDArray[np.int64]:
        """Return the group of labels that each sample belongs to, for splits that keep the distribution of labels.

        These are the classes, the fifths of a regression's labels, the combinations of several labels, and whether the
        event was observed. All samples of a text are in one group.
        """
        return strata_of(self.task, self.y)

    @property
    def stratum_count(self) -> int:
        """Return the number of groups of labels; for classes their number, with those that no sample has."""
        return self.classes if self.has_classes else int(self.strata.max()) + 1

    @property
    def train_labels(self) -> NDArray[np.int64]:
        """Return the strata of the training samples; raise `PartitionImpossible` for texts, which have many labels each."""
        if self.task == "next_symbol":
            raise PartitionImpossible(
                f"'{self.name}' has a label at every position of a sample, not one per sample",
                remedy="use partition 'natural' or 'iid'",
                where="partition.name",
            )
        return self.strata[: self.n_train]

    @property
    def test_rows(self) -> Rows:
        """Return the row numbers of the global test set."""
        end = len(self.x) if self.n_test is None else self.n_train + self.n_test
        return np.arange(self.n_train, end, dtype=np.int64)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one sample as the model receives it."""
        return (3, 24, 24) if self.prepare == "mcmahan" else tuple(self.x.shape[1:])

    def fingerprint(self) -> str:
        """Return the sha256 of samples, labels and owners, which is equal for equal data.

        Of a table the columns count before they are encoded, so that splits of the same table have the same data.
        Samples that an attack changed count as they were before.
        """
        if self.clean_sha256 is not None:
            return self.clean_sha256
        digest = hashlib.sha256(f"{self.n_train} {self.classes} {self.prepare}".encode())
        raw = (self.x,) if self.table is None else _arrays_of(self.table)
        for array in (*raw, self.y, self.owner, self.weight):
            if array is not None:
                digest.update(f"{array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        if self.task not in ("classification", "next_symbol"):
            digest.update(self.task.encode())
        if self.n_test is not None:
            digest.update(f"n_test {self.n_test}".encode())
        for name, codes in (("group", self.group), ("time", self.time)):
            if codes is not None:
                digest.update(name.encode() + np.ascontiguousarray(codes).data)
        return digest.hexdigest()


def count_labels(y: Any) -> int:
    """Return the number of labels of samples: positions that have one in texts, else one per sample (array or tensor)."""
    is_text = y.ndim == 2 and not (y.is_floating_point() if hasattr(y, "is_floating_point") else y.dtype.kind == "f")
    return int((y != PADDING).sum()) if is_text else len(y)


def unknown_labels(task: TaskName, rows: int, outputs: int) -> NDArray[Any]:
    """Return labels of the form of a task for samples whose labels are not here."""
    if task in ("classification", "next_symbol"):
        return np.full(rows, PADDING, np.int64)
    width = {"multilabel": (outputs,), "survival": (2,)}.get(task, ())
    return np.full((rows, *width), np.nan, np.float32)


def strata_of(task: TaskName, y: NDArray[Any]) -> NDArray[np.int64]:
    """Return the group of labels that each sample belongs to, see `Dataset.strata`."""
    if task == "classification":
        return y
    if task == "regression":
        limits = np.quantile(y, [0.2, 0.4, 0.6, 0.8])
        return np.searchsorted(limits, y, side="right").astype(np.int64)
    if task == "multilabel":
        return np.unique(y, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    if task == "survival":
        return y[:, 1].astype(np.int64)
    return np.zeros(len(y), np.int64)


def _arrays_of(table: RawTable) -> list[NDArray[Any]]:
    """Return the names and values of all columns as arrays."""
    found: list[NDArray[Any]] = []
    for name, column in table.columns.items():
        words = (name, *column.levels) if isinstance(column, Categories) else (name,)
        found.append(np.frombuffer("\0".join(words).encode(), np.uint8))
        found.append(column.codes if isinstance(column, Categories) else column)
    return found


@dataclass(frozen=True, eq=False)
class RowLists(Sequence[Rows]):
    """The row numbers of many clients in one array, which takes less memory than many small arrays.

    >>> lists = RowLists.of([np.array([4, 7]), np.array([1])])
    >>> lists[0], len(lists), lists.flat, lists.sizes
    (array([4, 7]), 2, array([4, 7, 1]), array([2, 1]))
    """

    flat: Rows  # rows of the first client, then of the second, ...
    bounds: Rows  # client k has flat[bounds[k] : bounds[k + 1]]

    @classmethod
    def of(cls, lists: Sequence[Rows]) -> RowLists:
        """Concatenate the row numbers of all clients."""
        sizes = np.fromiter(map(len, lists), np.int64, len(lists))
        flat = np.concatenate([np.empty(0, np.int64), *lists])
        return cls(flat, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return the number of rows of each client."""
        return np.diff(self.bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, at: int) -> Rows: ...
    @overload
    def __getitem__(self, at: slice) -> list[Rows]: ...
    def __getitem__(self, at: int | slice) -> Rows | list[Rows]:
        if isinstance(at, slice):
            return [self[k] for k in range(*at.indices(len(self)))]
        k = range(len(self))[at]
        return self.flat[self.bounds[k] : self.bounds[k + 1]]


@dataclass(frozen=True)
class Partition:
    """The assignment of samples to clients: one array of row numbers per client, and those held out for testing.

    >>> import numpy as np
    >>> import fedarena as fa
    >>> parts = fa.Partition([np.array([0, 2, 3]), np.array([1])], np.array([4, 5]))
    >>> parts.sizes.tolist(), parts.train_rows.tolist()
    ([3, 1], [0, 2, 3, 1])
    """

    clients: Sequence[Rows]
    test: Rows  # the global test set; a held-out fold for fold-wise partitions
    client_tests: Sequence[Rows] = field(default_factory=list)  # test samples of each client, see data/client_tests.py
    noise: NDArray[np.float64] | None = None  # standard deviation of each client's feature noise
    frozen_noise: bool = True  # the same noise in all rounds, or new noise in each round
    unused: int = 0  # training samples without a client
    notes: tuple[str, ...] = ()  # for the user, about the result of the partition
    names: tuple[str, ...] = ()  # of the clients, if they have names
    validation: Sequence[Rows] = field(default_factory=list)  # to choose a round, see data/validation_samples.py
    # training and test samples of clients that never train, who have none in `clients`; see data/unseen_clients.py
    unseen_clients: Sequence[Rows] = field(default_factory=list)
    unseen_tests: Sequence[Rows] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("clients", "client_tests", "validation", "unseen_clients", "unseen_tests"):
            object.__setattr__(self, name, _packed(getattr(self, name)))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return n_k, the number of training samples of each client."""
        return _sizes(self.clients)

    @property
    def test_sizes(self) -> NDArray[np.int64]:
        """Return the number of test samples of each client."""
        return _sizes(self.client_tests)

    @property
    def train_rows(self) -> Rows:
        """Return the training samples of all clients, one client after the other."""
        return _flat(self.clients)

    @property
    def population(self) -> list[int]:
        """Return the clients that have samples; others are never selected and do not count."""
        return [int(k) for k in np.flatnonzero(self.sizes)]

    @property
    def unseen(self) -> list[int]:
        """Return the clients that never train and are evaluated at the end."""
        return [int(k) for k in np.flatnonzero(_sizes(self.unseen_clients))]

    def pooled(self) -> Partition:
        """Return a partition with one client that has all training samples, in the order of clients."""
        return replace(self, clients=[self.train_rows], names=())

    def fingerprint(self) -> str:
        """Return the sha256 of all arrays of row numbers."""
        digest = hashlib.sha256()
        beside = [*self.validation, *self.unseen_clients, *self.unseen_tests]
        for rows in [*self.clients, self.test, *self.client_tests, *beside]:
            digest.update(f"{len(rows)} ".encode())
            digest.update(np.ascontiguousarray(rows).data)
        if self.noise is not None:
            digest.update(self.noise.tobytes())
        return digest.hexdigest()


def _packed(lists: Sequence[Rows]) -> Sequence[Rows]:
    """Concatenate arrays of row numbers; leave other values unchanged, which the checks of a partition report."""
    if isinstance(lists, RowLists):
        return lists
    fits = all(isinstance(rows, np.ndarray) and rows.dtype == np.int64 and rows.ndim == 1 for rows in lists)
    return RowLists.of(lists) if fits else lists


def _sizes(lists: Sequence[Rows]) -> NDArray[np.int64]:
    return lists.sizes if isinstance(lists, RowLists) else np.array([len(rows) for rows in lists], dtype=np.int64)


def _flat(lists: Sequence[Rows]) -> Rows:
    return lists.flat if isinstance(lists, RowLists) else np.concatenate(lists)


class DataSource(Protocol):
    """A data set that can be loaded; its fields are its settings."""

    def load(self, seed: int) -> Dataset:
        """Read the data set; `seed` is for data sets that must be split into training and test samples."""


class Partitioner(Protocol):
    """A method of partitioning samples among clients."""

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        """Partition the training samples of `data` among this many clients; all random numbers come from `rng`."""
