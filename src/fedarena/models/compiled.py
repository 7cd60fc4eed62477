"""The compiled path: local SGD of a stack of known layers, many steps in one call of a C++ kernel.

The kernels (models/native/) are built when the package is installed, if there is a compiler, once for AVX-512 and once
for AVX2; which one runs is decided here, by what the processor can do. Without them the generic path does the same work.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedarena.models.tape import (
    ELU,
    BatchNorm,
    Convolution,
    Flatten,
    GlobalMean,
    GroupNorm,
    Layer,
    Linear,
    MaxPool,
    ReLU,
    Tape,
)

Vector = NDArray[Any]

BUILDS = {"AVX512": ("avx512", "avx2"), "AVX2": ("avx2",)}  # what torch finds -> builds that run there, the best first
SWITCH = "FEDARENA_KERNELS"  # "off", or the name of a build: for tests, and for whoever distrusts a kernel
NUMBERS = 10  # of a layer, the kind first; native/network.cpp says what they mean


@functools.cache
def library(wanted: str = "") -> tuple[str, ctypes.CDLL] | None:
    """The best build that this processor can run, with its name; None where there is none."""
    able = BUILDS.get(torch.backends.cpu.get_cpu_capability(), ())
    for name in able:
        path = Path(__file__).parent / f"_native_{name}{importlib.machinery.EXTENSION_SUFFIXES[0]}"
        if path.exists() and wanted in ("", name):
            loaded = ctypes.CDLL(str(path))
            loaded.fedarena_build.restype = ctypes.c_void_p
            return name, loaded
    return None


class Network:
    """A stack of layers that the kernels know, with their working memory."""

    def __init__(self, build: str, kernels: Any, handle: int, is_image: bool) -> None:
        self.build, self._kernels, self._handle = build, kernels, ctypes.c_void_p(handle)
        self.is_image = is_image  # rows are height x width x channels
        self.can_anchor = bool(kernels.fedarena_can_anchor(self._handle))

    def __del__(self) -> None:
        self._kernels.fedarena_free(self._handle)

    @classmethod
    def of(cls, tape: Tape, shape: tuple[int, ...] | None = None) -> Network | None:
        """The compiled form of a tape for rows of this shape, or None where a layer or this machine has none."""
        switch = os.environ.get(SWITCH, "")
        found = None if switch == "off" else library(switch)
        program = _program(tape) if found is not None else None
        if found is None or not program:
            return None
        is_image = int(program[0][0]) != LINEAR
        if is_image and (shape is None or len(shape) != 3):
            return None
        rows = (*shape,) if is_image and shape else (int(program[0][1]), 1, 1)
        numbers = np.array(program, dtype=np.float64)
        handle = found[1].fedarena_build(_at(numbers), len(program), *rows)
        return cls(*found, handle, is_image) if handle else None

    def rows(self, x: torch.Tensor) -> NDArray[np.float32]:
        """A batch as the kernels read it: images channels-last, other rows flat."""
        return _floats(x.permute(0, 2, 3, 1).numpy() if self.is_image else x.flatten(1).numpy())

    def load(
        self,
        w: Vector,
        *,
        velocity: Vector | None = None,
        centre: Vector | None = None,
        shift: Vector | None = None,
        beside: Vector | None = None,
        anchor: Vector | None = None,
        momentum: float = 0.0,
        decay: float = 0.0,
        mu: float = 0.0,
    ) -> None:
        """Start from `w`, with u <- momentum u + g + decay w + mu (w - centre) + shift, w <- w - rate (u + beside).

        With an `anchor`, g is the gradient of a batch at w less that of the same batch at the anchor.
        """
        vectors = [None if v is None else _floats(v) for v in (w, velocity, centre, shift, beside, anchor)]
        numbers = map(ctypes.c_float, (momentum, decay, mu))
        self._kernels.fedarena_load(self._handle, *map(_at, vectors), *numbers)

    def train(
        self,
        x: Vector,
        y: NDArray[np.int64],
        order: NDArray[np.int64],
        sizes: Sequence[int],
        rates: NDArray[np.float64],
        class_weights: Vector | None = None,
        normalise: bool = True,
    ) -> NDArray[np.float64]:
        """One step for every size, on the next so many rows of `order`; the mean loss of each batch.

        Rows are as `rows` makes them.
        """
        losses = np.empty(len(sizes))
        weights = None if class_weights is None else _floats(class_weights)
        labels, places = (np.ascontiguousarray(numbers, np.int64) for numbers in (y, order))
        arrays: list[NDArray[Any] | None] = [_floats(x), labels, places, weights]
        batches, steps = np.asarray(sizes, np.int32), _floats(rates)
        done = self._kernels.fedarena_train(
            self._handle, *map(_at, arrays), int(normalise), _at(batches), _at(steps), len(sizes), _at(losses)
        )
        if done < len(sizes):  # as torch's own layer does: there is no variance of one value
            raise ValueError(f"Expected more than 1 value per channel when training, got a batch of {sizes[done]}")
        return losses

    def save(self, w: Vector, velocity: Vector | None = None) -> None:
        """Write the weights, and the momentum, where they are wanted."""
        self._kernels.fedarena_save(self._handle, _at(w), _at(velocity))

    def load_buffers(self, values: Vector) -> None:
        """Running means and variances of BatchNorm to go on from."""
        self._kernels.fedarena_load_buffers(self._handle, _at(_floats(values)))

    def save_buffers(self, values: Vector) -> None:
        """Write them where they are wanted."""
        self._kernels.fedarena_save_buffers(self._handle, _at(values))


LINEAR, CONVOLUTION, BATCH_NORM, GROUP_NORM, MAX_POOL, GLOBAL_MEAN, RELU, ELU_, FLATTEN = range(9)


def _program(tape: Tape) -> list[list[float]] | None:
    """The layers in the kernels' numbers; None if one of them is not known there."""
    told = [_numbers(layer) for layer in tape.layers]
    if told and told[0] == [FLATTEN]:  # rows of numbers are flat already
        told = told[1:]
    known = [numbers + [0.0] * (NUMBERS - len(numbers)) for numbers in told if numbers is not None]
    return known if len(known) == len(told) else None


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
    return None


def _floats(array: Any) -> NDArray[np.float32]:
    return np.ascontiguousarray(array, dtype=np.float32)


def _at(array: NDArray[Any] | None) -> ctypes.c_void_p | None:
    return None if array is None else ctypes.c_void_p(array.ctypes.data)
