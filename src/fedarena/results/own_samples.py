"""The samples of a client's file that a federation trained and tested on, saved beside the client's final model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedarena.common.files import atomic_write
from fedarena.data.dataset import Rows
from fedarena.data.published_files import reading
from fedarena.results.json_files import file_sha256
from fedarena.results.run_folder import DAMAGED

OWN_SAMPLES = "own_samples.npz"


def write_division(folder: Path, file: Path, train: Rows, test: Rows) -> None:
    """Save which rows of a file were for training and which for testing."""
    with atomic_write(folder / OWN_SAMPLES) as target:
        np.savez_compressed(target, sha256=np.array(file_sha256(file)), train=train, test=test)


def known_division(folder: Path | None, file: Path) -> tuple[Rows, Rows] | None:
    """Return training and test rows of the file with which a client took part; None for any other file."""
    path = None if folder is None else folder / OWN_SAMPLES
    if path is None or not path.is_file():
        return None
    with reading(path, remedy=DAMAGED), np.load(path, allow_pickle=False) as stored:
        is_known = str(stored["sha256"]) == file_sha256(file) and len(stored["test"]) > 0
        return (stored["train"], stored["test"]) if is_known else None
