"""Partitions in which clients have only some of the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from fedarena.config.registry import register
from fedarena.data.dataset import Dataset, Partition, Rows
from fedarena.data.partitions.assignment import (
    assign_in_turns,
    class_rows,
    count_with_several,
    finished,
    impossible,
    need_rows,
)
from fedarena.data.partitions.iid import IidStratified
from fedarena.data.partitions.shards import sorted_shards


@register("partition", "non_iid")
@dataclass(frozen=True)
class NonIid:
    """Equal parts as in `iid_stratified`, of which each client keeps 1 to 7 random classes and discards the rest.

    The classes of a client are balanced, the sizes of clients are not: with CIFAR-10 and 100 clients n_k = 50 c_k.
    """

    min_classes: Annotated[int, Ge(1)] = 1
    max_classes: Annotated[int, Ge(1)] = 7

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        need_rows(data.n_train, clients)
        labels = data.train_labels
        known, counts = np.unique(labels, return_counts=True)
        _check_range(self.min_classes, self.max_classes, len(known))
        if counts.min() < clients:
            least = counts.min()
            raise impossible(f"a class has {least} rows for {clients} clients", f"use at most {least} clients")
        parts = []
        for rows in IidStratified().split(data, clients, rng).clients:
            c_k = rng.integers(self.min_classes, self.max_classes, endpoint=True)
            parts.append(rows[np.isin(labels[rows], rng.choice(known, c_k, replace=False))])
        return finished(data, parts)


@register("partition", "non_iid_equal")
@dataclass(frozen=True)
class NonIidEqual:
    """1 to 7 random classes for each client as in `non_iid`, but the same number of rows for every client.

    Classes are sampled among those with enough rows for an equal share; if there are too few, clients get what is left.
    Without rows_per_client it is n/K max_classes/J, the largest size in `non_iid`: 350 for CIFAR-10, 100 clients.
    """

    rows_per_client: Annotated[int, Ge(1)] | None = None
    min_classes: Annotated[int, Ge(1)] = 1
    max_classes: Annotated[int, Ge(1)] = 7

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        need_rows(data.n_train, clients, self.rows_per_client or 1)
        pools = list(class_rows(data, rng).values())
        _check_range(self.min_classes, self.max_classes, len(pools))
        wanted = self.rows_per_client or max(1, data.n_train * self.max_classes // (clients * len(pools)))
        stock = np.array([len(pool) for pool in pools])
        parts = []
        for _ in range(clients):
            take = self._take(stock, wanted, rng)
            parts.append(np.concatenate([pools[y][stock[y] - m : stock[y]] for y, m in enumerate(take)]))
            stock -= take
        return finished(data, parts, notes=_shortfall(parts, wanted))

    def _take(self, stock: NDArray[np.int64], wanted: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return how many rows of each class the next client gets."""
        c_k = min(int(rng.integers(self.min_classes, self.max_classes, endpoint=True)), wanted)
        share = np.full(c_k, wanted // c_k) + (np.arange(c_k) < wanted % c_k)
        # Sampling among the classes with enough rows equals sampling again until all of them have enough.
        able = np.flatnonzero(stock >= share[0])
        fullest = np.argsort(-stock, kind="stable")
        chosen = rng.choice(able, c_k, replace=False) if len(able) >= c_k else fullest[:c_k]
        take = np.zeros_like(stock)
        take[chosen] = np.minimum(share, stock[chosen])
        return take


@register("partition", "classes_per_client", paper="Zhao et al. 2018, arXiv 1806.00582; Li et al. 2022, 2102.02079")
@dataclass(frozen=True)
class ClassesPerClient:
    """c classes for each client; the rows of a class are divided equally among the clients that have it.

    `niid_bench`: client i has class i mod J (for c = 1: of the classes in random order) and c - 1 others.
    `sorted`, for c > 1: c K equal shards of the rows sorted by label, c of different classes for each client; a
    shard on the border of two classes counts as one of them, so that a few clients have c + 1 classes; a note counts them.
    """

    c: Annotated[int, Ge(1)] = 1
    variant: Literal["niid_bench", "sorted"] = "niid_bench"

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        need_rows(data.n_train, clients, self.c)
        classes = len(np.unique(data.train_labels))
        if self.c > classes:
            raise impossible(f"a client cannot have {self.c} of {classes} classes", f"use c <= {classes}", "c")
        if self.variant == "sorted" and self.c > 1:
            return self._by_shards(data, clients, rng)
        return self._by_class(data, clients, rng)

    def _by_class(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        pools = list(class_rows(data, rng).values())
        classes = np.arange(len(pools))
        first = rng.permutation(classes) if self.c == 1 else classes
        held = np.zeros((clients, len(pools)), dtype=bool)
        for k, row in enumerate(held):
            own = first[k % len(pools)]
            row[own] = row[rng.choice(np.delete(classes, own), self.c - 1, replace=False)] = True
        return finished(data, assign_in_turns(pools, [np.flatnonzero(column) for column in held.T], clients))

    def _by_shards(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        count = clients * self.c
        shards = sorted_shards(data.train_labels, count, data.n_train // count, True, rng)
        middle = data.strata[shards[:, shards.shape[1] // 2]]
        assignment = _without_pairs(rng.permutation(count).reshape(clients, self.c), middle, rng)
        parts = [shards[own].ravel() for own in assignment]
        several = count_with_several(data.strata, parts, self.c)
        note = f"{several} of {clients} clients have more than {self.c} classes: a shard of theirs is on a border"
        return finished(data, parts, notes=(note,) if several else ())


def _without_pairs(
    assignment: NDArray[np.int64], label: NDArray[np.int64], rng: np.random.Generator, tries: int = 10_000
) -> NDArray[np.int64]:
    """Swap shards at random until no client has two of the same class."""
    for _ in range(tries):
        held = np.sort(label[assignment], axis=1)
        pairs = np.flatnonzero((held[:, 1:] == held[:, :-1]).any(axis=1))
        if not len(pairs):
            return assignment
        first = pairs[0], rng.integers(assignment.shape[1])
        second = rng.integers(len(assignment)), rng.integers(assignment.shape[1])
        assignment[first], assignment[second] = assignment[second], assignment[first]
    raise impossible(
        f"no assignment of {assignment.shape[1]} shards of different classes to each client was found in {tries} swaps",
        "use variant = 'niid_bench' or a smaller c",
        "variant",
    )


def _check_range(low: int, high: int, classes: int) -> None:
    if not low <= high <= classes:
        raise impossible(
            f"clients cannot have {low} to {high} of {classes} classes",
            f"use min_classes <= max_classes <= {classes}",
            "max_classes",
        )


def _shortfall(parts: list[Rows], wanted: int) -> tuple[str, ...]:
    short = [wanted - len(part) for part in parts if len(part) < wanted]
    return (f"{len(short)} clients have fewer than {wanted} rows, {sum(short)} rows short in all",) if short else ()
