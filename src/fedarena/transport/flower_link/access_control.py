"""Access control in front of Flower's SuperLink, in its process: known callers only, limits on sizes, and long polling.

A SuperLink serves clients and its own owner on one port, and accepts the owner's calls from anyone. This ASGI application
around it admits only the server to the owner's calls and only holders of known keys to the clients' calls, limits the
bytes that they send, and logs the callers that it refused. It also holds back an empty response for a while: a caller that
waits for messages gets one at once, without asking many times a second.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from fedarena.transport.certificates import fingerprint

LOGGER = logging.getLogger(__name__)

FLEET = "/v1/fleet/"
ACTIVATE, PULL = FLEET + "activate-node", FLEET + "pull-messages"
PUSH, PUSH_PART = FLEET + "push-messages", FLEET + "push-object"
SERVER_PULL = "/v1/runtime/pull-messages"
KEY = "flwr-public-key"

# Headers between fedarena and this application; a SuperLink on its own ignores them.
HOLD = "fedarena-hold"  # seconds that an empty response may be held back, in case a message comes
NOTIFY = "fedarena-ring"  # the caller to wake when this call is done
SECRET = "fedarena-organiser"  # proves that a call is the server's own
INSTANCE = "fedarena-instance"  # the process that uses a key now
REFUSED = "fedarena-refused"  # in a response: why a call was refused
LIMIT = "fedarena-limit"  # in the response to a client that joins: bytes that a message may have
UNKNOWN, TAKEN_OVER, TOO_LONG = "unknown key", "taken over", "too long"
NOT_ITS_OWN = "not its own"

LONGEST_HOLD = 60.0
LOOK = 1.0  # seconds after which the server's held call looks anyway: other Flower clients do not notify
REPEAT = 60.0  # seconds before the same refusal is logged again
SERVER = ""  # the caller that is woken by a client

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True)
class AccessRules:
    """The callers that are admitted, and the bytes that they may send."""

    secret: str
    names: Mapping[bytes, str]  # by public key
    limit: int  # bytes of one message
    longest_call: int  # bytes of one call


class Notifier:
    """Wakes the held calls of one caller when a message for it arrives."""

    def __init__(self) -> None:
        self.count = 0
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake all calls that wait for a message."""
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int, seconds: float, receive: Receive) -> bool:
        """Wait for more than `seen` notifications, but at most `seconds`; return False if the caller has disconnected."""
        if self.count > seen:
            return True
        gone, notified = asyncio.ensure_future(receive()), asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({gone, notified}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return not (gone.done() and gone.result()["type"] == "http.disconnect")
        finally:
            gone.cancel()
            notified.cancel()


@dataclass
class BufferedResponse:
    """A response of Flower's application, held in memory."""

    status: int = 500
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    async def receive(self, event: MutableMapping[str, Any]) -> None:
        """Add an event that the application sends."""
        if event["type"] == "http.response.start":
            self.status, self.headers = event["status"], list(event.get("headers", []))
        elif event["type"] == "http.response.body":
            self.body += event.get("body", b"")

    async def forward(self, send: Send) -> None:
        """Send the response to the caller."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


class AccessDenied(Exception):
    """A call that is refused, with the reason for fedarena's clients and a text for people."""

    def __init__(self, status: int, why: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.why, self.detail = status, why, detail

    def response(self) -> BufferedResponse:
        """Return the refusal in Flower's form of an error, with the reason in a header."""
        body = json.dumps({"detail": self.detail}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        return BufferedResponse(self.status, [*headers, (REFUSED.encode(), self.why.encode())], body)


class AccessControl:
    """An ASGI application around Flower's that refuses calls against the rules.

    `deactivate` removes the registration of the node with a public key, so that it can register again.
    """

    def __init__(self, app: Any, rules: AccessRules, deactivate: Callable[[bytes], None]) -> None:
        self._app, self._rules, self._deactivate = app, rules, deactivate
        self._notifiers: defaultdict[str, Notifier] = defaultdict(Notifier)
        self._instances: dict[str, str] = {}
        self._received: defaultdict[str, int] = defaultdict(int)  # bytes of the message that a client is sending
        self._logged: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call, if the rules allow it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        try:
            response = await self._serve(scope, receive)
        except AccessDenied as refusal:
            response = refusal.response()
        if response is not None:
            await response.forward(send)

    async def _serve(self, scope: Scope, receive: Receive) -> BufferedResponse | None:
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:  # of two with the same name Flower takes the first, and so do we
            headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        caller = self._identify(scope, headers)
        body = await self._read(receive, headers, caller)
        path = scope["path"]
        if path in (PULL, SERVER_PULL):
            return await self._hold(scope, body, receive, caller, headers)
        if path == PUSH_PART:
            self._check_size(len(body), caller)
        if path == PUSH and not _is_own_reply(body):
            self._log_once(f"a message of '{caller}'", "it is not a reply of its own")
            raise AccessDenied(403, NOT_ITS_OWN, "a client sends replies of its own, one at a time")
        response = await self._forward(scope, body)
        if response.status == 200 and path in (PUSH, PUSH_PART):  # only now Flower has checked the caller's key
            self._received[caller] = len(body) + (self._received[caller] if path == PUSH_PART else 0)
        if path == ACTIVATE:
            response = await self._activate(scope, body, headers, caller, response)
        if response.status == 200 and NOTIFY in headers:
            self._notifiers[headers[NOTIFY] if caller == SERVER else SERVER].notify()
        return response

    def _identify(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """Return the name of the caller; Flower itself checks that it holds the key."""
        if not scope["path"].startswith(FLEET):
            if not hmac.compare_digest(headers.get(SECRET, "").encode(), self._rules.secret.encode()):
                machine = _machine(scope)
                self._log_once(f"a call from {machine}", f"to {scope['path'][:80]!r}, which is only for the server")
                raise AccessDenied(403, "not the organiser", "this call is only for the server")
            return SERVER
        try:
            key = base64.b64decode(headers.get(KEY, ""), validate=True)
        except binascii.Error:
            key = b""
        name = self._rules.names.get(key)
        if name is None:
            self._log_once(
                f"a client from {_machine(scope)}", f"its key {fingerprint(key) if key else '(none)'} is not known here"
            )
            raise AccessDenied(403, UNKNOWN, "the server does not know this key")
        if scope["path"] != ACTIVATE:
            self._check_instance(name, headers)
        return name

    def _check_instance(self, name: str, headers: Mapping[str, str]) -> None:
        known = self._instances.get(name, "")
        if known and headers.get(INSTANCE, known) != known:
            raise AccessDenied(409, TAKEN_OVER, f"another process has joined as '{name}'")

    async def _activate(
        self, scope: Scope, body: bytes, headers: Mapping[str, str], caller: str, response: BufferedResponse
    ) -> BufferedResponse:
        """Let the newer process take over: a client that was killed returns before Flower has noticed that it is gone."""
        if response.status == 412:
            self._deactivate(base64.b64decode(headers[KEY]))
            response = await self._forward(scope, body)
        if response.status == 200:
            self._instances[caller] = headers.get(INSTANCE, "")
            self._notifiers[caller].notify()
            response.headers.append((LIMIT.encode(), str(self._rules.limit).encode()))
        elif response.status == 401:
            self._log_once(f"'{caller}' from {_machine(scope)}", "its signature is not valid now; do the clocks agree?")
        return response

    async def _hold(
        self, scope: Scope, body: bytes, receive: Receive, caller: str, headers: Mapping[str, str]
    ) -> BufferedResponse | None:
        """Ask Flower for messages; if there are none, ask again at each notification, until the time is up."""
        notifier, until = self._notifiers[caller], time.monotonic() + _seconds(headers.get(HOLD, ""))
        first = notifier.count
        while True:
            seen = notifier.count
            response = await self._forward(scope, body)
            left = until - time.monotonic()
            notified = notifier.count > first and caller == SERVER  # perhaps the rest of a reply that it knows
            if response.status != 200 or response.body or left <= 0 or notified:
                return response
            if not await notifier.wait(seen, min(left, LOOK) if caller == SERVER else left, receive):
                return None
            self._check_instance(caller, headers)  # a message is for the newer process

    async def _forward(self, scope: Scope, body: bytes) -> BufferedResponse:
        """Pass a call on to Flower's application and return its response."""
        response, given = BufferedResponse(), False

        async def receive() -> MutableMapping[str, Any]:
            nonlocal given
            if given:
                await asyncio.Event().wait()  # the caller is still connected
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app({**scope, "state": dict(scope.get("state", {}))}, receive, response.receive)
        return response

    async def _read(self, receive: Receive, headers: Mapping[str, str], caller: str) -> bytes:
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
            self._log_once(f"a call of '{caller}'", f"more than {longest} bytes")
            raise AccessDenied(413, TOO_LONG, f"a call may have {longest} bytes")
        return bytes(body)

    def _check_size(self, size: int, caller: str) -> None:
        """Limit the bytes of a message that comes in many calls."""
        if self._received[caller] + size > self._rules.limit + self._rules.longest_call:
            self._log_once(f"a message of '{caller}'", f"more than {self._rules.limit} bytes")
            raise AccessDenied(413, TOO_LONG, f"a message may have {self._rules.limit} bytes")

    def _log_once(self, what: str, why: str) -> None:
        """Log a refusal, but only once a minute, and not an unlimited number of different ones."""
        now = time.monotonic()
        self._logged = {old: when for old, when in self._logged.items() if now - when < REPEAT}
        if what not in self._logged and len(self._logged) < 100:
            self._logged[what] = now
            LOGGER.info("refused %s: %s", what, why)


def _is_own_reply(body: bytes) -> bool:
    """Return whether this is one reply by the node that calls: Flower does not check the sender named in the message."""
    from google.protobuf.message import DecodeError

    from fedarena.transport.flower_link.flower_internals import PushMessagesRequest

    try:
        pushed = PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    sent = [message.metadata for message in pushed.messages_list]
    return len(sent) == 1 and sent[0].src_node_id == pushed.node.node_id and bool(sent[0].reply_to_message_id)


def _seconds(text: str) -> float:
    try:
        return min(max(float(text), 0.0), LONGEST_HOLD)
    except ValueError:
        return 0.0


def _machine(scope: Scope) -> str:
    return str((scope.get("client") or ("an unknown machine",))[0])
