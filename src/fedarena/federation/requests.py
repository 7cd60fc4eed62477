"""Questions and their answers: what an organiser waits for, and when it has waited long enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from fedarena.config.errors import FedarenaError
from fedarena.federation import messages
from fedarena.federation.wire_format import Message


class TooFewAnswers(FedarenaError):
    """Fewer participants answered than the organiser's rule asks for."""


class RequestDeclined(Exception):
    """A participant said no, or something that is no answer."""


@dataclass(frozen=True)
class ResponseRule:
    """When a round goes on: all have answered; or the deadline has passed, and so many have."""

    deadline: float = 300.0
    minimum: int | None = None  # None: more than half of those asked
    attempts: int = 3  # with fewer answers they are asked so often, then the run stops
    selected: int | None = None  # of whom those asked are left, where a round takes several steps

    def needed(self, asked: int) -> int:
        """Answers that are enough."""
        of = asked if self.selected is None else self.selected
        return min(of // 2 + 1 if self.minimum is None else self.minimum, of)


class AdmissionPolicy(Protocol):
    """Decides who takes part."""

    def admit(self, name: str, described: messages.TableDescription) -> str:
        """A participant has described its table. Why it cannot take part, or nothing."""
        ...

    def agreement(self, name: str) -> messages.Agreement | None:
        """What was agreed with it; None while that is still open."""
        ...

    def is_ready(self, name: str, ready: messages.ReadyResponse) -> None:
        """It can be asked."""
        ...


@dataclass(eq=False)
class RequestBatch:
    """Questions to several participants, and their answers so far."""

    read: Callable[[str, Message], Any]
    requests: dict[str, bytes] = field(default_factory=dict)
    deadlines: dict[str, float] = field(default_factory=dict)
    sent_at: dict[str, float] = field(default_factory=dict)  # of requests whose response is due
    attempts: dict[str, int] = field(default_factory=dict)
    responses: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # why there is no usable response

    @property
    def open(self) -> list[str]:
        """Who has not answered."""
        return [name for name in self.requests if name not in self.responses and name not in self.failed]

    def add(self, name: str, request: bytes, seconds: float) -> None:
        """Another question to one of them."""
        for known in (self.sent_at, self.attempts, self.responses, self.failed):
            known.pop(name, None)
        self.requests[name], self.deadlines[name] = request, time.monotonic() + seconds

    def remove(self, name: str) -> None:
        """Its question is dealt with."""
        del self.requests[name], self.deadlines[name]
        self.responses.pop(name, None)
        self.failed.pop(name, None)


@dataclass(frozen=True)
class SentRequest:
    """A message that went out: to whom, and what for."""

    name: str
    what: Literal["invitation", "agreement", "request", "goodbye"]
    batch: RequestBatch | None = None
    request: bytes = b""

    @property
    def is_open(self) -> bool:
        """Is an answer to it still of use?"""
        batch, name = self.batch, self.name
        return batch is not None and name in batch.open and batch.requests[name] is self.request
