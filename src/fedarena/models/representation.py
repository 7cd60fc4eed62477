"""The representation of a sample: the input of the model's last layer, which is linear."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def last_layer(module: nn.Module) -> nn.Linear | None:
    """Return the linear layer, with a bias, that turns a representation into outputs; None where a model has none.

    It is the last of an `nn.Sequential`, or `head` of a module with a method `features(x)` that returns its input.
    """
    layer: Any = None
    if isinstance(module, nn.Sequential):
        layer = module[-1]
    elif callable(getattr(module, "features", None)):
        layer = getattr(module, "head", None)
    return layer if isinstance(layer, nn.Linear) and layer.bias is not None else None


def representation_width(module: nn.Module) -> int | None:
    """Return the number of features before the last layer; None where there is no such layer, or they are not learned."""
    layer = last_layer(module)
    if layer is None:
        return None
    own = {id(parameter) for parameter in layer.parameters()}
    learns = any(p.requires_grad and id(p) not in own for p in module.parameters())
    return layer.in_features if learns else None


def represent(module: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the representation of a batch, and the outputs of the model that follow from it."""
    z: Tensor = module[:-1](x) if isinstance(module, nn.Sequential) else module.features(x)
    layer = last_layer(module)
    assert layer is not None, "the algorithm checks that the model has a representation"
    return z, layer(z)
