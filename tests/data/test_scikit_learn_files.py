"""Tables read from the files of scikit-learn are those that scikit-learn loads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn import datasets

from fedarena.data import scikit_learn_files
from fedarena.data.scikit_learn_files import FeaturesAndClasses, read_breast_cancer, read_digits


@pytest.mark.parametrize(
    ("read", "load"), [(read_digits, datasets.load_digits), (read_breast_cancer, datasets.load_breast_cancer)]
)
def test_the_same_numbers_and_classes(read: Callable[[], FeaturesAndClasses], load: Callable[[], object]) -> None:
    found, bunch = read(), load()
    assert found.x.dtype == bunch.data.dtype
    assert np.array_equal(found.x, bunch.data)
    assert np.array_equal(found.y, bunch.target)


def test_the_same_names() -> None:
    bunch = datasets.load_breast_cancer()
    assert list(scikit_learn_files.BREAST_CANCER_COLUMNS) == list(bunch.feature_names)
    assert list(scikit_learn_files.BREAST_CANCER_CLASSES) == list(bunch.target_names)
