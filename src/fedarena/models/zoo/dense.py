"""Models without convolutions. They flatten their input, so that tables and images both fit."""

from __future__ import annotations

import math

from torch import nn

from fedarena.config.errors import ModelMismatch
from fedarena.config.registry import register
from fedarena.models.zoo.layers import Shape, dense


@register("model", "logreg")
def logreg(shape: Shape, classes: int, *, binary: bool = False) -> nn.Module:
    """Logistic regression: one linear layer.

    With `binary` one score z separates two classes. The logits are (0, z): their softmax cross-entropy is the
    logistic loss of z.
    """
    if not binary:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
    if classes != 2:
        raise ModelMismatch(
            f"binary logistic regression needs 2 classes, these data have {classes}",
            remedy="leave out binary = true",
            where="model.binary",
        )
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 1), nn.ZeroPad1d((1, 0)))


@register("model", "mlp_2nn", paper="McMahan et al. 2017, arXiv:1602.05629")
def mlp_2nn(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 200 ReLU units; 199,210 parameters on MNIST."""
    return nn.Sequential(nn.Flatten(), *dense([math.prod(shape), 200, 200, classes]))
