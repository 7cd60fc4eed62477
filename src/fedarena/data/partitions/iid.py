"""Partitions in which all clients have the same distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedarena.config.registry import register
from fedarena.data.dataset import Dataset, Partition
from fedarena.data.partitions.assignment import class_rows, finished, need_rows


@register("partition", "iid", paper="McMahan et al. 2017, arXiv 1602.05629")
@dataclass(frozen=True)
class Iid:
    """All rows shuffled and cut into equal parts; sizes differ by at most one."""

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        need_rows(data.n_train, clients)
        return finished(data, np.array_split(rng.permutation(data.n_train), clients))


@register("partition", "iid_stratified")
@dataclass(frozen=True)
class IidStratified:
    """Every client gets the same number of rows of every class; class counts differ by at most one."""

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        need_rows(data.n_train, clients)
        by_class = np.concatenate(list(class_rows(data, rng).values()))
        return finished(data, [by_class[k::clients] for k in range(clients)])
