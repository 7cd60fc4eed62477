"""Fed-Heart-Disease of FLamby: Ogier du Terrail et al. 2022, arXiv:2210.04620, repeated exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedarena.config.registry import register
from fedarena.data import published_files
from fedarena.data.dataset import Dataset, Rows

DROPPED = (10, 11, 12)  # slope, ca and thal, which are mostly missing outside Cleveland
CODES = (2, 6)  # chest pain and resting ECG
SEED, TRAIN_SHARE = 43, 0.66  # of the published division
LEAST = 3  # samples of a class in a hospital, for its division to keep the shares of classes

Matrix = NDArray[np.float32]


@register("dataset", "fed_heart_disease", paper="Ogier du Terrail et al. 2022, arXiv:2210.04620")
@dataclass(frozen=True)
class FedHeartDisease:
    """740 patients of four hospitals without missing values, 13 features, in the published division; files of heart_disease.

    Each hospital standardises its training and own test rows by its own training rows. The common test rows are the same
    patients, standardised by all training rows together, as pooled data would be: so the common accuracy is not the mean
    of the hospitals'. `normalise = "pooled"` standardises the training rows in this way too, for `centralized`.
    """

    normalise: Literal["client", "pooled"] = "client"

    defaults: ClassVar[dict[str, Any]] = {
        "model": {"name": "logreg", "binary": True},
        "share": 1.0,
        "rounds": 15,
        "partition": {"name": "natural"},
        "local": {"lr": 0.001, "steps": 100, "batch": 4},
        "evaluate": {"every": 1},
    }

    def load(self, seed: int) -> Dataset:
        """Return training rows, common test rows, which have no owner, and the hospitals' own test rows."""
        arrays = published_files.load_published("heart_disease")
        x, y, owner = complete_rows(arrays)
        train, test = published_division(y, owner)
        pooled = standardised(x, train, [np.arange(len(x))])
        own = standardised(x, train, [np.flatnonzero(owner == k) for k in range(4)])
        order = np.concatenate([train, test, test])
        no_client = np.full(len(test), -1)
        return Dataset(
            "fed_heart_disease",
            np.concatenate([(own if self.normalise == "client" else pooled)[train], pooled[test], own[test]]),
            y[order],
            len(train),
            2,
            owner=np.concatenate([owner[train], no_client, owner[test]]),
            owner_names=published_files.HEART_SITES,
            class_names=("healthy", "disease"),
            n_test=len(test),
        )


def complete_rows(arrays: published_files.Arrays) -> tuple[Matrix, Rows, Rows]:
    """Return features, labels and hospitals of the rows without missing values; codes as columns, without the first code."""
    kept = np.delete(arrays["X"], DROPPED, axis=1)
    complete = ~np.isnan(kept).any(axis=1)
    rows = arrays["X"][complete]
    numbers = np.delete(rows, [*CODES, *DROPPED], axis=1)
    columns = [rows[:, at] == code for at in CODES for code in np.unique(rows[:, at])[1:]]
    x = np.column_stack([numbers, *columns]).astype(np.float32)
    return x, arrays["y"][complete].astype(np.int64), arrays["site"][complete].astype(np.int64)


def published_division(y: Rows, owner: Rows) -> tuple[Rows, Rows]:
    """Return the training and test rows, each in file order: scikit-learn's division of every hospital."""
    from sklearn.model_selection import train_test_split

    held = []
    for hospital in range(4):
        rows = np.flatnonzero(owner == hospital)
        keeps_shares = np.bincount(y[rows], minlength=2).min() >= LEAST
        _, test = train_test_split(
            np.arange(len(rows)), train_size=TRAIN_SHARE, test_size=1.0 - TRAIN_SHARE, random_state=SEED, shuffle=True,
            stratify=y[rows] if keeps_shares else None,
        )  # fmt: skip
        held.append(rows[test])
    test = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(y)), test), test


def standardised(x: Matrix, train: Rows, groups: list[Rows]) -> Matrix:
    """Return the rows of each group, standardised by its training rows, with the published guard against a zero deviation."""
    out = np.empty_like(x)
    for rows in groups:
        known = x[np.intersect1d(rows, train)].astype(np.float64)
        mean, deviation = known.mean(axis=0).astype(np.float32), known.std(axis=0, ddof=1).astype(np.float32)
        out[rows] = (x[rows] - mean) / (deviation + np.float32(1e-9))
    return out
