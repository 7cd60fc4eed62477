"""Each client's own test set, and rows held out for a search."""

import numpy as np
import pytest

from fedarena.config.errors import BadValue
from fedarena.data.client_tests import client_tests, hold_out
from fedarena.data.dataset import Dataset, Partition
from fedarena.data.partitions.dirichlet import ClientDirichlet, LabelDirichlet
from fedarena.data.partitions.iid import Iid
from fedarena.data.partitions.labels import NonIid
from fedarena.data.partitions.multimodal import Multimodal
from fedarena.data.partitions.natural import Natural
from fedarena.data.partitions.shards import NilssonIid


def labelled(train: int, test: int, name: str = "cifar10") -> Dataset:
    """So many rows of each of ten classes."""
    y = np.concatenate([np.arange(10 * train) % 10, np.arange(10 * test) % 10])
    return Dataset(name, np.zeros((len(y), 1), np.uint8), y, n_train=10 * train, classes=10)


CIFAR = labelled(5000, 1000)


def split(partitioner, data: Dataset = CIFAR, clients: int = 100) -> Partition:
    return partitioner.split(data, clients, np.random.default_rng(0))


def counts(rows: np.ndarray, data: Dataset = CIFAR) -> np.ndarray:
    return np.bincount(data.y[rows], minlength=10)


@pytest.mark.parametrize("how", ["same_distribution", "balanced"])
def test_non_iid_clients_are_tested_on_10_images_of_each_of_their_classes(how):
    partition = split(NonIid())
    tests, notes = client_tests(CIFAR, partition, np.random.default_rng(0), how)
    for rows, own in zip(partition.clients, tests, strict=True):
        assert np.array_equal(counts(own), counts(rows) // 5)
        assert own.dtype == np.int64
        assert (own >= CIFAR.n_train).all()
        assert len(np.unique(own)) == len(own)
    assert notes == ()


def test_same_distribution_is_a_fifth_within_one_image_a_class():
    partition = split(ClientDirichlet(alpha=1))
    tests, _ = client_tests(CIFAR, partition, np.random.default_rng(0))
    for rows, own in zip(partition.clients, tests, strict=True):
        assert len(own) == len(rows) // 5
        assert (np.abs(counts(own) - counts(rows) / 5) < 1).all()
        assert set(np.unique(CIFAR.y[own])) <= set(np.unique(CIFAR.y[rows]))


def test_balanced_tests_all_classes_of_a_client_equally():
    partition = split(ClientDirichlet(alpha=1))
    tests, _ = client_tests(CIFAR, partition, np.random.default_rng(0), "balanced")
    for rows, own in zip(partition.clients, tests, strict=True):
        held = counts(rows) > 0
        assert np.array_equal(counts(own), held * (100 // held.sum()))


def test_an_image_may_serve_many_clients():
    tests, _ = client_tests(CIFAR, split(Iid()), np.random.default_rng(0))
    assert sum(map(len, tests)) == 10_000
    assert len(np.unique(np.concatenate(tests))) < 7000  # 10,000 draws hit 1 - 1/e = 63 % of 10,000


def test_a_class_with_too_few_images_cuts_the_test_set_and_says_so():
    scarce = labelled(5000, 900)
    partition = split(Multimodal(ratio=0.01), scarce)  # one client with 5000 images of each of three classes
    tests, notes = client_tests(scarce, partition, np.random.default_rng(0))
    largest = partition.sizes.argmax()
    assert len(tests[largest]) == 3 * 900
    assert "1 client test sets are 300 samples short" in notes[0]


def test_fewer_than_five_rows_give_an_empty_test_set():
    partition = Partition([np.arange(4), np.arange(4, 9)], test=CIFAR.test_rows)
    tests, _ = client_tests(CIFAR, partition, np.random.default_rng(0))
    assert [len(rows) for rows in tests] == [0, 1]
    assert tests[0].dtype == np.int64


def test_a_client_without_rows_has_no_test_set():
    partition = Partition([np.arange(0), np.arange(50)], test=CIFAR.test_rows)
    for how in ("same_distribution", "balanced"):
        tests, _ = client_tests(CIFAR, partition, np.random.default_rng(0), how)
        assert [len(rows) for rows in tests] == [0, 10]


def test_fold_clients_are_tested_on_the_held_out_fold():
    partition = split(NilssonIid(fold=2))
    tests, _ = client_tests(CIFAR, partition, np.random.default_rng(0))
    assert np.isin(np.concatenate(tests), partition.test).all()


def test_natural_clients_keep_their_own_test_rows():
    owner = np.arange(60) % 3
    data = Dataset("users", np.zeros((60, 1)), np.zeros(60, np.int64), n_train=45, classes=1, owner=owner)
    partition = split(Natural(), data, clients=3)
    tests, _ = client_tests(data, partition, np.random.default_rng(0))
    assert all((owner[rows] == k).all() and len(rows) == 5 for k, rows in enumerate(tests))


def test_texts_are_tested_on_any_fifth():
    text = Dataset("text", np.zeros((120, 4), np.int64), np.zeros((120, 4), np.int64), n_train=100, classes=9)
    tests, notes = client_tests(text, split(Iid(), text, clients=2), np.random.default_rng(0))
    assert [len(np.unique(rows)) for rows in tests] == [10, 10]
    assert notes == ()


def test_the_same_stream_gives_the_same_test_sets():
    partition = split(LabelDirichlet())
    a, b, c = (client_tests(CIFAR, partition, np.random.default_rng(s))[0] for s in (0, 0, 1))
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert not all(np.array_equal(x, y) for x, y in zip(a, c, strict=True))


def test_a_tenth_of_every_client_is_held_out():
    partition = split(NonIid())
    rest, held = hold_out(partition, 0.1, seed=0)
    for before, after, out in zip(partition.clients, rest.clients, held, strict=True):
        assert len(out) == len(before) // 10
        assert np.array_equal(np.union1d(after, out), before)
        assert len(after) + len(out) == len(before)
    assert np.array_equal(rest.test, partition.test)


def test_what_is_held_out_of_a_client_does_not_depend_on_the_others():
    partition = split(NonIid())
    alone = Partition(partition.clients[:1], partition.test)
    assert np.array_equal(hold_out(alone, 0.3, seed=5)[1][0], hold_out(partition, 0.3, seed=5)[1][0])
    assert not np.array_equal(hold_out(alone, 0.3, seed=6)[1][0], hold_out(alone, 0.3, seed=5)[1][0])


def test_every_client_has_its_own_stream_for_what_is_held_out():
    _, held = hold_out(Partition([np.arange(100), np.arange(100, 200)], CIFAR.test_rows), 0.3, seed=0)
    assert not np.array_equal(held[0], held[1] - 100)


@pytest.mark.parametrize("share", [0, 1, -0.1, 2])
def test_a_share_must_leave_something(share):
    with pytest.raises(BadValue, match="share"):
        hold_out(split(Iid()), share, seed=0)
