"""The encoding of a table for one split: fitted on the training samples of the partition and on no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedarena.data.dataset import Dataset, Partition, Rows
from fedarena.data.exclusion import client_names
from fedarena.data.table_encoding import TableEncoding


def encode_split(data: Dataset, partition: Partition, *, own_tests: bool) -> tuple[Dataset, tuple[str, ...]]:
    """Return the data set with its table encoded for this partition, and notes; other data sets stay as they are.

    The encoding is fitted on the training samples of all clients together, without clients that never train. With
    `normalise = "client"`, the samples of a client, also of one that never trains, are standardised by its own training
    samples. Test samples that were sampled for clients (not `own_tests`) have no client.
    """
    if data.table is None:
        return data, ()
    names = client_names(partition)
    own = {names[k]: partition.clients[k] for k in partition.population}
    own |= {names[k]: partition.unseen_clients[k] for k in partition.unseen}
    encoding = TableEncoding.fit(data.table, partition.train_rows, data.table.settings, own)
    owner: list[str | None] | None = None
    if encoding.clients:
        owner = [None] * len(data.x)
        tests = (partition.client_tests, partition.unseen_tests) if own_tests else ()
        for lists in (partition.clients, partition.validation, partition.unseen_clients, *tests):
            for name, rows in zip(names, lists, strict=bool(len(lists))):
                for row in rows:
                    owner[row] = name
    x, notes = encoding.encode(data.table, owner)
    return replace(data, x=x, encoding=encoding), notes


def encode_first(data: Dataset) -> Dataset:
    """Return the data set with its table encoded by its own training samples, before the partition is known."""
    assert data.table is not None
    rows: Rows = np.arange(data.n_train)
    encoding = TableEncoding.fit(data.table, rows, data.table.settings)
    return replace(data, x=encoding.encode(data.table)[0], encoding=encoding)
