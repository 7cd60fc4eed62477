"""The Gini coefficient of the shares of several clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def gini(values: ArrayLike) -> float:
    """Return the Gini coefficient: 0 if all values are equal, towards 1 if one client has everything.

    >>> gini([1, 1, 1, 1]), gini([0, 0, 0, 1])
    (0.0, 0.75)
    """
    x = np.sort(np.asarray(values, dtype=np.float64))
    rank = 2 * np.arange(1, len(x) + 1) - len(x) - 1
    return float(rank @ x / (len(x) * x.sum())) if x.sum() else 0.0
