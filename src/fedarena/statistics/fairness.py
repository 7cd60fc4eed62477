"""The spread of accuracy over clients. Accuracies are fractions; NaN is a client without test samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedarena.statistics.inequality import gini


def weighted_accuracy(own: NDArray[np.float64], sizes: NDArray[np.int64]) -> float | None:
    """Return sum(n_k acc_k) / sum(n_k), n_k being training samples; clients without test samples are left out."""
    tested = ~np.isnan(own)
    if not tested.any():
        return None
    return float((sizes[tested] * own[tested]).sum() / sizes[tested].sum())


def fairness(own: NDArray[np.float64], sizes: NDArray[np.int64] | None = None) -> dict[str, float]:
    """Return the spread over clients, unweighted, and weighted by training samples if `sizes` is given.

    It is empty without test samples. Variances are in squared percentage points.
    """
    spread = _unweighted(np.sort(own[~np.isnan(own)]))
    if spread and sizes is not None:
        a, n = own[~np.isnan(own)], sizes[~np.isnan(own)]
        mean = np.average(a, weights=n)
        variance = np.average((a - mean) ** 2, weights=n)
        spread |= {"weighted_mean": float(mean), "weighted_std": float(np.sqrt(variance))}
        spread["weighted_variance_pp2"] = float(1e4 * variance)
    return spread


def _unweighted(a: NDArray[np.float64]) -> dict[str, float]:
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
