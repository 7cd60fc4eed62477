"""Validation samples are a share of every client's training samples, by class, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedarena.config.errors import BadValue, PartitionImpossible
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset, Partition
from fedarena.data.validation_samples import hold_out_validation
from fedarena.engine.setup import partition_data

DIGITS: dict[str, Any] = {"clients": 7, "partition": {"name": "label_dirichlet", "beta": 0.3}, "model": "logreg"}


def drawn(share: float | None, **settings: Any) -> Partition:
    evaluate = {} if share is None else {"evaluate": {"validation": share}}
    return partition_data(Experiment.make("digits", **{**DIGITS, **settings}, **evaluate))[1]


def made_of(labels: list[int], owners: list[int], **more: Any) -> tuple[Dataset, Partition]:
    """A data set whose last sample is its test sample, and who owns the others."""
    n = len(labels)
    data = Dataset("made", np.zeros((n + 1, 1), np.float32), np.array([*labels, 0]), n, 2, **more)
    clients = [np.flatnonzero(np.array(owners) == k) for k in range(max(owners) + 1)]
    return data, Partition(clients, np.array([n]))


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_every_client_gives_its_share_and_loses_nothing_else(share: float) -> None:
    without, held = drawn(None), drawn(share)
    for before, kept, out in zip(without.clients, held.clients, held.validation, strict=True):
        assert len(out) == int(share * len(before) + 1e-9)
        assert np.array_equal(np.union1d(kept, out), np.sort(before))
        assert not np.intersect1d(kept, out).size


def test_test_samples_are_those_of_a_run_without_validation() -> None:
    without, held = drawn(None), drawn(0.2)
    assert np.array_equal(without.test, held.test)
    for before, after in zip(without.client_tests, held.client_tests, strict=True):
        assert np.array_equal(before, after)


def test_a_share_of_zero_is_no_validation() -> None:
    assert drawn(0.0).fingerprint() == drawn(None).fingerprint() != drawn(0.1).fingerprint()


def test_it_follows_from_the_seed_alone() -> None:
    one, same, other = drawn(0.2), drawn(0.2), drawn(0.2, seed=1, partition_seed=0, fold_seed=None)
    assert one.fingerprint() == same.fingerprint()
    assert [len(rows) for rows in one.validation] == [len(rows) for rows in other.validation]
    assert any(not np.array_equal(a, b) for a, b in zip(one.validation, other.validation, strict=True))


def test_classes_are_in_proportion() -> None:
    labels = [0] * 80 + [1] * 20
    data, partition = made_of(labels, [0] * 100)
    (out,) = hold_out_validation(data, partition, 0.2, seed=3).validation
    counts = np.bincount(data.y[out], minlength=2)
    assert counts.sum() == 20
    assert abs(counts[0] - 16) <= 1


def test_a_client_with_too_few_samples_keeps_them_all() -> None:
    data, partition = made_of([0, 1] * 7, [0] * 10 + [1] * 3 + [2])
    held = hold_out_validation(data, partition, 0.1, seed=0)
    assert [len(rows) for rows in held.validation] == [1, 0, 0]
    assert [len(rows) for rows in held.clients] == [9, 3, 1]
    everything = hold_out_validation(data, partition, 0.999, seed=0)
    assert [len(rows) for rows in everything.clients] == [1, 1, 1]  # every client has a training sample


def test_it_refuses_if_no_client_can_give_a_sample() -> None:
    data, partition = made_of([0, 1, 0, 1], [0, 0, 1, 1])
    with pytest.raises(PartitionImpossible, match=r"no client has enough samples to hold out 0\.1 of them"):
        hold_out_validation(data, partition, 0.1, seed=0)


def test_groups_stay_whole_and_no_client_loses_all() -> None:
    group = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 0])
    data, partition = made_of([0, 1] * 5, [0] * 8 + [1] * 2, group=group)
    for seed in range(20):
        held = hold_out_validation(data, partition, 0.3, seed)
        trained, out = (set(group[np.concatenate(list(part))]) for part in (held.clients, held.validation))
        assert not trained & out
        assert len(held.clients[1]) == 2  # its one group is all it has


def test_the_latest_samples_are_held_out() -> None:
    time = np.arange(21)[::-1].copy()
    data, partition = made_of([0, 1] * 10, [0] * 10 + [1] * 10, time=time)
    held = hold_out_validation(data, partition, 0.2, seed=0)
    out, kept = np.concatenate(list(held.validation)), np.concatenate(list(held.clients))
    assert len(out) == 4
    assert time[out].min() > time[kept].max()


@pytest.mark.parametrize("share", [-0.1, 1.0, "a lot", True])
def test_a_share_is_from_0_to_below_1(share: Any) -> None:
    with pytest.raises(BadValue, match="validation"):
        Experiment.make("digits", evaluate={"validation": share})
