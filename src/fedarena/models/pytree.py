"""Trees: messages and states are dataclasses, lists and dicts of arrays and numbers. They are counted, checked, averaged
and stored here, leaf by leaf, never by position in a list."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.config.variant_selection import variant_class
from fedarena.models.compiled import add_scaled, all_finite
from fedarena.models.stored_names import find_class

PLAIN = frozenset({int, float, str, bool, type(None)})


@functools.cache
def _names(cls: Any) -> tuple[str, ...] | None:
    """Return the fields of a dataclass; None for any other type."""
    return tuple(field.name for field in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else None


def leaves(tree: Any) -> list[NDArray[Any] | float]:
    """Return the arrays and numbers of a tree, in order."""
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
    """Return the bytes of a message: its arrays, and eight for every number, without known fields.

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
    """Return the fields of a dataclass that are sent; None for any other type."""
    if not dataclasses.is_dataclass(cls):
        return None
    return tuple(field.name for field in dataclasses.fields(cls) if not field.metadata.get("known"))


def is_finite(tree: Any) -> bool:
    """Return whether no array or number of a tree is NaN or infinite."""
    return all(all_finite(leaf) if isinstance(leaf, np.ndarray) else math.isfinite(leaf) for leaf in leaves(tree))


def to_plain(tree: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return the tree as plain JSON values; its arrays go to `arrays` under numbered names."""
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
        f"a server or client state holds a {type(tree).__name__}, which cannot be stored",
        remedy="use numpy arrays, numbers, texts, lists, tuples, dicts and dataclasses of them",
    )


class UnknownType(Exception):
    """Raised where a stored tree needs a class that was not given."""


def from_plain(plain: Any, arrays: dict[str, NDArray[Any]], types: dict[str, type]) -> Any:
    """Return the tree of plain values. Only the given types are ever instantiated, so a file cannot name another one."""
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
    """Return the dataclasses that a tree is made of, by name."""
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


def types_near(component: Any, *others: type) -> dict[str, type]:
    """Return the dataclasses in the modules of a component, its parents and its variant, which its state may contain.

    `others` are added under their names."""
    base = getattr(component, "base", None)  # the algorithm inside a companion
    found: dict[str, type] = {} if base is None else types_near(base)
    variant = variant_class(component)  # whose state earlier versions also stored for the paper's own algorithm
    for cls in (*type(component).__mro__, *(() if variant is None else (variant,))):
        for value in _module_names(cls).values() if cls is not object else ():
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                found.setdefault(value.__qualname__, value)
    return found | {cls.__qualname__: cls for cls in others}


def _module_names(cls: type) -> dict[str, Any]:
    """Return the names in a class's module; for a class sent by value from another process, those its methods use."""
    if cls.__module__ in sys.modules:
        return vars(sys.modules[cls.__module__])
    functions = [value for value in vars(cls).values() if hasattr(value, "__globals__")]
    return {name: value for function in functions for name, value in function.__globals__.items()}


def read_only(tree: Any) -> Any:
    """Return the tree with read-only arrays: a client must not change the broadcast. Frozen parts without any stay."""
    if isinstance(tree, np.ndarray):
        if tree.flags.writeable:
            tree = tree.view()
            tree.flags.writeable = False
        return tree
    cls: Any = type(tree)
    names = _names(cls)
    if names is not None:
        before = [getattr(tree, name) for name in names]
        after = [item if type(item) in PLAIN else read_only(item) for item in before]
        unchanged = all(map(operator.is_, before, after))
        return tree if unchanged else cls(**dict(zip(names, after, strict=True)))
    if isinstance(tree, list | tuple):
        after = [item if type(item) in PLAIN else read_only(item) for item in tree]
        return tree if cls is tuple and all(map(operator.is_, tree, after)) else cls(after)
    if isinstance(tree, dict):
        return {key: read_only(item) for key, item in tree.items()}
    return tree


class WeightedMean:
    """A weighted mean of trees, computed in the order in which they are added.

    Weights enter as ratios to the first one, in double precision: equal weights give a plain sum divided by the count,
    regardless of their size, and a mean of equal vectors is that vector. Fields marked `summed` are added up, fields marked
    `collected` are listed.
    """

    def __init__(self) -> None:
        self.first: Any = None  # tree
        self._unit = 1.0
        self._total = 0.0  # of the ratios
        self._treatment: list[str] = []
        self._sums: list[Any] | None = None  # None while there is only one tree, which is its own sum

    def add(self, tree: Any, weight: float) -> None:
        """Add one tree with its weight."""
        if self.first is None:
            self.first, self._unit = tree, weight or 1.0
            self._total, self._treatment = weight / self._unit, reductions(tree)
            return
        ratio = weight / self._unit
        self._add_parts(leaves(tree), ratio)
        self._total += ratio

    @property
    def weight(self) -> float:
        """Return the sum of all weights."""
        return self._total * self._unit

    def merge(self, later: WeightedMean) -> None:
        """Add the sum of later trees, which were added elsewhere."""
        if later.first is None:
            return
        if self.first is None:
            vars(self).update(vars(later))
        elif later._sums is None:
            self.add(later.first, later.weight)
        else:
            ratio = later._unit / self._unit
            self._add_parts(later._sums, ratio, are_sums=True)
            self._total += later._total * ratio

    def _sums_so_far(self) -> list[Any]:
        """Return the sums, which start with the first tree."""
        if self._sums is None:
            self._sums = [_nothing(leaf, how) for leaf, how in zip(leaves(self.first), self._treatment, strict=True)]
            self._add_parts(leaves(self.first), self._total)
        return self._sums

    def _add_parts(self, parts: list[Any], ratio: float, are_sums: bool = False) -> None:
        sums = self._sums_so_far()
        for i, (part, how) in enumerate(zip(parts, self._treatment, strict=True)):
            factor = ratio if how == "mean" else 1.0
            if how == "collect":
                sums[i].extend(part if are_sums else [part])
            elif isinstance(part, np.ndarray) and sums[i].dtype.kind == "i":
                sums[i] += part
            elif isinstance(part, np.ndarray):
                add_scaled(sums[i], part, factor)
            else:
                sums[i] += factor * float(part)

    def result(self) -> Any:
        """Return the mean, in the types of the first tree; None if nothing was added."""
        if self.first is None:
            return None
        parts = zip(self._sums_so_far(), self._treatment, strict=True)
        return replace_leaves(self.first, (total / self._total if how == "mean" else total for total, how in parts))


def refuse_single_updates(tree: Any, name: str) -> None:
    """Refuse an algorithm that collects single updates where the uplink lets only means through."""
    if "collect" in reductions(tree):
        raise BadValue(
            f"{name} collects what each client sends, and the uplink lets only means through",
            remedy='declare needs = "each update" in the algorithm, and set uplink = "plain"',
            where="uplink",
        )


def _nothing(leaf: Any, how: str) -> Any:
    if how == "collect":
        return []
    if not isinstance(leaf, np.ndarray):
        return 0.0
    return np.zeros(
        leaf.shape, np.int64 if how == "sum" and leaf.dtype.kind == "i" else np.float64
    )  # integers are exact


def reductions(tree: Any, how: str = "mean") -> list[str]:
    """Return how each leaf is aggregated: mean, sum or collect."""
    if isinstance(tree, np.ndarray):
        return [how]
    cls: Any = type(tree)
    marks = _marks(cls)
    if marks is None:
        return [how] * len(leaves(tree))
    found: list[str] = []
    for name, mark in marks:
        found += reductions(getattr(tree, name), mark or how)
    return found


@functools.cache
def _marks(cls: Any) -> tuple[tuple[str, str], ...] | None:
    """Return the fields of a dataclass and how each is aggregated, where it is marked; None for any other type."""
    if not dataclasses.is_dataclass(cls):
        return None
    marks = ("sum", "collect")
    return tuple((f.name, next((m for m in marks if f.metadata.get(m)), "")) for f in dataclasses.fields(cls))


def replace_leaves(tree: Any, values: Iterator[Any]) -> Any:
    """Return a tree of the same shape with other leaves, arrays in the types of the former ones."""
    if tree is None or isinstance(tree, str):
        return tree
    cls: Any = type(tree)
    names = _names(cls)
    if names is not None:
        return cls(**{name: replace_leaves(getattr(tree, name), values) for name in names})
    if isinstance(tree, list | tuple):
        return type(tree)(replace_leaves(item, values) for item in tree)
    if isinstance(tree, dict):
        return {key: replace_leaves(item, values) for key, item in tree.items()}
    value = next(values)
    return value.astype(tree.dtype, copy=False) if isinstance(value, np.ndarray) else value
