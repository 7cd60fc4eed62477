"""Means, bytes and storage of messages."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena.algorithms.base import Model, Step, summed
from fedarena.models.pytree import (
    UnknownType,
    WeightedMean,
    from_plain,
    is_finite,
    leaves,
    nbytes,
    read_only,
    to_plain,
)


@dataclass(frozen=True)
class Drift:
    delta: np.ndarray
    dc: np.ndarray = summed()
    loss: float = 0.0


def mean_of(trees: list[object], weights: list[float]) -> object:
    mean = WeightedMean()
    for tree, weight in zip(trees, weights, strict=True):
        mean.add(tree, weight)
    return mean.result()


def test_mean_is_weighted_and_sums_are_not() -> None:
    a, b = Drift(np.array([1.0, 2.0]), np.array([10.0]), 4.0), Drift(np.array([5.0, 6.0]), np.array([20.0]), 8.0)
    mean = mean_of([a, b], [1, 3])
    np.testing.assert_array_equal(mean.delta, [4.0, 5.0])  # (1 + 3 * 5) / 4, (2 + 3 * 6) / 4
    np.testing.assert_array_equal(mean.dc, [30.0])
    assert mean.loss == 7.0


def test_nothing_added_is_nothing() -> None:
    assert WeightedMean().result() is None


@pytest.mark.slow
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8), st.integers(1, 50), st.integers(1, 1000))
def test_equal_weights_do_not_depend_on_their_size(values: list[float], count: int, weight: int) -> None:
    """Bitwise: n/(m n) and 1/m are the same mean; and a mean of equal vectors is that vector."""
    rng = np.random.default_rng(count)
    base = np.array(values, np.float32)
    trees = [Step(base * np.float32(rng.random())) for _ in range(count)]
    one, many = mean_of(trees, [1.0] * count), mean_of(trees, [float(weight)] * count)
    assert np.array_equal(one.delta, many.delta)
    assert np.array_equal(mean_of([Step(base)] * count, [weight] * count).delta, base)


def test_mean_keeps_the_type() -> None:
    assert mean_of([Step(np.ones(3, np.float32))] * 2, [1, 2]).delta.dtype == np.float32
    assert mean_of([Step(np.ones(3))] * 2, [1, 2]).delta.dtype == np.float64


def test_bytes_are_arrays_and_eight_for_a_number() -> None:
    assert nbytes(Drift(np.zeros(10, np.float32), np.zeros(3), 1.0)) == 40 + 24 + 8
    assert nbytes(None) == 0


def test_a_single_nan_is_found() -> None:
    assert is_finite(Step(np.ones(3)))
    assert not is_finite(Step(np.array([1.0, np.nan])))
    assert not is_finite({"a": [1.0, float("inf")]})


def test_trees_come_back_from_plain_values() -> None:
    tree = {"m": Model(np.arange(3.0)), "l": [1, (2.5, None), "x"], 7: np.array([True])}
    arrays: dict[str, np.ndarray] = {}
    plain = to_plain(tree, arrays)
    back = from_plain(plain, arrays, {"Model": Model})
    assert list(back) == list(tree)
    assert np.array_equal(back["m"].w, tree["m"].w)
    assert back["l"] == tree["l"]
    assert len(list(leaves(back))) == len(list(leaves(tree)))


def test_a_file_cannot_ask_for_other_types() -> None:
    with pytest.raises(UnknownType):
        from_plain({"type": "Popen", "fields": {"args": "true"}}, {}, {"Model": Model})


def test_arrays_are_locked_and_lists_copied_at_any_depth() -> None:
    array, numbers = np.zeros(2), [1, 2]
    given = Model(({"a": [array]}, numbers, "text"))
    locked = read_only(given)
    with pytest.raises(ValueError, match="read-only"):
        locked.w[0]["a"][0][0] = 1.0
    locked.w[1].append(3)
    assert numbers == [1, 2]
    assert array.flags.writeable
    assert read_only(Model((1, None))) == Model((1, None))
