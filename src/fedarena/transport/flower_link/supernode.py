"""A client's end of the link: a SuperNode of Flower whose app is a function in this process."""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from fedarena.config.errors import BadValue, FedarenaError, PartyFailed, PartyLost
from fedarena.transport.addresses import check_address
from fedarena.transport.certificates import ClientKeys, fingerprint
from fedarena.transport.flower_link.access_control import INSTANCE, LIMIT, TAKEN_OVER, UNKNOWN
from fedarena.transport.flower_link.flower_internals import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    Error,
    ErrorCode,
    FleetHttpClient,
    Message,
    NodeAuthHttpInterceptor,
    PullMessagesRequest,
    PullObjectRequest,
    PushMessagesRequest,
    SendNodeHeartbeatRequest,
    message_from_proto,
)
from fedarena.transport.flower_link.interface import FederationEnded
from fedarena.transport.flower_link.payload import Incoming, Outgoing, UnreadableMessage, forget, numbered, wrap
from fedarena.transport.flower_link.superlink_calls import CallRefused, ConnectionLost, call, open_client

LOGGER = logging.getLogger(__name__)

INTERVAL = 10.0  # seconds: Flower considers a node lost after twice as long without a heartbeat
BEAT = 4.0  # seconds between heartbeats
HOLD = 20.0  # seconds that a call for messages waits for one
POLL = 0.5  # seconds between such calls, at a SuperLink that does not hold them
LINGER = 10.0  # seconds that the last reply may wait to be fetched
SLOWEST = 5.0  # seconds between attempts to reach a server
EXAMPLE = "server.example.org:8440"

T = TypeVar("T")


