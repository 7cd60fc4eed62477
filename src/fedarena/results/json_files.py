"""JSON files with their own hash inside, written atomically."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedarena.common.files import atomic_write
from fedarena.common.formatting import as_json
from fedarena.data.published_files import reading


def write_table(file: Path, table: Mapping[str, Any]) -> None:
    """Write a JSON table with its own hash in it, atomically."""
    write_text(file, as_json({**table, "sha256": fingerprint(table)}))


def read_table(file: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON table and check its hash; a table that an earlier version of fedarena wrote has none."""
    with reading(file, remedy=remedy):
        table = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(table, dict) or not table:
            raise ValueError("it is not a table")
        if "sha256" in table and table.pop("sha256") != fingerprint(table):
            raise ValueError("it is not as it was written, its sha256 differs")
        return table


def fingerprint(table: Mapping[str, Any]) -> str:
    """Return the hash of a table without the entry that holds it."""
    text = as_json({key: value for key, value in table.items() if key != "sha256"})
    return hashlib.sha256(text.encode()).hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as file:
        file.write(text.encode())


def file_sha256(file: Path) -> str:
    """Return the hash of a file; that of a missing file is empty."""
    if not file.is_file():
        return ""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
