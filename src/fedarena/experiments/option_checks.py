"""Checks of options that several commands share: whole numbers, and names of a short list."""

from __future__ import annotations

from typing import Any, get_args

from fedarena.config.errors import BadValue, UnknownName, quoted, repeated


def check_numbers(**counts: tuple[Any, int]) -> None:
    """Raise if a value is given that is not a whole number, or is below its least."""
    for name, (value, least) in counts.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise BadValue(
                f"{name} = {repeated(value)}", remedy=f"give a whole number, at least {least}", where=f"--{name}"
            )


def check_names(**names: tuple[Any, Any]) -> None:
    """Raise if a value is given that is not one of the texts of its `Literal`."""
    for key, (value, known) in names.items():
        if value is not None and value not in get_args(known):
            name, few = key.replace("_", "-"), ", ".join(get_args(known))
            raise UnknownName(f"no {name} is called '{quoted(value)}'", remedy=f"there are: {few}", where=f"--{name}")
