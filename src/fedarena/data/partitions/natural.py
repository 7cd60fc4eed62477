"""Clients as they are: the writers, speakers or users the rows come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from fedarena.config.registry import register
from fedarena.data.dataset import Dataset, Partition, Rows
from fedarena.data.partitions.assignment import finished, grouped, impossible
from fedarena.data.published_files import reading

Users = NDArray[np.int64]


@register("partition", "natural", paper="Caldas et al. 2018, arXiv 1812.01097")
@dataclass(frozen=True)
class Natural:
    """Every user of the data set is a client with their own rows and their own test rows, in the order of the data.

    The number of clients follows from the data: 0 clients in an experiment means as many as there are. A `table` (CSV
    with the columns user_id, sample_id and perhaps label) says who owns which training row where the data does not, as
    published partitions do.
    """

    table: str | None = None
    min_samples: Annotated[int, Ge(1)] = 1  # users with fewer training rows are left out
    max_clients: Annotated[int, Ge(1)] | None = None  # a random choice of this many users
    merge_to: Annotated[int, Ge(1)] | None = None  # users dealt at random and equally to this many clients

    @property
    def seeded(self) -> bool:
        """Whether the seed bears on the result."""
        return self.max_clients is not None or self.merge_to is not None

    def owners(self, data: Dataset) -> Users:
        """Return the user of every sample, -1 for none."""
        return _owners(data, self.table)[0]

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        owner, owner_names = _owners(data, self.table)
        users = self._users(owner[: data.n_train], rng)
        hands = self._hands(users, rng)
        if clients not in (0, len(hands)):
            raise impossible(
                f"there are {len(hands)} natural clients, not {clients}",
                "set clients = 0 for all of them, or choose with partition.max_clients or partition.merge_to",
            )
        rows = _rows_of(owner, hands)
        parts = [own[own < data.n_train] for own in rows]
        tests = [own[own >= data.n_train] for own in rows]
        names = tuple(owner_names[u] for u in users) if owner_names and self.merge_to is None else ()
        return replace(finished(data, parts), client_tests=tests if any(map(len, tests)) else [], names=names)

    def _users(self, owner: Users, rng: np.random.Generator) -> Users:
        users, counts = np.unique(owner[owner >= 0], return_counts=True)
        users = users[counts >= self.min_samples]
        if not len(users):
            raise impossible(f"no user has {self.min_samples} training rows", "lower min_samples", "min_samples")
        if self.max_clients is not None and self.max_clients < len(users):
            users = np.sort(rng.choice(users, self.max_clients, replace=False))
        return users

    def _hands(self, users: Users, rng: np.random.Generator) -> list[Users]:
        """The users of each client."""
        if self.merge_to is None:
            return np.split(users, len(users))
        if self.merge_to > len(users):
            raise impossible(f"{len(users)} users cannot make {self.merge_to} clients", "merge less", "merge_to")
        return np.array_split(rng.permutation(users), self.merge_to)


def _owners(data: Dataset, table: str | None) -> tuple[Users, tuple[str, ...]]:
    """The user of every row, and the users' names."""
    if table is not None:
        return _read_owners(data, table)
    if data.owner is None:
        remedy = "use another partition, or give partition.table, a CSV of user_id and sample_id"
        raise impossible(f"the rows of '{data.name}' have no natural owners", remedy, "name")
    return data.owner, data.owner_names


def _read_owners(data: Dataset, path: str) -> tuple[Users, tuple[str, ...]]:
    from pyarrow import csv

    with reading(path, remedy="give a CSV file with the columns user_id and sample_id"):
        columns = csv.read_csv(path).to_pydict()
        # The published CIFAR-10 partitions of Hsu et al. 2020 say image_id and class.
        samples = np.asarray(columns.get("sample_id", columns.get("image_id")), dtype=np.int64)
        names, user = np.unique([str(u) for u in columns["user_id"]], return_inverse=True)
        labels = columns.get("label", columns.get("class"))
    if samples.ndim != 1 or len(np.unique(samples)) != len(samples):
        raise impossible(f"{path} deals a sample twice, or has no column sample_id", "list every sample once", "table")
    if samples.min(initial=0) < 0 or samples.max(initial=0) >= data.n_train:
        raise impossible(
            f"{path} names samples beyond 0 to {data.n_train - 1}", "number the training rows from 0", "table"
        )
    if labels is not None and not np.array_equal(labels, data.train_labels[samples]):
        raise impossible(f"{path} has other labels than '{data.name}'", "use the table of this data set", "table")
    owner = np.full(len(data.x), -1, dtype=np.int64)
    owner[samples] = user
    return owner, tuple(names.tolist())


def _rows_of(owner: Users, hands: list[Users]) -> list[Rows]:
    """Train and test rows of each client, ascending."""
    client_of = np.full(owner.max() + 2, -1)  # the last entry is that of owner -1: nobody
    for k, users in enumerate(hands):
        client_of[users] = k
    client = client_of[owner]
    rows = np.flatnonzero(client >= 0)
    return grouped(rows, client[rows], len(hands))
