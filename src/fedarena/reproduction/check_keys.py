"""The keys that each kind of check may have (reproduction/check_kinds.py explains them), and their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedarena.config.errors import BadValue, check_known


def need_keys(kind: str, says: str, how: Mapping[str, Any]) -> None:
    """Raise if a check lacks a key of its kind, has an unknown key, or a value of the wrong form."""
    needed, known = ({*names.split()} for names in KEYS[kind])
    every = needed | known | {"measure", "cells", "mean_over", "any_size", "told"}
    for key in how:
        check_known(
            key, every, f"a check of kind {kind} has no key '{key}'", f"there are: {', '.join(sorted(every))}", says
        )
    for key in sorted(needed | {"measure"}):
        if key not in how:
            raise BadValue(f"the check '{says}' has no {key}", remedy=f"a check of kind {kind} needs it", where=says)
    if ("of" in how) != ("minus" in how or "to" in how):
        raise BadValue(f"the check '{says}' names only one of two choices", remedy="write of and minus", where=says)
    for key, value in how.items():
        fits, form = FORMS.get(key, TEXT)
        if not fits(value):
            raise BadValue(f"{key} = {value!r} in the check '{says}'", remedy=f"write {form}", where=says)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def is_number(value: Any) -> bool:
    """Return whether a value of a recipe is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_bounds(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value)) and value[0] <= value[1]


def _are_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(_is_list(pair) and len(pair) == 2 for pair in value)


Form = tuple[Callable[[Any], bool], str]  # a predicate, and the form of values that it accepts
TEXT: Form = (lambda value: isinstance(value, str), "a text")
NUMBER: Form = (is_number, "a number")
LIST: Form = (_is_list, "a list of texts")
SWITCH: Form = (lambda value: isinstance(value, bool), "true or false")
FORMS: dict[str, Form] = {
    **dict.fromkeys(("tolerance", "low", "high", "most", "margin", "sign"), NUMBER),
    **dict.fromkeys(("choices", "among", "larger", "about", "mean_over"), LIST),
    **dict.fromkeys(("any_size", "told", "relative"), SWITCH),
    "cells": (lambda value: isinstance(value, str) or _is_list(value), "a text, or a list of texts"),
    "factor": (lambda value: is_number(value) and value >= 1, "a number from 1 on"),
    "share": (lambda value: is_number(value) and 0 < value <= 1, "a number above 0, at most 1"),
    "between": (_are_bounds, "two numbers, the smaller first: [0.5, 2]"),
    "undecided": (_are_pairs, 'pairs of names: [["coop", "fsvrg"]]'),
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