class SuperNode:
    """A connection to the server that is restored when it breaks; use it as a context manager."""

    def __init__(self, server: str, keys: ClientKeys, *, limit: int, patience: float) -> None:
        self._server, self._keys, self._limit, self._patience = check_address(server, EXAMPLE), keys, limit, patience
        headers = {INSTANCE: secrets.token_hex(8)}
        signs = NodeAuthHttpInterceptor(keys.key, keys.key.public_key())
        self._client = open_client(
            FleetHttpClient, server, keys.ca, keys.server, "SuperNode", headers, signs, on_headers=self._lower_limit
        )
        self._node: Any = None
        self._joining, self._over = threading.Lock(), threading.Event()

    def __enter__(self) -> SuperNode:
        try:
            self._with_patience(self._activate)
        except BaseException:
            self._client.close()
            raise
        LOGGER.info("joined the server at %s as '%s'", self._server, self._keys.name)
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(ConnectionLost, CallRefused, FedarenaError):  # else the server notices later
            call(self._client.DeactivateNode, DeactivateNodeRequest(node_id=self._node.node_id), read=2.0)
        self._client.close()

    def _lower_limit(self, headers: Mapping[str, str]) -> None:
        """Respect the server's limit on the size of messages."""
        if headers.get(LIMIT, "").isdigit():
            self._limit = min(self._limit, int(headers[LIMIT]))

    def serve(self, handle: Callable[[bytes], bytes]) -> None:
        """Answer messages until `handle` raises `FederationEnded`."""
        while True:
            began = time.monotonic()
            found = self._with_patience(
                lambda: call(self._client.PullMessages, PullMessagesRequest(node=self._node), hold=HOLD)
            )
            if not found.messages_list:
                time.sleep(max(0.0, POLL - (time.monotonic() - began)))
            elif self._answer(message_from_proto(found.messages_list[0]), found.message_object_trees[0], handle):
                return

    def _answer(self, message: Any, tree: Any, handle: Callable[[bytes], bytes]) -> bool:
        """Answer one message, as the node that received it; return whether it was the last.

        A SuperLink that was restarted in between gives this client another number, also by a heartbeat, and refuses the
        old one: then the answer is dropped.
        """
        node = numbered(message.metadata.dst_node_id)
        until = time.monotonic() + message.metadata.ttl - max(0.0, time.time() - message.metadata.created_at)
        over = False
        try:
            content = self._fetch(node, message, tree, until)
            if content is None:
                LOGGER.info("a message was withdrawn before it had arrived")
                return False
            began = time.monotonic()
            answer, problem, over = outcome(handle, content, self._limit)
        except UnreadableMessage as error:
            began, answer, problem = time.monotonic(), b"", f"the message cannot be used: {error}"
        if problem:
            LOGGER.info(problem)
        content_or_error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, problem) if problem else wrap(answer)
        outgoing = Outgoing(Message(content_or_error, reply_to=message))
        self._deliver(node, outgoing, time.monotonic() - began, until)
        with suppress(ConnectionLost, CallRefused):  # the server waits for no reply to it now
            forget(self._client, node, message.metadata.run_id, message.metadata.message_id)
        if over:
            self._linger(node, outgoing, min(until, time.monotonic() + LINGER))
        return over

    def _fetch(self, node: Any, message: Any, tree: Any, until: float) -> bytes | None:
        """Return the content of a message; None if it is no longer available."""
        incoming = Incoming(message, tree, self._limit)

        def get() -> bytes:
            pause = 0.005
            while not incoming.pull(self._client, node, until):  # a part is still on its way to the SuperLink
                if time.monotonic() >= until:
                    raise ConnectionLost
                time.sleep(pause)
                pause = min(2 * pause, 0.5)
            return incoming.content()

        return self._within(until, get)

    def _deliver(self, node: Any, outgoing: Outgoing, seconds: float, until: float) -> None:
        def put() -> bool:
            request = PushMessagesRequest(
                node=node,
                messages_list=[outgoing.proto],
                message_object_trees=[outgoing.tree],
                clientapp_runtime_list=[seconds],
            )
            outgoing.push(self._client, node, call(self._client.PushMessages, request), notify="organiser")
            return True

        if not self._within(until, put):
            LOGGER.info("the answer came too late, and was dropped")

    def _linger(self, node: Any, outgoing: Outgoing, until: float) -> None:
        """Stay until the last reply was fetched: Flower drops replies of nodes that have left."""
        request = PullObjectRequest(node=node, run_id=outgoing.run, object_id=outgoing.ticket)
        with suppress(ConnectionLost, CallRefused):  # the server has left first
            while time.monotonic() < until and call(self._client.PullObject, request).object_found:
                time.sleep(0.05)

    def _within(self, until: float, work: Callable[[], T]) -> T | None:
        """Call `work` for one message, again after lost connections, until its deadline; return None after that."""
        pause = 0.1
        while time.monotonic() < until:
            try:
                return work()
            except ConnectionLost:
                time.sleep(min(pause, max(0.0, until - time.monotonic())))
                pause = min(2 * pause, SLOWEST)
            except CallRefused as refused:
                if refused.why:
                    raise self._explain(refused) from None
                return None  # another run, or another SuperLink, by now
        return None

    def _with_patience(self, work: Callable[[], T]) -> T:
        """Call `work`, again after lost connections and with a new SuperLink, as long as patience lasts."""
        until, pause, is_logged, is_new = time.monotonic() + self._patience, 0.1, False, False
        while True:
            try:
                if is_new:
                    self._activate()
                    LOGGER.info("joined the server at %s again", self._server)
                return work()
            except ConnectionLost as error:
                why = str(error)
            except CallRefused as refused:
                if refused.status != 401 or refused.why:
                    raise self._explain(refused) from None
                is_new, why = True, "it was restarted"
            if time.monotonic() >= until:
                raise PartyLost(
                    f"the server at {self._server} cannot be reached: {why}",
                    remedy="check the address, and that the server runs; then join again",
                )
            if not is_logged and why:
                LOGGER.info("waiting for the server at %s", self._server)
                is_logged = True
            time.sleep(pause * random.uniform(0.5, 1.0))  # not all at once when it returns
            pause = min(1.6 * pause, SLOWEST)

    def _activate(self) -> None:
        with self._joining:
            request = ActivateNodeRequest(public_key=self._keys.public, heartbeat_interval=INTERVAL)
            try:
                self._node = numbered(call(self._client.ActivateNode, request).node_id)
            except CallRefused as refused:
                if refused.status == 412:
                    raise ConnectionLost("another process of this client is still registered") from None
                if refused.status == 401:
                    raise BadValue(
                        f"the server at {self._server} refuses the signature of '{self._keys.name}': the clocks of the "
                        f"two machines differ by {abs(refused.seconds_ahead):.0f} s",
                        remedy="set the clocks of both machines",
                    ) from None
                raise

    def _explain(self, refused: CallRefused) -> FedarenaError:
        """Return the error for a refusal that another attempt would not change."""
        who = f"the server at {self._server}"
        if refused.why == UNKNOWN:
            return BadValue(
                f"{who} does not know the key of '{self._keys.name}' ({fingerprint(self._keys.public)})",
                remedy="the server's operator puts your node.pub into its folder of clients",
                where="--keys",
            )
        if refused.why == TAKEN_OVER:
            return PartyFailed(f"{who} says: {refused.detail}", remedy="use the keys of a client in one process only")
        return BadValue(f"{who} does not answer like a SuperLink of Flower: {refused}", remedy="check the address")

    def _beat(self) -> None:
        """Send heartbeats, also while a message is processed, and join a SuperLink that was restarted again."""
        while not self._over.wait(BEAT):
            # After an error the next call reports the reason, or the client is closed.
            with suppress(ConnectionLost, CallRefused, FedarenaError, RuntimeError):
                request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=INTERVAL)
                try:
                    call(self._client.SendNodeHeartbeat, request, read=5.0)
                except CallRefused as refused:
                    if refused.status == 401:
                        self._activate()


def outcome(handle: Callable[[bytes], bytes], content: bytes, limit: int) -> tuple[bytes, str, bool]:
    """Return the answer of `handle` to a message, or a problem, and whether the federation has ended."""
    over = False
    try:
        answer = handle(content)
    except FederationEnded as end:
        answer, over = end.answer, True
    except FedarenaError as error:
        return b"", str(error), False
    except Exception as error:
        return b"", f"{type(error).__name__}: {error}", False
    if len(answer) > limit:
        return b"", f"its answer has {len(answer)} bytes, and {limit} are allowed", over
    return answer, "", over
