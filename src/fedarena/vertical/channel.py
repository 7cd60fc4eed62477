"""One question of the guest, one answer of a host: the same bytes in one process and over a network.

The guest holds a `Channel` to each host, a host holds one `Session`. Every frame carries session, key and sequence
number, and both ends hash every frame they send and accept; the digests are compared at the end of each tree.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from fedarena import errors
from fedarena.errors import FedarenaError, FrameRefused, PartyFailed, PartyLost, TranscriptDiffers
from fedarena.vertical.frames import NO_KEY, Fields, Frame, Kind, pack_fields, refused, unpack_fields

STARTS = (Kind.HELLO, Kind.TREE_START)  # where a new transcript begins


class Answers(Protocol):
    """A host: answers one question after the other, or raises an error of `fedarena.errors`.

    The answer to PUBLIC_KEY has the field `fingerprint` of the key that the host read: it must be that of the frames.
    HELLO may come at any time: the guest was restarted, or gave up a tree.
    """

    def answer(self, kind: Kind, fields: dict[str, Any], tree: int, level: int) -> Fields:
        """What the host has to say."""


class Transcript:
    """A hash of all frames of both directions since the tree began."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, raw: bytes) -> None:
        """One frame more, its length first, so that no two lists of frames look alike."""
        self._hash.update(len(raw).to_bytes(8, "little"))
        self._hash.update(raw)

    @property
    def digest(self) -> bytes:
        """Of what was added so far."""
        return self._hash.digest()


class Channel(ABC):
    """The guest's end of the line to one host. Questions of several threads go one after the other."""

    def __init__(self, name: str, key: bytes = NO_KEY) -> None:
        self.name = name
        self.key = key  # first eight bytes of the public key's fingerprint; set it before HELLO
        self.bytes_up = self.bytes_down = 0
        self._session = bytes(16)
        self._sequence = 0
        self._transcript = Transcript()
        self._turn = threading.Lock()

    @property
    def transcript(self) -> bytes:
        """The digest of this tree's frames so far."""
        return self._transcript.digest

    def ask(self, kind: Kind, fields: Fields | None = None, *, tree: int = 0, level: int = 0) -> dict[str, Any]:
        """Ask and wait for the answer. HELLO opens a new session; TREE_END compares the transcripts by itself."""
        with self._turn:
            if kind is Kind.HELLO:
                self._session, self._sequence = secrets.token_bytes(16), 0
            digest = self._transcript.digest
            body = pack_fields({**(fields or {}), **({"digest": digest} if kind is Kind.TREE_END else {})})
            frame = Frame(kind, body, self._session, self.key, tree, level, self._sequence)
            reply = self._exchange(frame)
            if kind is Kind.TREE_END:
                _compare(reply.pop("digest", b""), digest, f"host '{self.name}'")
            return reply

    def _exchange(self, frame: Frame) -> dict[str, Any]:
        if frame.kind in STARTS:
            self._transcript = Transcript()
        raw = frame.encode()
        self.bytes_up += len(raw)
        got = self.carry(raw, frame.kind)
        self.bytes_down += len(got)
        self._sequence += 1
        with _from(self.name):
            reply = Frame.decode(got)
            fields = unpack_fields(reply.body)
            if not reply.reply or reply.kind not in (frame.kind, Kind.ERROR):
                raise refused(f"a {reply.kind.name} frame is no answer to {frame.kind.name}")
            if reply.kind is Kind.ERROR and reply.session == bytes(16):
                raise _told(fields, self.name)
            _same_place(reply, frame.session, frame.key, frame.sequence)
        self._transcript.add(raw)
        self._transcript.add(got)
        if reply.kind is Kind.ERROR:
            raise _told(fields, self.name)
        return fields

    @abstractmethod
    def carry(self, raw: bytes, kind: Kind) -> bytes:
        """Bring a frame to the host and its answer back; PartyLost if that cannot be done."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the line."""

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalChannel(Channel):
    """A host in this process; the bytes are those that a network would carry."""

    def __init__(self, host: Answers, name: str = "host", key: bytes = NO_KEY) -> None:
        super().__init__(name, key)
        self.session = Session(host)

    def carry(self, raw: bytes, kind: Kind) -> bytes:
        """Hand it over."""
        return self.session.handle(raw)

    def close(self) -> None:
        """There is no line."""


