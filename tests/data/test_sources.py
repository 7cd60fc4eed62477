"""Built-in sets and arrays become data sets that keep their promises."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedarena.config.errors import BadValue
from fedarena.config.registry import components
from fedarena.data.dataset import PADDING
from fedarena.data.sources import arrays
from fedarena.data.sources.class_codes import split_rows
from fedarena.data.sources.images import Digits
from fedarena.data.sources.in_memory import Arrays
from fedarena.data.sources.published_tables import BreastCancer

X = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
Y = np.arange(60) % 3
SEVENTH = np.arange(300).reshape(60, 5) == 37  # row 7, column 2


@pytest.mark.slow
def test_importing_the_sources_loads_no_heavy_library() -> None:
    code = "import sys, fedarena.data.sources; print({'torch', 'sklearn', 'pyarrow'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_every_data_set_is_registered_and_says_what_it_is() -> None:
    named = {"digits", "breast_cancer", "mnist", "fashion_mnist", "cifar10", "heart_disease", "tiny_shakespeare"}
    entries = components("dataset")
    assert named | {"csv", "parquet", "arrays", "lines"} <= set(entries)
    for name in named:
        assert entries[name].summary
        assert entries[name].paper
        assert {"model", "rounds", "partition", "local"} <= set(entries[name].make.defaults)


@pytest.mark.parametrize(("source", "rows", "classes"), [(Digits(), 1797, 10), (BreastCancer(), 569, 2)])
def test_sets_inside_scikit_learn_have_one_test_set_for_all_seeds(source: Any, rows: int, classes: int) -> None:
    data = source.load(0)
    assert (len(data.x), data.classes) == (rows, classes)
    assert data.fingerprint() == source.load(7).fingerprint()
    assert len(data.test_rows) == pytest.approx(rows / 5, abs=1)
    train, test = np.bincount(data.train_labels), np.bincount(data.y[data.n_train :])
    assert np.allclose(test / (train + test), 0.2, atol=0.02)  # every class keeps its share


def test_digits_are_images_between_0_and_1() -> None:
    data = Digits().load(0)
    assert data.shape == (1, 8, 8)
    assert data.x.dtype == np.float32
    assert (data.x.min(), data.x.max()) == (0, 1)
    assert data.prepare == "none"


@pytest.mark.slow
@given(
    owner=st.lists(st.integers(0, 4), min_size=10, max_size=60),
    share=st.floats(0.1, 0.9),
    seed=st.integers(0, 3),
)
def test_a_split_loses_no_row_and_no_owner(owner: list[int], share: float, seed: int) -> None:
    who = np.array(owner)
    labels = np.arange(len(who)) % 2
    train, test = split_rows(labels, who, share, seed)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(len(who)))
    assert set(who[train]) == set(owner)
    assert len(test) == int(min(len(who) - len(set(owner)), len(who) * share) + 0.5)


def test_a_split_takes_the_share_of_every_owner_and_class() -> None:
    owner, labels = np.repeat([0, 1, 2], [100, 400, 500]), np.arange(1000) % 2
    _, test = split_rows(labels, owner, 0.2, seed=0)
    assert np.allclose(np.bincount(owner[test]), [20, 80, 100], atol=1)
    assert np.allclose(np.bincount(labels[test]), [100, 100], atol=3)
    assert not np.array_equal(test, split_rows(labels, owner, 0.2, seed=1)[1])


def test_tensors_and_numpy_arrays_are_the_same() -> None:
    from_torch = arrays(torch.from_numpy(X).requires_grad_(), torch.from_numpy(Y)).load(0)
    assert from_torch.fingerprint() == Arrays(X, Y).load(0).fingerprint()


@pytest.mark.parametrize(
    ("x", "shape", "dtype", "prepare"),
    [
        (X, (5,), np.float32, "none"),
        (X.astype(np.float64), (5,), np.float64, "none"),
        (X.astype(np.float16), (5,), np.float32, "none"),
        (np.arange(300).reshape(60, 5), (5,), np.float32, "none"),
        (np.zeros((60, 8, 9), np.uint8), (1, 8, 9), np.uint8, "scale"),
        (np.zeros((60, 3, 8, 9), np.uint8), (3, 8, 9), np.uint8, "scale"),
        (np.zeros((60, 8, 9), bool), (1, 8, 9), np.float32, "none"),
    ],
)
def test_rows_take_the_form_of_a_data_set(x: Any, shape: tuple[int, ...], dtype: Any, prepare: str) -> None:
    data = Arrays(x, Y).load(0)
    assert (data.shape, data.x.dtype, data.prepare) == (shape, dtype, prepare)
    assert data.n_train == 48


def test_labels_of_any_kind_are_numbered_in_order() -> None:
    words = np.array(["wolf", "ape", "cat"])[Y]
    for y, names in ((words, ("ape", "cat", "wolf")), (Y * 10.0, ("0", "10", "20")), (Y - 1, ("-1", "0", "1"))):
        data = Arrays(X, y, x_test=X, y_test=y).load(0)
        assert data.class_names == names
        assert [names[code] for code in data.y[:3]] == [str(int(v)) if names[0] != "ape" else v for v in y[:3]]


def test_given_test_rows_stay_test_rows_and_may_have_no_client() -> None:
    client = np.where(np.arange(60) < 20, "Oslo", "Bergen")
    data = Arrays(X, Y, client, x_test=X[:6], y_test=Y[:6]).load(0)
    assert data.n_train == 60
    assert data.owner_names == ("Bergen", "Oslo")
    assert data.owner is not None
    assert data.owner[[0, 59, 60]].tolist() == [1, 0, -1]
    owned = Arrays(X, Y, client, X[:6], Y[:6], client[:6]).load(0)
    assert owned.owner is not None
    assert owned.owner[60:].tolist() == [1] * 6


def test_whole_numbers_with_a_label_each_are_texts() -> None:
    x = np.arange(80).reshape(20, 4) % 7
    y = np.where(np.arange(4) == 3, PADDING, x)
    data = Arrays(x, y, np.arange(20) % 2).load(0)
    assert (data.classes, data.x.dtype, data.prepare) == (7, np.int64, "none")
    assert (data.y[:, 3] == PADDING).all()
    assert Arrays(x, y).defaults["model"] == "char_lstm"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (Arrays(X, Y[:-1]), "x has 60 rows and y has 59"),
        (Arrays(X, Y, client=Y[:3]), "client has 3"),
        (Arrays(X, Y, x_test=X), "x has 120 rows and y has 60"),
        (Arrays(X, Y, x_test=X[:, :2], y_test=Y), "shape"),
        (Arrays(np.where(SEVENTH, np.nan, X), Y), r"nan at \(7, 2\)"),
        (Arrays(np.where(SEVENTH, np.inf, X), Y), r"inf at \(7, 2\)"),
        (Arrays(X[:, 0], Y), r"shape \(60,\)"),
        (Arrays(3.0, Y), "x has 0 rows"),
        (Arrays(np.zeros((60, 8, 8, 3)), Y), "channels last"),
        (Arrays(X.astype(str), Y), "type <U"),
        (Arrays(X, X[:, 0], task="classification"), "looks like a quantity"),
        (Arrays(np.zeros((1500, 2)), np.arange(1500)), "1500 distinct whole numbers"),
        (Arrays(X, np.zeros(60)), "one class"),
        (Arrays(X, np.stack([Y, Y], 1)), "y has shape"),
        (Arrays(np.full((60, 2), -1), np.stack([Y, Y], 1)), "negative"),
        (Arrays(X[:3], Y[:3]), "no row to test on"),
    ],
)
def test_each_mistake_in_arrays_has_its_own_message(source: Arrays, what: str) -> None:
    with pytest.raises(BadValue, match=what) as error:
        source.load(0)
    assert error.value.remedy


def test_arrays_are_compared_by_identity_and_print_short() -> None:
    assert Arrays(X, Y) != Arrays(X, Y)
    assert len(repr(Arrays(X, Y))) < 100
