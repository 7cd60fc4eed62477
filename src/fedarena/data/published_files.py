"""Find, read and check the files of published data sets.

A data set is searched in `$FEDARENA_DATA`, then in the user's cache folder, as an .npz file of fedarena or in its published
form. The files are not trusted: members of archives are selected by name, pickles may contain nothing but arrays, and the
decoded arrays must have the published sha256.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import re
import sys
import tarfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, DataBroken, DataMissing, quoted
from fedarena.config.limits import check_path
from fedarena.data.table_decoders import decode_adult, decode_bank, decode_housing, decode_tcga_brca

Arrays = Mapping[str, NDArray[Any]]
Files = Mapping[str, bytes]  # published files by their plain name, unpacked

IDX = {  # files of MNIST and Fashion-MNIST
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
CIFAR_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR_LABELS = ("train_lables.json", "test_lables.json")  # this is how the npm package spells them
HEART_SITES = ("cleveland", "hungarian", "switzerland", "va")

ELSEWHERE = "/participants"  # stands for the path of a table that each client of a federation has for itself


@dataclass(frozen=True)
class Published:
    """A published data set: a table of published.toml, and the function that decodes its files."""

    npz: str  # the file into which `fedarena data get` writes it
    wanted: Collection[str]  # names of its published files
    places: Sequence[str]  # folders and archives that may contain them, in order of preference
    hint: str  # description of the published files for error messages
    mirrors: Sequence[str]  # web folders with the files
    md5: Mapping[str, str]  # of the files on the mirrors; empty where none was published
    sha256: Mapping[str, str]  # of each decoded array
    decode: Callable[[Files], Arrays]
    npm: Mapping[str, str] | None = None  # a package that contains the files: name, version, sha256
    debian: Mapping[str, str] | None = None


def load_published(name: str) -> Arrays:
    """Return the arrays of a published data set, from the first intact copy on this machine."""
    published = PUBLISHED[name]
    broken: DataBroken | None = None
    for folder in data_folders():
        for path in (folder / p for p in (published.npz, *published.places)):
            try:
                arrays = read_published(name, path)
            except DataBroken as error:  # another copy may be intact
                broken = broken or error
                continue
            if arrays is not None:
                return arrays
    if broken:
        raise broken
    raise DataMissing(
        f"'{name}' is not on this machine",
        remedy=f"run `fedarena data get {name}`, or set FEDARENA_DATA to a folder with {published.npz}, or with "
        + published.hint,
        where=f"looked in {', '.join(map(str, data_folders()))}",
    )


def read_published(name: str, path: Path) -> Arrays | None:
    """Return the verified arrays of a data set from an .npz file, archive or folder; None if it has none of the files."""
    published = PUBLISHED[name]
    with reading(path, remedy=f"run `fedarena data get {name}` for an intact copy"):
        if not path.exists():
            return None
        if path.suffix == ".npz":
            return verify(name, read_npz(path))
        files = read_archive(path, published.wanted) if path.is_file() else read_folder(path, published.wanted)
        return verify(name, published.decode(files)) if files else None


def data_folders() -> list[Path]:
    """Return the folders in which data sets are searched, in this order."""
    named = os.environ.get("FEDARENA_DATA")
    if not named:
        return [cache_folder()]
    try:
        return [check_path(named, "FEDARENA_DATA").expanduser(), cache_folder()]
    except RuntimeError as error:  # ~name of an unknown user
        raise BadValue(
            f"'{quoted(named)}' is not a folder: {error}", remedy="set it to an existing folder", where="FEDARENA_DATA"
        ) from None


def cache_folder() -> Path:
    """Return the user's folder for downloaded data, at the usual place of the platform."""
    if os.environ.get("XDG_CACHE_HOME"):
        return check_path(os.environ["XDG_CACHE_HOME"], "XDG_CACHE_HOME") / "fedarena"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedarena"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "fedarena"
    return Path.home() / ".cache" / "fedarena"


def verify(name: str, arrays: Arrays) -> Arrays:
    """Return the arrays if they are those that were published, bit for bit; else raise ValueError."""
    for key, expected in PUBLISHED[name].sha256.items():
        if key not in arrays:
            raise ValueError(f"it has no array '{key}'")
        if hashlib.sha256(np.ascontiguousarray(arrays[key]).data).hexdigest() != expected:
            raise ValueError(f"its '{key}' is not that of the published '{name}' (sha256 differs)")
    return arrays


@contextmanager
def reading(path: Path | str, remedy: str) -> Iterator[None]:
    """Turn the exceptions that readers raise for damaged files into `DataBroken`, which has a remedy."""
    damage = (OSError, EOFError, ValueError, LookupError, AttributeError, TypeError, MemoryError, OverflowError)
    unsupported = (NotImplementedError, RecursionError)  # a form that the reader does not support, or endless nesting
    formats = (zlib.error, zipfile.BadZipFile, tarfile.TarError, pickle.UnpicklingError)
    try:
        yield
    except (*damage, *unsupported, *formats) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise DataBroken(f"{path} cannot be used: {quoted(reason)}", remedy=remedy) from error


def read_npz(path: Path) -> Arrays:
    """Return all arrays of an .npz file; pickled ones raise ValueError."""
    with np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def read_folder(folder: Path, wanted: Collection[str]) -> Files:
    """Return the wanted files of a folder, gzipped or not."""
    files: dict[str, bytes] = {}
    for path in sorted(folder.iterdir()):  # a plain file comes before its .gz
        if plain_name(path.name) in wanted and plain_name(path.name) not in files:
            files[plain_name(path.name)] = gunzipped(path.read_bytes())
    return files


