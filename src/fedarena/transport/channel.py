"""Requests of the guest and responses of the hosts: the same bytes in one process and over a network.

The guest holds a `Channel` to each host, a host holds one `Session`. Every frame carries session, key and sequence
number, and both ends hash every frame they send and accept, from the handshake (HELLO) on; the digests are compared at
the end of each tree, of a prediction and of the session.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from fedarena.config import errors
from fedarena.config.errors import (
    CannotWrite,
    DataBroken,
    DataMissing,
    FedarenaError,
    FrameRefused,
    PartyFailed,
    PartyLost,
    TranscriptDiffers,
)
from fedarena.transport.frames import NO_KEY, Fields, Frame, FrameKind, pack_fields, refused, unpack_fields

LOGGER = logging.getLogger(__name__)

# After these both ends compare the digest of all frames since HELLO.
COMPARED = (FrameKind.TREE_END, FrameKind.PREDICT_END, FrameKind.DONE)


class HostProtocol(Protocol):
    """A host that answers one request after the other, or raises an error of `fedarena.config.errors`.

    The response to PUBLIC_KEY has the field `fingerprint` of the key that the host read: it must be that of the frames.
    HELLO may come at any time, because the guest was restarted or gave up a tree.
    """

    def answer(self, kind: FrameKind, fields: dict[str, Any], tree: int, level: int) -> Fields:
        """Return the fields of the response to one request."""


class FrameHandler:
    """A host that answers requests by kind: the method `_on_setup` answers SETUP. Kinds without a method are refused."""

    activity = "trains"

    def answer(self, kind: FrameKind, fields: dict[str, Any], tree: int, level: int) -> Fields:
        """Return the response to one request of the guest."""
        handle = getattr(self, f"_on_{kind.name.lower()}", None)
        if handle is None:
            raise refused(f"a host that {self.activity} does not answer {kind.name}")
        response: Fields = handle(fields, tree, level)
        return response


def _add(transcript: hashlib._Hash, raw: bytes) -> None:
    """Add a frame to a hash, with its length first, so that no two lists of frames have the same hash."""
    transcript.update(len(raw).to_bytes(8, "little"))
    transcript.update(raw)


class Channel(ABC):
    """The guest's end of the connection to one host. Requests of several threads are sent one after the other."""

    def __init__(self, name: str, key: bytes = NO_KEY) -> None:
        self.name = name
        self.patience = 0.0  # seconds that HELLO waits for a host that cannot be reached
        self.key = key  # first eight bytes of the public key's fingerprint; set it before HELLO
        self.bytes_up = self.bytes_down = 0
        self._session = bytes(16)
        self._sequence = 0
        self.transcript = hashlib.sha256()  # of all frames in both directions since the handshake
        self._turn = threading.Lock()

    @property
    def was_opened(self) -> bool:
        """Return whether a session was ever opened on this channel."""
        return self._session != bytes(16)

    def ask(self, kind: FrameKind, fields: Fields | None = None, *, tree: int = 0, level: int = 0) -> dict[str, Any]:
        """Send a request and return the response. HELLO opens a new session; the kinds in COMPARED compare transcripts."""
        with self._turn:
            if kind is FrameKind.HELLO:
                self._session, self._sequence, self.transcript = secrets.token_bytes(16), 0, hashlib.sha256()
            digest = self.transcript.digest()
            body = pack_fields({**(fields or {}), **({"digest": digest} if kind in COMPARED else {})})
            frame = Frame(kind, body, self._session, self.key, tree, level, self._sequence)
            reply = self._exchange(frame)
            if kind in COMPARED:
                _compare(reply.pop("digest", b""), digest, f"host '{self.name}'")
            return reply

    def _exchange(self, frame: Frame) -> dict[str, Any]:
        raw = frame.encode()
        self.bytes_up += len(raw)
        got = self.carry(raw, frame.kind)
        self.bytes_down += len(got)
        self._sequence += 1
        try:
            reply = Frame.decode(got)
            fields = unpack_fields(reply.body)
            if not reply.reply or reply.kind not in (frame.kind, FrameKind.ERROR):
                raise refused(f"a {reply.kind.name} frame is not a response to {frame.kind.name}")
            if reply.kind is FrameKind.ERROR and reply.session == bytes(16):
                raise _told(fields, self.name)
            _same_place(reply, frame.session, frame.key, frame.sequence)
        except FrameRefused as error:
            if error.what.startswith(f"host '{self.name}'"):
                raise
            raise FrameRefused(f"host '{self.name}': {error.what}", remedy=error.remedy, where=error.where) from None
        _add(self.transcript, raw)
        _add(self.transcript, got)
        if reply.kind is FrameKind.ERROR:
            raise _told(fields, self.name)
        return fields

    @abstractmethod
    def carry(self, raw: bytes, kind: FrameKind) -> bytes:
        """Send a frame to the host and return its response; raise PartyLost if the host cannot be reached."""

    def close(self) -> None:  # noqa: B027
        """Close the connection to the other party, if there is one."""

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask_all(
    channels: Iterable[Channel], kind: FrameKind, fields: Fields | None = None, *, tree: int = 0
) -> list[Fields]:
    """Send the same request to one host after the other, and return their responses."""
    return [channel.ask(kind, fields, tree=tree) for channel in channels]


class LocalChannel(Channel):
    """A channel to a host in this process; the bytes are those that a network would carry."""

    def __init__(self, host: HostProtocol, name: str = "host", key: bytes = NO_KEY) -> None:
        super().__init__(name, key)
        self.session = Session(host)

    def carry(self, raw: bytes, kind: FrameKind) -> bytes:
        """Pass the frame to the session of the host."""
        return self.session.handle(raw)


