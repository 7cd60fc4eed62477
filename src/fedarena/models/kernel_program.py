"""The layers of a tape as numbers that the kernels read; native/network.cpp says what they mean."""

from __future__ import annotations

import torch

from fedarena.models.tape import (
    ELU,
    BatchNorm,
    Convolution,
    Dropout,
    Flatten,
    GlobalMean,
    GroupNorm,
    Layer,
    Linear,
    MaxPool,
    ReLU,
    Tape,
)

NUMBERS = 10  # of a layer, the kind first
LINEAR, CONVOLUTION, BATCH_NORM, GROUP_NORM, MAX_POOL, GLOBAL_MEAN, RELU, ELU_, FLATTEN, DROPOUT = range(10)


def program_of(tape: Tape) -> list[list[float]] | None:
    """Return the layers as the kernels' codes; None if one of them is unknown."""
    codes = [_numbers(layer) for layer in tape.layers]
    if codes and codes[0] == [FLATTEN]:  # rows of numbers are flat already
        codes = codes[1:]
    known = [numbers + [0.0] * (NUMBERS - len(numbers)) for numbers in codes if numbers is not None]
    return known if len(known) == len(codes) else None


def _numbers(layer: Layer) -> list[float] | None:
    m = layer.module
    if any(w.dtype != torch.float32 or w.device.type != "cpu" for w in layer.weights):
        return None
    match layer:
        case Linear():
            return [LINEAR, m.in_features, m.out_features, m.bias is not None]
        case Convolution() if m.groups == 1 and m.dilation == (1, 1):
            return [
                CONVOLUTION,
                m.in_channels,
                m.out_channels,
                *m.kernel_size,
                *m.stride,
                *m.padding,
                m.bias is not None,
            ]
        case BatchNorm():
            return [BATCH_NORM, m.eps, m.momentum]
        case GroupNorm():
            return [GROUP_NORM, m.eps, m.num_groups]
        case MaxPool() if layer.window[3] == [1, 1]:
            kernel, stride, padding, _, ceil = layer.window
            return [MAX_POOL, *kernel, *stride, *padding, ceil]
        case GlobalMean():
            return [GLOBAL_MEAN]
        case ReLU():
            return [RELU]
        case ELU():
            return [ELU_, m.alpha]
        case Flatten():
            return [FLATTEN]
        case Dropout() if 0 < m.p < 1:
            return [DROPOUT, m.p]
    return None
