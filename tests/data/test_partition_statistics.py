"""Statistics and plot of how much clients differ."""

import json

import numpy as np
import pytest
from scipy.stats import entropy

from fedarena.data.dataset import Dataset, Partition
from fedarena.data.partition_statistics import statistics
from fedarena.data.partitions.iid import Iid, IidStratified
from fedarena.data.partitions.labels import ClassesPerClient, NonIid
from fedarena.data.partitions.shards import NilssonIid, Shards
from fedarena.reports.partition_plots import plot_partition
from fedarena.statistics.inequality import gini

TEN = Dataset("ten", np.zeros((1200, 1), np.uint8), np.arange(1200) % 10, n_train=1000, classes=10)
TEXT = Dataset("text", np.zeros((60, 4), np.int64), np.zeros((60, 4), np.int64), n_train=50, classes=9)


def split(partitioner, data: Dataset = TEN, clients: int = 10) -> Partition:
    return partitioner.split(data, clients, np.random.default_rng(0))


def test_equal_clients_are_at_distance_zero():
    facts = statistics(TEN, split(IidStratified()))
    assert (facts.clients, facts.rows_min, facts.rows_median, facts.rows_max) == (10, 100, 100, 100)
    assert facts.rows_cv == facts.rows_gini == facts.l1 == facts.hellinger == facts.jensen_shannon == 0
    assert facts.label_entropy == pytest.approx(np.log(10))
    assert facts.classes_per_client == {10: 10}


def test_one_class_of_ten_is_as_far_as_can_be():
    # q one-hot, p = 0.1: L1 = 0.9 + 9 * 0.1; Hellinger^2 = 1 - sqrt(0.1); JS from its definition
    facts = statistics(TEN, split(ClassesPerClient(c=1)))
    q, p = np.eye(10)[0], np.full(10, 0.1)
    divergence = (entropy(q, (q + p) / 2) + entropy(p, (q + p) / 2)) / 2
    assert facts.l1 == pytest.approx(1.8)
    assert facts.hellinger == pytest.approx(np.sqrt(1 - np.sqrt(0.1)))
    assert facts.jensen_shannon == pytest.approx(np.sqrt(divergence))
    assert facts.label_entropy == 0
    assert facts.classes_per_client == {1: 10}


def test_sizes_of_unequal_clients():
    partition = Partition([np.arange(2), np.arange(2, 8), np.arange(0)], test=TEN.test_rows, unused=992)
    facts = statistics(TEN, partition)
    assert (facts.clients, facts.rows_min, facts.rows_median, facts.rows_max) == (2, 2, 4, 6)
    assert facts.rows_cv == pytest.approx(0.5)  # deviation 2, mean 4
    assert facts.rows_gini == pytest.approx(0.25)
    assert facts.unused == 992
    assert facts.counts.shape == (3, 10)


def test_unused_rows_count_in_the_labels_of_all():
    partition = split(NonIid())
    facts = statistics(TEN, partition)
    q = facts.counts / facts.counts.sum(axis=1, keepdims=True)
    assert facts.l1 == pytest.approx(np.abs(q - 0.1).sum(axis=1).mean())


def test_test_rows_do_not_count_in_the_labels_of_all():
    y = np.repeat([0, 1, 0], [50, 50, 100])  # training rows are half and half, test rows all of class 0
    data = Dataset("lopsided", np.zeros((200, 1), np.uint8), y, n_train=100, classes=2)
    assert statistics(data, split(IidStratified(), data)).l1 == 0


def test_a_held_out_fold_is_no_training_data():
    facts = statistics(TEN, split(NilssonIid()))
    assert facts.counts.sum() == 960
    assert facts.l1 < 0.5


@pytest.mark.parametrize(("values", "expected"), [([3, 3, 3], 0), ([0, 0, 0, 8], 0.75), ([1, 3], 0.25), ([0, 0], 0)])
def test_gini_of_small_examples(values, expected):
    assert gini(values) == pytest.approx(expected)


def test_gini_is_half_the_mean_difference_over_the_mean():
    x = np.random.default_rng(0).exponential(size=50)
    assert gini(x) == pytest.approx(np.abs(x[:, None] - x).mean() / (2 * x.mean()))


def test_texts_have_sizes_only():
    facts = statistics(TEXT, split(Iid(), TEXT, clients=5))
    assert facts.rows_min == 10
    assert facts.counts is facts.l1 is facts.classes_per_client is None


def test_statistics_are_ready_for_json():
    facts = statistics(TEN, split(Shards())).as_dict()
    assert json.loads(json.dumps(facts))["counts"] == facts["counts"]
    assert facts["clients"] == 10
    assert statistics(TEXT, split(Iid(), TEXT, clients=5)).as_dict()["counts"] is None


@pytest.mark.slow
@pytest.mark.parametrize(("data", "clients"), [(TEN, 10), (TEN, 100), (TEN, 1), (TEXT, 5)])
def test_the_picture_is_a_png(data, clients, tmp_path):
    path = plot_partition(data, split(Iid(), data, clients), tmp_path / "partition.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_many_classes_fit_the_picture(tmp_path):
    data = Dataset("many", np.zeros((900, 1), np.uint8), np.arange(900) % 62, n_train=800, classes=62)
    assert plot_partition(data, split(Shards(), data), tmp_path / "p.png").stat().st_size > 0
