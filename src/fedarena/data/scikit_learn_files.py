"""The tables that come with scikit-learn, read from its files: importing scikit-learn to read one takes a second."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import DataMissing

MEASURED = (
    "radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points", "symmetry",
    "fractal dimension",
)  # fmt: skip
BREAST_CANCER_COLUMNS = (
    *(f"mean {name}" for name in MEASURED),
    *(f"{name} error" for name in MEASURED),
    *(f"worst {name}" for name in MEASURED),
)
BREAST_CANCER_CLASSES = ("malignant", "benign")


class FeaturesAndClasses(NamedTuple):
    """The features of all rows, and the class of each."""

    x: NDArray[np.float64]
    y: NDArray[np.int64]


def scikit_learn_folder() -> Path:
    """Return the folder with the data files of the installed scikit-learn, without importing it."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise DataMissing("scikit-learn is not installed", remedy="pip install scikit-learn")
    return Path(found.origin).parent / "datasets" / "data"


def read_digits() -> FeaturesAndClasses:
    """Return the counts 0 to 16 of 64 pixels, and the digits: those of `sklearn.datasets.load_digits`."""
    with gzip.open(scikit_learn_folder() / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    return FeaturesAndClasses(table[:, :-1], table[:, -1].astype(np.int64))


def read_breast_cancer() -> FeaturesAndClasses:
    """Return 30 measurements of each tumour, and its class: those of `sklearn.datasets.load_breast_cancer`."""
    table = np.loadtxt(scikit_learn_folder() / "breast_cancer.csv", delimiter=",", skiprows=1)
    return FeaturesAndClasses(table[:, :-1], table[:, -1].astype(np.int64))
