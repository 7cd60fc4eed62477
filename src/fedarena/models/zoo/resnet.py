"""ResNet-18 of He et al. 2016, with the stem for small images or the one for ImageNet."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from fedarena.config.registry import register
from fedarena.models.zoo.layers import Norm, Positive, Shape, image


@register("model", "resnet18", paper="He et al. 2016, arXiv:1512.03385")
def resnet18(
    shape: Shape,
    classes: int,
    *,
    stem: Literal["cifar", "imagenet"] = "cifar",
    norm: Literal["bn", "gn"] = "bn",
    groups: Positive | None = None,
    group_size: Positive | None = None,
) -> nn.Module:
    """Eight residual blocks of two 3 x 3 convolutions; 11,173,962 parameters on CIFAR-10.

    The stem is one 3 x 3 convolution (`cifar`), or 7 x 7 with stride 2 and a max-pool (`imagenet`, 11,181,642).
    """
    channels, _, _ = image("resnet18", shape)
    between = Norm(norm, groups, group_size)
    layers: list[nn.Module]
    if stem == "cifar":
        layers = [nn.Conv2d(channels, 64, 3, padding=1, bias=False), *between(64), nn.ReLU()]
    else:
        first = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        layers = [first, *between(64), nn.MaxPool2d(3, stride=2, padding=1), nn.ReLU()]
    inside = 64
    for outside, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        layers += [Residual(inside, outside, stride, between), Residual(outside, outside, 1, between)]
        inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


class Residual(nn.Module):
    """ReLU(s(x) + f(x)): f is two convolutions with norms, s one of 1 x 1 where the shape changes, else nothing."""

    def __init__(self, inside: int, outside: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False),
            *norm(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            *norm(outside),
        )
        same = inside == outside and stride == 1
        change = [] if same else [nn.Conv2d(inside, outside, 1, stride, bias=False), *norm(outside)]
        self.shortcut = nn.Sequential(*change)

    def forward(self, x: Tensor) -> Tensor:
        """Return body and shortcut, added and rectified."""
        return nn.functional.relu(self.body(x) + self.shortcut(x))
