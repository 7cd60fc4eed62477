"""The server's end of the link: what Flower calls a ServerApp, without a process of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedarena.config.errors import BadValue, PartyFailed, UnknownName
from fedarena.transport.addresses import check_address
from fedarena.transport.certificates import ServerKeys, number
from fedarena.transport.flower_link.flower_internals import (
    SUPERLINK_NODE_ID,
    ErrorCode,
    GetNodesRequest,
    Metadata,
    PullAppMessagesRequest,
    PushAppMessagesRequest,
    make_message,
    message_from_proto,
)
from fedarena.transport.flower_link.interface import ReceivedMessage
from fedarena.transport.flower_link.payload import Incoming, Outgoing, UnreadableMessage, wrap
from fedarena.transport.flower_link.superlink_calls import READ, CallRefused, ConnectionLost, call, plain
from fedarena.transport.flower_link.superlink_process import LOG, SuperLinkProcess
from fedarena.transport.flower_link.superlink_run import SERVER_NODE, SuperLinkRun

LOGGER = logging.getLogger(__name__)

HOLD = 10.0  # seconds that one call waits for replies
LOOK = 0.2  # seconds, if a part of a reply is still on its way, or no reply is awaited
QUICK = 5.0  # seconds in which a SuperLink on this machine answers
RESTART_INTERVAL = 30.0  # seconds: a SuperLink that was started again and dies within them is given up
EXPIRED = ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE
GONE = "it is no longer connected"


@dataclass(frozen=True)
class PendingMessage:
    """A message that may still be answered."""

    node: int
    until: float


class FlowerLink:
    """A link (see `Link`) that starts its SuperLink, and starts it again when it dies."""

    def __init__(self, folder: Path, address: str, keys: ServerKeys, limit: int) -> None:
        self._host, self._port = _split(address)
        self._folder, self._keys, self._limit = folder, keys, limit
        self._names = {number(key): name for name, key in keys.clients.items()}
        self._numbers = {name: node for node, name in self._names.items()}
        self._sent: dict[str, PendingMessage] = {}
        self._coming: dict[str, Incoming] = {}
        self._ready: list[ReceivedMessage] = []
        self._packed: tuple[bytes, Any] | None = None  # the same content often goes to several clients
        self._restarted = -RESTART_INTERVAL
        self._run = self._open()
        self._port = self._run.child.port

    def _open(self) -> SuperLinkRun:
        child = SuperLinkProcess(self._folder, self._host, self._port, self._keys, self._limit)
        try:
            return SuperLinkRun(child, self._host, self._keys)
        except (ConnectionLost, CallRefused) as error:
            raise PartyFailed(
                f"the SuperLink does not answer the server: {error}", remedy=f"see {self._folder / LOG}"
            ) from None

    @property
    def address(self) -> str:
        """Return the address on which the SuperLink listens."""
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    @property
    def pid(self) -> int:
        """Return the number of the SuperLink's process."""
        return self._run.child.pid

    def nodes(self) -> dict[int, str]:
        """Return number and name of the connected clients; Flower notices within 20 s that one has died."""
        found = self._try(lambda run: call(run.client.GetNodes, GetNodesRequest()))
        names = self._run.names
        connected = sorted(names[node.node_id] for node in found.nodes if node.node_id in names) if found else []
        return {self._numbers[name]: name for name in connected}

    def send(self, node: int, content: bytes, deadline: float) -> str:
        """Send a message; for a client that is not connected, `receive` returns a problem."""
        if node not in self._names:
            raise UnknownName(f"no client has the number {node}", remedy="use a number that `nodes()` returns")
        name = self._names[node]
        if len(content) > self._limit:
            raise BadValue(
                f"a message of {len(content)} bytes to '{name}': {self._limit} are allowed",
                remedy="raise the limit on both sides, or use a smaller model",
            )
        until = time.monotonic() + deadline
        ticket, problem = self._try(lambda run: self._push(run, name, content, deadline)) or (
            f"unsent-{time.monotonic_ns()}",
            "the SuperLink did not take the message",
        )
        if problem:
            self._ready.append(ReceivedMessage(node, ticket, None, problem))
        else:
            self._sent[ticket] = PendingMessage(node, until)
        return ticket

    def _push(self, run: SuperLinkRun, name: str, content: bytes, deadline: float) -> tuple[str, str]:
        metadata = Metadata(
            run_id=run.id,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=run.ids[name],
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=deadline,
            message_type="query",
        )
        metadata.delivered_at = ""
        if self._packed is None or self._packed[0] is not content:
            self._packed = content, wrap(content)
        outgoing = Outgoing(make_message(metadata=metadata, content=self._packed[1]))
        announcement = PushAppMessagesRequest(messages_list=[outgoing.proto], message_object_trees=[outgoing.tree])
        read = min(READ, deadline + QUICK)
        response = call(run.client.PushMessages, announcement, read=read)
        if not response.message_ids[0]:
            return outgoing.ticket, f"'{name}' is not connected"
        outgoing.push(run.client, SERVER_NODE, response, notify=name, read=read)
        return outgoing.ticket, ""

    def receive(self, timeout: float) -> list[ReceivedMessage]:
        """Return the replies that have arrived; one after its deadline is dropped."""
        until = time.monotonic() + timeout
        while True:
            self._drop_late()
            left = until - time.monotonic()
            if self._sent:
                self._try(partial(self._collect, hold=self._hold(left), until=until))
            elif not self._ready and left > 0:
                time.sleep(min(left, LOOK))
                self._try(lambda run: None)
            if self._ready or time.monotonic() >= until:
                break
        arrived, self._ready = self._ready, []
        return arrived

    def _hold(self, left: float) -> float:
        """Return how long one call may wait for replies."""
        if self._ready:
            return 0.0
        first = min(sent.until for sent in self._sent.values()) - time.monotonic()
        return max(0.0, min(left, first, LOOK if self._coming else HOLD))

    def _collect(self, run: SuperLinkRun, hold: float, until: float) -> None:
        """Fetch the replies that the SuperLink has for the server."""
        waiting = [ticket for ticket in self._sent if ticket not in self._coming]
        found = call(run.client.PullMessages, PullAppMessagesRequest(message_ids=waiting), hold=hold, read=QUICK)
        for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            self._announced(run, message_from_proto(proto), tree)
        for ticket, incoming in list(self._coming.items()):
            try:
                if incoming.pull(run.client, SERVER_NODE, max(until, time.monotonic() + 1.0), QUICK):
                    self._done(run, ticket, incoming.message, incoming.content())
            except UnreadableMessage as error:
                self._done(run, ticket, incoming.message, None, f"its answer cannot be used: {error}")

    def _announced(self, run: SuperLinkRun, message: Any, tree: Any) -> None:
        ticket = message.metadata.reply_to_message_id
        sent = self._sent.get(ticket)
        if sent is None:
            return
        if not message.has_error():
            self._coming[ticket] = Incoming(message, tree, self._limit)
        elif message.error.code in EXPIRED and sent.until - time.monotonic() < 1.0:
            self._sent[ticket] = PendingMessage(sent.node, 0.0)  # the SuperLink counts from a little earlier
        else:
            gone = message.error.code == ErrorCode.NODE_UNAVAILABLE
            self._done(run, ticket, message, None, GONE if gone else plain(message.error.reason) or "it failed")

    def _done(self, run: SuperLinkRun, ticket: str, answer: Any, content: bytes | None, problem: str = "") -> None:
        sent = self._sent.pop(ticket)
        self._coming.pop(ticket, None)
        self._ready.append(ReceivedMessage(sent.node, ticket, content, problem))
        run.forget(answer.metadata.message_id, *([ticket] if problem else []))

    def _drop_late(self) -> None:
        late = [ticket for ticket, sent in self._sent.items() if sent.until <= time.monotonic()]
        for ticket in late:
            del self._sent[ticket]
            incoming = self._coming.pop(ticket, None)
            names = [ticket, *([incoming.message.metadata.message_id] if incoming is not None else [])]
            self._try(lambda run, names=names: run.forget(*names))  # type: ignore[misc]

    def _try(self, work: Callable[[SuperLinkRun], Any]) -> Any:
        """Call `work` with the run; if its SuperLink has died or dropped the run, open another and return None."""
        try:
            if self._run.child.alive:
                return work(self._run)
        except ConnectionLost:
            pass  # dead, or too busy to answer in time
        except CallRefused as error:
            if error.status != 401:
                raise PartyFailed(f"the SuperLink refused a call: {error}", remedy=f"see {LOG}") from None
            self._restart("has dropped the run")
            return None
        if not self._run.child.alive:
            self._restart("has died")
        return None

    def _restart(self, why: str) -> None:
        self._run.end()
        if time.monotonic() - self._restarted < RESTART_INTERVAL:
            raise PartyFailed(f"the SuperLink {why} repeatedly", remedy=f"see {self._folder / LOG}")
        self._restarted = time.monotonic()
        LOGGER.info("the SuperLink %s; it is started again", why)
        for ticket, sent in self._sent.items():
            if sent.until > time.monotonic():
                self._ready.append(ReceivedMessage(sent.node, ticket, None, f"the SuperLink {why} with the message"))
        self._sent, self._coming = {}, {}
        self._run = self._open()

    def close(self) -> None:
        """End the SuperLink; messages without a reply are dropped."""
        self._run.end()


def _split(address: str) -> tuple[str, int]:
    machine, _, port = check_address(address, "0.0.0.0:8440").rpartition(":")
    return machine.strip("[]"), int(port)
