"""Problems whose answer is known: no pictures, no people, only what a theorem speaks of."""

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

MOST_NUMBERS = 10**9  # that all rows together may have
Count = Annotated[int, Ge(1), Le(1_000_000)]


@register("dataset", "least_squares", paper="after Woodworth et al. 2020, arXiv:2002.07839")
@dataclass(frozen=True)
class LeastSquaresData:
    """Made-up rows of numbers, the last of which is to be predicted: a linear function of the others, and noise.

    All clients have the same rows, unless `unlike` moves what is true for each of them away from the rest, or `sizes` are
    unequal (client k has k + 1 times `rows`). The noise has mean 0 and nothing to do with the other numbers, exactly; test
    rows have none, so that the loss on them is what is still missing. Without `features` rows are noise alone.
    """

    clients: Count = 10
    rows: Count = 200
    features: Annotated[int, Ge(0), Le(100_000)] = 10
    noise: Annotated[float, Ge(0)] = 1.0
    condition: Annotated[float, Ge(1)] = 10.0  # the largest curvature over the smallest
    unlike: Annotated[float, Ge(0)] = 0.0
    sizes: Literal["equal", "unequal"] = "equal"

    defaults: ClassVar[dict[str, Any]] = {
        "model": "least_squares",
        "partition": {"name": "natural"},
        "rounds": 20,
        "local": {"lr": 0.05, "epochs": 1, "batch": 1},
    }

    def load(self, seed: int) -> Dataset:
        """The same for every seed: what differs between runs is who sees which row when."""
        copies = self.clients * (self.clients + 1) // 2 if self.sizes == "unequal" else self.clients
        if 2 * copies * self.rows * (self.features + 1) > MOST_NUMBERS:
            raise BadValue(
                f"{self.clients} clients with {self.rows} rows of {self.features} features are too much for memory",
                remedy=f"give fewer: {MOST_NUMBERS:g} numbers in all at most",
                where="data",
            )
        rng = stream(0, "split")
        x = self._rows(rng)
        noise = self._noise(x, rng)
        train: list[NDArray[np.float64]] = []
        test: list[NDArray[np.float64]] = []
        sizes: list[int] = []
        for k in range(self.clients):
            own = x @ (np.ones(self.features) + self._away(rng))
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

    def _away(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """From what is true for all to what is true for one client."""
        way: NDArray[np.float64] = rng.standard_normal(self.features)
        return self.unlike * way / max(float(np.linalg.norm(way)), 1e-12)

    def _noise(self, x: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
        """Normal, in any order, without what the other numbers could explain of it."""
        from scipy.stats import norm

        scores: NDArray[np.float64] = rng.permutation(norm.ppf((np.arange(self.rows) + 0.5) / self.rows))
        return self.noise * (scores - x @ np.linalg.lstsq(x, scores)[0])
