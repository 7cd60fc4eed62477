"""Arrays with metadata in one safetensors file that carries its own SHA-256.

The hash covers every byte of the file, with the place of the hash itself filled with zeros. Files are written here rather
than by the library because the hash must be known to the writer without reading the file again.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.common.files import atomic_write
from fedarena.config.errors import BadValue

DTYPES = {
    "<f8": "F64", "<f4": "F32", "<f2": "F16", "<c8": "C64", "|b1": "BOOL",
    "<i8": "I64", "<i4": "I32", "<i2": "I16", "|i1": "I8",
    "<u8": "U64", "<u4": "U32", "<u2": "U16", "|u1": "U8",
}  # fmt: skip
BLANK = "0" * 64
ALIGNMENT = 8  # bytes
LARGEST_HEADER = 100_000_000  # bytes, the limit of the format
PIECE = 1 << 20  # bytes read at once


def write_tensors(
    path: Path, arrays: dict[str, NDArray[Any]], tree: str, *, hashed: bool = True, sync: bool = False
) -> bytes:
    """Write the file atomically and return its hash; without `hashed` it carries none, and the result is empty.

    With `sync` the content is on the disk before the file takes its name.
    """
    metadata = {"tree": tree, **({"sha256": BLANK} if hashed else {})}
    header, data = _layout(arrays, metadata)
    digest = b""
    if hashed:
        sha = hashlib.sha256(header)
        for piece in data:
            sha.update(piece.data)
        digest = sha.digest()
        header = header.replace(f'"sha256":"{BLANK}"'.encode(), f'"sha256":"{digest.hex()}"'.encode(), 1)
    with atomic_write(path, sync=sync) as file:
        file.write(header)
        for piece in data:
            file.write(piece.data)
    return digest


def file_hash(path: Path) -> tuple[bytes, bool]:
    """Return the hash of a file of tensors and whether the file carries it; a file whose own hash differs is an error."""
    with path.open("rb") as file:
        size = file.read(8)
        length = int.from_bytes(size, "little")
        header = file.read(length) if length <= LARGEST_HEADER else b""
        if len(size) < 8 or len(header) < length or not length:
            raise ValueError("it is cut off or is no file of tensors")
        metadata = json.loads(header)["__metadata__"]
        if not {"tree"} <= {*metadata} <= {"tree", "sha256"}:
            raise ValueError("its header is damaged")
        known: str | None = metadata.get("sha256")
        if known is not None:
            header = header.replace(f'"sha256":"{known}"'.encode(), f'"sha256":"{BLANK}"'.encode(), 1)
        sha = hashlib.sha256(size + header)
        while piece := file.read(PIECE):
            sha.update(piece)
    if known is not None and sha.hexdigest() != known:
        raise ValueError("its content is not what was written, its SHA-256 differs")
    return sha.digest(), known is not None


def _layout(arrays: dict[str, NDArray[Any]], metadata: dict[str, str]) -> tuple[bytes, list[NDArray[Any]]]:
    """Return the header and the arrays in the order of the file, wide numbers first so that each array begins aligned."""
    table: dict[str, Any] = {"__metadata__": metadata}
    data, at = [], 0
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].itemsize):
        plain = np.ascontiguousarray(array)
        if plain.dtype.byteorder == ">":
            plain = plain.astype(plain.dtype.newbyteorder("<"))
        if (kind := DTYPES.get(plain.dtype.str)) is None:
            raise BadValue(
                f"a state holds an array of {array.dtype}, which cannot be stored",
                remedy="use arrays of integers, booleans or floats of at most 64 bits",
            )
        table[name] = {"dtype": kind, "shape": array.shape, "data_offsets": (at, at + plain.nbytes)}
        if plain.nbytes:
            data.append(plain)
        at += plain.nbytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, data


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, survive a loss of power.

    A file that is not there needs nothing; some platforms and file systems cannot sync folders.
    """
    folder = path.is_dir()
    try:
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
    except FileNotFoundError:
        pass
    except OSError:
        if not folder:
            raise