class Session:
    """The host's end: refuse frames that are damaged, repeated or of another session, and answer the others."""

    def __init__(self, host: HostProtocol) -> None:
        self.host = host
        self._id = self._key = b""
        self._seen: set[bytes] = set()
        self._next = 0
        self.transcript = hashlib.sha256()  # of all frames in both directions since the handshake
        self._turn = threading.Lock()

    def handle(self, raw: bytes, wanted: Callable[[], bool] = lambda: True) -> bytes:
        """Return the response to one frame, which is a frame even if the host raised an error.

        A frame whose sender has given up meanwhile (`wanted`) is not processed: an old HELLO must not undo a new one.
        """
        with self._turn:
            if not wanted():
                return b""
            try:
                frame = Frame.decode(raw)
                fields = unpack_fields(frame.body)
                self._check(frame)
            except FedarenaError as error:  # not a frame of this session: it is not part of the transcript
                return Frame(FrameKind.ERROR, _error_body(error), reply=True).encode()
            self._next += 1
            try:
                out = self._reply_to(frame, frame.kind, self._answer(frame, fields, raw))
            except Exception as error:
                out = self._reply_to(frame, FrameKind.ERROR, _error_body(self._named(error)))
            _add(self.transcript, out)
            return out

    def _reply_to(self, frame: Frame, kind: FrameKind, body: bytes) -> bytes:
        return Frame(kind, body, self._id, self._key, frame.tree, frame.level, frame.sequence, True).encode()

    def _check(self, frame: Frame) -> None:
        if frame.reply or frame.kind is FrameKind.ERROR:
            raise refused("a response came where a request was expected")
        if frame.kind is FrameKind.HELLO:
            if frame.session in self._seen or frame.session == bytes(16) or frame.sequence:
                raise refused("this session was opened before: the frame is repeated")
            self._seen.add(frame.session)
            self._id, self._key, self._next, self.transcript = frame.session, frame.key, 0, hashlib.sha256()
        elif not self._id:
            raise PartyLost(
                f"a {frame.kind.name} frame came before HELLO: this host was restarted, or its session was never opened",
                remedy="open a new session",
            )
        _same_place(frame, self._id, self._key, self._next)

    def _answer(self, frame: Frame, fields: dict[str, Any], raw: bytes) -> bytes:
        before = self.transcript.digest()
        _add(self.transcript, raw)
        if frame.kind in COMPARED:
            _compare(fields.pop("digest", b""), before, "the guest")
        answer = dict(self.host.answer(frame.kind, fields, frame.tree, frame.level))
        if frame.kind in COMPARED:
            answer["digest"] = before
        if frame.kind is FrameKind.PUBLIC_KEY and str(answer.get("fingerprint", ""))[:16] != self._key.hex():
            self._id = b""  # this ends the session, and the use of a key that the host may have accepted
            raise FrameRefused(
                f"the public key is not the one of this session: its fingerprint is "
                f"{str(answer.get('fingerprint', ''))[:16] or 'unknown'}, the frames say {self._key.hex()}",
                remedy="restart all parties",
            )
        return pack_fields(answer)

    def _named(self, error: Exception) -> FedarenaError:
        """Return the error that the guest may see; one that may hold a path or is not fedarena's is logged here in full."""
        of_its_files = isinstance(error, (CannotWrite, DataBroken, DataMissing))
        if isinstance(error, FedarenaError) and not of_its_files:
            return error
        LOGGER.info(str(error) if of_its_files else "".join(traceback.format_exception(error)))
        what = "it cannot read or write its files" if of_its_files else f"it failed with {type(error).__name__}"
        return PartyFailed(what, remedy="look at that party's own messages")


def _same_place(frame: Frame, session: bytes, key: bytes, sequence: int) -> None:
    """Refuse a frame that is not the next one of this session, under its key."""
    if frame.session != session:
        raise FrameRefused(
            f"a {frame.kind.name} frame of another session came: {frame.session.hex()[:8]}, "
            f"this one is {session.hex()[:8]}",
            remedy="connect only one guest at a time to a host",
        )
    if frame.key != key:
        raise FrameRefused(
            f"a {frame.kind.name} frame came under another key: {frame.key.hex()}, this session's is {key.hex()}",
            remedy="restart all parties",
        )
    if frame.sequence != sequence:
        repeated = "repeated" if frame.sequence < sequence else "out of order"
        raise refused(f"a {frame.kind.name} frame is {repeated}: number {frame.sequence}, {sequence} was expected")


def _compare(theirs: Any, ours: bytes, who: str) -> None:
    if not (isinstance(theirs, bytes) and theirs == ours):
        theirs_text = theirs.hex() if isinstance(theirs, bytes) else "none"
        raise TranscriptDiffers(
            f"this party and {who} did not see the same frames: {ours.hex()} here, {theirs_text} there",
            remedy="frames were changed on the way: do not trust this training, and check the connection between them",
        )


def _error_body(error: FedarenaError) -> bytes:
    texts = {"code": type(error).__name__, "what": error.what, "remedy": error.remedy, "where": error.where}
    return pack_fields({name: text[:2000] for name, text in texts.items()})


def _told(fields: dict[str, Any], name: str) -> FedarenaError:
    """Return the error that a host reported, of its own class if that is known, without control characters."""
    texts = (str(fields.get(n, "")) for n in ("code", "what", "remedy", "where"))
    code, what, remedy, where = ("".join(c for c in text if c.isprintable()) for text in texts)
    kind = getattr(errors, code, None)
    if not (isinstance(kind, type) and issubclass(kind, FedarenaError)):
        kind = PartyFailed
    return kind(f"host '{name}': {what}", remedy=remedy, where=where)
