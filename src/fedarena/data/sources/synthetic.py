"""Synthetic problems with known solutions, as in theorems on convergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.config.registry import register
from fedarena.config.seeds import stream
from fedarena.data.dataset import Dataset

MOST_NUMBERS = 10**9  # in all rows together
Count = Annotated[int, Ge(1), Le(1_000_000)]


@register("dataset", "least_squares", paper="after Woodworth et al. 2020, arXiv:2002.07839")
@dataclass(frozen=True)
class LeastSquaresData:
    """Synthetic rows of numbers whose last one is to be predicted: a linear function of the others, plus noise.

    All clients have the same rows, unless `unlike` shifts the true coefficients of each client, or `sizes` are unequal
    (client k has k + 1 times `rows`). The noise has mean 0 and is exactly uncorrelated with the features; test rows have
    none, so that the loss on them is the distance from the solution. With `features` = 0, rows are noise only.
    """

    clients: Count = 10
    rows: Count = 200
    features: Annotated[int, Ge(0), Le(100_000)] = 10
    noise: Annotated[float, Ge(0)] = 1.0
    condition: Annotated[float, Ge(1)] = 10.0  # ratio of the largest curvature to the smallest
    unlike: Annotated[float, Ge(0)] = 0.0
    sizes: Literal["equal", "unequal"] = "equal"

    defaults: ClassVar[dict[str, Any]] = {
        "model": "least_squares",
        "partition": {"name": "natural"},
        "rounds": 20,
        "local": {"lr": 0.05, "epochs": 1, "batch": 1},
    }

    def load(self, seed: int) -> Dataset:
        """Return the same samples for every seed; runs differ only in the order in which clients use them."""
        copies = self.clients * (self.clients + 1) // 2 if self.sizes == "unequal" else self.clients
        if 2 * copies * self.rows * (self.features + 1) > MOST_NUMBERS:
            raise BadValue(
                f"{self.clients} clients with {self.rows} rows of {self.features} features are too much for memory",
                remedy=f"reduce them to at most {MOST_NUMBERS:g} numbers in all",
                where="data",
            )
        rng = stream(0, "split")
        x = self._rows(rng)
        noise = self._noise(x, rng)
        train: list[NDArray[np.float64]] = []
        test: list[NDArray[np.float64]] = []
        sizes: list[int] = []
        for k in range(self.clients):
            own = x @ (np.ones(self.features) + self._shift(rng))
            sizes.append(self.rows * (k + 1 if self.sizes == "unequal" else 1))
            for part, values in ((train, own + noise), (test, own)):
                part.append(np.tile(np.column_stack([x, values]), (sizes[k] // self.rows, 1)))
        rows = np.concatenate([*train, *test]).astype(np.float32)
        owner = np.concatenate([np.repeat(np.arange(self.clients), sizes), np.full(sum(sizes), -1)])
        return Dataset("least_squares", rows, np.zeros(len(rows), np.int64), sum(sizes), 1, owner=owner)

    def _rows(self, rng: np.random.Generator) -> NDArray[np.float64]:
        scales = np.geomspace(1.0, self.condition**-0.5, self.features)
        drawn: NDArray[np.float64] = rng.standard_normal((self.rows, self.features)) * scales
        return drawn

    def _shift(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the difference between the coefficients of one client and the common ones."""
        direction: NDArray[np.float64] = rng.standard_normal(self.features)
        return self.unlike * direction / max(float(np.linalg.norm(direction)), 1e-12)

    def _noise(self, x: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
        """Return normal scores in random order, without the part that is a linear function of the features."""
        from scipy.stats import norm

        scores: NDArray[np.float64] = rng.permutation(norm.ppf((np.arange(self.rows) + 0.5) / self.rows))
        return self.noise * (scores - x @ np.linalg.lstsq(x, scores)[0])
