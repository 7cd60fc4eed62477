"""What an experiment learns from: rows with labels, in one array, training rows first.

Train and test lie in one index space, so that a partition, a fold or a client's own test set is just an array of rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import PartitionImpossible

Rows = NDArray[np.int64]
Preparation = Literal["scale", "standardise", "mcmahan", "niid", "none"]

PADDING = -100  # a label that is no label (torch's `ignore_index`): positions after the end of a sequence


@dataclass(frozen=True)
class Dataset:
    """Rows `x`, labels `y`; rows 0..n_train-1 are for training, the rest is the global test set.

    Images are uint8, N x C x H x W; tables float32, N x features; texts int64, N x length, with one label a position.
    """

    name: str
    x: NDArray[np.generic]
    y: NDArray[np.int64]
    n_train: int
    classes: int
    prepare: Preparation = "none"  # what happens to a batch on its way into a model, see data/preprocessing.py
    pixel_stats: tuple[tuple[float, ...], tuple[float, ...]] | None = (
        None  # channel means and deviations, `standardise`
    )
    owner: NDArray[np.int64] | None = None  # natural client of every row (train and test), -1 for none
    owner_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what a user should know about how it was read
    group: NDArray[np.int64] | None = None  # samples of one group are never on both sides of a division
    time: NDArray[np.int64] | None = None  # order of the samples in time: no division trains on later ones

    @property
    def train_labels(self) -> NDArray[np.int64]:
        """Labels of the training rows; one label a row, or no partition by label is possible."""
        if self.y.ndim != 1:
            raise PartitionImpossible(
                f"'{self.name}' has a label at every position of a row, not one a row",
                remedy="use partition 'natural' or 'iid'",
                where="partition.name",
            )
        return self.y[: self.n_train]

    @property
    def test_rows(self) -> Rows:
        """Row numbers of the global test set."""
        return np.arange(self.n_train, len(self.x), dtype=np.int64)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row as a model sees it."""
        return (3, 24, 24) if self.prepare == "mcmahan" else tuple(self.x.shape[1:])

    def fingerprint(self) -> str:
        """sha256 over rows, labels and owners: two runs with the same fingerprint saw the same data."""
        digest = hashlib.sha256(f"{self.n_train} {self.classes} {self.prepare}".encode())
        for array in (self.x, self.y, self.owner):
            if array is not None:
                digest.update(f"{array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        for name, codes in (("group", self.group), ("time", self.time)):
            if codes is not None:
                digest.update(name.encode() + np.ascontiguousarray(codes).data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class RowLists(Sequence[Rows]):
    """The rows of many clients in one array: a hundred thousand small arrays would cost more than the rows in them.

    >>> lists = RowLists.of([np.array([4, 7]), np.array([1])])
    >>> lists[0], len(lists), lists.flat, lists.sizes
    (array([4, 7]), 2, array([4, 7, 1]), array([2, 1]))
    """

    flat: Rows  # of the first client, then of the second, ...
    bounds: Rows  # client k has flat[bounds[k] : bounds[k + 1]]

    @classmethod
    def of(cls, lists: Sequence[Rows]) -> RowLists:
        """These arrays, one after the other."""
        sizes = np.fromiter(map(len, lists), np.int64, len(lists))
        flat = np.concatenate([np.empty(0, np.int64), *lists])
        return cls(flat, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each."""
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
    """Who owns which rows: one array of row numbers a client, and the rows held back for testing."""

    clients: Sequence[Rows]
    test: Rows  # the global test set; a held-out fold for fold-wise partitions
    client_tests: Sequence[Rows] = field(default_factory=list)  # each client's own test rows, see data/client_tests.py
    noise: NDArray[np.float64] | None = None  # standard deviation of each client's feature noise
    frozen_noise: bool = True  # the same noise at every look, or a new draw each round
    unused: int = 0  # training rows that nobody owns
    notes: tuple[str, ...] = ()  # what a user should know about how it came out
    names: tuple[str, ...] = ()  # of the clients, where they have any
    validation: Sequence[Rows] = field(
        default_factory=list
    )  # held out to choose a round, see data/validation_samples.py

    def __post_init__(self) -> None:
        for name in ("clients", "client_tests", "validation"):
            object.__setattr__(self, name, _packed(getattr(self, name)))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """n_k: rows of each client."""
        return _sizes(self.clients)

    @property
    def test_sizes(self) -> NDArray[np.int64]:
        """Test rows of each client."""
        return _sizes(self.client_tests)

    @property
    def dealt(self) -> Rows:
        """The rows of all clients, one client after the other."""
        return _flat(self.clients)

    @property
    def population(self) -> list[int]:
        """Clients that own rows; the others are never selected nor counted."""
        return [int(k) for k in np.flatnonzero(self.sizes)]

    def pooled(self) -> Partition:
        """All rows in one place, in the order of clients; everything else as it was."""
        return replace(self, clients=[self.dealt], names=())

    def fingerprint(self) -> str:
        """sha256 over all index arrays."""
        digest = hashlib.sha256()
        for rows in [*self.clients, self.test, *self.client_tests, *self.validation]:
            digest.update(f"{len(rows)} ".encode())
            digest.update(np.ascontiguousarray(rows).data)
        if self.noise is not None:
            digest.update(self.noise.tobytes())
        return digest.hexdigest()


def _packed(lists: Sequence[Rows]) -> Sequence[Rows]:
    """In one array, if they are arrays of row numbers; what is not stays as it came, for the checks to name."""
    if isinstance(lists, RowLists):
        return lists
    fits = all(isinstance(rows, np.ndarray) and rows.dtype == np.int64 and rows.ndim == 1 for rows in lists)
    return RowLists.of(lists) if fits else lists


def _sizes(lists: Sequence[Rows]) -> NDArray[np.int64]:
    return lists.sizes if isinstance(lists, RowLists) else np.array([len(rows) for rows in lists], dtype=np.int64)


def _flat(lists: Sequence[Rows]) -> Rows:
    return lists.flat if isinstance(lists, RowLists) else np.concatenate(lists)


class Source(Protocol):
    """A data set by name: its settings are its fields, `load` reads it."""

    def load(self, seed: int) -> Dataset:
        """Read it; `seed` serves only sets that must be split into train and test rows here."""
        ...


class Partitioner(Protocol):
    """A way to deal rows to clients."""

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        """Deal the training rows of `data` to this many clients; every draw comes from `rng`."""
        ...
