"""Messages and states are trees: dataclasses, lists and tables of arrays and numbers. They are counted, checked, averaged
and stored here, leaf by leaf, never by position in a list."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.config.variant_selection import variant_class
from fedarena.models.compiled import add_scaled, all_finite
from fedarena.models.stored_names import find_class


@functools.cache
def _names(cls: Any) -> tuple[str, ...] | None:
    """Fields of a dataclass; None for any other type."""
    return tuple(field.name for field in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else None


def leaves(tree: Any) -> list[NDArray[Any] | float]:
    """Arrays and numbers of a tree, in order."""
    if isinstance(tree, np.ndarray):
        return [tree]
    cls: Any = type(tree)
    names = _names(cls)
    if names is not None:
        items = [getattr(tree, name) for name in names]
    elif tree is None or isinstance(tree, str):
        return []
    elif isinstance(tree, list | tuple):
        items = list(tree)
    elif isinstance(tree, dict):
        items = list(tree.values())
    else:
        return [tree]
    found: list[NDArray[Any] | float] = []
    for item in items:
        if isinstance(item, np.ndarray):
            found.append(item)
        else:
            found.extend(leaves(item))
    return found


def nbytes(tree: Any) -> int:
    """Bytes of a message: its arrays, and eight for every number, less what is already known.

    See docs/reference/metrics.md#communication.
    """
    if isinstance(tree, np.ndarray):
        return int(tree.nbytes)
    cls: Any = type(tree)
    names = _sent(cls)
    if names is None:
        return sum(leaf.nbytes if isinstance(leaf, np.ndarray) else 8 for leaf in leaves(tree))
    total = 0
    for name in names:
        total += nbytes(getattr(tree, name))
    return total


@functools.cache
def _sent(cls: Any) -> tuple[str, ...] | None:
    """Fields of a dataclass that travel; None for any other type."""
    if not dataclasses.is_dataclass(cls):
        return None
    return tuple(field.name for field in dataclasses.fields(cls) if not field.metadata.get("known"))


def is_finite(tree: Any) -> bool:
    """No array or number in it is NaN or infinite."""
    return all(all_finite(leaf) if isinstance(leaf, np.ndarray) else math.isfinite(leaf) for leaf in leaves(tree))


def to_plain(tree: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """The tree as plain JSON values; its arrays go to `arrays` under numbered names."""
    if isinstance(tree, np.ndarray):
        name = f"array{len(arrays)}"
        arrays[name] = tree
        return {"array": name}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {f.name: to_plain(getattr(tree, f.name), arrays) for f in dataclasses.fields(tree)}
        return {"type": type(tree).__qualname__, "fields": fields}
    if type(tree) in (list, tuple):
        return {"list": [to_plain(item, arrays) for item in tree], "tuple": isinstance(tree, tuple)}
    if isinstance(tree, dict):
        return {"dict": [[to_plain(k, arrays), to_plain(v, arrays)] for k, v in tree.items()]}
    if isinstance(tree, np.generic):
        return tree.item()
    if tree is None or isinstance(tree, str | bool | int | float):
        return tree
    raise BadValue(
        f"a state or memory holds a {type(tree).__name__}, which cannot be stored",
        remedy="use numpy arrays, numbers, texts, lists, tuples, dicts and dataclasses of them",
    )


class UnknownType(Exception):
    """A stored tree asks for a class that was not given."""


def from_plain(plain: Any, arrays: dict[str, NDArray[Any]], types: dict[str, type]) -> Any:
    """The tree again. Only types that are given by name are ever made: a file cannot ask for anything else."""
    if not isinstance(plain, dict):
        return plain
    if "array" in plain:
        return arrays[plain["array"]]
    if "type" in plain:
        fields = {name: from_plain(value, arrays, types) for name, value in plain["fields"].items()}
        cls = find_class(plain["type"], types)
        if cls is None:
            raise UnknownType(plain["type"])
        return cls(**fields)
    if "list" in plain:
        items = [from_plain(item, arrays, types) for item in plain["list"]]
        return tuple(items) if plain["tuple"] else items
    return {from_plain(k, arrays, types): from_plain(v, arrays, types) for k, v in plain["dict"]}


def types_in(tree: Any) -> dict[str, type]:
    """Dataclasses that a tree is made of."""
    found: dict[str, type] = {}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        found[type(tree).__qualname__] = type(tree)
        children: list[Any] = [getattr(tree, f.name) for f in dataclasses.fields(tree)]
    else:
        children = (
            list(tree.values()) if isinstance(tree, dict) else list(tree) if isinstance(tree, list | tuple) else []
        )
    for child in children:
        found |= types_in(child)
    return found


def types_near(component: Any) -> dict[str, type]:
    """Dataclasses visible in the modules of a component, its parents and its variant: what its state may be made of."""
    base = getattr(component, "base", None)  # what a companion of an algorithm is around
    found: dict[str, type] = {} if base is None else types_near(base)
    variant = variant_class(component)  # whose state earlier versions also stored for the paper's own algorithm
    for cls in (*type(component).__mro__, *(() if variant is None else (variant,))):
        for value in _seen_by(cls).values() if cls is not object else ():
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                found.setdefault(value.__qualname__, value)
    return found


def _seen_by(cls: type) -> dict[str, Any]:
    """What its module holds; or, of a class that came by value from another process, what its methods brought along."""
    if cls.__module__ in sys.modules:
        return vars(sys.modules[cls.__module__])
    functions = [value for value in vars(cls).values() if hasattr(value, "__globals__")]
    return {name: value for function in functions for name, value in function.__globals__.items()}


def read_only(tree: Any) -> Any:
    """The same tree with arrays that cannot be written: what a client is told is not its to change."""

    def locked(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            leaf = leaf.view()
            leaf.flags.writeable = False
        return leaf

    return replace_leaves(tree, map(locked, leaves(tree)))


class WeightedMean:
    """A weighted mean of trees, taken one by one in the order they are added.

    Weights enter as ratios to the first one, in double precision: equal weights give a plain sum divided by the count,
    whatever their size, and a mean of equal vectors is that vector. Fields marked `summed` are added up, fields marked
    `collected` are listed.
    """

    def __init__(self) -> None:
        self.first: Any = None  # tree
        self._unit = 1.0
        self._total = 0.0  # of the ratios
        self._treatment: list[str] = []
        self._sums: list[Any] | None = None  # none while there is but one tree: it is its own sum

    def add(self, tree: Any, weight: float) -> None:
        """Take one tree in."""
        if self.first is None:
            self.first, self._unit = tree, weight or 1.0
            self._total, self._treatment = weight / self._unit, list(reductions(tree))
            return
        ratio = weight / self._unit
        self._take(leaves(tree), ratio)
        self._total += ratio

    def merge(self, later: WeightedMean) -> None:
        """Take in the sum of trees that were added elsewhere, and come after those here."""
        if later.first is None:
            return
        if self.first is None:
            vars(self).update(vars(later))
        elif later._sums is None:
            self.add(later.first, later._total * later._unit)
        else:
            ratio = later._unit / self._unit
            self._take(later._sums, ratio, are_sums=True)
            self._total += later._total * ratio

    def _opened(self) -> list[Any]:
        """The sums, begun with the first tree."""
        if self._sums is None:
            self._sums = [_nothing(leaf, how) for leaf, how in zip(leaves(self.first), self._treatment, strict=True)]
            self._take(leaves(self.first), self._total)
        return self._sums

    def _take(self, parts: list[Any], ratio: float, are_sums: bool = False) -> None:
        sums = self._opened()
        for i, (part, how) in enumerate(zip(parts, self._treatment, strict=True)):
            factor = ratio if how == "mean" else 1.0
            if how == "collect":
                sums[i].extend(part if are_sums else [part])
            elif isinstance(part, np.ndarray):
                add_scaled(sums[i], part, factor)
            else:
                sums[i] += factor * float(part)

    def result(self) -> Any:
        """The mean, in the types of the first tree; None if nothing was added."""
        if self.first is None:
            return None
        parts = zip(self._opened(), self._treatment, strict=True)
        return replace_leaves(self.first, (total / self._total if how == "mean" else total for total, how in parts))


def refuse_single_updates(tree: Any, name: str) -> None:
    """Where only means go up, nothing may be collected, whatever an algorithm says it needs."""
    if "collect" in reductions(tree):
        raise BadValue(
            f"{name} collects what each client sends, and the uplink lets only means through",
            remedy='declare needs = "each update" in the algorithm, and set uplink = "plain"',
            where="uplink",
        )


def _nothing(leaf: Any, how: str) -> Any:
    if how == "collect":
        return []
    return np.zeros(leaf.shape) if isinstance(leaf, np.ndarray) else 0.0


def reductions(tree: Any, how: str = "mean") -> Iterator[str]:
    """What becomes of each leaf: mean, sum or collect."""
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            marks = [mark for mark in ("sum", "collect") if field.metadata.get(mark)]
            yield from reductions(getattr(tree, field.name), marks[0] if marks else how)
    else:
        yield from (how for _ in leaves(tree))


def replace_leaves(tree: Any, values: Iterator[Any]) -> Any:
    """A tree of the same shape with other leaves, arrays in the types of those before."""
    if tree is None or isinstance(tree, str):
        return tree
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {f.name: replace_leaves(getattr(tree, f.name), values) for f in dataclasses.fields(tree)}
        return type(tree)(**fields)
    if isinstance(tree, list | tuple):
        return type(tree)(replace_leaves(item, values) for item in tree)
    if isinstance(tree, dict):
        return {key: replace_leaves(item, values) for key, item in tree.items()}
    value = next(values)
    return value.astype(tree.dtype, copy=False) if isinstance(value, np.ndarray) else value
