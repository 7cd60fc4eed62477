"""Exclude clients from a partition: their samples are not used, and the other clients do not change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedarena.config.errors import PartitionImpossible, check_known, quoted
from fedarena.data.dataset import Partition, Rows


def client_names(partition: Partition) -> tuple[str, ...]:
    """Return the name of every client, or its number where clients have no names."""
    return partition.names or tuple(str(k) for k in range(len(partition.clients)))


def check_clients(names: Sequence[str], wanted: Sequence[str], where: str) -> None:
    """Refuse the name of a client that does not exist."""
    known = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    for name in wanted:
        check_known(name, names, f"there is no client '{quoted(name)}'", f"the clients are: {known}", where)


def without_clients(
    partition: Partition, excluded: Sequence[str], *, own_tests: bool, where: str = "exclude"
) -> Partition:
    """Return the partition in which the excluded clients have no samples; the others have the same number and samples.

    With `own_tests` the test samples of a client are its own, and are removed from the common test samples too; test
    samples that were sampled for a client from the common ones stay there.
    """
    names = client_names(partition)
    check_clients(names, excluded, where)
    out = {names.index(name) for name in excluded}
    nothing: Rows = np.empty(0, np.int64)
    clients = [nothing if k in out else rows for k, rows in enumerate(partition.clients)]
    tests = [nothing if k in out else rows for k, rows in enumerate(partition.client_tests)]
    common = partition.test
    if own_tests:
        removed = np.concatenate([nothing, *(partition.client_tests[k] for k in sorted(out))])
        common = common[~np.isin(common, removed)]
    if not any(map(len, clients)) or not len(common):
        left = "training" if len(common) else "test"
        raise PartitionImpossible(
            f"without {', '.join(excluded)} there are no {left} samples",
            remedy=f"name fewer clients in {where}",
            where=where,
        )
    return replace(partition, clients=clients, client_tests=tests, test=common)
