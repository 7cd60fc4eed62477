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

from fedarena.models.tape import ELU, Flatten, Linear, ReLU, Tape

Vector = NDArray[Any]

BUILDS = {"AVX512": ("avx512", "avx2"), "AVX2": ("avx2",)}  # what torch finds -> builds that run there, the best first
SWITCH = "FEDARENA_KERNELS"  # "off", or the name of a build: for tests, and for whoever distrusts a kernel
NUMBERS = 5  # of a layer: inputs, outputs, has bias, activation, alpha


@functools.cache
def library(wanted: str = "") -> tuple[str, ctypes.CDLL] | None:
    """The best build that this processor can run, with its name; None where there is none."""
    able = BUILDS.get(torch.backends.cpu.get_cpu_capability(), ())
    for name in able:
        path = Path(__file__).parent / f"_native_{name}{importlib.machinery.EXTENSION_SUFFIXES[0]}"
        if path.exists() and wanted in ("", name):
            loaded = ctypes.CDLL(str(path))
            loaded.fedarena_new.restype = ctypes.c_void_p
            return name, loaded
    return None


class Network:
    """A stack of layers that the kernels know, with their working memory."""

    def __init__(self, build: str, kernels: Any, program: list[list[float]]) -> None:
        self.build, self._kernels = build, kernels
        numbers = np.array(program, dtype=np.float64)
        self._handle = ctypes.c_void_p(kernels.fedarena_new(_at(numbers), len(program)))
        self.inputs = int(program[0][0])

    def __del__(self) -> None:
        self._kernels.fedarena_free(self._handle)

    @classmethod
    def of(cls, tape: Tape) -> Network | None:
        """The compiled form of a tape, or None where a layer or this machine has none."""
        switch = os.environ.get(SWITCH, "")
        found = None if switch == "off" else library(switch)
        program = _program(tape) if found is not None else None
        return None if found is None or program is None else cls(*found, program)

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
        """One step for every size, on the next so many rows of `order`; the mean loss of each batch."""
        losses = np.empty(len(sizes))
        weights = None if class_weights is None else _floats(class_weights)
        labels, places = (np.ascontiguousarray(numbers, np.int64) for numbers in (y, order))
        arrays: list[NDArray[Any] | None] = [_floats(x), labels, places, weights]
        batches, steps = np.asarray(sizes, np.int32), _floats(rates)
        self._kernels.fedarena_train(
            self._handle, *map(_at, arrays), int(normalise), _at(batches), _at(steps), len(sizes), _at(losses)
        )
        return losses

    def save(self, w: Vector, velocity: Vector | None = None) -> None:
        """Write the weights, and the momentum, where they are wanted."""
        self._kernels.fedarena_save(self._handle, _at(w), _at(velocity))


def _program(tape: Tape) -> list[list[float]] | None:
    """The layers in the kernels' numbers; None if one of them is not known there."""
    program: list[list[float]] = []
    for i, layer in enumerate(tape.layers):
        if (
            isinstance(layer, Linear)
            and layer.weights[0].dtype == torch.float32
            and layer.weights[0].device.type == "cpu"
        ):
            m = layer.module
            program.append([m.in_features, m.out_features, m.bias is not None, 0, 0])
        elif isinstance(layer, ReLU | ELU) and program and program[-1][3] == 0:
            program[-1][3:] = [1, 0] if isinstance(layer, ReLU) else [2, layer.module.alpha]
        elif not (isinstance(layer, Flatten) and i == 0):
            return None
    is_whole = bool(program) and program[-1][3] == 0  # logits have no activation
    return program if is_whole else None


def _floats(array: Any) -> NDArray[np.float32]:
    return np.ascontiguousarray(array, dtype=np.float32)


def _at(array: NDArray[Any] | None) -> ctypes.c_void_p | None:
    return None if array is None else ctypes.c_void_p(array.ctypes.data)
