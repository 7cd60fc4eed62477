"""Requests to clients and their responses: what a server waits for, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from fedarena.config.errors import FedarenaError
from fedarena.federation.wire_format import Message

Read = Callable[[str, Message], Any]  # given the name of the client
Answers = tuple[dict[str, Any], dict[str, str]]  # of each client: its answer, or why there is none


class TooFewAnswers(FedarenaError):
    """Fewer clients answered than the server's rule requires."""


@dataclass(frozen=True)
class ResponseRule:
    """When a round ends: all clients have answered, or the deadline has passed and enough have."""

    deadline: float = 300.0
    minimum: int | None = None  # None: more than half of the selected clients
    attempts: int = 3  # with fewer answers requests are sent so often, then the run stops
    selected: int | None = None  # clients at the first step, where a round takes several

    def needed(self, asked: int) -> int:
        """Return how many answers are enough."""
        of = asked if self.selected is None else self.selected
        return min(of // 2 + 1 if self.minimum is None else self.minimum, of)


@dataclass(eq=False)
class RequestBatch:
    """Requests to several clients, and their responses so far."""

    read: Read
    requests: dict[str, bytes] = field(default_factory=dict)
    deadlines: dict[str, float] = field(default_factory=dict)
    sent_at: dict[str, float] = field(default_factory=dict)  # of requests whose response is due
    attempts: dict[str, int] = field(default_factory=dict)
    responses: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # why there is no usable response

    @property
    def open(self) -> list[str]:
        """Return the clients that have not answered."""
        return [name for name in self.requests if name not in self.responses and name not in self.failed]

    def add(self, name: str, request: bytes, seconds: float) -> None:
        """Add a request to one client, in place of an earlier one."""
        for known in (self.sent_at, self.attempts, self.responses, self.failed):
            known.pop(name, None)
        self.requests[name], self.deadlines[name] = request, time.monotonic() + seconds

    def remove(self, name: str) -> None:
        """Remove the request to a client, which is done."""
        del self.requests[name], self.deadlines[name]
        self.responses.pop(name, None)
        self.failed.pop(name, None)


@dataclass(frozen=True)
class SentRequest:
    """A message that was sent to a client, and its purpose."""

    name: str
    what: Literal["invitation", "agreement", "request", "goodbye"]
    batch: RequestBatch | None = None
    request: bytes = b""

    @property
    def open_batch(self) -> RequestBatch | None:
        """Return the batch of a request, if a response to it is still waited for."""
        batch, name = self.batch, self.name
        if batch is None or name not in batch.open or batch.requests[name] is not self.request:
            return None
        return batch
