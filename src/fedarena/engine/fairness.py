"""How evenly a model serves the clients (metrics 1 and 5). Accuracies are fractions; NaN is a client without test rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedarena.data.statistics import gini


def weighted_accuracy(own: NDArray[np.float64], sizes: NDArray[np.int64]) -> float | None:
    """Sum of n_k acc_k over sum of n_k, n_k being training rows; clients without test rows leave both sums."""
    tested = ~np.isnan(own)
    if not tested.any():
        return None
    return float((sizes[tested] * own[tested]).sum() / sizes[tested].sum())


def fairness(own: NDArray[np.float64]) -> dict[str, float]:
    """Unweighted spread over clients; empty where no client has test rows. Variance in squared percentage points."""
    a = np.sort(own[~np.isnan(own)])
    if not len(a):
        return {}
    tenth = max(len(a) // 10, 1)
    shares = a / a.sum() if a.sum() else np.full(len(a), 1 / len(a))
    return {
        "mean": float(a.mean()),
        "std": float(a.std()),
        "variance_pp2": float((100 * a).var()),
        "worst_tenth": float(a[:tenth].mean()),
        "best_tenth": float(a[-tenth:].mean()),
        "min": float(a[0]),
        "coefficient_of_variation": float(a.std() / a.mean()) if a.mean() else 0.0,
        "gini": gini(a),
        "entropy": float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum()),
    }
