"""The weights that belong to each input feature of a linear model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedarena.models.task import Task


def input_features(task: Task) -> int | None:
    """Return the number of inputs of a model that is one linear layer over its flattened rows; None for any other."""
    layers = list(task.module) if type(task.module) is nn.Sequential else [task.module]
    while layers and type(layers[0]) is nn.Flatten:
        del layers[0]
    first = layers[0] if layers else None
    if type(first) is not nn.Linear or not first.weight.requires_grad:
        return None
    return None if any(True for layer in layers[1:] for _ in layer.parameters()) else first.in_features


def spread(task: Task, numbers: NDArray[Any]) -> NDArray[Any]:
    """Repeat a number per input over the weights that multiply it, as a vector of all parameters; 1 for a bias."""
    flat = torch.ones_like(task.flat)
    for view in task.views(flat):
        if view.dim() == 2:  # (outputs, inputs)
            view.copy_(torch.from_numpy(np.asarray(numbers)))
    return flat.cpu().numpy()
