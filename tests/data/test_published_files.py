"""Published files are found in every form, and damaged or foreign ones are refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedarena.config.errors import DataBroken, DataMissing
from fedarena.data import published_files
from fedarena.data.sources.images import Cifar10, FashionMnist, Mnist
from fedarena.data.sources.published_tables import HeartDisease

RNG = np.random.default_rng(0)
MNIST = {
    "x_train": RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8),
    "y_train": np.arange(6, dtype=np.uint8),
    "x_test": RNG.integers(0, 256, (2, 28, 28), dtype=np.uint8),
    "y_test": np.arange(2, dtype=np.uint8),
}
CIFAR = {
    "x_train": RNG.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8),
    "y_train": np.arange(10, dtype=np.uint8),
    "x_test": RNG.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8),
    "y_test": np.arange(2, dtype=np.uint8),
}


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


def cifar_batches(encode: Callable[[np.ndarray, np.ndarray], bytes]) -> dict[str, bytes]:
    """Five training batches of two images and a test batch, rows in the published order of channels."""
    x = np.concatenate([CIFAR["x_train"], CIFAR["x_test"]]).transpose(0, 3, 1, 2).reshape(6, 2, 3072)
    y = np.concatenate([CIFAR["y_train"], CIFAR["y_test"]]).reshape(6, 2)
    return {name: encode(x[i], y[i]) for i, name in enumerate(published_files.CIFAR_BATCHES)}


def pickled(x: np.ndarray, y: np.ndarray) -> bytes:
    return pickle.dumps({b"data": x, b"labels": y.tolist(), b"batch_label": b"some"}, protocol=2)


def binary(x: np.ndarray, y: np.ndarray) -> bytes:
    return np.concatenate([y[:, None], x], axis=1).tobytes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, an empty cache, and small sets in place of the published ones."""
    monkeypatch.setenv("FEDARENA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, arrays in (("mnist", MNIST), ("cifar10", CIFAR)):
        sha256 = {key: hashlib.sha256(array.tobytes()).hexdigest() for key, array in arrays.items()}
        monkeypatch.setitem(published_files.PUBLISHED, name, replace(published_files.PUBLISHED[name], sha256=sha256))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def write(folder: Path, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def idx_files() -> dict[str, bytes]:
    return {name: idx(MNIST[key]) for key, name in published_files.IDX.items()}


def same(found: published_files.Arrays, expected: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(found[key], array) for key, array in expected.items())


@pytest.mark.parametrize("place", ["", "mnist/", "mnist/raw/", "MNIST/raw/"])
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("dot", [False, True])
def test_idx_files_are_read_in_every_spelling(folder: Path, place: str, ending: str, dot: bool) -> None:
    for name, content in idx_files().items():
        name = name.replace("-idx", ".idx") if dot else name
        write(folder, {place + name + ending: gzip.compress(content) if ending else content})
    assert same(published_files.load_published("mnist"), MNIST)


def test_images_have_a_channel_and_training_rows_come_first(folder: Path) -> None:
    np.savez(folder / "mnist.npz", **MNIST)
    data = Mnist().load(0)
    assert data.x.shape == (8, 1, 28, 28)
    assert data.x.dtype == np.uint8
    assert data.n_train == 6
    assert np.array_equal(data.x[6:, 0], MNIST["x_test"])
    assert data.y.tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert (data.prepare, Mnist("standardise").load(1).prepare) == ("scale", "standardise")


def test_one_in_keeps_every_fourth_of_the_training_and_of_the_test_images(folder: Path) -> None:
    np.savez(folder / "mnist.npz", **MNIST)
    data = Mnist(one_in=4).load(0)
    assert data.n_train == 2
    assert data.y.tolist() == [0, 4, 0]
    assert np.array_equal(data.x[:2, 0], MNIST["x_train"][[0, 4]])
    assert np.array_equal(data.x[2:, 0], MNIST["x_test"][[0]])


@pytest.mark.parametrize("inside", ["", "cifar10/"])
def test_cifar_is_read_from_every_published_form(folder: Path, inside: str) -> None:
    forms = {
        "cifar-10-batches-py/": cifar_batches(pickled),
        "cifar-10-batches-bin/": {f"{k}.bin": v for k, v in cifar_batches(binary).items()},
    }
    for place, batches in forms.items():
        write(folder, {f"{inside}{place}{name}": content for name, content in batches.items()})
        assert same(published_files.load_published("cifar10"), CIFAR)
        packed = folder / inside / ("cifar-10-python.tar.gz" if "py" in place else "cifar-10-binary.tar.gz")
        with tarfile.open(packed, "w:gz") as archive:
            archive.add(folder / inside / place, arcname=place.rstrip("/"))
        for name in batches:
            (folder / inside / place / name).unlink()
        assert same(published_files.load_published("cifar10"), CIFAR)
        packed.unlink()


def test_channels_come_before_height_and_width(folder: Path) -> None:
    np.savez(folder / "cifar10.npz", **CIFAR)
    data = Cifar10().load(0)
    assert data.x.shape == (12, 3, 32, 32)
    assert np.array_equal(data.x[:10].transpose(0, 2, 3, 1), CIFAR["x_train"])
    assert Cifar10("mcmahan").load(0).shape == (3, 24, 24)


def test_cifar_is_read_from_pictures_with_an_image_a_row() -> None:
    image = pytest.importorskip("PIL.Image")
    contents = {}
    for i, name in enumerate(published_files.CIFAR_BATCHES):
        x = CIFAR["x_train"][2 * i : 2 * i + 2] if i < 5 else CIFAR["x_test"]
        stream = io.BytesIO()
        image.fromarray(x.reshape(2, 1024, 3)).save(stream, "PNG")
        contents[f"{name}.png"] = stream.getvalue()
    for name, key in zip(published_files.CIFAR_LABELS, ("y_train", "y_test"), strict=True):
        contents[name] = json.dumps(CIFAR[key].tolist()).encode()
    assert same(published_files.decode_cifar10(contents), CIFAR)


class Attack:
    """Unpickled by the usual reader, this would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.path),))


def test_a_malicious_pickle_is_refused_and_not_executed(folder: Path, tmp_path: Path) -> None:
    batches = cifar_batches(pickled)
    batches["data_batch_3"] = pickle.dumps({b"data": Attack(tmp_path / "harm"), b"labels": []})
    write(folder, {f"cifar-10-batches-py/{name}": content for name, content in batches.items()})
    with pytest.raises(DataBroken, match=r"asks for .*\.mkdir") as error:
        published_files.load_published("cifar10")
    assert "cifar-10-batches-py" in str(error.value)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("call", [("builtins", "eval"), ("numpy", "load"), ("numpy.core.multiarray", "fromfile")])
def test_a_pickle_may_name_nothing_but_arrays(call: tuple[str, str]) -> None:
    module, name = call
    with pytest.raises(pickle.UnpicklingError, match=name):
        published_files.unpickle_arrays(b"c" + f"{module}\n{name}\n".encode() + b".")


def test_batches_written_by_python_2_are_read() -> None:
    # protocol 2 of Python 2: text keys, and the name that numpy had then
    old = pickled(CIFAR["x_train"].reshape(10, 3072), CIFAR["y_train"]).replace(b"numpy._core", b"numpy.core")
    assert np.array_equal(published_files.unpickle_arrays(old)[b"data"].ravel(), CIFAR["x_train"].ravel())


@pytest.mark.parametrize("keep", [0, 3, 10, 500])
def test_a_truncated_file_is_broken_and_named(folder: Path, keep: int) -> None:
    write(folder, {f"mnist/{name}": content for name, content in idx_files().items()})
    path = folder / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataBroken, match="mnist") as error:
        published_files.load_published("mnist")
    assert "fedarena data get mnist" in error.value.remedy


@pytest.mark.parametrize("name", ["mnist.npz", "mnist/train-images-idx3-ubyte.gz"])
def test_half_of_a_compressed_file_is_broken(folder: Path, name: str) -> None:
    if name.endswith(".npz"):
        np.savez_compressed(folder / name, **MNIST)
    else:
        write(folder, {f"mnist/{k}.gz": gzip.compress(v) for k, v in idx_files().items()})
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(DataBroken, match="cannot be used"):
        published_files.load_published("mnist")


def test_a_missing_part_is_named(folder: Path) -> None:
    write(folder, {f"mnist/{k}": v for k, v in idx_files().items() if not k.startswith("t10k-labels")})
    with pytest.raises(DataBroken, match="'t10k-labels-idx1-ubyte' is missing"):
        published_files.load_published("mnist")


def test_other_pixels_than_the_published_are_broken(folder: Path) -> None:
    changed = MNIST["x_train"].copy()
    changed[3, 14, 14] ^= 1
    np.savez(folder / "mnist.npz", **{**MNIST, "x_train": changed})
    with pytest.raises(DataBroken, match=r"mnist\.npz.*'x_train'.*sha256"):
        published_files.load_published("mnist")


def test_an_npz_with_a_pickle_inside_is_broken(folder: Path, tmp_path: Path) -> None:
    np.savez(folder / "mnist.npz", x_train=np.array([Attack(tmp_path / "harm")], dtype=object))
    with pytest.raises(DataBroken, match=r"mnist\.npz"):
        published_files.load_published("mnist")
    assert not (tmp_path / "harm").exists()


def test_a_sound_copy_in_the_cache_stands_in_for_a_broken_one(folder: Path) -> None:
    write(folder, {"mnist.npz": b"rubbish"})
    published_files.cache_folder().mkdir(parents=True)
    np.savez(published_files.cache_folder() / "mnist.npz", **MNIST)
    assert same(published_files.load_published("mnist"), MNIST)


def test_files_of_mnist_are_not_taken_for_fashion(folder: Path) -> None:
    write(folder, idx_files())
    with pytest.raises(DataBroken, match="not that of the published 'fashion_mnist'"):
        FashionMnist().load(0)


@pytest.mark.parametrize("name", sorted(published_files.PUBLISHED))
def test_what_is_missing_says_how_to_get_it(folder: Path, name: str) -> None:
    with pytest.raises(DataMissing, match=name) as error:
        published_files.load_published(name)
    assert f"fedarena data get {name}" in error.value.remedy
    assert "FEDARENA_DATA" in error.value.remedy
    assert str(folder) in error.value.where


def test_an_archive_gives_only_what_was_asked_for() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("../../t10k-labels-idx1-ubyte", "package/other"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("train-labels-idx1-ubyte")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    stream.seek(0)
    assert published_files.read_archive(stream, frozenset(published_files.IDX.values())) == {
        "t10k-labels-idx1-ubyte": b"abc"
    }


def test_the_cache_lies_where_the_platform_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("LOCALAPPDATA", "C:/local")
    home = Path.home()
    expected = {
        "linux": home / ".cache" / "fedarena",
        "darwin": home / "Library" / "Caches" / "fedarena",
        "win32": Path("C:/local") / "fedarena",
    }
    for platform, folder in expected.items():
        monkeypatch.setattr(sys, "platform", platform)
        assert published_files.cache_folder() == folder


def test_hospitals_are_read_from_the_published_tables() -> None:
    row = "63,1,1,145,233,1,2,150,0,2.3,3,?,6,{}\n"
    contents = {f"processed.{site}.data": row.format(2).encode() for site in published_files.HEART_SITES}
    contents["processed.va.data"] = (row.format(0) + row.format(4)).encode()
    arrays = published_files.decode_heart(contents)
    assert arrays["X"].shape == (5, 13)
    assert np.isnan(arrays["X"][:, 11]).all()
    assert arrays["y"].tolist() == [1, 1, 1, 0, 1]
    assert arrays["site"].tolist() == [0, 1, 2, 3, 3]


def test_speeches_are_found_in_the_published_text() -> None:
    text = b"First Citizen:\nSpeak,\nspeak.\n\nAll:\nResolved.\n\nFirst Citizen:\nWell.\n"
    play = published_files.decode_shakespeare({"input.txt": text})
    spans = zip(play["speech_start"], play["speech_end"], strict=True)
    assert [text[a:b] for a, b in spans] == [b"Speak,\nspeak.", b"Resolved.", b"Well.\n"]
    assert play["speech_role"].tolist() == [0, 1, 0]
    assert play["role_names"].tolist() == ["First Citizen", "All"]


def needs(name: str) -> published_files.Arrays:
    try:
        return published_files.load_published(name)
    except DataMissing:
        pytest.skip(f"{name} is not on this machine")


@pytest.mark.slow
def test_published_mnist_has_the_published_class_counts() -> None:
    needs("mnist")
    data = Mnist().load(0)
    assert (len(data.x), data.n_train, data.classes) == (70_000, 60_000, 10)
    assert np.bincount(data.train_labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_published_heart_disease_converts_back_and_forth() -> None:
    arrays = needs("heart_disease")
    contents = {}
    for i, site in enumerate(published_files.HEART_SITES):
        rows = np.column_stack([arrays["X"], arrays["y"]])[arrays["site"] == i]
        lines = [",".join("?" if np.isnan(v) else repr(float(v)) for v in row) for row in rows]
        contents[f"processed.{site}.data"] = "\n".join(lines).encode()
    published_files.verify("heart_disease", published_files.decode_heart(contents))


def test_published_hospitals_are_complete_and_standardised() -> None:
    needs("heart_disease")
    data = HeartDisease().load(0)
    assert data.owner is not None
    assert np.bincount(data.owner).tolist() == [303, 294, 123, 200]
    assert np.isfinite(data.x).all()
    assert np.allclose(data.x[: data.n_train].mean(axis=0), 0, atol=1e-5)
    assert np.allclose(data.x[: data.n_train].std(axis=0), 1, atol=1e-5)


def test_published_shakespeare_converts_to_the_same_speeches() -> None:
    text = needs("tiny_shakespeare")["text"].tobytes()
    published_files.verify("tiny_shakespeare", published_files.decode_shakespeare({"input.txt": text}))
