"""The guest's margins after each finished tree: with them, and the model so far, a training goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedarena.common.files import atomic_write, writing
from fedarena.config.errors import DataBroken, ResumeMismatch

Single = NDArray[np.float32]


def _path(folder: Path, trees: int) -> Path:
    return folder / "checkpoint" / f"margins-{trees}.safetensors"


def save(folder: Path, trees: int, table: str, margins: Single, at_round: Single) -> None:
    """Written as a whole, beside the one before: that of the model on disk is always there."""
    from safetensors.numpy import save as encode

    path = _path(folder, trees)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"margins": np.ascontiguousarray(margins), "round": np.ascontiguousarray(at_round)}
    with atomic_write(
        path, sync=True
    ) as file:  # the model that names these margins must not reach the disk before them
        file.write(encode(arrays, metadata={"table": table}))


def load(folder: Path, trees: int, table: str) -> tuple[Single, Single]:
    """The margins after so many trees, if they belong to this table."""
    from safetensors import SafetensorError, safe_open

    path = _path(folder, trees)
    try:
        with safe_open(path, framework="np") as file:
            found, margins, at_round = file.metadata()["table"], file.get_tensor("margins"), file.get_tensor("round")
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise DataBroken(f"{path} holds no checkpoint: {error}", remedy="start anew in another folder") from None
    if found != table:
        raise ResumeMismatch(
            f"{folder} belongs to a training with other rows, labels or weights", remedy="resume with the same table"
        )
    return margins, at_round


def keep_only(folder: Path, trees: int) -> None:
    """Remove the margins after fewer trees."""
    for path in (folder / "checkpoint").glob("margins-*.safetensors"):
        if path != _path(folder, trees):
            path.unlink(missing_ok=True)