def read_archive(source: Path | BinaryIO, wanted: Collection[str]) -> Files:
    """Return the wanted files of a tar archive, read in memory so that no path inside it is ever written to."""
    files: dict[str, bytes] = {}
    with tarfile.open(source) if isinstance(source, Path) else tarfile.open(fileobj=source) as archive:
        for member in archive:
            name = plain_name(PurePosixPath(member.name).name)
            content = archive.extractfile(member) if name in wanted and member.isfile() else None
            if content:
                files[name] = gunzipped(content.read())
    return files


def plain_name(name: str) -> str:
    """Return the usual spelling of a file name: `train-images.idx3-ubyte.gz` is `train-images-idx3-ubyte`."""
    return name.removesuffix(".gz").replace(".idx", "-idx")


def gunzipped(raw: bytes) -> bytes:
    """Return the content of a gzip file, or the bytes as they are."""
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def decode_idx(raw: bytes) -> NDArray[np.uint8]:
    """Decode an idx file of bytes: two zeros, 8, the number of axes, their lengths (big-endian), the bytes."""
    if raw[:3] != b"\0\0\x08":
        raise ValueError("it is not an idx file of bytes")
    axes = raw[3]
    shape = np.frombuffer(raw, ">i4", axes, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def decode_mnist(files: Files) -> Arrays:
    """Decode the images N x H x W and labels of MNIST or Fashion-MNIST from four idx files."""
    return {key: decode_idx(files[name]) for key, name in IDX.items()}


def decode_cifar10(files: Files) -> Arrays:
    """Decode CIFAR-10 from Python batches, binary batches, or PNGs with one image per row; images are N x H x W x C."""
    if "test_batch.png" in files:
        parts = [_png(files[f"{name}.png"]) for name in CIFAR_BATCHES]
        y_train, y_test = (np.array(json.loads(files[name]), dtype=np.uint8) for name in CIFAR_LABELS)
        return {"x_train": np.concatenate(parts[:5]), "y_train": y_train, "x_test": parts[5], "y_test": y_test}
    if "test_batch.bin" in files:
        batches = [np.frombuffer(files[f"{name}.bin"], np.uint8).reshape(-1, 3073) for name in CIFAR_BATCHES]
        pairs = [(_height_width_channel(b[:, 1:]), b[:, 0]) for b in batches]
    else:
        unpickled = [unpickle_arrays(files[name]) for name in CIFAR_BATCHES]
        pairs = [(_height_width_channel(b[b"data"]), np.array(b[b"labels"], dtype=np.uint8)) for b in unpickled]
    x, y = zip(*pairs, strict=True)
    return {"x_train": np.concatenate(x[:5]), "y_train": np.concatenate(y[:5]), "x_test": x[5], "y_test": y[5]}


def _height_width_channel(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _png(raw: bytes) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(io.BytesIO(raw), formats=["PNG"]) as image:
        return np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that builds dictionaries, lists, bytes and numpy arrays, and rejects everything else unexecuted."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {(m, "_reconstruct") for m in ("numpy.core.multiarray", "numpy._core.multiarray")}:
            return np.zeros(0).__reduce__()[0]  # the function itself, whose module depends on the version of numpy
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
            return lambda text, _: text.encode("latin1")
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it is a pickle that asks for {module}.{name} and was not loaded")


def unpickle_arrays(raw: bytes) -> dict[bytes, Any]:
    """Return a dictionary of arrays and lists, as in CIFAR-10's Python batches, from a pickle without running its code."""
    content = _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
    return {key.encode() if isinstance(key, str) else key: value for key, value in content.items()}


def decode_heart(files: Files) -> Arrays:
    """Decode UCI Heart Disease: one file per hospital, thirteen features and a diagnosis 0-4 per row, `?` if missing."""
    sites = [_numbers(files[f"processed.{site}.data"]) for site in HEART_SITES]
    rows = np.concatenate(sites)
    return {
        "X": rows[:, :13],
        "y": (rows[:, 13] > 0).astype(np.int8),
        "site": np.repeat(np.arange(len(sites)), [len(s) for s in sites]).astype(np.int8),
    }


def _numbers(raw: bytes) -> NDArray[np.float32]:
    text = raw.decode("ascii").replace("?", "nan")
    return np.loadtxt(io.StringIO(text), delimiter=",", dtype=np.float32, ndmin=2)


def decode_shakespeare(files: Files) -> Arrays:
    """Decode the speeches of the plays: a line `Role:`, the text that is spoken, an empty line."""
    text = files["input.txt"]
    speeches = list(re.finditer(rb"(?:\A|\n\n)([^\n]+):\n(.+?)(?=\n\n[^\n]|\Z)", text, re.DOTALL))
    roles = {role: i for i, role in enumerate(dict.fromkeys(s[1].decode() for s in speeches))}
    return {
        "text": np.frombuffer(text, np.uint8),
        "speech_role": np.array([roles[s[1].decode()] for s in speeches], dtype=np.int32),
        "speech_start": np.array([s.start(2) for s in speeches], dtype=np.int32),
        "speech_end": np.array([s.end(2) for s in speeches], dtype=np.int32),
        "role_names": np.array(list(roles)),
    }


DECODERS: dict[str, Callable[[Files], Arrays]] = {
    "mnist": decode_mnist,
    "fashion_mnist": decode_mnist,
    "cifar10": decode_cifar10,
    "heart_disease": decode_heart,
    "tiny_shakespeare": decode_shakespeare,
    "adult": decode_adult,
    "bank": decode_bank,
    "california_housing": decode_housing,
    "tcga_brca": decode_tcga_brca,
}
TABLES = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
PUBLISHED = {name: Published(**TABLES[name], decode=decode) for name, decode in DECODERS.items()}
