"""Group values by a key, in the order in which they come."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def group_by_key(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key, both in the order in which they come.

    >>> group_by_key([("+", "fedavg"), ("?", "scaffold"), ("+", "fedprox")])
    {'+': ['fedavg', 'fedprox'], '?': ['scaffold']}
    """
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
