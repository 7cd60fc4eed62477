"""Folds of a federation: every row in one fold of one client, and a client the same whichever fold is held out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedarena as fa
from fedarena.config.errors import FedarenaError, PartitionImpossible
from fedarena.config.experiment import Experiment
from fedarena.config.registry import components
from fedarena.config.seeds import stream
from fedarena.data.dataset import Dataset, Partition
from fedarena.data.folds import has_own_folds, split_in_folds
from fedarena.engine.setup import partition_data

FOLDS = 5
NAMES = sorted(set(components("partition")) - {"natural"})  # the rows of digits have no owners
DROPPING = {"shards", "nilsson_iid", "nilsson_noniid", "non_iid", "non_iid_equal"}  # leave rows over that do not fit


def folds_of(name: str, **settings: object) -> tuple[Dataset, list[Partition]]:
    """Return all folds of digits, each partitioned again as in a cell of a comparison."""
    exp = Experiment.make("digits", partition=name, clients=10, **settings)
    splits = [partition_data(exp.with_(folds=FOLDS, fold=fold)) for fold in range(FOLDS)]
    return splits[0][0], [partition for _, partition in splits]


def check(parts: list[Partition]) -> set[int]:
    """Check what holds for every partition, and return the rows of all clients."""
    folds = len(parts)
    tests = [set(part.test.tolist()) for part in parts]
    assert sum(map(len, tests)) == len(set().union(*tests)), "test folds overlap"
    assert max(map(len, tests)) - min(map(len, tests)) <= 1
    owner: dict[int, int] = {}
    for k in range(len(parts[0].clients)):
        trained = Counter(row for part in parts for row in part.clients[k].tolist())
        for row, times in trained.items():
            assert times == folds - 1, "a client's row is held out exactly once"
            held = next(f for f in range(folds) if row not in set(parts[f].clients[k].tolist()))
            assert row in tests[held]
            assert owner.setdefault(row, k) == k, "a row has one owner"
    return set(owner)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_in_one_fold_of_one_client(name: str) -> None:
    data, parts = folds_of(name)
    owned = check(parts)
    if name not in DROPPING:
        assert owned == set(range(len(data.x)))
    assert len(owned) > 0.3 * len(data.x)


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith("nilsson")])
def test_every_fold_is_a_small_copy_of_every_client(name: str) -> None:
    """Rows of a client and class differ by one between folds at most, and what is held out is the client's own test."""
    data, parts = folds_of(name)
    for k in range(10):
        whole = np.sort(np.concatenate([parts[0].clients[k], parts[0].client_tests[k]]))
        held = [part.client_tests[k] for part in parts]
        for part in parts:
            both = np.concatenate([part.clients[k], part.client_tests[k]])
            assert np.array_equal(np.sort(both), whole), "the same client, whichever fold is held out"
        assert np.array_equal(np.sort(np.concatenate(held)), whole)
        counts = np.array([np.bincount(data.y[rows], minlength=data.classes) for rows in held])
        assert np.ptp(counts, axis=0).max(initial=0) <= 1
    for part in parts:
        assert np.array_equal(np.sort(np.concatenate(part.client_tests)), part.test)


@pytest.mark.parametrize("name", ["nilsson_iid", "nilsson_noniid"])
def test_nilsson_makes_its_own_folds(name: str) -> None:
    entry = components("partition")[name]
    assert has_own_folds(entry.build({}))
    data = Experiment.make("digits").data.made.load(0)
    for fold in range(FOLDS):
        ours = split_in_folds(entry.build({}), data, 10, FOLDS, fold, stream(0, "partition"))
        own = entry.build({"folds": FOLDS, "fold": fold}).split(data, 10, stream(0, "partition"))
        assert ours.fingerprint() == own.fingerprint()
        assert len({len(rows) for rows in ours.clients}) == 1


def test_repetitions_have_other_folds() -> None:
    first, second = (folds_of("label_dirichlet", seed=seed)[1] for seed in (0, 1))
    assert first[0].fingerprint() != second[0].fingerprint()
    assert [p.fingerprint() for p in first] == [p.fingerprint() for p in folds_of("label_dirichlet", seed=0)[1]]


def test_natural_clients_keep_their_rows() -> None:
    rng = np.random.default_rng(0)
    client = np.repeat([0, 1, 2], [40, 25, 9])
    exp = Experiment.make(fa.arrays(rng.standard_normal((74, 3)), rng.integers(0, 2, 74), client))
    splits = [partition_data(exp.with_(folds=3, fold=fold)) for fold in range(3)]
    assert check([partition for _, partition in splits]) == set(range(74))
    data, first = splits[0]
    assert data.owner is not None
    for k, rows in enumerate(first.clients):
        assert set(data.owner[rows].tolist()) == {k}


def test_texts_have_folds_too() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 5, (30, 4)), rng.integers(0, 5, (30, 4))
    exp = Experiment.make(fa.arrays(x, y), clients=3)
    assert check([partition_data(exp.with_(folds=3, fold=fold))[1] for fold in range(3)]) == set(range(30))


@pytest.mark.slow
@given(
    labels=st.lists(st.integers(0, 3), min_size=6, max_size=60),
    clients=st.integers(1, 6),
    folds=st.integers(2, 5),
    seed=st.integers(0, 2**16),
)
def test_any_rows_any_clients_any_folds(labels: list[int], clients: int, folds: int, seed: int) -> None:
    """Even where a client has fewer rows than there are folds."""
    y = np.array([*labels, 0, 1, 2, 3])
    data = Dataset("made", np.zeros((len(y), 1), np.float32), y, len(y) - 2, 4)
    partitioner = components("partition")["iid"].build({})
    parts = [split_in_folds(partitioner, data, clients, folds, f, stream(seed, "partition")) for f in range(folds)]
    tests = [part.test for part in parts]
    assert np.array_equal(np.sort(np.concatenate(tests)), np.arange(len(y)))
    assert max(map(len, tests)) - min(map(len, tests)) <= 1
    for k in range(clients):
        whole = {tuple(sorted([*p.clients[k].tolist(), *p.client_tests[k].tolist()])) for p in parts}
        assert len(whole) == 1


def test_more_folds_than_rows_are_refused() -> None:
    data = Dataset("tiny", np.zeros((4, 1), np.float32), np.array([0, 1, 0, 1]), 2, 2)
    with pytest.raises(PartitionImpossible, match="4 samples are too few for 5 folds"):
        split_in_folds(components("partition")["iid"].build({}), data, 2, 5, 4, stream(0, "partition"))


def test_folds_and_fold_go_together() -> None:
    with pytest.raises(FedarenaError, match="go together"):
        Experiment.make("digits", folds=5)
    with pytest.raises(FedarenaError, match="fold = 5 of 5"):
        Experiment.make("digits", folds=5, fold=5)


def test_a_partition_without_fields_of_folds_has_none_of_its_own() -> None:
    assert not has_own_folds(components("partition")["iid"].build({}))
    assert not has_own_folds(lambda: None)
    assert has_own_folds(replace(components("partition")["nilsson_iid"].build({}), fold=2))