class Session:
    """The host's end: refuses what is damaged, repeated or foreign, and turns questions into answers."""

    def __init__(self, host: Answers, say: Callable[[str], None] | None = None) -> None:
        self.host = host
        self._say = say
        self._id = self._key = b""
        self._seen: set[bytes] = set()
        self._next = 0
        self._transcript = Transcript()
        self._turn = threading.Lock()

    @property
    def transcript(self) -> bytes:
        """The digest of this tree's frames so far."""
        return self._transcript.digest

    def handle(self, raw: bytes) -> bytes:
        """The answer to one frame, always a frame: an error is an answer, too."""
        with self._turn:
            try:
                frame = Frame.decode(raw)
                fields = unpack_fields(frame.body)
                self._check(frame)
            except FedarenaError as error:  # not of this session: nothing of it is kept
                return Frame(Kind.ERROR, _error_body(error), reply=True).encode()
            self._next += 1
            try:
                answer = self._answer(frame, fields, raw)
                reply = Frame(frame.kind, answer, self._id, self._key, frame.tree, frame.level, frame.sequence, True)
                out = reply.encode()
            except Exception as error:
                body = _error_body(self._named(error))
                where = (self._id, self._key, frame.tree, frame.level, frame.sequence)
                out = Frame(Kind.ERROR, body, *where, True).encode()
            self._transcript.add(out)
            return out

    def _check(self, frame: Frame) -> None:
        if frame.reply or frame.kind is Kind.ERROR:
            raise refused("an answer came where a question was expected")
        if frame.kind is Kind.HELLO:
            if frame.session in self._seen or frame.session == bytes(16) or frame.sequence:
                raise refused("this session was opened before: the frame is repeated")
            self._seen.add(frame.session)
            self._id, self._key, self._next = frame.session, frame.key, 0
        elif not self._id:
            raise PartyLost(
                f"a {frame.kind.name} frame came before HELLO: this host was restarted, or never greeted",
                remedy="open a new session",
            )
        _same_place(frame, self._id, self._key, self._next)

    def _answer(self, frame: Frame, fields: dict[str, Any], raw: bytes) -> bytes:
        before = self._transcript.digest
        if frame.kind in STARTS:
            self._transcript = Transcript()
        self._transcript.add(raw)
        if frame.kind is Kind.TREE_END:
            _compare(fields.pop("digest", b""), before, "the guest")
        answer = dict(self.host.answer(frame.kind, fields, frame.tree, frame.level))
        if frame.kind is Kind.TREE_END:
            answer["digest"] = before
        if frame.kind is Kind.PUBLIC_KEY and str(answer.get("fingerprint", ""))[:16] != self._key.hex():
            raise FrameRefused(
                f"the public key is not the one of this session: its fingerprint is "
                f"{str(answer.get('fingerprint', ''))[:16] or 'unknown'}, the frames say {self._key.hex()}",
                remedy="start all parties anew",
            )
        return pack_fields(answer)

    def _named(self, error: Exception) -> FedarenaError:
        """An error of ours as it is; any other is told here in full, and to the guest by its kind alone."""
        if isinstance(error, FedarenaError):
            return error
        if self._say is not None:
            self._say("".join(traceback.format_exception(error)))
        return PartyFailed(f"it failed with {type(error).__name__}", remedy="look at that party's own messages")


def _same_place(frame: Frame, session: bytes, key: bytes, sequence: int) -> None:
    """The frame belongs to this session and key, and is the next one."""
    if frame.session != session:
        raise FrameRefused(
            f"a {frame.kind.name} frame of another session came: {frame.session.hex()[:8]}, "
            f"this one is {session.hex()[:8]}",
            remedy="let one guest at a time work with a host",
        )
    if frame.key != key:
        raise FrameRefused(
            f"a {frame.kind.name} frame came under another key: {frame.key.hex()}, this session's is {key.hex()}",
            remedy="start all parties anew",
        )
    if frame.sequence != sequence:
        repeated = "repeated" if frame.sequence < sequence else "out of order"
        raise refused(f"a {frame.kind.name} frame is {repeated}: number {frame.sequence}, {sequence} was expected")


def _compare(theirs: Any, ours: bytes, who: str) -> None:
    if not (isinstance(theirs, bytes) and theirs == ours):
        told = theirs.hex() if isinstance(theirs, bytes) else "none"
        raise TranscriptDiffers(
            f"this party and {who} did not see the same frames: {ours.hex()} here, {told} there",
            remedy="frames were changed on the way: do not trust this training, and look at the line between",
        )


def _error_body(error: FedarenaError) -> bytes:
    texts = {"code": type(error).__name__, "what": error.what, "remedy": error.remedy, "where": error.where}
    return pack_fields({name: text[:2000] for name, text in texts.items()})


def _told(fields: dict[str, Any], name: str) -> FedarenaError:
    """The error that a host reported, under its own name where we know it."""
    code, what, remedy, where = (str(fields.get(n, "")) for n in ("code", "what", "remedy", "where"))
    kind = getattr(errors, code, None)
    if not (isinstance(kind, type) and issubclass(kind, FedarenaError)):
        kind = PartyFailed
    return kind(f"host '{name}': {what}", remedy=remedy, where=where)


class _from:
    """What is refused inside is refused by the name of the host it came from."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, FrameRefused) and not error.what.startswith(f"host '{self.name}'"):
            raise FrameRefused(f"host '{self.name}': {error.what}", remedy=error.remedy, where=error.where) from None
