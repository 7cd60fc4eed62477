"""The own and the shared part of a model, as index sets of its flat vector and of its BatchNorm statistics.

The server has the shared entries alone: they make up its weights, its messages and the updates of clients. Each client
keeps its own entries in its state, and `engine/partial_work.py` joins both while it trains.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedarena.algorithms.base import Vector
from fedarena.config.errors import BadValue, quoted
from fedarena.models.task import Buffers, Task

Mask = NDArray[np.bool_]
NamePredicate = Callable[[str], bool]
NORMS = (
    nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm,
)  # fmt: skip


@dataclass(frozen=True)
class OwnParts:
    """Which weights, statistics and counters belong to each client."""

    weights: Mask
    values: Mask  # of the buffers
    counters: Mask
    initial: Vector  # own weights before a client's first round
    initial_buffers: Buffers

    def shared(self, w: Vector) -> Vector:
        """Return the shared entries of a complete vector."""
        return w[~self.weights]

    def own(self, w: Vector) -> Vector:
        """Return the own entries of a complete vector."""
        return w[self.weights]

    def join(self, shared: Vector, own: Vector) -> Vector:
        """Return the complete vector of shared and own entries."""
        return _joined(self.weights, shared, own)

    def shared_buffers(self, buffers: Buffers) -> Buffers:
        """Return the shared entries of complete buffers."""
        return Buffers(buffers.values[~self.values], buffers.counters[~self.counters])

    def own_buffers(self, buffers: Buffers) -> Buffers:
        """Return the own entries of complete buffers."""
        return Buffers(buffers.values[self.values], buffers.counters[self.counters])

    def changed_buffers(self, before: Buffers, after: Buffers, only: str | None) -> Buffers:
        """Return the buffers after a training of one part, in which those of the other have not changed."""
        shared, own = (before, after) if only == "own" else (after, before)
        return self.join_buffers(self.shared_buffers(shared), self.own_buffers(own))

    def join_buffers(self, shared: Buffers, own: Buffers | None) -> Buffers:
        """Return complete buffers; without own ones, with the initial ones."""
        own = own or self.initial_buffers
        return Buffers(
            _joined(self.values, shared.values, own.values), _joined(self.counters, shared.counters, own.counters)
        )


def _joined(mask: Mask, shared: NDArray[Any], own: NDArray[Any]) -> NDArray[Any]:
    out = np.empty(len(mask), own.dtype if mask.all() else shared.dtype)
    out[mask], out[~mask] = own, shared
    return out


def find_own_parts(task: Task, layers: Sequence[str | NamePredicate], all_buffers: bool) -> OwnParts | None:
    """Return the parts of a model whose own layers these are; None where nothing is own.

    A layer is "norm" (all normalisation layers), "head" (the last layer), "last:2" (the last two layers with weights), a
    name or pattern of parameters, or a predicate on their names. With `all_buffers` all statistics are own.
    """
    chosen = [_selector(task, layer) if isinstance(layer, str) else layer for layer in layers]

    def is_own(name: str) -> bool:
        return any(fits(name) for fits in chosen)

    buffers = list(task.module.named_buffers())
    values = [(n, b) for n, b in buffers if b.is_floating_point()]
    counters = [(n, b) for n, b in buffers if not b.is_floating_point()]
    weights = _mask((name, view.numel(), is_own(name)) for name, view in zip(task.names, task.weights, strict=True))
    floats, integers = (
        _mask((name, buffer.numel(), all_buffers or is_own(name)) for name, buffer in kind)
        for kind in (values, counters)
    )
    if not weights.any() and not any(is_own(name) for name, _ in buffers):
        return None
    before = task.buffers()
    own = Buffers(before.values[floats], before.counters[integers])
    return OwnParts(weights, floats, integers, task.initial[weights], own)


def _mask(entries: Iterator[tuple[str, int, bool]]) -> Mask:
    pieces = [np.full(count, own) for _, count, own in entries]
    return np.concatenate(pieces) if pieces else np.empty(0, np.bool_)


def _selector(task: Task, layer: str) -> NamePredicate:
    """Return whether a parameter or buffer of a given name belongs to a layer that a user named."""
    modules = dict(task.module.named_modules())
    if layer == "norm":
        return _inside(name for name, module in modules.items() if isinstance(module, NORMS))
    count = 1 if layer == "head" else _last(layer)
    if count is not None:
        trained = dict.fromkeys(name.rpartition(".")[0] for name in task.names)
        if count > len(trained):
            raise BadValue(
                f"'{quoted(layer)}' of a model with {len(trained)} layers",
                remedy=f'give at most "last:{len(trained)}", or "*" for all of it',
                where="algorithm.own",
            )
        return _inside(list(trained)[len(trained) - count :])
    if not any(fnmatch.fnmatch(name, layer) for name in task.names):
        raise BadValue(
            f"no parameter of the model fits '{quoted(layer)}'",
            remedy=f'use "head", "norm", "last:2" or a pattern of: {", ".join(task.names)}',
            where="algorithm.own",
        )
    return lambda name: fnmatch.fnmatch(name, layer)


def _inside(modules: Iterator[str] | list[str]) -> Callable[[str], bool]:
    known = {*modules}
    return lambda name: name.rpartition(".")[0] in known


def _last(layer: str) -> int | None:
    """Return n of "last:n"; None for any other text."""
    kind, colon, number = layer.partition(":")
    return int(number) if kind == "last" and colon and number.isdecimal() else None
