"""The rows of many clients in one array, seen as a list of arrays."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from fedarena.data.dataset import Partition, RowLists

LISTS = [np.array([4, 7]), np.empty(0, np.int64), np.array([1, 2, 9])]


def test_packed_lists_are_read_like_the_lists_they_were_made_of() -> None:
    packed = RowLists.of(LISTS)
    assert [rows.tolist() for rows in packed] == [[4, 7], [], [1, 2, 9]]
    assert len(packed) == 3
    assert packed[-1].tolist() == [1, 2, 9]
    assert [rows.tolist() for rows in packed[:2]] == [[4, 7], []]
    assert packed.sizes.tolist() == [2, 0, 3]
    with pytest.raises(IndexError):
        packed[3]


def test_a_partition_packs_its_rows_and_keeps_its_fingerprint() -> None:
    partition = Partition(LISTS, test=np.array([5, 6]), client_tests=[np.array([5]), np.array([6]), np.empty(0, int)])
    assert isinstance(partition.clients, RowLists)
    assert partition.train_rows.tolist() == [4, 7, 1, 2, 9]
    assert partition.population == [0, 2]
    assert (partition.sizes.tolist(), partition.test_sizes.tolist()) == ([2, 0, 3], [1, 1, 0])
    assert partition.pooled().clients[0].tolist() == [4, 7, 1, 2, 9]
    loose = Partition(LISTS, partition.test, partition.client_tests)
    object.__setattr__(loose, "clients", LISTS)
    assert loose.fingerprint() == partition.fingerprint()


def test_what_is_no_array_of_row_numbers_is_left_for_the_checks_to_name() -> None:
    wrong = [np.array([1.5]), np.array([2.0])]
    partition = Partition(wrong, test=np.array([0]))
    assert partition.clients is wrong
    assert partition.sizes.tolist() == [1, 1]


def test_a_hundred_thousand_clients_take_hardly_more_than_their_rows() -> None:
    rows = np.arange(1_000_000)
    partition = Partition(np.array_split(rows, 100_000), test=np.empty(0, np.int64))
    assert len(pickle.dumps(partition, protocol=5)) < 1.15 * rows.nbytes
