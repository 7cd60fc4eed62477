"""Partition with two kinds of clients, which have classes of a first and of a second group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray

from fedarena.config.registry import register
from fedarena.data.dataset import Dataset, Partition, Rows
from fedarena.data.partitions.assignment import assign_in_turns, class_rows, finished, impossible, need_rows

Groups = tuple[tuple[int, ...], tuple[int, ...]]
Clients = NDArray[np.int64]
Pools = dict[int, Rows]  # the rows of each class

CIFAR10: Groups = ((2, 3, 4, 5, 6, 7), (0, 1, 8, 9))  # animals, vehicles
BALANCED_ROWS = 300


@register("partition", "multimodal", paper="after WAFFLe, Hao et al. 2020, arXiv 2008.05687")
@dataclass(frozen=True)
class Multimodal:
    """A share `ratio` of the clients has z classes of the first group (animals), the others z of the second.

    The rows of a class are divided among the clients that have it; a class that no client has stays unused.
    `balanced`: every client has rows_per_client rows; by default 300, or fewer if a class is too small.
    `noise`: a share nu of each client's rows is from the other group.
    Default groups: animals and vehicles for CIFAR-10; for other data the first 60 % of the classes, and the rest.
    """

    z: Annotated[int, Ge(1)] = 3
    ratio: Annotated[float, Ge(0), Le(1)] = 0.5
    groups: Groups | None = None
    variant: Literal["base", "balanced", "noise"] = "base"
    rows_per_client: Annotated[int, Ge(1)] | None = None
    nu: Annotated[float, Gt(0), Lt(1)] = 0.1

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        need_rows(data.n_train, clients, self.z)
        pools = class_rows(data, rng)
        groups = self.groups or _default_groups(data, list(pools))
        first = max(int(round(self.ratio * clients, 9)), 1)  # rounded, as 0.29 * 100 is slightly below 29
        group_of = (np.arange(clients) >= first).astype(np.int64)
        self._check(groups, pools, group_of)
        noise = self.variant == "noise"
        reserve = [self._reserve(pools, group, data.n_train, rng) for group in groups] if noise else []
        hold = [rng.choice(groups[g], self.z, replace=False) for g in group_of]
        holders = {y: np.flatnonzero([y in classes for classes in hold]) for y in pools}
        if self.variant == "balanced":
            self._even_out(pools, holders)
        parts = assign_in_turns(pools.values(), holders.values(), clients)
        if noise:
            parts = [self._mix(rows, reserve, 1 - g, rng) for rows, g in zip(parts, group_of, strict=True)]
        return finished(data, [parts[k] for k in rng.permutation(clients)])

    def _check(self, groups: Groups, pools: Pools, group_of: NDArray[np.int64]) -> None:
        named = [y for group in groups for y in group]
        if not all(groups) or len(set(named)) < len(named) or not set(named) <= set(pools):
            raise impossible(
                f"{groups} are not two groups of different classes", f"choose from {list(pools)}", "groups"
            )
        smallest = min(len(groups[g]) for g in set(group_of))
        if self.z > smallest:
            raise impossible(f"a client cannot have {self.z} of {smallest} classes of a group", "lower z", "z")

    def _even_out(self, pools: Pools, holders: dict[int, Clients]) -> None:
        """Shorten every pool to the same number of rows for each client that has the class."""
        most = min(len(pools[y]) // len(who) for y, who in holders.items() if len(who))
        wanted = (self.rows_per_client or BALANCED_ROWS) // self.z
        if self.rows_per_client is not None and not 1 <= wanted <= most:
            raise impossible(
                f"{self.rows_per_client} rows per client, equally of {self.z} classes, are not possible",
                f"use {self.z} to {most * self.z} rows",
                "rows_per_client",
            )
        for y, who in holders.items():
            pools[y] = pools[y][: min(max(wanted, 1), most) * len(who)]

    def _reserve(self, pools: Pools, group: tuple[int, ...], rows: int, rng: np.random.Generator) -> Rows:
        """Reserve nu n rows of a group, enough for any ratio, as at most n rows of the other group are replaced."""
        stock = np.concatenate([pools[y] for y in group])
        size = int(self.nu * rows)
        if size >= len(stock):
            raise impossible(f"a group of {len(stock)} rows cannot reserve {size}", "use a smaller nu", "nu")
        reserve = rng.choice(stock, size, replace=False)
        for y in group:
            pools[y] = pools[y][~np.isin(pools[y], reserve)]
        return reserve

    def _mix(self, rows: Rows, reserve: list[Rows], other: int, rng: np.random.Generator) -> Rows:
        """Replace a share nu of the rows by reserved rows of the other group."""
        swap = int(self.nu * len(rows))
        taken, reserve[other] = np.split(reserve[other], [swap])
        return np.concatenate([rng.permutation(rows)[swap:], taken])


def _default_groups(data: Dataset, classes: list[int]) -> Groups:
    if data.name == "cifar10":
        return CIFAR10
    border = round(0.6 * len(classes))
    return tuple(classes[:border]), tuple(classes[border:])
