"""The noise that a partition adds to the features of its clients, drawn again for every use from a stream of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedarena.config.seeds import stream
from fedarena.data.dataset import Partition

Noise = NDArray[np.float32]


@dataclass(frozen=True)
class FeatureNoise:
    """The feature noise of all clients of an experiment."""

    owners: Partition
    shape: tuple[int, ...]  # of one row
    seed: int
    pooled: bool = False  # one client trains on the rows of all

    def of(self, owner: int, count: int, *key: int) -> Noise | None:
        """Return a client's own noise for `count` rows; None where it has none."""
        if self.owners.noise is None or self.owners.noise[owner] == 0:
            return None
        draws = stream(self.seed, "noise", owner, *key).standard_normal((count, *self.shape), dtype=np.float32)
        return draws * np.float32(self.owners.noise[owner])

    def in_training(self, client: int, round: int) -> Noise | None:
        """Return the noise of all rows that a client trains on; pooled rows have the noise of their owners."""
        if self.owners.noise is None:
            return None
        key, sizes = () if self.owners.frozen_noise else (round + 1,), self.owners.sizes
        if not self.pooled:
            return self.of(client, int(sizes[client]), *key)
        nothing = np.zeros((1, *self.shape), np.float32)
        parts = [self.of(k, n, *key) if n else None for k, n in enumerate(sizes)]
        return np.concatenate(
            [np.repeat(nothing, n, 0) if part is None else part for part, n in zip(parts, sizes, strict=True)]
        )
