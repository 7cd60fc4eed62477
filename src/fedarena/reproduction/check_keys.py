"""The keys that each kind of check may have (reproduction/check_kinds.py explains them), and their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedarena.config.errors import BadValue, UnknownName, suggest


def need_keys(kind: str, says: str, how: Mapping[str, Any]) -> None:
    """Raise if a check lacks a key of its kind, has an unknown key, or a value of the wrong form."""
    needed, known = ({*names.split()} for names in KEYS[kind])
    every = needed | known | {"measure", "cells", "mean_over", "any_size", "told"}
    for key in {*how} - every:
        remedy = suggest(key, every, f"there are: {', '.join(sorted(every))}")
        raise UnknownName(f"a check of kind {kind} has no key '{key}'", remedy=remedy, where=says)
    for key in sorted(needed | {"measure"}):
        if key not in how:
            raise BadValue(f"the check '{says}' has no {key}", remedy=f"a check of kind {kind} needs it", where=says)
    if ("of" in how) != ("minus" in how or "to" in how):
        raise BadValue(f"the check '{says}' has one of two choices", remedy="write of and minus", where=says)
    for key, value in how.items():
        if not (fits := FITS.get(key, _is_text))(value):
            raise BadValue(f"{key} = {value!r} in the check '{says}'", remedy=f"write {fits.__doc__}", where=says)


def _is_text(value: Any) -> bool:
    """a text"""
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    """a list of texts"""
    return isinstance(value, list) and all(map(_is_text, value))


def _is_text_or_list(value: Any) -> bool:
    """a text, or a list of texts"""
    return _is_text(value) or _is_list(value)


def _is_number(value: Any) -> bool:
    """a number"""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_share(value: Any) -> bool:
    """a number above 0, at most 1"""
    return _is_number(value) and 0 < value <= 1


def _is_factor(value: Any) -> bool:
    """a number from 1 on"""
    return _is_number(value) and value >= 1


def _are_bounds(value: Any) -> bool:
    """two numbers, the smaller first: [0.5, 2]"""
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)) and value[0] <= value[1]


def _is_switch(value: Any) -> bool:
    """true or false"""
    return isinstance(value, bool)


def _are_pairs(value: Any) -> bool:
    """pairs of names: [["coop", "fsvrg"]]"""
    return isinstance(value, list) and all(_is_list(pair) and len(pair) == 2 for pair in value)


FITS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("tolerance", "low", "high", "most", "margin", "sign"), _is_number),
    **dict.fromkeys(("choices", "among", "larger", "about", "mean_over"), _is_list),
    **dict.fromkeys(("any_size", "told", "relative"), _is_switch),
    "cells": _is_text_or_list,
    "factor": _is_factor,
    "share": _is_share,
    "between": _are_bounds,
    "undecided": _are_pairs,
}
KEYS = {  # kind -> required keys, optional keys
    "within": ("tolerance", ""),
    "factor": ("factor", ""),
    "range": ("", "low high"),
    "spread": ("most", "axis relative"),
    "ordering": ("choices", "margin share"),
    "ratio": ("of to between", "share"),
    "difference": ("of minus between", "share"),
    "top": ("among", "axis"),
    "trend": ("axis sign", "of minus"),
    "effects": ("larger than", ""),
    "signs": ("", "rows about undecided"),
}
