"""A participant's end of the link: a SuperNode of Flower's whose app is a function in this process."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from fedarena.config.errors import BadValue, FedarenaError, PartyFailed, PartyLost
from fedarena.transport.certificates import ClientKeys, fingerprint
from fedarena.transport.flower_link import FederationEnded, Say
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
from fedarena.transport.flower_link.payload import Incoming, Outgoing, UnreadableMessage, forget, numbered, wrap
from fedarena.transport.flower_link.superlink_calls import CallRefused, ConnectionLost, call, check_address, open_client

INTERVAL = 10.0  # seconds: Flower takes a node for gone after twice as long without a sign of life
BEAT = 4.0  # seconds between signs of life
HOLD = 20.0  # seconds that a call for messages waits for one
POLL = 0.5  # seconds between such calls, at a SuperLink that does not let them wait
LINGER = 10.0  # seconds that a last answer may wait to be taken
SLOWEST = 5.0  # seconds between tries to reach an organiser that is away

T = TypeVar("T")


class SuperNode:
    """A connection that mends itself; use it as a context."""

    def __init__(self, server: str, keys: ClientKeys, *, limit: int, patience: float, say: Say | None) -> None:
        self._server, self._keys, self._limit, self._patience = check_address(server), keys, limit, patience
        self._say = say or (lambda _: None)
        headers = {INSTANCE: secrets.token_hex(8)}
        signs = NodeAuthHttpInterceptor(keys.key, keys.key.public_key())
        self._client = open_client(
            FleetHttpClient, server, keys.ca, keys.server, "SuperNode", headers, signs, hear=self._heed
        )
        self._node: Any = None
        self._joining, self._over = threading.Lock(), threading.Event()

    def __enter__(self) -> SuperNode:
        try:
            self._persist(self._activate)
        except BaseException:
            self._client.close()
            raise
        self._say(f"joined the organiser at {self._server} as '{self._keys.name}'")
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(ConnectionLost, CallRefused, FedarenaError):  # else the organiser will notice
            call(self._client.DeactivateNode, DeactivateNodeRequest(node_id=self._node.node_id), read=2.0)
        self._client.close()

    def _heed(self, headers: Mapping[str, str]) -> None:
        """The organiser may take less than we would send."""
        if headers.get(LIMIT, "").isdigit():
            self._limit = min(self._limit, int(headers[LIMIT]))

    def serve(self, handle: Callable[[bytes], bytes]) -> None:
        """Answer messages until one says that it is over."""
        while True:
            began = time.monotonic()
            told = self._persist(self._pull)
            if not told.messages_list:
                time.sleep(max(0.0, POLL - (time.monotonic() - began)))
            elif self._answer(message_from_proto(told.messages_list[0]), told.message_object_trees[0], handle):
                return

    def _pull(self) -> Any:
        return call(self._client.PullMessages, PullMessagesRequest(node=self._node), hold=HOLD)

    def _answer(self, message: Any, tree: Any, handle: Callable[[bytes], bytes]) -> bool:
        """Answer one message; whether it was the last."""
        until = time.monotonic() + message.metadata.ttl - max(0.0, time.time() - message.metadata.created_at)
        over = False
        try:
            content = self._fetch(message, tree, until)
            if content is None:
                self._say("a message was withdrawn before it was here")
                return False
            began = time.monotonic()
            answer, problem, over = outcome(handle, content, self._limit)
        except UnreadableMessage as error:
            began, answer, problem = time.monotonic(), b"", f"the message cannot be used: {error}"
        if problem:
            self._say(problem)
        parcel = Outgoing(_reply(message, answer, problem))
        self._deliver(parcel, time.monotonic() - began, until)
        self._forget(message.metadata)
        if over:
            self._linger(parcel, min(until, time.monotonic() + LINGER))
        return over

    def _fetch(self, message: Any, tree: Any, until: float) -> bytes | None:
        """The content; None if it cannot be had any more."""
        parcel = Incoming(message, tree, self._limit)

        def get() -> bytes:
            pause = 0.005
            while not parcel.pull(self._client, self._node, until):  # a part is still on its way to the SuperLink
                if time.monotonic() >= until:
                    raise ConnectionLost
                time.sleep(pause)
                pause = min(2 * pause, 0.5)
            return parcel.content()

        return self._within(until, get)

    def _deliver(self, parcel: Outgoing, seconds: float, until: float) -> None:
        def put() -> bool:
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[parcel.proto],
                message_object_trees=[parcel.tree],
                clientapp_runtime_list=[seconds],
            )
            parcel.push(self._client, self._node, call(self._client.PushMessages, request), ring="organiser")
            return True

        if not self._within(until, put):
            self._say("the answer came too late, and was dropped")

    def _linger(self, parcel: Outgoing, until: float) -> None:
        """Stay until the last answer was taken: Flower drops answers of nodes that have left."""
        request = PullObjectRequest(node=self._node, run_id=parcel.run, object_id=parcel.ticket)
        with suppress(ConnectionLost, CallRefused):  # the organiser has left first
            while time.monotonic() < until and call(self._client.PullObject, request).object_found:
                time.sleep(0.05)

    def _forget(self, metadata: Any) -> None:
        """Let the SuperLink drop the message, now that nobody waits for us."""
        with suppress(ConnectionLost, CallRefused):
            forget(self._client, self._node, metadata.run_id, metadata.message_id)

    def _within(self, until: float, work: Callable[[], T]) -> T | None:
        """Work for one message, over cuts, as long as somebody waits for it; None: nobody does any more."""
        pause = 0.1
        while time.monotonic() < until:
            try:
                return work()
            except ConnectionLost:
                time.sleep(min(pause, max(0.0, until - time.monotonic())))
                pause = min(2 * pause, SLOWEST)
            except CallRefused as refused:
                if refused.why:
                    raise self._meaning(refused) from None
                return None  # another run, or another SuperLink, by now
        return None

    def _persist(self, work: Callable[[], T]) -> T:
        """Work, over cuts and new SuperLinks, as long as patience lasts."""
        until, pause, told, strange = time.monotonic() + self._patience, 0.1, False, False
        while True:
            try:
                if strange:
                    self._activate()
                    self._say(f"joined the organiser at {self._server} again")
                return work()
            except ConnectionLost as cut:
                why = str(cut)
            except CallRefused as refused:
                if refused.status != 401 or refused.why:
                    raise self._meaning(refused) from None
                strange, why = True, "it was started anew"
            if time.monotonic() >= until:
                raise PartyLost(
                    f"the organiser at {self._server} cannot be reached: {why}",
                    remedy="check the address, and that the organiser runs; then join again",
                )
            if not told and why:
                self._say(f"waiting for the organiser at {self._server}")
                told = True
            time.sleep(pause * random.uniform(0.5, 1.0))  # not all at once when it returns
            pause = min(1.6 * pause, SLOWEST)

    def _activate(self) -> None:
        with self._joining:
            request = ActivateNodeRequest(public_key=self._keys.public, heartbeat_interval=INTERVAL)
            try:
                self._node = numbered(call(self._client.ActivateNode, request).node_id)
            except CallRefused as refused:
                if refused.status == 412:
                    raise ConnectionLost("it thinks that another process of this participant is there") from None
                if refused.status == 401:
                    raise BadValue(
                        f"the organiser at {self._server} refuses the signature of '{self._keys.name}': this clock "
                        f"differs from its by {abs(refused.seconds_ahead):.0f} s",
                        remedy="set the clocks of both machines",
                    ) from None
                raise

    def _meaning(self, refused: CallRefused) -> FedarenaError:
        """A refusal that trying again does not mend."""
        who = f"the organiser at {self._server}"
        if refused.why == UNKNOWN:
            return BadValue(
                f"{who} does not know the key of '{self._keys.name}' ({fingerprint(self._keys.public)})",
                remedy="the organiser puts your node.pub among its participants",
                where="--keys",
            )
        if refused.why == TAKEN_OVER:
            return PartyFailed(f"{who} says: {refused.said}", remedy="use each participant's keys in one place only")
        return BadValue(f"{who} does not answer like Flower's: {refused}", remedy="check the address")

    def _beat(self) -> None:
        """Signs of life, also while a message is worked on; a SuperLink that was started anew is joined again."""
        while not self._over.wait(BEAT):
            try:
                request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=INTERVAL)
                call(self._client.SendNodeHeartbeat, request, read=5.0)
            except CallRefused as refused:
                if refused.status == 401:
                    self._rejoin()
            except (
                ConnectionLost,
                FedarenaError,
                RuntimeError,
            ):  # whoever calls next finds out; or the client is closed
                continue

    def _rejoin(self) -> None:
        with suppress(
            ConnectionLost, CallRefused, FedarenaError, RuntimeError
        ):  # the next call finds out why; or the client is closed
            self._activate()


def outcome(handle: Callable[[bytes], bytes], content: bytes, limit: int) -> tuple[bytes, str, bool]:
    """What `handle` makes of a message: the answer, or a problem; and whether it is over."""
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


def _reply(message: Any, answer: bytes, problem: str) -> Any:
    if problem:
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, problem), reply_to=message)
    return Message(wrap(answer), reply_to=message)
