"""Partition in which the features of clients have different noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from fedarena.config.registry import register
from fedarena.data.dataset import Dataset, Partition
from fedarena.data.partitions.assignment import impossible
from fedarena.data.partitions.iid import Iid


@register("partition", "feature_noise", paper="Li et al. 2022, arXiv 2102.02079")
@dataclass(frozen=True)
class NoisyFeatures:
    """Equal parts as in `iid`; client i trains on x + N(0, s_i), where s grows linearly from 0 to sigma.

    The global test set has no noise. Pixels are in [0, 1] when noise is added, and are not clipped.
    """

    sigma: Annotated[float, Ge(0)] = 0.1
    noise_as: Literal["std", "var"] = "std"  # whether sigma is the largest standard deviation or the largest variance
    frozen: bool = True  # the same noise in all rounds, or new noise in each round

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        if data.x.dtype.kind not in "fu":
            raise impossible(f"'{data.name}' has no numbers to add noise to", "use images or a table", "name")
        level = self.sigma * np.arange(clients) / max(clients - 1, 1)
        std = level if self.noise_as == "std" else np.sqrt(level)
        return replace(Iid().split(data, clients, rng), noise=std, frozen_noise=self.frozen)
