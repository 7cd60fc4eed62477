"""Store the guest's margins after each finished tree; with them and the model so far a training is resumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedarena.common.files import atomic_write, writing
from fedarena.config.errors import DataBroken, ResumeMismatch

Float32Array = NDArray[np.float32]


def _path(folder: Path, trees: int) -> Path:
    return folder / "checkpoint" / f"margins-{trees}.safetensors"


def save(folder: Path, trees: int, table: str, margins: Float32Array, round_margins: Float32Array) -> None:
    """Write the margins beside the previous ones, so that those of the model on disk always exist."""
    from safetensors.numpy import save as encode

    path = _path(folder, trees)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"margins": np.ascontiguousarray(margins), "round": np.ascontiguousarray(round_margins)}
    with atomic_write(path, sync=True) as file:  # the model must not reach the disk before its margins
        file.write(encode(arrays, metadata={"table": table}))


def load(folder: Path, trees: int, table: str) -> tuple[Float32Array, Float32Array]:
    """Return the margins after this number of trees, and those at the start of the round, if they fit this table."""
    from safetensors import SafetensorError, safe_open

    path = _path(folder, trees)
    try:
        with safe_open(path, framework="np") as file:
            found = file.metadata()["table"]
            margins, round_margins = file.get_tensor("margins"), file.get_tensor("round")
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise DataBroken(
            f"{path} holds no checkpoint: {error}", remedy="start a new training in another folder"
        ) from None
    if found != table:
        raise ResumeMismatch(
            f"{folder} belongs to a training with other rows, labels or weights", remedy="resume with the same table"
        )
    return margins, round_margins


def remove_older(folder: Path, trees: int) -> None:
    """Remove the margins of earlier trees."""
    for path in (folder / "checkpoint").glob("margins-*.safetensors"):
        if path != _path(folder, trees):
            path.unlink(missing_ok=True)
