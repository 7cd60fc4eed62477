"""The network of NIID-Bench (Li et al. 2022), under the two names its experiments need."""

from __future__ import annotations

from torch import nn

from fedarena.config.registry import register
from fedarena.models.zoo.layers import Shape, block, classifier, image


@register("model", "simple_cnn", paper="Li et al. 2022 (NIID-Bench), arXiv:2102.02079")
def simple_cnn(shape: Shape, classes: int) -> nn.Module:
    """Two 5 x 5 convolutions (6, 16) without padding, 120 and 84 ReLU units; 62,006 parameters on CIFAR-10."""
    return _simple_cnn("simple_cnn", shape, classes)


@register("model", "simple_cnn_mnist", paper="Li et al. 2022 (NIID-Bench), arXiv:2102.02079")
def simple_cnn_mnist(shape: Shape, classes: int) -> nn.Module:
    """The same network as simple_cnn, as NIID-Bench names it for grey images; 44,426 parameters on MNIST."""
    return _simple_cnn("simple_cnn_mnist", shape, classes)


def _simple_cnn(name: str, shape: Shape, classes: int) -> nn.Module:
    channels, _, _ = image(name, shape, least=16)
    return classifier([*block(channels, 6, 5), *block(6, 16, 5)], shape, [120, 84, classes])
