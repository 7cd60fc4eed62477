"""The model of a client as a torch module, for algorithms that train it by their own code."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fedarena.algorithms.base import Vector
from fedarena.config.errors import BadValue, quoted
from fedarena.models.representation import last_layer
from fedarena.models.task import Task, as_tensor


class ClientModule:
    """The part of a client's work that reads and writes torch modules (see algorithms.torch_work.TorchWork)."""

    def __init__(self, task: Task, start: Vector) -> None:
        self.task = task
        self._module_weights: Vector | None = start  # until the module is used; None while the task holds them

    @property
    def module(self) -> nn.Module:
        """Return the model with the weights of the server's message, or of the latest `load` or `train`, in training mode."""
        return self.task.module if self._module_weights is None else self.load(self._module_weights)

    def load(self, w: Vector) -> nn.Module:
        """Set the weights of `module` and return it, without gradients of an earlier client."""
        self.task.load(w)
        self._module_weights = None
        self.task.module.zero_grad(set_to_none=True)
        return self.task.module.train()

    @property
    def weights(self) -> Vector:
        """Return a copy of the weights of `module` as a flat vector."""
        return self.task.vector() if self._module_weights is None else self._module_weights.copy()

    def frozen(self, w: Vector) -> nn.Module:
        """Return a copy of the model with these weights, frozen and in evaluation mode."""
        return frozen_module(self.task, w, copied_buffers(self.task.module))

    def mask(self, *patterns: str) -> NDArray[np.bool_]:
        """Return which weights of a flat vector belong to parameters whose name fits one of the patterns."""
        names = self.task.names
        fits = [any(fnmatch.fnmatch(name, pattern) for pattern in patterns) for name in names]
        if not any(fits):
            what = f"no parameter fits '{quoted(', '.join(patterns))}'"
            raise BadValue(what, remedy=f"they are: {', '.join(names)}", where="work.mask")
        return np.repeat(fits, [view.numel() for view in self.task.weights])

    def with_last_layer(self, w: Vector, weight: Vector, bias: Vector) -> Vector:
        """Return `w` with other weights of the last layer, which is linear."""
        layer = last_layer(self.load(w))
        assert layer is not None, "the algorithm checks that the model has a representation"
        layer.weight.data.copy_(as_tensor(weight))
        layer.bias.data.copy_(as_tensor(bias))
        return self.weights

    def _set_weights_aside(self) -> None:
        """Save the weights of `module` while the task is used with others."""
        if self._module_weights is None:
            self._module_weights = self.task.vector()


def frozen_module(task: Task, w: Vector, buffers: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of the model with these weights and buffers, frozen and in evaluation mode."""
    module = copy.deepcopy(task.module)
    trained = [p for p in module.parameters() if p.requires_grad]
    for parameter, view in zip(trained, task.views(as_tensor(w).to(task.flat)), strict=True):
        parameter.data.copy_(view)
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])
    module.zero_grad(set_to_none=True)
    return module.eval().requires_grad_(False)


def copied_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the buffers of a module by name."""
    return {name: buffer.clone() for name, buffer in module.named_buffers()}
