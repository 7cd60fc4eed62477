"""A link within one process, for tests: a client works when the server listens, and any message may be lost."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

from fedarena.transport.flower_link import ReceivedMessage

Handle = Callable[[bytes], bytes]
Post = tuple[str, str, bytes, float]  # to whom, ticket, content, until when


class MemoryLink:
    """A link (fedarena.transport.flower_link.Link)."""

    address = "nowhere:0"

    def __init__(self) -> None:
        self.clients: dict[str, Handle] = {}  # who is connected
        self.numbers: dict[str, int] = {}
        self.stopped: set[str] = set()  # connected, but their processes stand still
        self.up: list[tuple[str, bytes]] = []  # everything that a client handed to the link
        self.down: list[tuple[str, bytes]] = []
        self.change: Callable[[str, bytes], bytes | None] = lambda name, content: content  # of what goes up
        self.before: Callable[[str, bytes], None] = lambda name, content: None  # it takes a message up
        self.posts: list[Post] = []
        self._ready: list[ReceivedMessage] = []
        self._tickets = itertools.count()

    def connect(self, name: str, handle: Handle) -> None:
        """A client's process starts; an earlier one of that name is dead."""
        self.disconnect(name)
        self.numbers.setdefault(name, len(self.numbers) + 100)
        self.clients[name] = handle

    def disconnect(self, name: str) -> None:
        """It is killed: what it was asked is lost."""
        self.clients.pop(name, None)
        self.posts = [post for post in self.posts if post[0] != name]

    def nodes(self) -> dict[int, str]:
        return {self.numbers[name]: name for name in self.clients}

    def send(self, node: int, content: bytes, deadline: float) -> str:
        name = next(name for name, number in self.numbers.items() if number == node)
        ticket = str(next(self._tickets))
        self.down.append((name, content))
        if name in self.clients:
            self.posts.append((name, ticket, content, time.monotonic() + deadline))
        else:
            self._ready.append(ReceivedMessage(node, ticket, None, f"'{name}' is not connected"))
        return ticket

    def receive(self, timeout: float) -> list[ReceivedMessage]:
        """Let one client work; an answer after its deadline is not taken."""
        arrived, self._ready = self._ready, []
        post = self.next_post()
        if arrived or post is None:
            time.sleep(0 if arrived else min(timeout, 0.01))
            return arrived
        self.posts.remove(post)
        name, ticket, content, until = post
        self.before(name, content)
        if name in self.stopped:
            self.posts.append(post)
        if time.monotonic() > until or name not in self.clients or name in self.stopped:
            return []
        handle = self.clients[name]
        answer = handle(content)
        if self.clients.get(name) is not handle:  # it was killed meanwhile
            return []
        self.up.append((name, answer))
        changed = self.change(name, answer)
        return [] if changed is None else [ReceivedMessage(self.numbers[name], ticket, changed)]

    def next_post(self) -> Post | None:
        """Who works next: the first that was asked."""
        return next((post for post in self.posts if post[0] not in self.stopped), None)

    def close(self) -> None:
        """The server's end; clients look for another."""
        self.posts.clear()
        self._ready.clear()

    def open(self, folder: Path) -> MemoryLink:
        """As `serve` wants it."""
        return self
