"""Print results on stdout, as JSON or as text."""

from __future__ import annotations

from typing import Any

from fedarena.common.formatting import as_json


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout."""
    print(as_json(value))


def print_result(as_text: object, as_dict: Any, json_: bool) -> None:
    """Print a result as text, or with `--json` as JSON."""
    print(as_json(as_dict) if json_ else as_text)
