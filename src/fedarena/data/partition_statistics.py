"""Statistics of a partition: sizes of clients, and how much their class distributions differ."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.data.dataset import Dataset, Partition
from fedarena.statistics.inequality import gini


@dataclass(frozen=True)
class Statistics:
    """Sizes and label skew of the clients that have samples. Texts have sizes only, as they have no single class."""

    clients: int
    rows_min: int
    rows_median: float
    rows_max: int
    rows_cv: float  # coefficient of variation of n_k
    rows_gini: float
    unused: int
    classes_per_client: dict[int, int] | None = None  # number of classes -> number of clients
    label_entropy: float | None = None  # mean of H(q_k), in nats
    l1: float | None = None  # mean of sum |q_k - p|: 0 for iid, 1.8 for one class of ten
    hellinger: float | None = None  # mean distance between q_k and p
    jensen_shannon: float | None = None  # mean distance between q_k and p: root of the divergence in nats
    counts: NDArray[np.int64] | None = None  # rows of each client and class

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and lists for JSON."""
        return asdict(self) | {"counts": None if self.counts is None else self.counts.tolist()}


def statistics(data: Dataset, partition: Partition) -> Statistics:
    """Compute the statistics of a partition; clients without samples do not count."""
    sizes = partition.sizes[partition.population]
    return Statistics(
        clients=len(sizes),
        rows_min=int(sizes.min()),
        rows_median=float(np.median(sizes)),
        rows_max=int(sizes.max()),
        rows_cv=float(sizes.std() / sizes.mean()),
        rows_gini=gini(sizes),
        unused=partition.unused,
        **(_label_statistics(data, partition) if data.task != "next_symbol" else {}),
    )


def class_counts(data: Dataset, partition: Partition) -> NDArray[np.int64]:
    """Return the number of samples of each client and class, K x J."""
    return np.stack([np.bincount(data.strata[rows], minlength=data.stratum_count) for rows in partition.clients])


def _label_statistics(data: Dataset, partition: Partition) -> dict[str, Any]:
    from scipy.spatial.distance import jensenshannon
    from scipy.special import entr

    counts = class_counts(data, partition)
    held = counts[partition.population]
    q = held / held.sum(axis=1, keepdims=True)
    # p is over all samples that are not held out for testing, with or without a client
    p = np.bincount(np.delete(data.strata, partition.test), minlength=data.stratum_count)
    p = p / p.sum()
    classes, clients = np.unique((held > 0).sum(axis=1), return_counts=True)
    return {
        "classes_per_client": dict(zip(classes.tolist(), clients.tolist(), strict=True)),
        "label_entropy": float(entr(q).sum(axis=1).mean()),
        "l1": float(np.abs(q - p).sum(axis=1).mean()),
        "hellinger": float((np.linalg.norm(np.sqrt(q) - np.sqrt(p), axis=1) / np.sqrt(2)).mean()),
        "jensen_shannon": float(jensenshannon(q, np.broadcast_to(p, q.shape), axis=1).mean()),
        "counts": counts,
    }
