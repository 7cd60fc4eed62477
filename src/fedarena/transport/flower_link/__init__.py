"""How messages travel between an organiser and its participants: over Flower's SuperLink and SuperNodes, with TLS.

The link carries bytes and knows nothing of what they mean. This folder is the only place that imports flwr.

keys.py says who is who; organiser.py (with run.py) and node.py are the two ends; child.py starts the SuperLink,
superlink.py is that process, door.py stands before it; line.py makes the calls, parcel.py packs bytes into Flower's
messages; flower.py holds what we use of Flower beyond its documented interface.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fedarena.transport.certificates import ClientKeys, ServerKeys

LIMIT = 1 << 30  # bytes of one message, unless the caller says otherwise
PATIENCE = 600.0  # seconds that a participant waits for an organiser that is not there, or gone

Say = Callable[[str], None]


@dataclass(frozen=True)
class ReceivedMessage:
    """What came back from a participant."""

    node: int
    ticket: str  # of the message that it answers
    content: bytes | None  # None: nothing usable
    problem: str = ""  # then: what went wrong, in words


class Link(Protocol):
    """The organiser's end; one thread at a time may use it."""

    @property
    def address(self) -> str:
        """Where participants find it, `machine:port`: the port may have been chosen by the system."""
        ...

    def nodes(self) -> dict[int, str]:
        """Who is connected: number and name. A number belongs to a key, and stays the same for good."""
        ...

    def send(self, node: int, content: bytes, deadline: float) -> str:
        """A message to a participant, which may be answered within so many seconds; gives a ticket."""
        ...

    def receive(self, timeout: float) -> list[ReceivedMessage]:
        """What has come in; waits at most so many seconds for the first."""
        ...

    def close(self) -> None:
        """End the SuperLink."""
        ...


class FederationEnded(Exception):
    """Raised by a participant's `handle`: the federation is over. `answer` is still sent."""

    def __init__(self, answer: bytes = b"") -> None:
        super().__init__("the federation is over")
        self.answer = answer


def open_link(
    folder: str | Path,
    address: str,
    keys: ServerKeys,
    allowed: Mapping[str, bytes] | None = None,
    *,
    limit: int = LIMIT,
    say: Say | None = None,
) -> Link:
    """Start a SuperLink at `address` (port 0: any that is free) for the participants with these public keys.

    `allowed` maps names to public keys, by default all in the organiser's keys. The SuperLink is a process of its own,
    which writes `superlink.log` in the folder, keeps messages in memory only, and ends when this process ends. One that
    dies is started anew; what it carried then comes back as problems. `say` hears of that, and of who was refused, also
    from another thread.
    """
    from fedarena.transport.flower_link.server_link import FlowerLink

    return FlowerLink(Path(folder), address, keys, allowed or keys.clients, limit=limit, say=say)


def join(
    server: str,
    keys: ClientKeys,
    handle: Callable[[bytes], bytes],
    *,
    limit: int = LIMIT,
    patience: float = PATIENCE,
    say: Say | None = None,
) -> None:
    """Be a SuperNode of the organiser at `server`: answer each message by `handle`, here, until it raises `Over`.

    An organiser that is away is looked for again and again, for `patience` seconds; one that refuses us, or that is
    not who it should be, is an error at once. An exception in `handle` is told to the organiser, and work goes on.
    """
    from fedarena.transport.flower_link.supernode import SuperNode

    with SuperNode(server, keys, limit=limit, patience=patience, say=say) as node:
        node.serve(handle)
