"""Samples of a map-style data set of torch, read into arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, quoted
from fedarena.config.registry import register
from fedarena.data.dataset import Dataset
from fedarena.data.sources.class_codes import SplitSeed, TestShare
from fedarena.data.sources.in_memory import Arrays
from fedarena.data.sources.label_columns import LabelTask


@register("dataset", "torch_dataset")
@dataclass(frozen=True, eq=False)
class TorchDataset:
    """A map-style data set of torch whose samples are pairs (x, y), and optionally the `client` of each sample.

    All samples are read once, so that random transformations are drawn once; all must have the same shape.
    """

    samples: Any = field(repr=False)
    client: Any = field(default=None, repr=False)
    test: TestShare = 0.2
    split_seed: SplitSeed = 0
    task: LabelTask | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """Return the defaults of an experiment, which are those of arrays."""
        x, y = self._pair(0)
        return Arrays(x[None], y[None], self.client, task=self.task).defaults

    def load(self, seed: int) -> Dataset:
        """Read all samples, and split them into training and test samples."""
        pairs = [self._pair(i) for i in range(len(self.samples))]
        first = pairs[0][0].shape
        for i, (x, _) in enumerate(pairs):
            if x.shape != first:
                raise BadValue(
                    f"sample 0 has shape {first}, sample {i} {x.shape}",
                    remedy="transform all samples to one shape, for example by resizing images",
                    where="data.samples",
                )
        x, y = (np.stack(part) for part in zip(*pairs, strict=True))
        return Arrays(x, y, self.client, test=self.test, split_seed=self.split_seed, task=self.task).load(seed)

    def _pair(self, i: int) -> tuple[NDArray[Any], NDArray[Any]]:
        if not len(self.samples):
            raise BadValue("the data set has no samples", remedy="give at least two", where="data.samples")
        pair = self.samples[i]
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise BadValue(
                f"sample {i} is {quoted(str(type(pair).__name__))}, not a pair (x, y)",
                remedy="return the sample and its label: (x, y)",
                where="data.samples",
            )
        x, y = (np.asarray(value.numpy() if hasattr(value, "numpy") else value) for value in pair)
        if x.dtype.kind not in "biuf":
            raise BadValue(
                f"sample {i} has the type {type(pair[0]).__name__}, which is not a tensor",
                remedy="give the data set a transform to tensors",
                where="data.samples",
            )
        return x, y
