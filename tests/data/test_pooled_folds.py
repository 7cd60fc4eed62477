"""Folds of the pooled samples: assigned by the fold seed alone, independently of the partition of each split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedarena as fa
from fedarena.config.errors import FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.config.registry import components
from fedarena.data.dataset import Dataset, Partition
from fedarena.engine.setup import partition_data

FOLDS = 5
NAMES = sorted(set(components("partition")) - {"natural"})  # the samples of digits have no owners
OWN = ("nilsson_iid", "nilsson_noniid")  # make their own folds, of equal sizes


def splits(exp: Experiment, folds: int = FOLDS, fold_seed: int = 3) -> tuple[Dataset, list[Partition]]:
    """All folds of one fold seed, every one with a seed of its own: another partition each."""
    splits = [partition_data(exp.with_(folds=folds, fold=f, fold_seed=fold_seed, seed=100 + f)) for f in range(folds)]
    return splits[0][0], [partition for _, partition in splits]


def by_hand(classes: list[int], client: list[int] | None = None, **settings: Any) -> Experiment:
    x = np.random.default_rng(0).standard_normal((len(classes), 3)).astype(np.float32)
    return Experiment.make(fa.arrays(x, np.array(classes), None if client is None else np.array(client)), **settings)


def table(tmp_path: Path, columns: dict[str, NDArray[Any]]) -> str:
    """A CSV file with a feature, a label and these columns."""
    rows = len(next(iter(columns.values())))
    rng = np.random.default_rng(1)
    columns = {"f": rng.standard_normal(rows), "y": rng.integers(0, 2, rows), **columns}
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    file = tmp_path / "t.csv"
    file.write_text("\n".join(lines))
    return str(file)


@pytest.mark.parametrize("name", NAMES)
def test_every_sample_is_tested_exactly_once(name: str) -> None:
    data, parts = splits(Experiment.make("digits", partition=name, clients=10))
    tested = np.concatenate([part.test for part in parts])
    assert len(np.unique(tested)) == len(tested) == (len(data.x) // FOLDS * FOLDS if name in OWN else len(data.x))
    for part in parts:
        assert not np.intersect1d(part.train_rows, part.test).size, "no client trains on a test sample"
    if name not in OWN:
        assert len({part.clients[0].tobytes() for part in parts}) == FOLDS, "every split has its own partition"


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OWN])
def test_folds_follow_from_the_fold_seed_alone(name: str) -> None:
    exp = Experiment.make("digits", partition=name, clients=10, folds=FOLDS, fold=2)
    tests = {
        partition_data(exp.with_(fold_seed=3, seed=s, partition_seed=p))[1].test.tobytes()
        for s in (0, 1)
        for p in (5, 6)
    }
    assert len(tests) == 1
    assert partition_data(exp.with_(fold_seed=4))[1].test.tobytes() not in tests


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OWN])
def test_a_client_trains_outside_the_fold_and_tests_on_its_part_of_it(name: str) -> None:
    exp = Experiment.make("digits", partition=name, clients=10, partition_seed=9)
    _, parts = splits(exp)
    for k in range(10):
        whole = np.sort(np.concatenate([parts[0].clients[k], parts[0].client_tests[k]]))
        for part in parts:
            assert np.array_equal(part.client_tests[k], np.intersect1d(whole, part.test))
            assert np.array_equal(part.clients[k], np.setdiff1d(whole, part.test))


def test_folds_are_stratified_by_class() -> None:
    data, parts = splits(Experiment.make("digits", clients=10))
    counts = np.array([np.bincount(data.y[part.test], minlength=10) for part in parts])
    assert np.ptp(counts, axis=0).max() == 1
    assert np.ptp(counts.sum(axis=1)) == 1


def test_natural_clients_are_stratified_by_client_and_class() -> None:
    client = np.repeat([0, 1, 2], [40, 25, 9]).tolist()
    data, parts = splits(by_hand([0, 1] * 37, client), folds=3)
    assert np.array_equal(np.sort(np.concatenate([part.test for part in parts])), np.arange(74))
    for k in range(3):
        held = [part.client_tests[k] for part in parts]
        assert np.ptp([len(rows) for rows in held]) <= 1
        counts = np.array([np.bincount(data.y[rows], minlength=2) for rows in held])
        assert np.ptp(counts, axis=0).max() <= 1
    assert data.owner is not None
    assert all({*data.owner[part.clients[k]].tolist()} == {k} for part in parts for k in range(3))


def test_owners_with_one_sample_of_each_class_do_not_have_the_same_class_in_the_same_fold() -> None:
    """With classes in one order for all owners fold f would test class f alone."""
    data, parts = splits(by_hand([0, 1, 2, 3, 4] * 40, np.repeat(np.arange(40), 5).tolist()))
    for part in parts:
        counts = np.bincount(data.y[part.test], minlength=5)
        assert counts.sum() == 40
        assert counts.max() < 20
        assert counts.min() > 0


def test_a_client_without_training_samples_takes_no_part_and_is_reported() -> None:
    _, parts = splits(by_hand([0, 1] * 10 + [0], [0] * 10 + [1] * 10 + [2]), folds=3)
    idle = [part for part in parts if part.population == [0, 1]]
    assert len(idle) == 1
    assert idle[0].notes == ("1 of 3 clients have no training samples in this split and are not selected",)
    assert len(idle[0].client_tests[2]) == 1
    assert [part.population for part in parts if part is not idle[0]] == [[0, 1, 2]] * 2


def test_classes_with_fewer_samples_than_folds_are_reported() -> None:
    data, parts = splits(by_hand([0] * 20 + [1] * 20 + [2] * 2, clients=2))
    assert sum(np.count_nonzero(data.y[part.test] == 2) for part in parts) == 2
    assert all(
        "classes with fewer samples than folds, which are not tested in every fold: 1" in part.notes for part in parts
    )


def test_texts_have_pooled_folds_too() -> None:
    rng = np.random.default_rng(0)
    exp = Experiment.make(fa.arrays(rng.integers(0, 5, (30, 4)), rng.integers(0, 5, (30, 4))), clients=3)
    _, parts = splits(exp, folds=3)
    assert np.array_equal(np.sort(np.concatenate([part.test for part in parts])), np.arange(30))


def test_feature_noise_stays_with_its_clients() -> None:
    _, parts = splits(Experiment.make("digits", partition={"name": "feature_noise", "sigma": 0.9}, clients=10))
    for part in parts:
        assert part.noise is not None
        assert part.noise.tolist() == pytest.approx(np.linspace(0, 0.9, 10))


def test_rows_for_tuning_are_never_of_the_test_fold() -> None:
    exp = Experiment.make("digits", clients=10, folds=FOLDS, fold=1, fold_seed=3)
    whole = partition_data(exp)[1]
    tuning = partition_data(exp.with_(validate_share=0.2))[1]
    assert not np.intersect1d(np.concatenate([tuning.train_rows, tuning.test]), whole.test).size
    assert np.array_equal(np.sort(np.concatenate([tuning.train_rows, tuning.test])), np.sort(whole.train_rows))


def test_more_folds_than_samples_are_refused() -> None:
    with pytest.raises(FedarenaError, match="9 samples are too few for 5 folds"):
        splits(by_hand([0, 1, 0, 1, 0, 1, 0, 1, 0], clients=2))


# Random divisions


def test_a_random_division_has_the_data_sets_own_proportion() -> None:
    exp = Experiment.make("digits", clients=10)
    splits = [partition_data(exp.with_(fold_seed=s)) for s in (0, 1)]
    data = splits[0][0]
    for _, part in splits:
        assert len(part.test) == len(data.x) - data.n_train
        assert np.ptp(np.bincount(data.y[part.test]) / np.bincount(data.y)) < 0.02
        assert np.array_equal(np.sort(np.concatenate([part.train_rows, part.test])), np.arange(len(data.x)))
    assert splits[0][1].test.tobytes() != splits[1][1].test.tobytes()


def test_a_random_division_leaves_every_natural_client_a_training_sample() -> None:
    exp = by_hand([0, 1] * 15 + [0], [0] * 15 + [1] * 15 + [2])
    for seed in range(20):
        _, part = partition_data(exp.with_(fold_seed=seed))
        assert part.population == [0, 1, 2]
        assert (
            2 <= min(len(part.client_tests[k]) for k in (0, 1)) <= max(len(part.client_tests[k]) for k in (0, 1)) <= 4
        )


# Groups


def grouped(tmp_path: Path, **settings: Any) -> Experiment:
    """240 samples of 60 patients, one to seven samples each, at three hospitals."""
    rng = np.random.default_rng(2)
    patient = np.sort(np.concatenate([np.arange(60), rng.integers(0, 60, 180)]))
    path = table(tmp_path, {"patient": patient, "site": patient % 3})
    data = {"name": "csv", "path": path, "label": "y", "client": "site", "group": "patient"}
    return Experiment.make({"data": data}, **settings)


@pytest.mark.parametrize("fold_seed", [None, 3])
@pytest.mark.parametrize("partition", ["natural", "iid"])
def test_groups_stay_whole(tmp_path: Path, partition: str, fold_seed: int | None) -> None:
    exp = grouped(tmp_path, partition=partition, clients=0 if partition == "natural" else 4)
    splits = [partition_data(exp.with_(folds=FOLDS, fold=f, fold_seed=fold_seed)) for f in range(FOLDS)]
    data, group = splits[0][0], splits[0][0].group
    assert group is not None
    assert data.shape == (1,), "the group is no feature"
    assert np.array_equal(np.sort(np.concatenate([part.test for _, part in splits])), np.arange(240))
    for _, part in splits:
        assert not np.intersect1d(group[part.test], group[part.train_rows]).size
        assert 44 <= len(part.test) <= 52, "folds of about equal sizes"


def test_groups_stay_whole_in_every_other_division(tmp_path: Path) -> None:
    exp = grouped(tmp_path)
    for made in (
        exp,
        exp.with_(fold_seed=5),
        exp.with_(validate_share=0.25),
        exp.with_(partition="iid", clients=4, validate_share=0.25),
    ):
        data, part = partition_data(made)
        assert data.group is not None
        assert not np.intersect1d(data.group[part.test], data.group[part.train_rows]).size
        assert 0.1 < len(part.test) / len(data.x) < 0.3


def test_fewer_groups_than_folds_are_refused(tmp_path: Path) -> None:
    path = table(tmp_path, {"patient": np.arange(40) % 3})
    exp = Experiment.make({"data": {"name": "csv", "path": path, "label": "y", "group": "patient"}}, clients=2)
    with pytest.raises(FedarenaError, match="3 groups cannot make 5 parts"):
        splits(exp)


# Times


def timed(tmp_path: Path, **settings: Any) -> Experiment:
    """200 samples of 67 days, three a day, in no order."""
    day = np.random.default_rng(3).permutation(np.arange(200) // 3)
    path = table(tmp_path, {"day": np.array([f"2024-{d // 28 + 1:02}-{d % 28 + 1:02}" for d in day])})
    return Experiment.make({"data": {"name": "csv", "path": path, "label": "y", "time": "day"}}, clients=4, **settings)


@pytest.mark.parametrize("fold_seed", [None, 3])
def test_forward_splits_never_train_on_later_samples(tmp_path: Path, fold_seed: int | None) -> None:
    exp = timed(tmp_path)
    splits = [partition_data(exp.with_(folds=4, fold=f, fold_seed=fold_seed)) for f in range(4)]
    data, time = splits[0][0], splits[0][0].time
    assert time is not None
    assert data.shape == (1,), "the time is no feature"
    before = -1
    for _, part in splits:
        assert time[part.train_rows].max() < time[part.test].min()
        assert time[part.test].min() > before
        before = time[part.test].max()
        assert len(part.train_rows) == np.count_nonzero(time < time[part.test].min()), (
            "all that came before is trained on"
        )
        assert 36 <= len(part.test) <= 44
    assert before == time.max()
    trained = np.count_nonzero(time < time[splits[0][1].test].min())
    assert trained + sum(len(part.test) for _, part in splits) == 200


def test_the_other_divisions_are_in_order_of_time_too(tmp_path: Path) -> None:
    exp = timed(tmp_path)
    for made in (exp, exp.with_(validate_share=0.25), exp.with_(folds=4, fold=2, fold_seed=1, validate_share=0.25)):
        data, part = partition_data(made)
        assert data.time is not None
        assert data.time[part.train_rows].max() < data.time[part.test].min()
    with pytest.raises(FedarenaError, match="samples with times cannot be split at random"):
        partition_data(exp.with_(fold_seed=1))


@pytest.mark.parametrize("values", [np.arange(40) * 0.5, np.arange(40) - 20, np.repeat(np.arange(20), 2)])
def test_times_may_be_numbers(tmp_path: Path, values: NDArray[Any]) -> None:
    path = table(tmp_path, {"when": values})
    exp = Experiment.make({"data": {"name": "csv", "path": path, "label": "y", "time": "when"}}, clients=2)
    data, _ = partition_data(exp)
    assert data.time is not None
    assert data.time.tolist() == np.unique(values, return_inverse=True)[1].tolist()


def test_mistakes_with_groups_and_times_are_named(tmp_path: Path) -> None:
    path = table(tmp_path, {"when": np.arange(40), "who": np.arange(40) // 2})
    base = {"name": "csv", "path": path, "label": "y"}
    for more, expected in [
        ({"group": "whoo"}, "has no column 'whoo'"),
        ({"time": "wen"}, "has no column 'wen'"),
        ({"group": "who", "time": "when"}, "groups or times, not both"),
    ]:
        with pytest.raises(FedarenaError, match=expected):
            partition_data(Experiment.make({"data": {**base, **more}}, clients=2))
    flat = table(tmp_path, {"when": np.arange(40) // 20})
    exp = Experiment.make({"data": {**base, "path": flat, "time": "when"}}, clients=2)
    with pytest.raises(FedarenaError, match="2 different times cannot make 6 blocks"):
        splits(exp)
