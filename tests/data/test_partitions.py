"""What each partition promises: the exact counts of its paper, and the simulated facts within their own spread."""

import itertools
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, ks_2samp

from fedarena.config.errors import DataMissing, FedarenaError, PartitionImpossible
from fedarena.config.experiment import Experiment
from fedarena.config.registry import components
from fedarena.data.dataset import Dataset, Partition
from fedarena.data.partition_statistics import class_counts, statistics
from fedarena.data.partitions import dirichlet
from fedarena.data.partitions.dirichlet import ClientDirichlet, LabelDirichlet, QuantityDirichlet
from fedarena.data.partitions.features import NoisyFeatures
from fedarena.data.partitions.iid import Iid, IidStratified
from fedarena.data.partitions.labels import ClassesPerClient, NonIid, NonIidEqual
from fedarena.data.partitions.multimodal import Multimodal
from fedarena.data.partitions.natural import Natural
from fedarena.data.partitions.shards import NilssonIid, NilssonNonIid, Shards
from fedarena.engine.setup import open_context, partition_data

MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
ANIMALS = [2, 3, 4, 5, 6, 7]


def labelled(train: list[int], test: list[int], name: str = "labels") -> Dataset:
    """Rows without content, with so many labels of each class, in random order."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.permutation(np.repeat(np.arange(len(n)), n)) for n in (train, test)])
    return Dataset(name, np.zeros((len(y), 1), np.uint8), y, n_train=sum(train), classes=len(train))


MNIST = labelled(MNIST_TRAIN, MNIST_TEST, "mnist")
CIFAR = labelled([5000] * 10, [1000] * 10, "cifar10")
TEXT = Dataset("text", np.zeros((90, 5), np.int64), np.zeros((90, 5), np.int64), n_train=80, classes=7)


def split(partitioner, data: Dataset, clients: int = 100, seed: int = 0) -> Partition:
    return partitioner.split(data, clients, np.random.default_rng(seed))


def labels_held(data: Dataset, partition: Partition) -> np.ndarray:
    return (class_counts(data, partition) > 0).sum(axis=1)


def covers_everything(data: Dataset, partition: Partition) -> bool:
    return np.array_equal(np.sort(np.concatenate(partition.clients)), np.arange(data.n_train))


# iid


def test_iid_gives_600_of_mnist_to_each_of_100_clients():
    partition = split(Iid(), MNIST)
    assert (partition.sizes == 600).all()
    assert covers_everything(MNIST, partition)


def test_iid_sizes_differ_by_at_most_one():
    partition = split(Iid(), MNIST, clients=7)
    assert np.ptp(partition.sizes) == 1
    assert partition.unused == 0


def test_iid_stratified_gives_50_of_each_class_of_cifar10():
    partition = split(IidStratified(), CIFAR)
    assert (class_counts(CIFAR, partition) == 50).all()
    assert covers_everything(CIFAR, partition)


def test_iid_stratified_class_counts_differ_by_at_most_one():
    assert (np.ptp(class_counts(MNIST, split(IidStratified(), MNIST)), axis=0) <= 1).all()


# shards


def test_shards_give_two_shards_of_300_to_each_client():
    partition = split(Shards(), MNIST)
    assert (partition.sizes == 600).all()
    assert covers_everything(MNIST, partition)
    assert labels_held(MNIST, partition).max() <= 4


def test_most_clients_with_two_shards_have_two_labels():
    # one simulated split had 9, 82 and 9 clients with 1, 2 and 3 labels; its own standard deviation is at most
    # sqrt(100 * 0.82 * 0.18) = 3.8, so the mean must lie within three of them
    held = [np.bincount(labels_held(MNIST, split(Shards(), MNIST, seed=s)), minlength=5)[1:4] for s in range(20)]
    np.testing.assert_allclose(np.mean(held, axis=0), [9, 82, 9], atol=3 * 3.8)
    assert np.mean(held, axis=0)[1] > 75


def test_shards_drop_at_random_what_does_not_fit_not_the_last_class():
    data = labelled([100] * 10, [10] * 10)
    partition = split(Shards(shard_size=30), data, clients=10)  # 600 of 1000 rows
    assert partition.unused == 400
    left = class_counts(data, partition).sum(axis=0)
    assert left.sum() == 600
    assert left.min() > 40  # hypergeometric: mean 60, standard deviation 4.7


def test_shards_without_shuffling_keep_the_order_of_the_rows():
    partition = split(Shards(shuffle_within=False), CIFAR, clients=10)  # 20 shards: two halves of every class
    for rows in partition.clients:
        for y in np.unique(CIFAR.y[rows]):
            of_class = np.flatnonzero(CIFAR.train_labels == y)
            own = rows[CIFAR.y[rows] == y]
            assert any(np.array_equal(own, half) for half in (of_class[:2500], of_class[2500:], of_class))


# the folds of Nilsson et al.


@pytest.mark.parametrize("kind", [NilssonIid, NilssonNonIid])
def test_every_row_of_the_pool_is_in_one_fold_and_one_client(kind):
    folds = [split(kind(fold=v), MNIST) for v in range(5)]
    assert all(len(p.test) == 14_000 and p.unused == 0 for p in folds)
    assert all((p.sizes == 560).all() for p in folds)
    assert np.array_equal(np.sort(np.concatenate([p.test for p in folds])), np.arange(70_000))
    for k in range(100):  # a client trains on a row in all folds but the row's own
        rows, times = np.unique(np.concatenate([p.clients[k] for p in folds]), return_counts=True)
        assert len(rows) == 700
        assert (times == 4).all()
        assert [np.isin(rows, p.test).sum() for p in folds] == [140] * 5


def test_nilsson_noniid_follows_the_six_steps():
    rng = np.random.default_rng(0)
    folds = rng.permutation(70_000).reshape(5, 14_000)  # 1 and 2: shuffle, five folds
    shards = [fold[np.argsort(MNIST.y[fold], kind="stable")].reshape(200, 70) for fold in folds]  # 3 and 4: sort, cut
    positions = rng.permutation(200)  # 5: two positions for each client, the same in all folds
    partition = split(NilssonNonIid(fold=1), MNIST)
    for k, rows in enumerate(partition.clients):  # 6
        a, b = positions[2 * k : 2 * k + 2]
        expected = [shards[v][i] for v in (0, 2, 3, 4) for i in (a, b)]
        assert np.array_equal(rows, np.sort(np.concatenate(expected)))


def test_most_clients_of_nilsson_noniid_have_two_labels():
    # one simulated split: 8, 74, 16 and 2 clients; standard deviation at most sqrt(100 * 0.74 * 0.26) = 4.4
    held = []
    for seed in range(10):
        a, b = (split(NilssonNonIid(fold=v), MNIST, seed=seed) for v in (0, 1))
        whole = replace(a, clients=[np.union1d(x, y) for x, y in zip(a.clients, b.clients, strict=True)])
        held.append(np.bincount(labels_held(MNIST, whole), minlength=6)[1:5])
    np.testing.assert_allclose(np.mean(held, axis=0), [8, 74, 16, 2], atol=3 * 4.4)


@pytest.mark.parametrize("kind", [NilssonIid, NilssonNonIid])
def test_nilsson_counts_what_does_not_fit_as_unused(kind):
    data = labelled([101] * 10, [13] * 10)  # 1140 rows, folds of 228, of which 10 clients take 220
    partition = split(kind(fold=4), data, clients=10)
    assert len(partition.test) == 228
    assert (partition.sizes == 88).all()
    assert partition.unused == 4 * 8


# few classes


def test_non_iid_clients_have_1_to_7_classes_of_50_rows():
    counts = class_counts(CIFAR, split(NonIid(), CIFAR))
    assert set(np.unique(counts)) == {0, 50}
    assert set((counts > 0).sum(axis=1)) == set(range(1, 8))


@pytest.mark.slow
def test_non_iid_leaves_30_000_of_cifar10_unused():
    # n_k = 50 c_k, c_k uniform on 1..7 with variance 4: the sum has standard deviation 50 * 2 * sqrt(100) = 1000
    unused = [split(NonIid(), CIFAR, seed=s).unused for s in range(20)]
    assert abs(np.mean(unused) - 30_000) < 4 * 1000 / np.sqrt(20)


@pytest.mark.parametrize("rows", [None, 350])
def test_non_iid_equal_gives_350_rows_to_everyone(rows):
    partition = split(NonIidEqual(rows_per_client=rows), CIFAR)
    counts = class_counts(CIFAR, partition)
    assert (partition.sizes == 350).all()
    assert set((counts > 0).sum(axis=1)) == set(range(1, 8))
    for own in counts:
        assert np.ptp(own[own > 0]) <= 1
    assert partition.notes == ()


def test_non_iid_equal_reports_its_shortfall_when_all_rows_are_asked_for():
    partition = split(NonIidEqual(rows_per_client=500), CIFAR)
    short = 50_000 - partition.sizes.sum()
    assert partition.sizes.max() == 500
    assert partition.unused == short > 0
    assert f"{short} rows short" in partition.notes[0]


def test_ten_clients_with_one_class_hold_a_whole_class_each():
    partition = split(ClassesPerClient(c=1), MNIST, clients=10)
    counts = class_counts(MNIST, partition)
    assert ((counts > 0).sum(axis=0) == 1).all()
    assert sorted(partition.sizes) == sorted(MNIST_TRAIN)
    assert statistics(CIFAR, split(ClassesPerClient(c=1), CIFAR, clients=10)).l1 == pytest.approx(1.8)


def test_clients_of_one_class_share_it_equally():
    partition = split(ClassesPerClient(c=1), CIFAR, clients=100)
    assert (partition.sizes == 500).all()
    assert (labels_held(CIFAR, partition) == 1).all()


@pytest.mark.parametrize("c", [2, 3, 10])
def test_niid_bench_clients_have_exactly_c_classes_and_class_i_mod_j(c):
    partition = split(ClassesPerClient(c=c), MNIST, clients=25)
    counts = class_counts(MNIST, partition)
    assert ((counts > 0).sum(axis=1) == c).all()
    assert all(counts[i, i % 10] > 0 for i in range(25))
    assert covers_everything(MNIST, partition)
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1


@pytest.mark.parametrize("clients", [10, 100])
def test_two_sorted_shards_are_of_two_classes(clients):
    partition = split(ClassesPerClient(c=2, variant="sorted"), CIFAR, clients)
    assert (labels_held(CIFAR, partition) == 2).all()
    assert covers_everything(CIFAR, partition)


def test_shards_on_a_border_bring_a_third_class_and_a_note_counts_them():
    partition = split(ClassesPerClient(c=2, variant="sorted"), MNIST, 100)
    held = labels_held(MNIST, partition)
    assert {2, 3} <= set(held) <= {2, 3, 4}
    assert partition.notes == (
        f"{(held > 2).sum()} of 100 clients have more than 2 classes: a shard of theirs is on a border",
    )
    assert split(ClassesPerClient(c=2, variant="sorted"), CIFAR, 100).notes == ()


def test_classes_without_clients_are_unused():
    assert split(ClassesPerClient(c=1), CIFAR, clients=3).unused == 7 * 5000


# Dirichlet, family A


def test_client_dirichlet_clients_have_500_rows_each():
    for alpha, order in itertools.product([0, 0.1, 100], ["interleaved", "client"]):
        partition = split(ClientDirichlet(alpha=alpha, order=order), CIFAR)
        assert (partition.sizes == 500).all()
        assert covers_everything(CIFAR, partition)


@pytest.mark.slow
def test_entropy_grows_with_alpha():
    def entropy(alpha):
        return np.mean(
            [statistics(CIFAR, split(ClientDirichlet(alpha), CIFAR, seed=s)).label_entropy for s in range(4)]
        )

    values = [entropy(alpha) for alpha in (0, 0.1, 0.5, 1, 10, 100, 1e6)]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(np.log(10), abs=0.02)


def test_alpha_100_is_close_to_uniform():
    # q_k(y): standard deviation sqrt(0.1 * 0.9 / 101) = 0.030, plus that of 500 draws, 0.013: together 0.0325
    counts = class_counts(CIFAR, split(ClientDirichlet(alpha=100), CIFAR))
    assert (counts / 500).std() == pytest.approx(0.0325, rel=0.1)


def test_the_conventions_differ_by_the_number_of_classes():
    hsu = split(ClientDirichlet(alpha=5, alpha_convention="hsu"), CIFAR)
    symmetric = split(ClientDirichlet(alpha=0.5, alpha_convention="symmetric"), CIFAR)
    assert hsu.fingerprint() == symmetric.fingerprint()
    assert "hsu" in hsu.notes[0]
    assert "symmetric" in symmetric.notes[0]


def test_alpha_0_gives_one_class_to_most_clients():
    # a class serves 10 clients; of Binomial(100, 0.1) choosers 1.2 a class come too late, 12 in all
    single = [(labels_held(CIFAR, split(ClientDirichlet(alpha=0), CIFAR, seed=s)) == 1).sum() for s in range(5)]
    assert 75 < np.mean(single) < 92


def test_alpha_0_notes_how_many_clients_hold_several_classes():
    partition = split(ClientDirichlet(alpha=0), CIFAR)
    several = int((labels_held(CIFAR, partition) > 1).sum())
    assert partition.notes[1].startswith(f"{several} of 100 clients hold several classes")
    assert len(split(ClientDirichlet(alpha=0, alpha0="balanced"), CIFAR).notes) == 1  # none does


@pytest.mark.parametrize(
    ("partition", "several"),
    [
        ({"name": "client_dirichlet", "alpha": 0}, 18),
        ({"name": "client_dirichlet", "alpha": 0, "alpha0": "balanced"}, 9),
        ({"name": "client_dirichlet", "alpha": 0, "alpha0": "exact"}, 0),
        ({"name": "classes_per_client", "c": 2, "variant": "sorted"}, 9),
    ],
)
def test_the_clients_with_more_classes_on_mnist_are_as_many_as_docs_partitions_says(partition, several):
    experiment = Experiment.make("mnist", clients=100, partition=partition)
    try:
        data, found = partition_data(experiment)
    except DataMissing as error:
        pytest.skip(str(error))
    promised = partition.get("c", 1)
    assert (labels_held(data, found) > promised).sum() == several
    assert any(note.startswith(f"{several} of 100 clients h") for note in found.notes) == bool(several)


@pytest.mark.parametrize("clients", [10, 97, 100])
def test_alpha_0_exact_gives_every_client_one_class_and_divides_it_equally(clients):
    partition = split(ClientDirichlet(alpha=0, alpha0="exact"), MNIST, clients)
    counts = class_counts(MNIST, partition)
    assert ((counts > 0).sum(axis=1) == 1).all()
    assert covers_everything(MNIST, partition)
    quota = counts.sum(axis=0) / counts.sum() * clients
    assert (np.abs((counts > 0).sum(axis=0) - quota) < 1).all()  # largest remainders
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1


def only_labels(data, partition):
    return sorted(int(data.y[rows[0]]) for rows in partition.clients)


def test_alpha_0_exact_gives_a_rare_class_a_client_and_the_largest_classes_to_few_clients():
    data = labelled([2, 60, 38], [1, 1, 1])
    assert only_labels(data, split(ClientDirichlet(alpha=0, alpha0="exact"), data, 4)) == [0, 1, 1, 2]
    partition = split(ClientDirichlet(alpha=0, alpha0="exact"), data, 2)
    assert only_labels(data, partition) == [1, 2]
    assert partition.unused == 2
    assert only_labels(data, split(ClientDirichlet(alpha=0, alpha0="exact"), data, 1)) == [1]


def test_alpha_0_balanced_gives_one_class_to_every_client():
    counts = class_counts(CIFAR, split(ClientDirichlet(alpha=0, alpha0="balanced"), CIFAR))
    assert ((counts > 0).sum(axis=1) == 1).all()
    assert ((counts > 0).sum(axis=0) == 10).all()


def one_at_a_time(q, stock, turns, rng):
    """The procedure as it is written down."""
    q, stock, drawn = q.copy(), stock.copy(), []
    for k in turns:
        y = rng.choice(len(stock), p=q[k] / q[k].sum())
        drawn.append(y)
        stock[y] -= 1
        if stock[y] == 0:
            q[:, y] = 0
            q[q.sum(axis=1) == 0] = stock
    return drawn


@pytest.mark.slow
def test_drawing_in_blocks_has_the_law_of_drawing_one_at_a_time(monkeypatch):
    monkeypatch.setattr(dirichlet, "BLOCK", 3)
    q, stock, turns = (
        np.array([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]]),
        np.array([2, 3, 1]),
        np.array([0, 1, 0, 1, 0, 1]),
    )
    rng = np.random.default_rng(0)
    outcomes: dict[tuple[int, ...], list[int]] = {}
    for way, draw in enumerate((dirichlet._classes_in_turn, one_at_a_time)):
        for _ in range(4000):
            outcomes.setdefault(tuple(draw(q, stock, turns, rng)), [0, 0])[way] += 1
    table = np.array([n for n in outcomes.values() if sum(n) >= 20])
    assert len(table) > 10
    assert chi2_contingency(table).pvalue > 0.001


# Dirichlet, family B


@pytest.mark.parametrize(("clients", "beta"), [(10, 0.5), (10, 0.1), (100, 0.5), (100, 0.1)])
def test_label_dirichlet_assigns_every_row_and_at_least_ten_to_each(clients, beta):
    partition = split(LabelDirichlet(beta=beta), CIFAR, clients)
    assert covers_everything(CIFAR, partition)
    assert partition.sizes.min() >= 10


def test_label_dirichlet_accepts_the_first_draw_at_beta_one_half():
    for clients, seed in itertools.product([10, 100], range(10)):
        split(LabelDirichlet(beta=0.5, retries=1), CIFAR, clients, seed)


def test_full_clients_get_no_more_rows():
    # a client below n/K can still get one whole class, and no more after that
    for seed in range(5):
        assert split(LabelDirichlet(beta=0.1), CIFAR, 10, seed).sizes.max() <= 5000 + 5000


def test_sizes_of_label_dirichlet_are_like_the_simulated_ones():
    # one simulated split: 91 to 1254 for 100 clients, 910 to 7194 for 10
    low, high = np.mean(
        [(s.min(), s.max()) for s in (split(LabelDirichlet(), CIFAR, seed=i).sizes for i in range(5))], 0
    )
    assert 60 < low < 190
    assert 850 < high < 1400


# quantity


@pytest.mark.parametrize("clients", [10, 100])
def test_quantity_skew_leaves_labels_alike(clients):
    partition = split(QuantityDirichlet(), CIFAR, clients)
    assert covers_everything(CIFAR, partition)
    assert partition.sizes.min() >= 10
    assert statistics(CIFAR, partition).rows_cv > 0.5
    assert chi2_contingency(class_counts(CIFAR, partition)).pvalue > 0.001


@pytest.mark.slow
def test_sizes_have_the_law_of_plain_draws_that_pass():
    rng = np.random.default_rng(0)
    skew = QuantityDirichlet(beta=0.5, min_size=5)
    ours = np.array([skew.shares(100, 4, rng) for _ in range(3000)])
    plain = rng.dirichlet([0.5] * 4, 20_000)
    plain = plain[plain.min(axis=1) * 100 >= 5]
    assert ks_2samp(ours.max(axis=1), plain.max(axis=1)).pvalue > 0.001
    assert ks_2samp(ours.min(axis=1), plain.min(axis=1)).pvalue > 0.001
    assert ks_2samp(ours[:, 0], plain[:, 0]).pvalue > 0.001


@pytest.mark.slow
def test_accepted_sizes_are_less_skewed_than_a_free_draw():
    # 1.26 instead of 1.38; the coefficient of variation of one draw has a standard deviation of 0.15
    rng = np.random.default_rng(0)
    q = np.array([QuantityDirichlet().shares(50_000, 100, rng) for _ in range(200)])
    assert (q.std(axis=1) / q.mean(axis=1)).mean() == pytest.approx(1.26, abs=4 * 0.15 / np.sqrt(200))


def test_out_of_reach_sizes_fall_back_to_one_row_each_and_say_so():
    data = labelled([150] * 10, [10] * 10)
    partition = split(QuantityDirichlet(beta=0.05, max_draws=100), data, clients=100)
    assert partition.sizes.min() == 1
    assert covers_everything(data, partition)
    assert "1 is required" in partition.notes[0]


# features


def test_noise_grows_linearly_from_client_0_to_sigma():
    partition = split(NoisyFeatures(sigma=0.2), CIFAR, clients=5)
    np.testing.assert_allclose(partition.noise, [0, 0.05, 0.1, 0.15, 0.2])
    assert partition.frozen_noise
    assert (partition.sizes == 10_000).all()
    assert not split(NoisyFeatures(frozen=False), CIFAR).frozen_noise


def test_noise_as_variance_is_its_root():
    partition = split(NoisyFeatures(sigma=0.1, noise_as="var"), CIFAR, clients=5)
    np.testing.assert_allclose(partition.noise**2, [0, 0.025, 0.05, 0.075, 0.1])


def test_client_0_is_unchanged_and_the_others_have_their_deviation():
    context = open_context(Experiment.make("digits", partition="feature_noise", clients=4))
    first, *others = (context.feature_noise.of(client, 200) for client in range(4))
    assert first is None
    for std, n in zip(context.owners.noise[1:], others, strict=True):  # 12,800 numbers: standard error 0.6 %
        assert n.dtype == np.float32
        assert n.std() == pytest.approx(std, rel=0.02)


def test_one_client_has_no_noise():
    assert split(NoisyFeatures(), CIFAR, clients=1).noise == [0]


# multimodal


MEAN_ROWS = {
    0.01: (15_000, 202),
    0.1: (3000, 222),
    0.3: (1000, 286),
    0.5: (600, 400),
    0.6: (500, 500),
    0.7: (429, 667),
    0.9: (333, 2000),
    1.0: (300, None),
}


@pytest.mark.parametrize("ratio", MEAN_ROWS)
def test_mean_rows_of_animal_and_vehicle_clients(ratio):
    partition = split(Multimodal(z=3, ratio=ratio), CIFAR)
    counts = class_counts(CIFAR, partition)
    animal = counts[:, ANIMALS].any(axis=1)
    vehicle = counts[:, [0, 1, 8, 9]].any(axis=1)
    assert not (animal & vehicle).any()
    assert ((counts > 0).sum(axis=1) == 3).all()
    assert animal.sum() == max(round(100 * ratio), 1)
    animals, vehicles = MEAN_ROWS[ratio]
    assert partition.sizes[animal].mean() == pytest.approx(animals, abs=0.5)
    if vehicles:
        assert partition.sizes[vehicle].mean() == pytest.approx(vehicles, abs=0.5)
    assert partition.unused == 5000 * (10 - np.count_nonzero(counts.sum(axis=0)))


def test_ratio_0_still_has_one_animal_client():
    counts = class_counts(CIFAR, split(Multimodal(ratio=0), CIFAR))
    assert counts[:, ANIMALS].any(axis=1).sum() == 1


def test_a_class_goes_round_its_holders_evenly():
    counts = class_counts(CIFAR, split(Multimodal(), CIFAR))
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1


def test_turns_continue_after_the_last_client():
    # clients 0 and 1 hold both classes; three rows each: 0 1 0, then 1 0 1
    from fedarena.data.partitions.assignment import assign_in_turns

    parts = assign_in_turns([np.arange(3), np.arange(3, 6)], [np.arange(2)] * 2, clients=2)
    assert [p.tolist() for p in parts] == [[0, 2, 4], [1, 3, 5]]


def test_balanced_multimodal_gives_300_rows_to_everyone():
    partition = split(Multimodal(variant="balanced"), CIFAR)
    counts = class_counts(CIFAR, partition)
    assert (partition.sizes == 300).all()
    assert set(np.unique(counts)) == {0, 100}


def test_balanced_multimodal_gives_less_where_a_class_is_wanted_too_often():
    partition = split(Multimodal(variant="balanced", ratio=0.01), CIFAR)  # 99 clients for four classes
    assert np.ptp(partition.sizes) == 0
    assert 150 < partition.sizes[0] < 202


def test_noisy_multimodal_clients_have_a_tenth_of_the_other_group():
    partition = split(Multimodal(variant="noise", nu=0.1), CIFAR)
    counts = class_counts(CIFAR, partition)
    animals = counts[:, ANIMALS].sum(axis=1)
    other = np.minimum(animals, partition.sizes - animals)
    assert (other == partition.sizes // 10).all()
    assert len(np.unique(np.concatenate(partition.clients))) == partition.sizes.sum()


def test_groups_can_be_chosen_and_are_else_the_first_six_tenths():
    data = labelled([100] * 5, [10] * 5)
    counts = class_counts(data, split(Multimodal(z=2), data, clients=10))
    assert not (counts[:, :3].any(axis=1) & counts[:, 3:].any(axis=1)).any()
    counts = class_counts(data, split(Multimodal(z=2, groups=((0, 4), (1, 2))), data, clients=10))
    assert not counts[:, 3].any()
    assert {tuple(np.flatnonzero(row)) for row in counts} == {(0, 4), (1, 2)}


# natural


def by_user() -> Dataset:
    """Users 0..4 with 2, 4, ... 10 training rows and one test row each; one row without a user."""
    owner = np.concatenate([np.repeat(np.arange(5), [2, 4, 6, 8, 10]), [-1], np.arange(5)])
    zeros = np.zeros(len(owner), np.int64)
    names = tuple("abcde")
    return Dataset("users", zeros[:, None], zeros, n_train=31, classes=1, owner=owner, owner_names=names)


def test_natural_clients_are_the_users_with_their_rows_and_tests():
    data = by_user()
    partition = split(Natural(), data, clients=0)
    assert partition.sizes.tolist() == [2, 4, 6, 8, 10]
    assert partition.names == tuple("abcde")
    assert partition.unused == 1
    for k, (rows, tests) in enumerate(zip(partition.clients, partition.client_tests, strict=True)):
        assert (data.owner[rows] == k).all()
        assert tests.tolist() == [31 + k]
        assert (np.diff(rows) > 0).all()  # in the order of the data


def test_natural_leaves_small_users_out_and_chooses_some():
    data = by_user()
    assert split(Natural(min_samples=6), data, clients=3).names == ("c", "d", "e")
    chosen = [split(Natural(max_clients=2), data, clients=2, seed=s).names for s in range(20)]
    assert len(set(chosen)) > 1
    assert split(Natural(max_clients=9), data, clients=0).sizes.tolist() == [2, 4, 6, 8, 10]


def test_merged_users_stay_whole():
    data = by_user()
    partition = split(Natural(merge_to=2), data, clients=2)
    users = [set(data.owner[rows]) for rows in partition.clients]
    assert sorted(map(len, users)) == [2, 3]
    assert users[0] | users[1] == set(range(5))
    assert [set(data.owner[rows]) for rows in partition.client_tests] == users
    assert partition.names == ()


# what cannot be


IMPOSSIBLE = [
    (Iid(), MNIST, 60_001, "60001 clients"),
    (Iid(), MNIST, 0, "not given"),
    (IidStratified(), TEXT, 5, "label at every position"),
    (Shards(shard_size=301), MNIST, 100, "602 rows for each"),
    (NilssonNonIid(fold=5), MNIST, 100, "no fold 5"),
    (NilssonNonIid(), MNIST, 7001, "too small"),
    (NilssonNonIid(), TEXT, 5, "label at every position"),
    (NonIid(max_classes=11), CIFAR, 100, "1 to 11 of 10"),
    (NonIid(min_classes=5, max_classes=4), CIFAR, 100, "5 to 4"),
    (NonIid(), CIFAR, 5001, "a class has 5000 rows"),
    (NonIidEqual(rows_per_client=501), CIFAR, 100, "501 rows for each"),
    (ClassesPerClient(c=11), CIFAR, 100, "11 of 10 classes"),
    (ClassesPerClient(c=10, variant="sorted"), MNIST, 50, "different classes"),
    (ClassesPerClient(c=2), labelled([1, 200], [1, 1]), 20, "share a class of 1 rows"),
    (ClientDirichlet(), MNIST, 60_001, "60001 clients"),
    (LabelDirichlet(min_size=601), MNIST, 100, "601 rows for each"),
    (LabelDirichlet(beta=0.01, retries=3), MNIST, 100, "beta = 0.01"),
    (QuantityDirichlet(beta=0.01, max_draws=9, fallback=False), MNIST, 100, "beta = 0.01"),
    (QuantityDirichlet(min_size=601), MNIST, 100, "601 rows for each"),
    (NoisyFeatures(), TEXT, 5, "no numbers"),
    (Multimodal(z=5), CIFAR, 100, "5 of 4 classes"),
    (Multimodal(groups=((0, 1), (1, 2))), CIFAR, 100, "different classes"),
    (Multimodal(z=1), labelled([50], [5]), 1, "two groups"),
    (Multimodal(groups=((0, 1), (2, 10))), CIFAR, 100, "different classes"),
    (Multimodal(variant="balanced", rows_per_client=2000), CIFAR, 100, "2000 rows"),
    (Multimodal(variant="noise", nu=0.5), CIFAR, 100, "reserve 25000"),
    (Natural(), MNIST, 100, "no natural owners"),
    (Natural(), by_user(), 4, "5 natural clients, not 4"),
    (Natural(min_samples=11), by_user(), 0, "no user"),
    (Natural(merge_to=6), by_user(), 0, "5 users"),
]


@pytest.mark.parametrize(("partitioner", "data", "clients", "reason"), IMPOSSIBLE)
def test_impossible_requests_say_why_and_what_to_do(partitioner, data, clients, reason):
    with pytest.raises(PartitionImpossible) as error:
        split(partitioner, data, clients)
    assert reason in error.value.what
    assert error.value.remedy


# all of them


def test_texts_can_be_partitioned_without_labels():
    for partitioner in (Iid(), NilssonIid(), QuantityDirichlet(min_size=1)):
        assert split(partitioner, TEXT, clients=4).unused >= 0


@pytest.mark.parametrize("name", sorted(components("partition")))
def test_mnist_is_partitioned_among_100_clients_in_less_than_a_second(name):
    data = replace(MNIST, owner=np.arange(70_000) % 100)
    began = time.perf_counter()
    split(components("partition")[name].build({}), data)
    assert time.perf_counter() - began < 1


ANY = [
    Iid(),
    IidStratified(),
    Shards(),
    NilssonIid(folds=3, fold=1),
    NilssonNonIid(folds=3, fold=2),
    NonIid(max_classes=2),
    NonIidEqual(max_classes=2),
    ClassesPerClient(c=1),
    ClassesPerClient(c=2),
    ClassesPerClient(c=2, variant="sorted"),
    ClientDirichlet(alpha=0),
    ClientDirichlet(alpha=1e-9),
    ClientDirichlet(alpha=0.5, order="client", alpha_convention="symmetric"),
    LabelDirichlet(min_size=1),
    QuantityDirichlet(min_size=2),
    NoisyFeatures(),
    Multimodal(z=1),
    Multimodal(z=1, variant="balanced"),
    Multimodal(z=1, variant="noise"),
]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    partitioner=st.sampled_from(ANY),
    train=st.lists(st.integers(0, 60), min_size=2, max_size=6).filter(lambda n: sum(n) > 20),
    clients=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_no_row_is_assigned_twice_or_lost_and_the_seed_decides(partitioner, train, clients, seed):
    data = labelled(train, [5] * len(train))
    try:
        partition = split(partitioner, data, clients, seed)
    except PartitionImpossible:
        return
    rows = np.concatenate([*partition.clients, partition.test])
    assert rows.dtype == np.int64
    assert len(np.unique(rows)) == len(rows) == len(data.x) - partition.unused
    assert len(partition.population) == clients
    assert split(partitioner, data, clients, seed).fingerprint() == partition.fingerprint()


@pytest.mark.parametrize("partitioner", ANY)
def test_another_seed_gives_another_partition(partitioner):
    data = labelled([100] * 10, [20] * 10)
    assert len({split(partitioner, data, 5, seed).fingerprint() for seed in range(4)}) == 4


def test_natural_by_a_table_of_users(tmp_path: Path):
    """Published partitions come as user_id, sample_id (or image_id) and class."""
    data = labelled([10] * 4, [2] * 4)
    samples = np.random.default_rng(0).permutation(data.n_train)[:30]
    lines = [f"u{i % 3},{s},{data.y[s]}" for i, s in enumerate(samples)]
    path = tmp_path / "users.csv"
    path.write_text("\n".join(["user_id,image_id,class", *lines]) + "\n")
    partition = split(Natural(table=str(path)), data, 0)
    assert partition.names == ("u0", "u1", "u2")
    for k in range(3):
        assert partition.clients[k].tolist() == sorted(samples[k::3].tolist())
    assert partition.unused == data.n_train - 30
    for bad, said in (
        ("user_id,sample_id\na,0\nb,0\n", "twice"),
        ("user_id,sample_id\na,100000\n", "beyond"),
        (f"user_id,sample_id,label\na,0,{data.y[0] + 1}\n", "other labels"),
        ("who,what\na,0\n", "user_id"),
    ):
        path.write_text(bad)
        with pytest.raises(FedarenaError, match=said):
            split(Natural(table=str(path)), data, 0)
