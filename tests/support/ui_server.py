"""`fedarena ui` in a process of its own, as a user starts it."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import fedarena as fa
from tests.support import forked_processes

QUICK = {"clients": 4, "partition": "iid", "model": "logreg", "runtime": "serial"}


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass(frozen=True)
class Served:
    """A server and how to ask it."""

    address: str
    process: forked_processes.Popen

    def ask(self, path: str = "/", method: str = "GET", **headers: str) -> Answer:
        """Exactly this path, as no browser would clean it."""
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(self.address).port, timeout=30)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())

    def text(self, path: str = "/") -> str:
        """A page that is there."""
        answer = self.ask(path)
        assert answer.status == 200, answer.text
        return answer.text

    def link(self, name: str) -> str:
        """Where the first page leads under this name."""
        before = self.text().partition(f">{name}</a>")[0]
        return before.rpartition('href="')[2].rstrip('"')


@contextlib.contextmanager
def served(folder: Path, cwd: Path | None = None) -> Iterator[Served]:
    """The page of this folder; ended by Ctrl-C, which is its normal end."""
    command = [sys.executable, "-m", "fedarena", "ui", str(folder), "--port", "0", "--no-open", "--json"]
    process = forked_processes.Popen(command, cwd=cwd, capture=True)
    try:
        while not process.written("stdout").endswith("}\n"):
            assert process.poll() is None, process.written("stderr")
            time.sleep(0.01)
        yield Served(json.loads(process.written("stdout"))["url"], process)
    finally:
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "stopped" in messages
    assert "Traceback" not in messages


STEPPED = """
import sys, time
from pathlib import Path
import fedarena as fa

def wait(record):
    print(record.round, flush=True)
    while Path(sys.argv[3]).stat().st_size < record.round:  # a byte for each round that may be left
        time.sleep(0.005)

fa.run("digits", out=sys.argv[1], rounds=int(sys.argv[2]), clients=4, partition="iid", model="logreg", runtime="serial",
       on_round=wait)
"""


class Stepped:
    """A real run in another process that waits after each round until it is asked to continue."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self._beside = tempfile.TemporaryDirectory()
        self._steps = Path(self._beside.name, "steps")
        self._steps.touch()
        command = [sys.executable, "-c", STEPPED, str(folder), str(rounds), str(self._steps)]
        self.process = forked_processes.Popen(command, capture=True)
        self.wait()

    def wait(self) -> None:
        """Until its next round is over."""
        while self.process.written("stdout").count("\n") <= self._steps.stat().st_size:
            assert self.process.poll() is None, self.process.written("stderr")
            time.sleep(0.005)

    def step(self, rounds: int = 1) -> None:
        """Let it do some more rounds."""
        for _ in range(rounds):
            self._allow(1)
            self.wait()

    def finish(self) -> None:
        """Let it go to its end."""
        self._allow(self.rounds)
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.communicate()

    def _allow(self, rounds: int) -> None:
        with self._steps.open("a") as file:
            file.write("." * rounds)


def a_comparison(folder: Path) -> None:
    """Three algorithms on three seeds, finished."""
    names = {"fedavg": "fedavg", "slow<b>": {"name": "fedprox", "mu": 1.0}, "fedsgd": "fedsgd"}
    settings = {key: value for key, value in QUICK.items() if key != "runtime"}
    fa.compare("digits", names, seeds=3, rounds=3, out=folder, workers=1, **settings)
