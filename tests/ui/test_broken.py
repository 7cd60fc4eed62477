"""The pages stay available whatever lies in a folder, however large it is, and however many ask at once."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.ui_server import QUICK, Answer, Served, a_comparison, served

import fedarena as fa
import fedarena.reports.collect
import fedarena.ui.catalogue
from fedarena.results import run_status
from fedarena.results.comparison import Comparison
from fedarena.ui.server import UiServer, open_server

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs pipes and links in the file system")

SECRET = "the text of a file elsewhere"
RUN_FILES = (
    "experiment.toml",
    "result.json",
    "failure.txt",
    "clients.parquet",
    "checkpoint/rounds.jsonl",
    "checkpoint/lock",
)
LONG = 200_000_000  # bytes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a comparison, to be copied."""
    root = tmp_path_factory.mktemp("made")
    fa.run("digits", out=root / "run", rounds=3, **QUICK)
    a_comparison(root / "comparison")
    return root


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A folder with a run that is sound, to be spoilt by its neighbours."""
    shutil.copytree(made / "run", tmp_path / "runs" / "good")
    return tmp_path / "runs"


def put_in_place_of(file: Path, make: Callable[[Path], object]) -> None:
    if file.is_dir():
        shutil.rmtree(file)
    else:
        file.unlink(missing_ok=True)
    make(file)


def pages_of(server: Served) -> dict[str, Answer]:
    """Every page that the first page leads to, its report included."""
    first = server.ask("/")
    assert first.status == 200, first.text
    links = re.findall(r'href="(/(?:run|comparison)/\w+)"', first.text)
    found = {"/": first}
    for link in links:
        found[link] = server.ask(link)
        found[link.replace("comparison", "report").replace("run", "report")] = server.ask(
            "/report/" + link.rpartition("/")[2]
        )
    return found


@contextlib.contextmanager
def writers(pipes: list[Path]) -> Iterator[list[threading.Thread]]:
    """A thread for each pipe that is held until the other end is opened."""
    threads = [threading.Thread(target=lambda p=pipe: p.open("wb").close(), daemon=True) for pipe in pipes]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        for pipe, thread in zip(pipes, threads, strict=True):
            while thread.is_alive():
                os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
                thread.join(0.01)


@pytest.mark.slow
def test_no_pipe_is_ever_opened(made: Path, folder: Path) -> None:
    pipes = []
    for name in (*RUN_FILES, "model.safetensors", "versions.json"):
        for state in ("finished", "interrupted"):
            run = Path(shutil.copytree(made / "run", folder / f"{state} {name.replace('/', ' ')}"))
            if state == "interrupted":
                (run / "result.json").unlink()
            put_in_place_of(run / name, os.mkfifo)
            pipes.append(run / name)
    for name in ("comparison.json", "lock", "cells/fedavg/seed1/result.json", "cells/fedavg/seed1/model.safetensors"):
        match = Path(shutil.copytree(made / "comparison", folder / f"match {name.replace('/', ' ')}"))
        put_in_place_of(match / name, os.mkfifo)
        pipes.append(match / name)
    with writers(pipes) as threads, served(folder) as server:
        pages = pages_of(server)
        assert all(thread.is_alive() for thread in threads)  # the other end was never opened
    assert {answer.status for path, answer in pages.items() if not path.startswith("/report")} == {200}
    assert {answer.status for path, answer in pages.items() if path.startswith("/report")} == {200, 409}
    assert ">good<" in pages["/"].text
    assert pages["/"].text.count("is a pipe: it is not opened") == 14


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as there, contextlib.chdir(path.parent):  # the name must be short
        there.bind(path.name)


def device_at(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("only the system may make devices")
    try:
        path.open("rb").close()
    except PermissionError:
        pytest.skip("devices do not work in this file system")


@pytest.mark.slow
@pytest.mark.parametrize("make", [socket_at, device_at, Path.mkdir], ids=["a socket", "a device", "a folder"])
@pytest.mark.parametrize("name", ["experiment.toml", "checkpoint/rounds.jsonl"])
def test_what_is_no_file_is_named_and_not_opened(
    make: Any, name: str, made: Path, folder: Path, request: pytest.FixtureRequest
) -> None:
    put_in_place_of(Path(shutil.copytree(made / "run", folder / "odd")) / name, make)
    with served(folder) as server:
        page = server.text()
        assert re.search(f"odd/{name} is (a socket|a device|a folder): it is not opened", page)
        assert ">good<" in page
        assert "it is not opened" in server.text(server.link("odd"))


@pytest.mark.slow
def test_a_link_that_leads_out_is_not_followed(made: Path, folder: Path, tmp_path: Path) -> None:
    outside = Path(shutil.copytree(made / "run", tmp_path / "outside"))
    (outside / "experiment.toml").write_text(f'data = "{SECRET}"\nalgorithm = "{SECRET}"\n')
    (outside / "failure.txt").write_text(SECRET)
    (tmp_path / "secret").write_text(SECRET)
    for name in RUN_FILES[:5]:
        run = Path(shutil.copytree(made / "run", folder / f"link {name.replace('/', ' ')}"))
        target = outside / name if (outside / name).exists() else tmp_path / "secret"
        put_in_place_of(run / name, lambda path, target=target: path.symlink_to(target))  # type: ignore[misc]
    way_out = Path(shutil.copytree(made / "run", folder / "checkpoint elsewhere"))
    put_in_place_of(way_out / "checkpoint", lambda path: path.symlink_to(outside / "checkpoint"))
    match = Path(shutil.copytree(made / "comparison", folder / "match"))
    put_in_place_of(match / "cells" / "fedavg", lambda path: path.symlink_to("/etc"))
    put_in_place_of(match / "cells" / "fedsgd" / "seed0", lambda path: path.symlink_to(outside))
    (folder / "etc").symlink_to("/etc")
    (folder / "outside").symlink_to(outside)
    inside = Path(shutil.copytree(made / "run", folder / "inside"))
    put_in_place_of(inside / "experiment.toml", lambda path: path.symlink_to(folder / "good" / "experiment.toml"))
    with served(folder) as server:
        pages = pages_of(server)
        assert not any(SECRET in answer.text or "root:" in answer.text for answer in pages.values())
        assert {answer.status for answer in pages.values()} <= {200, 409}
        assert pages["/"].text.count("is a link that leads out of the folder") == 6
        assert ">outside<" not in pages["/"].text
        assert 'class="state finished"' in server.text(server.link("inside"))
        assert server.text(server.link("match")).count('class="cell damaged"') == 4


@pytest.mark.slow
def test_damage_of_any_kind_stops_nothing(made: Path, folder: Path) -> None:
    deep, digits = "[" * 100_000, "9" * 4000
    bad = {
        "deep result": ("result.json", deep),
        "deep toml": ("experiment.toml", f"x = {deep}"),
        "deep log": ("checkpoint/rounds.jsonl", f"{deep}\n"),
        "large numbers": ("checkpoint/rounds.jsonl", f'{{"round": 1, "accuracy": {digits}, "bytes_up": {digits}}}\n'),
        "large rounds": ("experiment.toml", f"rounds = {digits}\nclients = {digits}\n"),
        "<b>bold</b>": ("experiment.toml", "<script>alert(1)</script>"),
        "large experiment": ("experiment.toml", "# nothing\n" * 200_000),
        "no text": ("experiment.toml", "\x00\ud800"),
    }
    for name, (file, text) in bad.items():
        run = Path(shutil.copytree(made / "run", folder / name.replace("/", "\u2215")))
        (run / file).write_bytes(text.encode(errors="surrogatepass"))
    for name, text in {"deep plan": deep, "large plan": f'{{"experiment": {{}}, "repeats": {digits}}}'}.items():
        (folder / name).mkdir()
        (folder / name / "comparison.json").write_text(text)
    (folder / "huge result").mkdir()
    shutil.copy(made / "run" / "experiment.toml", folder / "huge result")
    with (folder / "huge result" / "result.json").open("wb") as file:
        file.truncate(LONG)
    with served(folder) as server:
        pages = pages_of(server)
    assert {answer.status for path, answer in pages.items() if not path.startswith("/report")} == {200}
    assert {answer.status for answer in pages.values()} == {200, 409}
    for name in ("good", "deep result", "deep toml", "large numbers", "large rounds", "deep plan", "large plan"):
        assert f">{name}<" in pages["/"].text
    assert "huge result/result.json has 200 MB: at most 17 MB are read for a page" in pages["/"].text
    assert "large experiment/experiment.toml has 2 MB: at most 1 MB are read for a page" in pages["/"].text
    assert not any("<script>alert" in answer.text or "<b>bold" in answer.text for answer in pages.values())


# Readers that fail


class Here:
    """A server in this process, whose readers a test can replace."""

    def __init__(self, server: UiServer) -> None:
        self.server = server

    def ask(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()


@pytest.fixture
def here(folder: Path, made: Path) -> Iterator[Here]:
    shutil.copytree(made / "run", folder / "other")
    shutil.copytree(made / "comparison", folder / "match")
    with open_server(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield Here(server)
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("error", [RuntimeError, KeyError, MemoryError, OSError, AssertionError, fa.FedarenaError])
def test_whatever_a_reader_raises_is_shown_and_stops_nothing(
    error: type[Exception], here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = here.server.catalogue.scan()
    ids = {shown.name: shown.id for shown in (*listing.runs, *listing.comparisons)}
    glance = run_status.read_status

    def fails(*_: Any, **__: Any) -> Any:
        raise error("<i>broken</i>") if error is not fa.FedarenaError else error("<i>broken</i>", remedy="none")

    monkeypatch.setattr(run_status, "read_status", lambda f: fails() if f.name == "other" else glance(f))
    monkeypatch.setattr(Comparison, "load", fails)
    monkeypatch.setattr(sys.modules["fedarena.reports.collect"], "load_run", fails)
    os.utime(here.server.catalogue.root / "other" / "experiment.toml")
    for path in ("/", f"/run/{ids['other']}", f"/run/{ids['good']}", f"/comparison/{ids['match']}"):
        status, text = here.ask(path)
        assert status == 200
        assert ("&lt;i&gt;broken" in text) == ("good" not in path and ids["good"] not in path)
        assert "<i>" not in text
    assert here.ask(f"/report/{ids['match']}")[0] == 409
    assert here.ask(f"/report/{ids['good']}")[0] == 409
    monkeypatch.setattr(fedarena.ui.catalogue, "read_plan", fails)
    os.utime(here.server.catalogue.root / "match" / "comparison.json")
    status, text = here.ask("/")
    assert (status, ">good<" in text, "&lt;i&gt;broken" in text) == (200, True, True)
    status, text = here.ask(f"/comparison/{ids['match']}")
    assert (status, "&lt;i&gt;broken" in text) == (200, True)


@pytest.mark.slow
def test_a_slow_folder_delays_no_page_of_another(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = here.server.catalogue
    ids = {sight.name: sight.id for sight in catalogue.scan().runs}
    reading, go_on, glance = threading.Event(), threading.Event(), run_status.read_status

    def slow(folder: Path) -> run_status.RunStatus:
        if folder.name == "other":
            reading.set()
            assert go_on.wait(60)
        return glance(folder)

    monkeypatch.setattr(run_status, "read_status", slow)
    os.utime(catalogue.root / "other" / "experiment.toml")
    answers: list[int] = []
    asks = [threading.Thread(target=lambda: answers.append(here.ask("/")[0])) for _ in range(3)]
    asks += [threading.Thread(target=lambda: answers.append(here.ask(f"/run/{ids['other']}")[0])) for _ in range(3)]
    for ask in asks:
        ask.start()
    assert reading.wait(30)
    try:
        assert here.ask(f"/run/{ids['good']}")[0] == 200
        assert here.ask("/page.css")[0] == 200
        assert answers == []
    finally:
        go_on.set()
        for ask in asks:
            ask.join()
    assert answers == [200] * 6


# Long logs


def peak(pid: int) -> int:
    """The most memory that a process had so far, in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", text)[1])  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_log_of_hundreds_of_megabytes_is_shown_from_its_end(made: Path, folder: Path) -> None:
    match = Path(shutil.copytree(made / "comparison", folder / "match"))
    run = Path(shutil.copytree(made / "run", folder / "long"))
    log = run / "checkpoint" / "rounds.jsonl"
    line = log.read_text().splitlines()[0].removeprefix('{"round": 1,')
    with log.open("w") as file:
        for start in range(1, LONG // len(line), 10_000):
            file.write("".join(f'{{"round": {t},{line}\n' for t in range(start, start + 10_000)))
    os.link(log, match / "cells" / "fedavg" / "seed0" / "checkpoint" / "long")
    os.replace(match / "cells/fedavg/seed0/checkpoint/long", match / "cells/fedavg/seed0/checkpoint/rounds.jsonl")
    with served(folder) as server:
        server.text(server.link("good"))  # what is imported for any page
        server.ask("/report/" + server.link("good").rpartition("/")[2])
        before = peak(server.process.pid)
        page = server.text(server.link("long"))
        assert "The log of this run is very long: only its last " in page
        report = server.ask("/report/" + server.link("long").rpartition("/")[2])
        assert report.status == 409
        assert re.search(r"checkpoint/rounds.jsonl has 2\d\d MB: at most 67 MB are read for a page", report.text)
        verdict = server.text(server.link("match"))
        assert re.search(r"seed0/checkpoint/rounds.jsonl has 2\d\d MB", verdict)
        assert peak(server.process.pid) - before < 100_000_000


# Many at once


def longest_queue() -> int:
    file = Path("/proc/sys/net/core/somaxconn")
    return int(file.read_text()) if file.exists() else 0


@pytest.mark.slow
@pytest.mark.skipif(longest_queue() < 256, reason="this system lets fewer connections wait")
def test_two_hundred_requests_at_once_are_all_answered(made: Path, folder: Path) -> None:
    """They all connect while the server does not run, so that none of them is served before the others wait."""
    shutil.copytree(made / "comparison", folder / "match")
    last_week = time.time() - 7 * 24 * 3600  # shown as a date: "3 min ago" could change between two answers
    for file in folder.rglob("*"):
        os.utime(file, (last_week, last_week))
    with served(folder) as server:
        match = server.link("match")
        paths = ["/", server.link("good"), match, match.replace("comparison", "report"), "/page.css"] * 40
        lines = [
            http.client.HTTPConnection("127.0.0.1", int(server.address.rstrip("/").rpartition(":")[2])) for _ in paths
        ]
        server.process.send_signal(signal.SIGSTOP)
        try:
            for line, path in zip(lines, paths, strict=True):
                line.timeout = 5  # of a connection that the queue does not take
                line.request("GET", path)
        finally:
            server.process.send_signal(signal.SIGCONT)
        answers = []
        for line in lines:
            line.sock.settimeout(60)
            with contextlib.closing(line):
                answer = line.getresponse()
                answers.append((answer.status, len(answer.read())))
    assert len(answers) == 200
    assert {status for status, _ in answers} == {200}
    for kind in range(5):
        assert len(set(answers[kind::5])) == 1, paths[kind]
