"""Convex losses of theory: no classes, a known minimum, and a start at 0.

The last number of a row is what these models are about; labels are not looked at.
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor, nn

from fedarena.config.errors import ModelMismatch
from fedarena.config.registry import register
from fedarena.models.zoo.layers import Shape

Curvature = Annotated[float, Gt(0)]


@register("model", "least_squares")
def least_squares(shape: Shape, classes: int) -> nn.Module:
    """Half the squared distance between the last number of a row and a linear function of the others."""
    if len(shape) != 1 or shape[0] < 2:
        raise ModelMismatch(
            f"least_squares needs rows of two numbers or more, these have the shape {' x '.join(map(str, shape))}",
            remedy="use it for the data set least_squares, or a table like it",
            where="model.name",
        )
    return LeastSquaresModule(shape[0] - 1)


@register("model", "piecewise_quadratic", paper="Woodworth et al. 2020, arXiv:2002.07839, section 5")
def piecewise_quadratic(
    shape: Shape, classes: int, *, mu: Curvature = 1.0, high: Curvature = 1.0, bent: Curvature = 1.0
) -> nn.Module:
    """Three weights, two in plain parabolas, the third in one that is twice as steep on one side, where the noise is."""
    return PiecewiseQuadraticModule(mu, high, bent)


class LeastSquaresModule(nn.Module):
    """(x w - y)^2 / 2, a mean over rows."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(features))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        rows = x.flatten(1)
        # A sum of products, not torch's matrix product: the rounding of that depends on the vendor of the processor.
        residual: Tensor = (rows[:, :-1] * self.w).sum(dim=1) - rows[:, -1]
        return residual.square().mean() / 2


class PiecewiseQuadraticModule(nn.Module):
    """mu/2 (w_1 - 1)^2 + high/2 (w_2 - 1)^2 + bent/2 ((w_3 - 1)^2 + max(w_3 - 1, 0)^2) + z w_3; z ends a row."""

    def __init__(self, mu: float, high: float, bent: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))
        self.mu, self.high, self.bent = mu, high, bent

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        z = x.flatten(1)[:, -1].mean()
        a, b, c = self.w - 1
        plain: Tensor = self.mu * a.square() + self.high * b.square()
        bent: Tensor = self.bent * (c.square() + c.relu().square())
        return (plain + bent) / 2 + z * self.w[2]
