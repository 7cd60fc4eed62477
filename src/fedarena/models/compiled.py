"""The compiled path: local SGD of a stack of known layers, many steps in one call of a C++ kernel; gradients and logits.

The kernels (models/native/) are built when the package is installed, if there is a compiler, once for AVX-512 and once
for AVX2; which one runs is decided here, by what the processor can do. Without them the generic path does the same work.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.machinery
import logging
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedarena.common.arrays import address as _at
from fedarena.config.seeds import Purpose, number_of, stream
from fedarena.models.kernel_program import DROPOUT, LINEAR, program_of
from fedarena.models.tape import Tape

Vector = NDArray[Any]
LOGGER = logging.getLogger(__name__)

BUILDS = {"AVX512": ("avx512", "avx2"), "AVX2": ("avx2",)}  # what torch finds -> builds that run there, the best first
SWITCH = "FEDARENA_KERNELS"  # "off", or the name of a build: for tests, and to rule out an error of a kernel


@functools.cache
def processor() -> str:
    """Return what decides the last bits beside versions: the instructions that torch and the kernels use, and the vendor
    of the processor, by which torch's libraries choose theirs."""
    capability: str = torch.backends.cpu.get_cpu_capability()
    with contextlib.suppress(OSError):  # other systems have no such file
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        vendor = next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
        return f"{capability} {vendor}".strip()
    return f"{capability} {platform.processor()}".strip()


@functools.cache
def library(wanted: str = "") -> tuple[str, ctypes.CDLL] | None:
    """Return the best build that this processor can run, with its name; None where there is none."""
    able = BUILDS.get(torch.backends.cpu.get_cpu_capability(), ())
    for name in able:
        path = Path(__file__).parent / f"_native_{name}{importlib.machinery.EXTENSION_SUFFIXES[0]}"
        if path.exists() and wanted in ("", name):
            try:
                return name, _declared(ctypes.CDLL(str(path)))
            except AttributeError as error:
                raise ImportError(
                    f"{path.name} is of another version of fedarena: install it again ({error})"
                ) from None
    return None


def report_missing_kernels() -> None:
    """Log what is slower and what to do, where the package was installed without kernels that this processor could run."""
    capability = torch.backends.cpu.get_cpu_capability()
    if os.environ.get(SWITCH) == "off" or library() is not None:
        return
    remedy = "install a C++ compiler, then install fedarena again" if capability in BUILDS else f"none are for {capability}"
    LOGGER.info("note: no compiled kernels, so networks train several times slower: %s", remedy)


