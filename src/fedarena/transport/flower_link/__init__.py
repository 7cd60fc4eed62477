"""Messages between a server and its clients over Flower's SuperLink and SuperNodes, with TLS.

The link carries bytes and knows nothing of what they mean.

interface.py has the types of a link. server_link.py (with superlink_run.py) is the server's end, supernode.py a client's;
superlink_process.py starts the SuperLink, superlink.py is that process, access_control.py protects it; superlink_calls.py
makes the calls, payload.py packs bytes into Flower's messages; flower_internals.py holds the names of Flower beyond its
documented interface.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedarena.transport.flower_link.interface import FederationEnded, Link, ReceivedMessage

if TYPE_CHECKING:
    from fedarena.transport.certificates import ClientKeys, ServerKeys

__all__ = ["LIMIT", "PATIENCE", "FederationEnded", "Link", "ReceivedMessage", "join", "open_link"]

LIMIT = 1 << 30  # bytes of one message, unless the caller chooses another limit
PATIENCE = 600.0  # seconds that a client waits for a server that cannot be reached


def open_link(folder: str | Path, address: str, keys: ServerKeys, *, limit: int = LIMIT) -> Link:
    """Start a SuperLink at `address` (port 0: any that is free) for the clients whose public keys the server has.

    The SuperLink is a process of its own, which writes `superlink.log` in the folder, keeps messages in memory only, and
    ends when this process ends. One that dies is started again; the messages that it carried are returned as problems.
    This is logged, and so are refused calls.
    """
    from fedarena.transport.flower_link.server_link import FlowerLink

    return FlowerLink(Path(folder), address, keys, limit)


def join(
    server: str,
    keys: ClientKeys,
    handle: Callable[[bytes], bytes],
    *,
    limit: int = LIMIT,
    patience: float = PATIENCE,
) -> None:
    """Be a SuperNode of the server: answer each message by `handle`, in this thread, until it raises `FederationEnded`.

    A server that cannot be reached is tried again for `patience` seconds; one that refuses this client, or whose
    certificate is not valid, is an error at once. An exception in `handle` is reported to the server, and the next message
    is waited for.
    """
    from fedarena.transport.flower_link.supernode import SuperNode

    with SuperNode(server, keys, limit=limit, patience=patience) as node:
        node.serve(handle)
