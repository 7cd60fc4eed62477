"""Small data sets of every task, made from a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedarena.data.dataset import Dataset

ROWS, FEATURES = 240, 4
TASKS = ("classification", "regression", "multilabel", "survival")


@dataclass(frozen=True)
class MadeTask:
    """A data source: labels that depend linearly on four features, with noise."""

    task: str
    noise: float = 0.3
    rows: int = ROWS
    test: int = 60

    def load(self, seed: int) -> Dataset:
        """Return the samples; they do not depend on the seed of the experiment."""
        rng = np.random.default_rng(7)
        x = rng.standard_normal((self.rows, FEATURES)).astype(np.float32)
        signal = x @ np.array([1.0, -2.0, 0.5, 0.0]) + self.noise * rng.standard_normal(self.rows)
        made = Dataset("made", x, (signal > 0).astype(np.int64), self.rows - self.test, 2)
        if self.task == "regression":
            return replace(made, y=(50 + 10 * signal).astype(np.float32), classes=1, task="regression")
        if self.task == "multilabel":
            others = x @ rng.standard_normal((FEATURES, 2)) + self.noise * rng.standard_normal((self.rows, 2))
            y = (np.column_stack([signal, others]) > 0).astype(np.float32)
            return replace(made, y=y, classes=3, task="multilabel")
        if self.task == "survival":
            time = rng.exponential(np.exp(-signal)).round(2) + 0.01  # rounded: with ties
            observed = rng.random(self.rows) < 0.7
            return replace(made, y=np.column_stack([time, observed]).astype(np.float32), classes=1, task="survival")
        return made
