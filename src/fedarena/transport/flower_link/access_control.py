"""The door before Flower's SuperLink, in its process: who may come in, how much they may bring, and a bell.

A SuperLink serves participants and its own owner on one port, and takes anyone for the owner. The door lets only the
organiser at the owner's calls, only the holders of known keys at the participants' calls, limits what they send, and
tells the organiser whom it refused. It also holds back an empty answer for a while: who asks for messages hears of one
at once, without asking many times a second.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

FLEET = "/v1/fleet/"
ACTIVATE, PULL = FLEET + "activate-node", FLEET + "pull-messages"
PUSH, PUSH_PART = FLEET + "push-messages", FLEET + "push-object"
ORGANISER_PULL = "/v1/runtime/pull-messages"
KEY = "flwr-public-key"

# Headers between us and the door; a SuperLink without a door ignores them.
HOLD = "fedarena-hold"  # seconds that an empty answer may be held back, in case something comes
RING = "fedarena-ring"  # whom to wake when this call is done
SECRET = "fedarena-organiser"  # proves that a call is the organiser's own
INSTANCE = "fedarena-instance"  # the process that uses a key now
REFUSED = "fedarena-refused"  # in an answer: why a call was not let in
LIMIT = "fedarena-limit"  # in the answer to who joins: bytes that a message may have
UNKNOWN, TAKEN_OVER, TOO_LONG = "unknown key", "taken over", "too long"
NOT_ITS_OWN = "not its own"

LONGEST_HOLD = 60.0
LOOK = 1.0  # seconds after which the organiser's held call looks anyway: not everyone rings
REPEAT = 60.0  # seconds before the same refusal is told again
ORGANISER = ""  # whom a participant's ring wakes

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True)
class AccessRules:
    """Who may come in, and what they may bring."""

    secret: str
    names: Mapping[bytes, str]  # by public key
    limit: int  # bytes of one message
    longest_call: int  # bytes of one call


class Notifier:
    """Something came for someone."""

    def __init__(self) -> None:
        self.rung = 0
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake all who wait."""
        self.rung += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int, seconds: float, receive: Receive) -> bool:
        """Wait until it has rung more than `seen` times, or so long; False: who asked has gone."""
        if self.rung > seen:
            return True
        gone, rings = asyncio.ensure_future(receive()), asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({gone, rings}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return not (gone.done() and gone.result()["type"] == "http.disconnect")
        finally:
            gone.cancel()
            rings.cancel()


@dataclass
class BufferedResponse:
    """What Flower answered."""

    status: int = 500
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    async def hear(self, event: MutableMapping[str, Any]) -> None:
        """Take in what the application sends."""
        if event["type"] == "http.response.start":
            self.status, self.headers = event["status"], list(event.get("headers", []))
        elif event["type"] == "http.response.body":
            self.body += event.get("body", b"")

    async def give(self, send: Send) -> None:
        """Pass it on."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


class AccessDenied(Exception):
    """Why a call is not let in."""

    def __init__(self, status: int, why: str, said: str) -> None:
        super().__init__(said)
        self.status, self.why, self.said = status, why, said

    def answer(self) -> BufferedResponse:
        """In Flower's form of an error, with a word for our own participants."""
        body = json.dumps({"detail": self.said}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        return BufferedResponse(self.status, [*headers, (REFUSED.encode(), self.why.encode())], body)


class AccessControl:
    """An ASGI application around Flower's."""

    def __init__(
        self, app: Any, rules: AccessRules, tell: Callable[[str], None], put_out: Callable[[bytes], None]
    ) -> None:
        self._app, self._rules, self._tell, self._put_out = app, rules, tell, put_out
        self._bells: defaultdict[str, Notifier] = defaultdict(Notifier)
        self._instances: dict[str, str] = {}
        self._brought: defaultdict[str, int] = defaultdict(int)
        self._told: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        try:
            answer = await self._serve(scope, receive)
        except AccessDenied as refusal:
            answer = refusal.answer()
        if answer is not None:
            await answer.give(send)

    async def _serve(self, scope: Scope, receive: Receive) -> BufferedResponse | None:
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:  # of two with the same name Flower takes the first, and so do we
            headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        who = self._who(scope, headers)
        body = await self._read(receive, headers, who)
        path = scope["path"]
        if path in (PULL, ORGANISER_PULL):
            return await self._held(scope, body, receive, who, headers)
        if path == PUSH_PART:
            self._weigh(len(body), who)
        if path == PUSH and not _is_own_answer(body):
            self._tell_once(f"a message of '{who}'", "it is no answer of its own")
            raise AccessDenied(403, NOT_ITS_OWN, "a participant sends answers of its own, one at a time")
        answer = await self._ask(scope, body)
        if answer.status == 200 and path in (PUSH, PUSH_PART):  # only now do we know that it was `who`
            self._brought[who] = len(body) + (self._brought[who] if path == PUSH_PART else 0)
        if path == ACTIVATE:
            answer = await self._activated(scope, body, headers, who, answer)
        if answer.status == 200 and RING in headers:
            self._bells[headers[RING] if who == ORGANISER else ORGANISER].ring()
        return answer

    def _who(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """The name of the caller; Flower itself checks that it holds the key."""
        if not scope["path"].startswith(FLEET):
            if not hmac.compare_digest(headers.get(SECRET, "").encode(), self._rules.secret.encode()):
                place = _place(scope)
                self._tell_once(f"a call from {place}", f"to {scope['path'][:80]!r}, which is only the organiser's")
                raise AccessDenied(403, "not the organiser", "this call is the organiser's")
            return ORGANISER
        try:
            key = base64.b64decode(headers.get(KEY, ""), validate=True)
        except binascii.Error:
            key = b""
        name = self._rules.names.get(key)
        if name is None:
            self._tell_once(f"a participant from {_place(scope)}", f"its key {_short(key)} is not known here")
            raise AccessDenied(403, UNKNOWN, "the organiser does not know this key")
        if scope["path"] != ACTIVATE:
            self._check_instance(name, headers)
        return name

    def _check_instance(self, name: str, headers: Mapping[str, str]) -> None:
        known = self._instances.get(name, "")
        if known and headers.get(INSTANCE, known) != known:
            raise AccessDenied(409, TAKEN_OVER, f"another process has joined as '{name}'")

    async def _activated(
        self, scope: Scope, body: bytes, headers: Mapping[str, str], who: str, answer: BufferedResponse
    ) -> BufferedResponse:
        """A participant that was killed returns before Flower thinks that it is gone: the newer process counts."""
        if answer.status == 412:
            self._put_out(base64.b64decode(headers[KEY]))
            answer = await self._ask(scope, body)
        if answer.status == 200:
            self._instances[who] = headers.get(INSTANCE, "")
            self._bells[who].ring()
            answer.headers.append((LIMIT.encode(), str(self._rules.limit).encode()))
        elif answer.status == 401:
            self._tell_once(f"'{who}' from {_place(scope)}", "its signature is not valid now; do the clocks agree?")
        return answer

    async def _held(
        self, scope: Scope, body: bytes, receive: Receive, who: str, headers: Mapping[str, str]
    ) -> BufferedResponse | None:
        """Ask Flower for messages; if there are none, again when the bell rings, until the time is up."""
        bell, until = self._bells[who], time.monotonic() + _seconds(headers.get(HOLD, ""))
        first = bell.rung
        while True:
            seen = bell.rung
            answer = await self._ask(scope, body)
            left = until - time.monotonic()
            news = bell.rung > first and who == ORGANISER  # perhaps the rest of an answer that it knows
            if answer.status != 200 or answer.body or left <= 0 or news:
                return answer
            if not await bell.wait(seen, min(left, LOOK) if who == ORGANISER else left, receive):
                return None
            self._check_instance(who, headers)  # a message is for the newer process

    async def _ask(self, scope: Scope, body: bytes) -> BufferedResponse:
        """Flower's answer."""
        answer, given = BufferedResponse(), False

        async def receive() -> MutableMapping[str, Any]:
            nonlocal given
            if given:
                await asyncio.Event().wait()  # who asked is still there
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app({**scope, "state": dict(scope.get("state", {}))}, receive, answer.hear)
        return answer

    async def _read(self, receive: Receive, headers: Mapping[str, str], who: str) -> bytes:
        longest = self._rules.longest_call
        body, more = bytearray(), True
        too_long = headers.get("content-length", "").isdigit() and int(headers["content-length"]) > longest
        while more and not too_long:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise AccessDenied(400, "gone", "the caller has gone")
            body += event.get("body", b"")
            more, too_long = event.get("more_body", False), len(body) > longest
        if too_long:
            self._tell_once(f"a call of '{who}'", f"more than {longest} bytes")
            raise AccessDenied(413, TOO_LONG, f"a call may have {longest} bytes")
        return bytes(body)

    def _weigh(self, size: int, who: str) -> None:
        """A message may come in many calls, but not without end."""
        if self._brought[who] + size > self._rules.limit + self._rules.longest_call:
            self._tell_once(f"a message of '{who}'", f"more than {self._rules.limit} bytes")
            raise AccessDenied(413, TOO_LONG, f"a message may have {self._rules.limit} bytes")

    def _tell_once(self, what: str, why: str) -> None:
        """Tell the organiser, but not as often as somebody may like to knock."""
        now = time.monotonic()
        self._told = {old: when for old, when in self._told.items() if now - when < REPEAT}
        if what not in self._told and len(self._told) < 100:
            self._told[what] = now
            self._tell(f"refused {what}: {why}")


def _is_own_answer(body: bytes) -> bool:
    """Is it one answer, by the node that calls? Flower checks whose node that is, but not who is said to have written."""
    from google.protobuf.message import DecodeError

    from fedarena.transport.flower_link.flower_internals import PushMessagesRequest

    try:
        pushed = PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    told = [message.metadata for message in pushed.messages_list]
    return len(told) == 1 and told[0].src_node_id == pushed.node.node_id and bool(told[0].reply_to_message_id)


def _seconds(text: str) -> float:
    try:
        return min(max(float(text), 0.0), LONGEST_HOLD)
    except ValueError:
        return 0.0


def _place(scope: Scope) -> str:
    return str((scope.get("client") or ("somewhere",))[0])


def _short(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:16] if key else "(none)"
