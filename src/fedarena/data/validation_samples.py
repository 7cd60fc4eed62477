"""Hold out training samples of every client to choose a round; no client trains on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedarena.config.errors import PartitionImpossible
from fedarena.config.seeds import stream
from fedarena.data.client_tests import hold_out_together
from fedarena.data.dataset import Dataset, Partition, Rows
from fedarena.data.stratification import spread_over, stratified_order


def hold_out_validation(data: Dataset, partition: Partition, share: float, seed: int) -> Partition:
    """Move a share of every client's training samples to `validation`, in proportion to the classes of the client.

    Of n samples, floor(`share` n) are held out, so that a client with few samples keeps them all.
    Where samples have groups or times, whole groups or the latest samples are held out; a client that would lose all its
    samples keeps them.
    """
    if data.group is None and data.time is None:
        held = list(_stratified(data, partition, share, seed))
    else:
        _, held = hold_out_together(partition, share, stream(seed, "validation"), data)
    nothing = np.empty(0, np.int64)
    pairs = zip(partition.clients, held, strict=True)
    held = [nothing if len(out) == len(rows) else out for rows, out in pairs]
    if not any(map(len, held)):
        raise PartitionImpossible(
            f"no client has enough samples to hold out {share:g} of them",
            remedy="raise evaluate.validation, or use fewer clients",
            where="evaluate.validation",
        )
    kept = [np.setdiff1d(rows, out) if len(out) else rows for rows, out in zip(partition.clients, held, strict=True)]
    return replace(partition, clients=kept, validation=held)


def _stratified(data: Dataset, partition: Partition, share: float, seed: int) -> Iterator[Rows]:
    """Yield the samples to hold out of each client, in ascending order."""
    classes = data.strata
    for client, rows in enumerate(partition.clients):
        count = min(int(round(share * len(rows), 9)), len(rows) - 1)
        if count < 1:
            yield np.empty(0, np.int64)
            continue
        line = stratified_order(classes[rows], None, stream(seed, "validation", client))
        yield np.sort(rows[spread_over(line, np.zeros(len(rows), np.int64), count)])
