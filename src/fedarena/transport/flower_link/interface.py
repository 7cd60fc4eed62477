"""The interface of a link between a server and its clients, without Flower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class ReceivedMessage:
    """The response of a client, or the reason why there is none."""

    node: int
    ticket: str  # of the message that it answers
    content: bytes | None  # None: there is no usable response
    problem: str = ""  # why not


class Link(Protocol):
    """The server's end of a link; one thread at a time may use it."""

    @property
    def address(self) -> str:
        """Return the address for clients, `machine:port`; the system may have chosen the port."""

    def nodes(self) -> dict[int, str]:
        """Return number and name of the clients that are connected. A number belongs to a key and never changes."""

    def send(self, node: int, content: bytes, deadline: float) -> str:
        """Send a message to a client, which may answer within `deadline` seconds; return a ticket."""

    def receive(self, timeout: float) -> list[ReceivedMessage]:
        """Return the responses that have arrived; wait at most `timeout` seconds for the first."""

    def close(self) -> None:
        """Close the link and end the SuperLink."""


class FederationEnded(Exception):
    """Raised by a client's `handle` when the federation has ended; `answer` is still sent."""

    def __init__(self, answer: bytes = b"") -> None:
        super().__init__("the federation has ended")
        self.answer = answer
