"""The networks of the CIFAR-10 report "Federated Learning: where machine learning and data privacy can coexist".

Each comes plain, with batch norm or with group norm between every convolution and its activation.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Lt
from torch import nn

from fedarena.config.registry import register
from fedarena.models.zoo.layers import PLAIN, Norm, NormName, Positive, Shape, block, classifier, image


@register("model", "lenet5_mod", paper="Hsu et al. 2020, arXiv:2003.08082")
def lenet5_mod(
    shape: Shape,
    classes: int,
    *,
    norm: NormName = "plain",
    groups: Positive | None = None,
    group_size: Positive | None = None,
) -> nn.Module:
    """Two 5 x 5 convolutions (64, 64) without padding, 384 and 192 ReLU units; 797,962 parameters on CIFAR-10."""
    channels, _, _ = image("lenet5_mod", shape, least=16)
    between = Norm(norm, groups, group_size)
    body = [*block(channels, 64, 5, norm=between), *block(64, 64, 5, norm=between)]
    return classifier(body, shape, [384, 192, classes])


@register("model", "allconvnet", paper="Springenberg et al. 2015, arXiv:1412.6806")
def allconvnet(
    shape: Shape,
    classes: int,
    *,
    channels: Positive = 64,
    relu_logits: bool = True,
    norm: NormName = "plain",
    norm_logits: bool = True,
    groups: Positive | None = None,
    group_size: Positive | None = None,
) -> nn.Module:
    """ALL-CNN-C with 64 and 128 channels: nine convolutions without padding; 610,058 parameters on CIFAR-10.

    As printed, a ReLU follows the last convolution too: no logit is negative, and all may die at zero, where the
    loss stays ln(classes). `relu_logits = false` avoids that; `norm_logits = false` leaves its norm out.
    """
    inside, _, _ = image("allconvnet", shape, least=27)
    between = Norm(norm, groups, group_size)
    layers: list[nn.Module] = []
    for outside, kernel, stride in [
        (channels, 3, 1),
        (channels, 3, 1),
        (channels, 3, 2),
        (2 * channels, 3, 1),
        (2 * channels, 3, 1),
        (2 * channels, 3, 2),
        (2 * channels, 3, 1),
        (2 * channels, 1, 1),
    ]:
        layers += [nn.Conv2d(inside, outside, kernel, stride), *between(outside), nn.ReLU()]
        inside = outside
    layers += [nn.Conv2d(inside, classes, 1), *(between if norm_logits else PLAIN)(classes)]
    return nn.Sequential(*layers, *([nn.ReLU()] if relu_logits else []), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@register("model", "cnnnet", paper="Federated Learning: where machine learning and data privacy can coexist")
def cnnnet(
    shape: Shape,
    classes: int,
    *,
    norm: NormName = "plain",
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
    groups: Positive | None = None,
    group_size: Positive | None = None,
) -> nn.Module:
    """Three 3 x 3 convolutions (16, 32, 64) that keep the size, 500 units, all ELU; 541,094 parameters on CIFAR-10.

    `dropout` stands before both fully connected layers; the report's code has 0.25, its table none.
    """
    channels, _, _ = image("cnnnet", shape, least=8)
    between = Norm(norm, groups, group_size)
    body = [
        *block(channels, 16, 3, padding=1, norm=between, act=nn.ELU),
        *block(16, 32, 3, padding=1, norm=between, act=nn.ELU),
        *block(32, 64, 3, padding=1, norm=between, act=nn.ELU),
    ]
    return classifier(body, shape, [500, classes], act=nn.ELU, dropout=dropout)
