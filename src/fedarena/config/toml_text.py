"""Read and write experiments as TOML, and parse `key=value` assignments of the command line."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedarena.config.components import PATHS, each_path
from fedarena.config.errors import BadValue, quoted

AVAILABLE = ("always", "day")  # values of `devices.available` that are not files


def read_toml(path: Path) -> dict[str, Any]:
    """Read an experiment file; its relative paths become paths from the folder of the file."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = ", ".join(sorted(p.name for p in path.parent.glob("*.toml"))[:5]) if path.parent.is_dir() else ""
        raise BadValue(
            f"there is no experiment file {path}",
            remedy=f"files in that folder: {near}" if near else "check the path; `fedarena run digits` needs no file",
        ) from None
    except (ValueError, RecursionError, OSError) as error:  # not TOML, not UTF-8, an endless number, nested too deeply
        raise BadValue(
            f"cannot read it: {quoted(str(error))}", remedy="write it as TOML: key = value", where=str(path)
        ) from None
    resolve_paths(table, path.parent)
    return table


def resolve_paths(table: Mapping[str, Any], folder: Path) -> None:
    """Make the relative paths of a table start at the folder of the file from which it was read."""
    for inner in (table.get("data"), table.get("partition"), table.get("devices")):
        for name in (*PATHS, "trace", "available"):
            if isinstance(inner, dict) and isinstance(inner.get(name), str | list) and inner[name] not in AVAILABLE:
                inner[name] = each_path(inner[name], lambda path: str(folder / path))


def flat_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table without inner tables: a key of an inner one is `table.key`."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat


def parse_assignment(text: str, example: str = "local.lr=0.05") -> tuple[str, Any]:
    """Split `key=value` into the key and its value, which is read as TOML, or as text if it is not TOML.

    >>> parse_assignment("local.lr=0.05"), parse_assignment("algorithm=fedprox")
    (('local.lr', 0.05), ('algorithm', 'fedprox'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadValue(
            f"--set {quoted(text)}",
            remedy=f"write --set key=value, e.g. --set {example}",
            where="--set",
        )
    try:
        parsed = tomllib.loads(f"v = {value.strip()}")
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()  # a bare word is text
    except (ValueError, RecursionError) as error:  # thousands of digits, or endless brackets
        raise BadValue(
            f"--set {quoted(text)}: {quoted(str(error))}", remedy="give a plain value", where=quoted(key.strip())
        ) from None
    return key.strip(), parsed["v"] if len(parsed) == 1 else value.strip()  # more lines would set other keys


def write_toml_value(value: Any) -> str:
    """Return a value as TOML; entries of tables that are None are left out."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{_toml_key(k)} = {write_toml_value(v)}" for k, v in value.items() if v is not None)
            + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(write_toml_value(v) for v in value) + "]"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace(
            "\x7f", "\\u007f"
        )  # the only control character that JSON does not escape
    return str(value)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else write_toml_value(key)
