"""How unequal are the shares of several clients?"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def gini(values: ArrayLike) -> float:
    """0 when all have the same, towards 1 when one has everything.

    >>> gini([1, 1, 1, 1]), gini([0, 0, 0, 1])
    (0.0, 0.75)
    """
    x = np.sort(np.asarray(values, dtype=np.float64))
    rank = 2 * np.arange(1, len(x) + 1) - len(x) - 1
    return float(rank @ x / (len(x) * x.sum())) if x.sum() else 0.0
