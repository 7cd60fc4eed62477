"""The convolutional networks of McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks"."""

from __future__ import annotations

from torch import nn

from fedarena.config.registry import register
from fedarena.models.zoo.layers import Shape, block, classifier, image, local_response_norm, same_max_pool


@register("model", "cnn_mcmahan", paper="McMahan et al. 2017, arXiv:1602.05629")
def cnn_mcmahan(shape: Shape, classes: int) -> nn.Module:
    """Two 5 x 5 convolutions (32, 64) that keep the size, 512 ReLU units; 1,663,370 parameters on MNIST."""
    channels, _, _ = image("cnn_mcmahan", shape, least=4)
    body = [*block(channels, 32, 5, padding=2), *block(32, 64, 5, padding=2)]
    return classifier(body, shape, [512, classes])


@register("model", "cnn_mcmahan_cifar", paper="McMahan et al. 2017, arXiv:1602.05629, section 3")
def cnn_mcmahan_cifar(shape: Shape, classes: int, *, lrn: bool = True) -> nn.Module:
    """The TensorFlow tutorial's network with local response norm; 1,068,298 parameters on 24 x 24 colour crops."""
    channels, height, width = image("cnn_mcmahan_cifar", shape)
    first = same_max_pool(height, width)
    second = same_max_pool((height + 1) // 2, (width + 1) // 2)
    if lrn:
        # A response norm looks at all channels, so the second pool cannot move before it and its ReLU.
        conv = nn.Conv2d(64, 64, 5, padding=2)
        tail = [local_response_norm(), conv, nn.ReLU(), local_response_norm(), second]
    else:
        tail = block(64, 64, 5, padding=2, pool=second)
    return classifier([*block(channels, 64, 5, padding=2, pool=first), *tail], shape, [384, 192, classes])
