"""Messages as bytes: bodies as JSON, arrays as safetensors. Nothing that arrives is executed, and only named classes are
created.

    "fedarena" | length of tree, length of arrays | tree (JSON) | arrays (safetensors) | body (JSON)

The payload comes first, because it is the same for many clients: the link sends equal beginnings once.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors.numpy import load, save

import fedarena
from fedarena.config.errors import FedarenaError
from fedarena.federation.compression import compress, decompress
from fedarena.federation.messages import KINDS, MessageBody
from fedarena.models.pytree import UnknownType, from_plain, to_plain

PROTOCOL = 3
MAGIC = b"fedarena"
LENGTHS = struct.Struct("<QQ")
LIMIT = 1 << 30  # bytes of a message
TEXT_LIMIT = 1 << 24  # bytes of its tree, and of its body: names, labels, columns
ROUNDS = 1 << 32  # a round is one of so many: random numbers are keyed by it

Types = Mapping[str, type]
Body = TypeVar("Body", bound=MessageBody)
STRANGE = "check that the other side runs fedarena"


class WireRefused(FedarenaError):
    """A message that is damaged, too large, of another version, or not the expected one."""

    def __init__(self, what: str, *, remedy: str = STRANGE, where: str = "") -> None:
        super().__init__(what, remedy=remedy, where=where)


class OtherVersion(WireRefused):
    """A message of another version of fedarena."""


@dataclass(frozen=True)
class Payload:
    """A tree of arrays, packed once for all receivers."""

    tree: bytes
    arrays: bytes

    @classmethod
    def of(cls, tree: Any, compressed: bool = False) -> Payload:
        """Pack numbers and texts as JSON and arrays as safetensors, compressed on request."""
        arrays: dict[str, NDArray[Any]] = {}
        plain = json.dumps(to_plain(tree, arrays), separators=(",", ":"))
        whole = {name: np.asarray(a, order="C") for name, a in arrays.items()}
        return cls(plain.encode(), save(compress(whole) if compressed else whole))


NOTHING = Payload.of(None)


@dataclass(frozen=True)
class Message:
    """A message with its run, its round and its payload."""

    run: str
    round: int
    body: MessageBody
    payload: Any = None


def expect(message: Message, kind: type[Body]) -> Body:
    """Return the body of a message; refuse one of another kind."""
    if not isinstance(message.body, kind):
        raise WireRefused(f"it answered with '{message.body.what}'")
    return message.body


def pack(run: str, round: int, body: MessageBody, payload: Payload = NOTHING) -> bytes:
    """Return a message as the bytes that travel."""
    head = {"protocol": PROTOCOL, "fedarena": fedarena.__version__, "run": run, "round": round, "what": body.what}
    text = json.dumps({**head, "body": body.model_dump()}, separators=(",", ":")).encode()
    return b"".join([MAGIC, LENGTHS.pack(len(payload.tree), len(payload.arrays)), payload.tree, payload.arrays, text])


def unpack(content: bytes, types: Types | None = None) -> Message:
    """Return the message, whose payload may contain these types only; raise WireRefused otherwise."""
    return replace(unpack_body(content), payload=_read_payload(*payload_parts(content), types or {}))


def payload_parts(content: bytes) -> tuple[bytes, bytes]:
    """Return the bytes of a message's payload: its tree, and its arrays."""
    return _split(content)[:2]


def unpack_body(content: bytes) -> Message:
    """Return the message without its payload."""
    if len(content) > LIMIT:
        raise WireRefused(f"a message of {len(content) / 1e6:.1f} MB, and {LIMIT / 1e6:.1f} MB are allowed")
    *_, text = _split(content)
    head = _json(text, "the body")
    if not isinstance(head, dict):
        raise WireRefused("a message without a body")
    _check_version(head)
    run, round, what = head.get("run"), head.get("round"), head.get("what")
    if not isinstance(run, str) or type(round) is not int or not isinstance(what, str) or what not in KINDS:
        raise WireRefused("a message without a valid header")
    if not 0 <= round < ROUNDS:
        raise WireRefused("a message of an impossible round")
    try:
        body = KINDS[what].model_validate(head.get("body"))
    except (ValidationError, RecursionError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "nested too deeply"
        raise WireRefused(f"a message '{what}' that does not fit: {first}") from None
    return Message(run, round, body)


def _split(content: bytes) -> tuple[bytes, bytes, bytes]:
    start = len(MAGIC) + LENGTHS.size
    if len(content) < start or content[: len(MAGIC)] != MAGIC:
        raise WireRefused("bytes that are not a message of fedarena")
    tree, arrays = LENGTHS.unpack_from(content, len(MAGIC))
    if start + tree + arrays > len(content) or tree > TEXT_LIMIT:
        raise WireRefused("a message that ends too early")
    text = content[start + tree + arrays :]
    if len(text) > TEXT_LIMIT:
        raise WireRefused(f"{len(text) / 1e6:.0f} MB of text")
    return content[start : start + tree], content[start + tree : start + tree + arrays], text


def _json(text: bytes, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireRefused(f"a message of which {what} cannot be read: {type(error).__name__}") from None


def _check_version(head: dict[str, Any]) -> None:
    """Refuse another version: both sides must compute the same."""
    theirs, ours = (head.get("protocol"), head.get("fedarena")), (PROTOCOL, fedarena.__version__)
    if theirs != ours:
        protocol, version = (str(part)[:40] for part in theirs)
        raise OtherVersion(
            f"fedarena {version} (protocol {protocol}) is connected to fedarena {ours[1]} (protocol {ours[0]})",
            remedy="install the same version of fedarena at the server and at every client",
        )


def _read_payload(tree: bytes, arrays: bytes, types: Types) -> Any:
    plain = _json(tree, "the tree")
    try:
        return from_plain(plain, decompress(load(arrays), LIMIT), dict(types))
    except UnknownType as error:
        raise WireRefused(f"a message with a '{str(error)[:80]}', which has no place in it") from None
    except Exception as error:  # of any kind: the classes of an algorithm may check their fields
        raise WireRefused(f"a message whose arrays cannot be read: {type(error).__name__}") from None
