"""A forest in the place of a network: the same calls for evaluation and for files, on raw columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedarena.models.losses import Loss
from fedarena.models.task import Buffers, Task, Vector
from fedarena.trees.forest import Float32Array, Forest


class ForestModule(nn.Module):
    """A forest as a module: raw columns in, logits of classes or a standardised number out."""

    def __init__(self, forest: Forest, label_scale: tuple[float, float] = (0.0, 1.0)) -> None:
        super().__init__()
        self.label_scale = label_scale
        self.forest = nn.Parameter(torch.from_numpy(forest.vector), requires_grad=False)

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        """Take a forest of any number of trees."""
        stored = state.get(prefix + "forest")
        if stored is not None:
            self.forest.data = torch.empty(stored.shape, dtype=torch.float32)
        super()._load_from_state_dict(state, prefix, *others)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for raw rows, in which NaN is a missing value."""
        forest = Forest.of(self.forest.detach().numpy())
        rows = np.ascontiguousarray(x.reshape(len(x), -1).numpy(), np.float32)
        return self.outputs(forest, forest.margins(rows))

    def outputs(self, forest: Forest, margins: Float32Array) -> Tensor:
        """Return margins as the outputs of a network: two logits for two classes, a number in units of its deviation."""
        if forest.objective == "squared_error":
            mean, deviation = self.label_scale
            return torch.from_numpy((margins.astype(np.float64) - mean) / deviation)
        if forest.objective == "logistic":
            margins = np.concatenate([np.zeros_like(margins), margins], axis=1)
        return torch.from_numpy(margins.copy())


class TreeTask(Task):
    """The task of a forest: it has no parameters to train by gradients, and a vector that grows."""

    def __init__(self, forest: Forest, loss: Loss, label_scale: tuple[float, float] = (0.0, 1.0)) -> None:
        self.module: ForestModule = ForestModule(forest, label_scale)
        self.loss, self.dtype, self.device = loss, torch.float32, torch.device("cpu")
        self.names, self.weights, self.size = ["forest"], [], 1000
        self.has_buffers = self.has_batchnorm = self.has_dropout = self.channels_last = self.has_own_loss = False
        self.class_weights = self.sample_weights = self.own_loss = self.network = self._tape = None
        self.normalise_weights, self.is_compiled = True, False
        self._parameters: list[nn.Parameter] = []
        self._float_buffers: list[Tensor] = []
        self._counters: list[Tensor] = []
        self.initial = self.vector()

    @property
    def path(self) -> str:
        """Return which code trains."""
        return "trees"

    @property
    def forest(self) -> Forest:
        """Return the loaded forest."""
        return Forest.of(self.module.forest.detach().numpy())

    def vector(self) -> Vector:
        """Return a copy of the forest as a flat vector."""
        return self.module.forest.detach().numpy().copy()

    def load(self, w: Vector) -> None:
        """Set the forest to that of a flat vector."""
        self.module.forest.data = torch.from_numpy(np.array(w, np.float32))

    def buffers(self) -> Buffers:
        """Return no buffers."""
        return Buffers(np.empty(0, np.float32), np.empty(0, np.int64))

    def load_buffers(self, buffers: Buffers) -> None:
        """Do nothing: a forest has no buffers."""

    def outputs(self, margins: NDArray[np.float32]) -> Tensor:
        """Return the margins of the loaded forest as outputs."""
        return self.module.outputs(self.forest, margins)

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return the outputs for raw rows."""
        out: Tensor = self.module(x)
        return out
