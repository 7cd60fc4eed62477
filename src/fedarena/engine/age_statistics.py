"""Statistics about the age of the updates that an asynchronous algorithm has merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def age_statistics(
    at_age: Mapping[int, int],
    merges_of_clients: NDArray[np.int64],
    outdated: int,
    overactive: int,
    share: Callable[[int], float],
) -> dict[str, Any]:
    """Return what is reported of merges (docs/reference/metrics.md#communication).

    `at_age` counts merged updates by their age, and `share` is the weight of an update of some age. `outdated` and
    `overactive` are updates that were offered and not merged.
    """
    merges = int(merges_of_clients.sum())
    polls = merges + outdated + overactive
    ages = np.repeat(list(at_age), list(at_age.values())) if merges else np.zeros(0)
    return {
        "merges": merges,
        "mean_age": float(np.mean(ages)) if merges else None,
        "mean_share": float(np.mean([share(int(d)) for d in ages])) if merges else None,
        "histogram": [at_age.get(d, 0) for d in range(max(at_age, default=-1) + 1)],
        "outdated": outdated / polls if polls else 0.0,
        "overactive": overactive / polls if polls else 0.0,
        "trainings_per_merge": polls / merges if merges else None,
        "merges_of_clients": merges_of_clients.tolist(),
    }
