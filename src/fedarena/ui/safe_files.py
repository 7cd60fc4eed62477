"""Open the files of the folder that is shown with care: anything may lie there under the name of a result.

A pipe would block, a device never ends, and a link may lead to files that have nothing to do with runs: these are refused
before they are opened. What is read whole must be small.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fedarena.common.locks import open_regular
from fedarena.config.errors import DataBroken, FedarenaError

LARGEST = 16 << 20  # bytes of a file that is read whole for a page
LOADED = 64 << 20, 512 << 20  # bytes of a file, and of a folder, that are loaded for a verdict or a report
REASON = 500  # characters of a reason that are shown
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


@dataclass(frozen=True)
class SafeFolder:
    """A folder of which only regular files are opened, and none outside it."""

    root: Path  # resolved

    def check(self, folder: Path, names: Iterable[str]) -> None:
        """Refuse files of a folder that must not be opened; one that is missing is no problem."""
        home = os.fspath(folder)
        self._check_way(home)
        checked = {""}
        for name in names:
            above = name.rpartition("/")[0]
            if above not in checked:
                self._check_way(f"{home}/{above}")
                checked.add(above)
            self._check_file(f"{home}/{name}")

    def _check_way(self, folder: str) -> None:
        """Refuse a folder that links lead to, unless it is inside all the same."""
        way = os.fspath(self.root).rstrip(os.sep)
        inside = folder == way or folder.startswith(way + os.sep)
        for part in folder.removeprefix(way).split(os.sep)[1:] if inside else [os.pardir]:
            way = f"{way}{os.sep}{part}"
            try:
                is_link = stat.S_ISLNK(os.lstat(way).st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return
            if is_link or part == os.pardir:
                self._check_inside(folder)
                return

    def _check_file(self, file: str) -> None:
        try:
            mode = os.lstat(file).st_mode
            if stat.S_ISLNK(mode):
                self._check_inside(file)
                mode = os.stat(file).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return
        if not stat.S_ISREG(mode):
            kind = KINDS.get(stat.S_IFMT(mode), "no regular file")
            raise _refused(f"{self._name(file)} is {kind}: it is not opened")

    def open(self, file: Path) -> BinaryIO:
        """Open a file of the folder for reading."""
        self.check(file.parent, [file.name])
        return open_regular(file)

    def text(self, file: Path, most: int = LARGEST) -> str:
        """Return a whole text; refuse one that is larger than `most` bytes."""
        self.check(file.parent, [file.name])
        self.check_size(file, most)
        with open_regular(file) as stream:
            return stream.read(most).decode("utf-8")

    def table(self, file: Path) -> dict[str, Any]:
        """Return the table of a JSON file; an empty one where the file is damaged or must not be opened."""
        try:
            found = json.loads(self.text(file))
        except (OSError, ValueError, FedarenaError):
            return {}
        return found if isinstance(found, dict) else {}

    def check_size(self, file: Path, most: int = LARGEST) -> None:
        """Refuse a file that is too large to be read whole; one that is missing is no problem."""
        try:
            size = os.stat(file).st_size
        except (FileNotFoundError, NotADirectoryError):
            return
        if size > most:
            raise _refused(
                f"{self._name(file)} has {size / 1e6:.0f} MB: at most {most / 1e6:.0f} MB are read for a page"
            )

    def check_tree(self, folder: Path) -> None:
        """Refuse a run or a comparison with a file that must not be opened, or with more than can be loaded for a page."""
        most, total = LOADED
        for home, _, names in os.walk(folder):  # links to folders are not followed
            self.check(Path(home), names)
            for file in (Path(home) / name for name in names):
                if file.suffix != ".safetensors":
                    self.check_size(file, most)
                total -= 0 if "checkpoint" in file.parts and file.name != "rounds.jsonl" else os.stat(file).st_size
            if total < 0:
                raise _refused(f"{self._name(folder)} has more than {LOADED[1] / 1e6:.0f} MB: too much for a page")

    def _check_inside(self, file: str) -> None:
        if not Path(os.path.realpath(file)).is_relative_to(self.root):
            raise _refused(f"{self._name(file)} is a link that leads out of the folder: it is not opened")

    def _name(self, file: str | Path) -> str:
        return Path(os.path.relpath(file, self.root)).as_posix()


def _refused(what: str) -> FedarenaError:
    return DataBroken(what, remedy="remove it, or look at it in a terminal")


def reason(error: BaseException) -> str:
    """Return why something cannot be read, on one line."""
    if isinstance(error, FedarenaError):
        text = error.what
    elif isinstance(error, OSError) and error.strerror:
        text = f"{Path(str(error.filename)).name}: {error.strerror}" if error.filename else error.strerror
    else:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())[:REASON]
