"""The two networks that are called LeNet: Caffe's with 20 and 50 channels, and LeCun's with 6 and 16."""

from __future__ import annotations

from torch import nn

from fedarena.config.registry import register
from fedarena.models.zoo.layers import Shape, block, classifier, image


@register("model", "lenet", paper="LeCun et al. 1998, in the form of Caffe's examples")
def lenet(shape: Shape, classes: int) -> nn.Module:
    """Two 5 x 5 convolutions (20, 50) without padding, 500 ReLU units; 431,080 parameters on MNIST."""
    channels, _, _ = image("lenet", shape, least=16)
    return classifier([*block(channels, 20, 5), *block(20, 50, 5)], shape, [500, classes])


@register("model", "lenet5", paper="LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition")
def lenet5(shape: Shape, classes: int) -> nn.Module:
    """Two 5 x 5 convolutions (6, 16), 120 and 84 ReLU units, for 32 x 32 images; 61,706 parameters.

    Smaller images get a border of zeros, at most 2 wide: 28 x 28 becomes 32 x 32.
    """
    channels, height, width = image("lenet5", shape, least=12)
    border = min(2, max(0, 16 - min(height, width) // 2))
    return classifier([*block(channels, 6, 5, padding=border), *block(6, 16, 5)], shape, [120, 84, classes])
