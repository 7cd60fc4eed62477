"""The files of a folder as a value, for workers on machines that share no disk with this one."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedarena.common.files import remove_folder, writing

Files = dict[str, NDArray[np.uint8]]  # by path within a folder; a path that ends with a slash is a folder itself
EMPTY: NDArray[np.uint8] = np.empty(0, np.uint8)


def read_files(folder: Path) -> Files:
    """Return everything in a folder; nothing if the folder does not exist."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    files = {name: np.fromfile(path, np.uint8) for name, path in paths.items() if path.is_file()}
    return files | {f"{name}/": EMPTY for name, path in paths.items() if path.is_dir()}


def write_files(files: Files, folder: Path) -> None:
    """Replace the folder by these files, all at once: half a folder might look like a run."""
    aside = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    with writing(folder):
        for name, content in files.items():
            parent, _, last = name.rpartition("/")
            (aside / parent).mkdir(parents=True, exist_ok=True)
            if last:
                content.tofile(aside / name)
        remove_folder(folder)
        if files:
            aside.rename(folder)
