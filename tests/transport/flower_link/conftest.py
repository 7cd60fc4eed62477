"""One SuperLink for all tests of a module, and clients as processes of their own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
from tests.support.log_messages import MessageRecorder

from fedarena.transport.certificates import ServerKeys, make_federation_keys
from fedarena.transport.flower_link import ReceivedMessage, open_link

ROOT = Path(__file__).parents[3]
LIMIT = 40_000_000
NAMES = ["ash", "birch", "cedar", "elm", "oak"]


class Federation:
    """A link, its clients, and the messages that are logged."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.messages = folder, list[str]()
        self._recorder = MessageRecorder("fedarena.transport", lambda name, text: self.messages.append(text))
        self._recorder.start()
        self.keys = make_federation_keys(folder / "keys", NAMES)
        self.server_keys = ServerKeys.load(self.keys["organiser"])
        self.link: Any = open_link(folder, "127.0.0.1:0", self.server_keys, limit=LIMIT)
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, server: str = "", limit: int = LIMIT) -> subprocess.Popen[str]:
        """Start a client, without waiting until it is connected."""
        command = [sys.executable, "-m", "tests.support.flower_client"]
        process = subprocess.Popen(
            [*command, server or self.link.address, str(self.keys[name]), str(limit)],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.processes[name] = process
        return process

    def up(self, *names: str) -> list[int]:
        """Start these clients if necessary, and return their numbers when they answer."""
        for name in names:
            if name not in self.processes or self.processes[name].poll() is not None:
                self.start(name)
        self.until(lambda: set(names) <= set(self.link.nodes().values()))
        numbers = {name: node for node, name in self.link.nodes().items()}
        for name in names:  # one that was killed may still be listed
            self.until(lambda name=name: self.answers(numbers[name]))  # type: ignore[misc]
        return [numbers[name] for name in names]

    def answers(self, node: int) -> bool:
        """Return whether a client answers within two seconds."""
        self.link.send(node, b"there?", 2.0)
        return any(arrival.content == b"there?" for arrival in self.gather(1, 2.0))

    def gather(self, count: int, seconds: float) -> list[ReceivedMessage]:
        """Return so many responses, or those that came in that time."""
        until, got = time.monotonic() + seconds, list[ReceivedMessage]()
        while len(got) < count and time.monotonic() < until:
            got += self.link.receive(until - time.monotonic())
        return got

    def ask(self, node: int, content: bytes, seconds: float = 20.0) -> ReceivedMessage:
        """Return the response to a message."""
        ticket = self.link.send(node, content, seconds)
        (arrival,) = self.gather(1, seconds)
        assert (arrival.node, arrival.ticket) == (node, ticket)
        return arrival

    @staticmethod
    def until(true: Callable[[], bool], seconds: float = 40.0) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "the condition did not hold in time"
            time.sleep(0.05)

    def stop(self, name: str) -> None:
        """Kill the process of a client."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def close(self) -> None:
        """End the processes of all clients, and the link."""
        for name in list(self.processes):
            self.stop(name)
        self.link.close()
        self._recorder.stop()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        yield made
    finally:
        made.close()
