"""Which weights belong to which input feature: a question that only linear models answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedarena.models.task import Task


def input_features(task: Task) -> int | None:
    """Inputs of a model whose only layer with weights is a linear one over its flattened rows; None for any other."""
    layers = list(task.module) if type(task.module) is nn.Sequential else [task.module]
    while layers and type(layers[0]) is nn.Flatten:
        del layers[0]
    first = layers[0] if layers else None
    if type(first) is not nn.Linear or not first.weight.requires_grad:
        return None
    return None if any(True for layer in layers[1:] for _ in layer.parameters()) else first.in_features


def spread(task: Task, numbers: NDArray[Any]) -> NDArray[Any]:
    """A number for each input as a vector over all parameters: for the weights that multiply it; 1 for a bias."""
    flat = torch.ones_like(task.flat)
    for view in task.views(flat):
        if view.dim() == 2:  # (outputs, inputs)
            view.copy_(torch.from_numpy(np.asarray(numbers)))
    return flat.cpu().numpy()