def _declared(kernels: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the arguments of the kernels: addresses are 64 bits wide, and a plain number would be cut to 32."""
    at, whole, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
    rows = [at, at, at, whole, whole, at, at, at, at, whole, at, at]
    for name, types in {
        "build": [at, whole, whole, whole, whole, whole],
        "free": [at],
        "can_anchor": [at],
        "load": [at] * 7 + [real] * 3,
        "train": [*rows, whole, at, at],
        "train_each": [*rows, at, whole, at, at, ctypes.c_size_t],
        "classes": [at],
        "predict": [at, at, at, whole, whole, whole, at],
        "save": [at] * 3,
        "orders": [at, whole, at, at, at, whole, whole, at],
        "uniforms": [at, whole, at, whole, at],
        "load_buffers": [at] * 2,
        "save_buffers": [at] * 2,
        "add": [at, at, ctypes.c_size_t, ctypes.c_double],
        "all_finite": [at, ctypes.c_size_t],
    }.items():
        getattr(kernels, f"fedarena_{name}").argtypes = types
    kernels.fedarena_build.restype = at
    return kernels


@dataclass(frozen=True)
class KernelRows:
    """Rows as data sets store them: floats, or bytes with the number that each byte stands for, channel by channel."""

    x: NDArray[Any]  # float32 or bytes, the channels of an image first
    y: NDArray[Any]  # classes (int64), or one float32 for each output
    tables: NDArray[np.float32] | None = None  # channels x 256
    weights: NDArray[np.float32] | None = None  # of the rows in the loss

    @functools.cached_property
    def arguments(self) -> tuple[int, int | None, int, int, int, int | None]:
        """Return the addresses and sizes that the kernels need."""
        channels = 1 if self.tables is None and self.x.ndim < 4 else self.x.shape[1]
        numbers = self.x.size // max(len(self.x), 1)
        tables = None if self.tables is None else self.tables.ctypes.data
        weights = None if self.weights is None else self.weights.ctypes.data
        return self.x.ctypes.data, tables, channels, numbers // channels, self.y.ctypes.data, weights


class CompiledNetwork:
    """A stack of layers that the kernels know, with their working memory."""

    def __init__(self, build: str, kernels: Any, handle: int, drops: Sequence[tuple[int, float]] = ()) -> None:
        self.build, self._kernels, self._handle = build, kernels, handle
        self._drops = drops  # inputs that pass through each dropout, and the chance of each to be kept
        self.can_anchor = bool(kernels.fedarena_can_anchor(self._handle))

    def __del__(self) -> None:
        self._kernels.fedarena_free(self._handle)

    @classmethod
    def of(cls, tape: Tape, shape: tuple[int, ...] | None = None) -> CompiledNetwork | None:
        """Return the compiled form of a tape for rows of this shape; None where a layer, the loss or the machine has none."""
        switch = os.environ.get(SWITCH, "")
        found = None if switch == "off" else library(switch)
        program = program_of(tape) if found is not None and tape.loss.kernel is not None else None
        if found is None or not program:
            return None
        is_image = int(program[0][0]) != LINEAR
        if is_image and (shape is None or len(shape) != 3):
            return None
        rows = (*shape,) if is_image and shape else (int(program[0][1]), 1, 1)
        numbers = np.array(program, dtype=np.float64)
        handle = found[1].fedarena_build(_at(numbers), len(program), *rows, tape.loss.kernel)
        drops = [(int(next[1]), 1 - numbers[1]) for numbers, next in pairwise(program) if numbers[0] == DROPOUT]
        return cls(*found, handle, drops) if handle else None

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
        """Load `w` and the rule u <- momentum u + g + decay w + mu (w - centre) + shift, w <- w - rate (u + beside).

        With an `anchor`, g is the gradient of a batch at w less that of the same batch at the anchor.
        """
        vectors = [None if v is None else _floats(v) for v in (w, velocity, centre, shift, beside, anchor)]
        self._kernels.fedarena_load(self._handle, *map(_at, vectors), momentum, decay, mu)

    def train(
        self,
        source: KernelRows,
        order: NDArray[np.int64],
        sizes: Sequence[int],
        rates: NDArray[np.float64],
        class_weights: Vector | None = None,
        normalise: bool = True,
    ) -> NDArray[np.float64]:
        """Make one step for every size, on the next rows that `order` names, and return the mean loss of each batch."""
        losses = np.empty(len(sizes))
        steps_of_call = _Steps(source, order, sizes, rates, class_weights, normalise)
        masks = self._masks(sizes)
        done = self._kernels.fedarena_train(self._handle, *steps_of_call.arguments, len(sizes), _at(losses), _at(masks))
        if done < len(sizes):  # as torch's own layer does: there is no variance of one value
            raise ValueError(f"Expected more than 1 value per channel when training, got a batch of {sizes[done]}")
        return losses

    def _masks(self, sizes: Sequence[int]) -> NDArray[np.float32] | None:
        """Return the dropout masks of all steps, drawn from torch's random numbers as the layers themselves would."""
        if not self._drops:
            return None
        drawn = [
            torch.empty(rows, inputs).bernoulli_(keep).div_(keep) for rows in sizes for inputs, keep in self._drops
        ]
        return torch.cat([mask.view(-1) for mask in drawn]).numpy()

    def train_each(
        self,
        source: KernelRows,
        order: NDArray[np.int64],
        sizes: NDArray[np.int32],
        rates: NDArray[np.float64],
        counts: Sequence[int],
        after: NDArray[np.float32],
    ) -> NDArray[np.float64]:
        """Train several clients in one call, each from the loaded weights: the next `counts[k]` steps are client k's.

        Its weights go to row k of `after`. Not for networks with buffers, which would go from client to client, and not with
        dropout, which each client draws by itself.
        """
        losses, steps = np.empty(len(sizes)), np.asarray(counts, np.int32)
        steps_of_call = _Steps(source, order, sizes, rates, None, True)
        self._kernels.fedarena_train_each(
            self._handle, *steps_of_call.arguments, _at(steps), len(counts), _at(losses), _at(after), after.shape[1]
        )
        return losses

    def logits(self, w: Vector, buffers: Vector, x: Vector) -> NDArray[np.float32]:
        """Return the logits of rows in evaluation mode, each row by itself."""
        self.load(w)
        if buffers.size:
            self.load_buffers(buffers)
        rows = KernelRows(_floats(x), np.empty(0, np.int64))
        out = np.empty((len(x), self._kernels.fedarena_classes(self._handle)), np.float32)
        self._kernels.fedarena_predict(self._handle, *rows.arguments[:4], len(x), _at(out))
        return out

    def gradient(
        self, w: Vector, source: KernelRows, order: NDArray[np.int64], class_weights: Vector | None, normalise: bool
    ) -> tuple[NDArray[np.float32], float]:
        """Return the gradient of the mean loss of these rows and the loss: the momentum after a step of rate 0."""
        g = np.zeros(len(w), np.float32)
        self.load(w, velocity=g)
        loss = self.train(source, order, [len(order)], np.zeros(1), class_weights, normalise)
        self.save(np.empty_like(g), g)
        return g, float(loss[0])

    def save(self, w: Vector, velocity: Vector | None = None) -> None:
        """Write the weights, and the momentum if there is one, to the given arrays."""
        self._kernels.fedarena_save(self._handle, _at(w), _at(velocity))

    def load_buffers(self, values: Vector) -> None:
        """Load the running means and variances of BatchNorm."""
        self._kernels.fedarena_load_buffers(self._handle, _at(_floats(values)))

    def save_buffers(self, values: Vector) -> None:
        """Write the running means and variances of BatchNorm to an array."""
        self._kernels.fedarena_save_buffers(self._handle, _at(values))


class _Steps:
    """The steps of one call; holds the arrays as long as the kernels read them."""

    def __init__(
        self,
        source: KernelRows,
        order: NDArray[np.int64],
        sizes: Sequence[int] | NDArray[np.int32],
        rates: NDArray[np.float64],
        class_weights: Vector | None,
        normalise: bool,
    ) -> None:
        self._arrays = (
            np.ascontiguousarray(order, np.int64),
            None if class_weights is None else _floats(class_weights),
            np.asarray(sizes, np.int32),
            _floats(rates),
        )
        places, weights, batches, steps = map(_at, self._arrays)
        self.arguments = (*source.arguments, places, weights, int(normalise), batches, steps)


@functools.cache
def kernels() -> Any:
    """Return the kernels that need no network; None where there are none, or they are switched off."""
    switch = os.environ.get(SWITCH, "")
    found = None if switch == "off" else library(switch)
    return None if found is None else found[1]


def add_scaled(total: NDArray[np.float64], part: Vector, factor: float) -> None:
    """Compute total += factor * part, rounded after the product and after the sum, with or without kernels."""
    able = kernels() if part.dtype == np.float32 and part.shape == total.shape and part.flags.c_contiguous else None
    if able is not None:
        able.fedarena_add(_at(total), _at(part), part.size, factor)
    else:
        total += part if factor == 1.0 else np.multiply(part, factor, dtype=np.float64)


def all_finite(array: Vector) -> bool:
    """Return whether no number of an array is NaN or infinite."""
    if array.dtype.kind in "biu":
        return True
    able = kernels() if array.dtype == np.float32 and array.flags.c_contiguous else None
    if able is not None:
        return bool(able.fedarena_all_finite(_at(array), array.size))
    # NaN compares as false, and infinities are the smallest and largest numbers: two passes without a copy.
    return not array.size or (math.isfinite(array.max()) and math.isfinite(array.min()))


def can_shuffle(seed: int) -> bool:
    """Return whether the kernels draw the same random numbers as numpy for keys with this seed."""
    on = os.environ.get(SWITCH, "") != "off" and library() is not None
    return seed < 1 << 32 and on and _draws_like_numpy()


@functools.cache
def _draws_like_numpy() -> bool:
    """Return whether this version of numpy draws as the kernels do; otherwise numpy's own generators are used."""
    rows, bounds = np.arange(100), np.array([0, 40, 100])
    drawn = shuffled(3, 5, (rows, bounds), [1], 2)
    rng = stream(3, "shuffle", 5, 1)
    expected = np.concatenate([40 + rng.permutation(60), 40 + rng.permutation(60)])
    return bool((drawn == expected).all()) and uniform(3, "latency", 5, [1])[0] == stream(3, "latency", 5, 1).random()


def shuffled(
    seed: int, round: int, rows: tuple[NDArray[np.int64], NDArray[np.int64]], clients: Sequence[int], epochs: int
) -> NDArray[np.int64]:
    """Return the rows of these clients in the order of their epochs, one client after the other.

    `rows` are those of all clients together, and where those of each begin.
    """
    flat, bounds = rows
    who = np.array(clients)
    order = np.empty(epochs * int((bounds[who + 1] - bounds[who]).sum()), np.int64)
    key = np.array([seed, number_of("shuffle"), round], np.uint32)
    found = library()
    assert found is not None
    found[1].fedarena_orders(_at(key), len(key), _at(flat), _at(bounds), _at(who), len(who), epochs, _at(order))
    return order


def uniform(seed: int, purpose: Purpose, round: int, clients: Sequence[int]) -> NDArray[np.float64]:
    """Return the first random number of each client's stream."""
    who, numbers = np.array(clients), np.empty(len(clients))
    key = np.array([seed, number_of(purpose), round], np.uint32)
    found = library()
    assert found is not None
    found[1].fedarena_uniforms(_at(key), len(key), _at(who), len(who), _at(numbers))
    return numbers


def _floats(array: Any) -> NDArray[np.float32]:
    return np.ascontiguousarray(array, dtype=np.float32)
