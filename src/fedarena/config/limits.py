"""Limits of values from users: how large a number, how deep a table and how long a path may be."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedarena.config.errors import BadValue, quoted

LARGEST = 1e12  # for numbers other than learning rates and seeds
LARGEST_RATE = 1e38  # a 32-bit float; runs with absurd learning rates diverge and report it
LARGEST_SEED = 2**63 - 1
DEEPEST = 32  # tables and lists within each other
LONGEST_NAME = 255  # bytes of a file name
LONGEST_PATH = 4095 - LONGEST_NAME  # bytes, with room for the files inside a folder


def largest(key: str) -> float:
    """Return the largest number that a setting of this name may have."""
    return LARGEST_SEED if key.endswith("seed") else LARGEST_RATE if key.endswith("lr") else LARGEST


def check_value(key: str, value: Any, where: str, depth: int = 0) -> None:
    """Reject numbers that are absurdly large, texts that are not valid UTF-8 and tables that are nested too deeply."""
    if depth > DEEPEST:
        raise BadValue(f"{quoted(key)} is nested too deeply", remedy="give a plain value or a flat table", where=where)
    if isinstance(value, Mapping | list | tuple):
        for inner in value.items() if isinstance(value, Mapping) else ((key, one) for one in value):
            check_value(str(inner[0]), inner[1], where, depth + 1)
    elif isinstance(value, int | float) and (math.isfinite(value) if isinstance(value, float) else True):
        if abs(value) > largest(key):
            raise BadValue(
                f"{quoted(key)} = {quoted(value)}", remedy=f"give a number of at most {largest(key):g}", where=where
            )
    elif isinstance(value, str) and not _is_text(value):
        raise BadValue(f"{quoted(key)} = '{quoted(value)}'", remedy="give a text that is valid UTF-8", where=where)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_path(path: Any, where: str) -> Path:
    """Return the path; raise `BadValue` if no file can have it: it contains a NUL byte, or a name that is too long."""
    if not isinstance(path, str | os.PathLike):
        raise BadValue(f"{quoted(path)} is not a path", remedy="give the name of a file or folder", where=where)
    found = Path(path)
    name = os.fspath(found)
    problem = ""
    if "\0" in name:
        problem = "contains a NUL byte"
    elif not all(map(_fits, found.parts)):
        problem = f"has a name that is longer than {LONGEST_NAME} bytes, or is not valid UTF-8"
    elif len(os.fsencode(found.absolute())) > LONGEST_PATH:
        problem = f"is longer than {LONGEST_PATH} bytes"
    if problem:
        raise BadValue(f"the path '{quoted(name)}' {problem}", remedy="choose another name", where=where)
    return found


def check_paths(*paths: tuple[str, Any]) -> None:
    """Check the paths of options, each of which may be None, or False for no folder."""
    for option, path in paths:
        if path is not None and path is not False:
            check_path(path, option)


def _fits(name: str) -> bool:
    try:
        return len(os.fsencode(name)) <= LONGEST_NAME
    except UnicodeEncodeError:
        return False
