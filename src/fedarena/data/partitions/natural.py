"""Partition by the natural clients of a data set: the writers, speakers or users of its samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from fedarena.config.registry import register
from fedarena.data.dataset import Dataset, Partition, Rows
from fedarena.data.partitions.assignment import finished, group_by_client, impossible
from fedarena.data.published_files import reading

Users = NDArray[np.int64]


@register("partition", "natural", paper="Caldas et al. 2018, arXiv 1812.01097")
@dataclass(frozen=True)
class Natural:
    """Every user of the data set is a client with its own training and test rows, in the order of the data.

    The number of clients follows from the data: 0 clients in an experiment means all of them. If the data has no users, a
    `table` (CSV with the columns user_id, sample_id and optionally label) assigns training rows to users, as published
    partitions do.
    """

    table: str | None = None
    min_samples: Annotated[int, Ge(1)] = 1  # users with fewer training rows are left out
    max_clients: Annotated[int, Ge(1)] | None = None  # a random selection of this many users
    merge_to: Annotated[int, Ge(1)] | None = None  # users are merged at random into this many clients of equal size

    @property
    def seeded(self) -> bool:
        """Whether the result depends on the seed."""
        return self.max_clients is not None or self.merge_to is not None

    def owners(self, data: Dataset) -> Users:
        """Return the user of every sample, -1 for none."""
        return _owners(data, self.table)[0]

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        owner, owner_names = _owners(data, self.table)
        users = self._users(owner[: data.n_train], rng)
        users_of = self._merge(users, rng)
        if clients not in (0, len(users_of)):
            raise impossible(
                f"there are {len(users_of)} natural clients, not {clients}",
                "set clients = 0 for all of them, or choose with partition.max_clients or partition.merge_to",
            )
        rows = _rows_of(owner, users_of)
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

    def _merge(self, users: Users, rng: np.random.Generator) -> list[Users]:
        """Return the users of each client."""
        if self.merge_to is None:
            return np.split(users, len(users))
        if self.merge_to > len(users):
            raise impossible(
                f"{len(users)} users cannot make {self.merge_to} clients", "use a smaller merge_to", "merge_to"
            )
        return np.array_split(rng.permutation(users), self.merge_to)


def _owners(data: Dataset, table: str | None) -> tuple[Users, tuple[str, ...]]:
    """Return the user of every row, and the names of users."""
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
        # The published CIFAR-10 partitions of Hsu et al. 2020 have image_id and class.
        samples = np.asarray(columns.get("sample_id", columns.get("image_id")), dtype=np.int64)
        names, user = np.unique([str(u) for u in columns["user_id"]], return_inverse=True)
        labels = columns.get("label", columns.get("class"))
    if samples.ndim != 1 or len(np.unique(samples)) != len(samples):
        raise impossible(f"{path} has a sample twice, or no column sample_id", "list every sample once", "table")
    if samples.min(initial=0) < 0 or samples.max(initial=0) >= data.n_train:
        raise impossible(
            f"{path} names samples beyond 0 to {data.n_train - 1}", "number the training rows from 0", "table"
        )
    if labels is not None and not np.array_equal(labels, data.train_labels[samples]):
        raise impossible(f"{path} has other labels than '{data.name}'", "use the table of this data set", "table")
    owner = np.full(len(data.x), -1, dtype=np.int64)
    owner[samples] = user
    return owner, tuple(names.tolist())


def _rows_of(owner: Users, users_of: list[Users]) -> list[Rows]:
    """Return the training and test rows of each client in ascending order."""
    client_of = np.full(owner.max() + 2, -1)  # the last entry is for owner -1, which is no client
    for k, users in enumerate(users_of):
        client_of[users] = k
    client = client_of[owner]
    rows = np.flatnonzero(client >= 0)
    return group_by_client(rows, client[rows], len(users_of))
