"""Small tables for tests of the trees, with columns split between parties."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

Array = NDArray[Any]


def dealt(x: Array, hosts: int) -> list[Array]:
    """Split the columns between the guest and `hosts` hosts, in consecutive blocks."""
    return [np.ascontiguousarray(part) for part in np.array_split(x, hosts + 1, axis=1)]


def with_gaps(x: Array, share: float = 0.2, seed: int = 0) -> Array:
    """Return the table with a share of missing values."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(x.shape) < share, np.nan, x)


def breast_cancer(hosts: int = 1) -> tuple[list[Array], Array]:
    """569 rows, 30 columns, two classes."""
    x, y = load_breast_cancer(return_X_y=True)
    return dealt(x, hosts), y


def wine(hosts: int = 1) -> tuple[list[Array], Array]:
    """178 rows, 13 columns, three classes."""
    x, y = load_wine(return_X_y=True)
    return dealt(x, hosts), y


def diabetes(hosts: int = 1) -> tuple[list[Array], Array]:
    """442 rows, 10 columns, regression."""
    x, y = load_diabetes(return_X_y=True)
    return dealt(x, hosts), y
