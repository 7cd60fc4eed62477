"""Binary frames between two parties: typed fields with a limit on every length, never pickle.

A frame is a header of fixed size and a body of named fields. Decoding is strict: bytes that are not exactly a frame of
this protocol version are refused with a reason, and every length is checked against the bytes at hand before it is used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, FrameRefused

VERSION = 2
MAGIC = b"FAVB"
HEADER = struct.Struct("<4sHBB16s8sIIQQ")  # a multiple of eight bytes: arrays in the body stay aligned
NO_KEY = bytes(8)
CHUNK = 2 << 20  # bytes of ciphertexts or ids that a sender puts into one frame

Fields = Mapping[str, Any]  # int, float, str, bytes, or an array of one of DTYPES

MOST_FIELDS = 64
MOST_DIMENSIONS = 4
DTYPES = tuple(map(np.dtype, ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8", "?")))


class FrameKind(IntEnum):
    """The request that a frame makes or answers."""

    HELLO = 1
    ALIGN_START = 2
    ALIGN_REQUEST = 3
    ALIGN_SETUP = 4
    ALIGN_RESPONSE = 5
    ALIGN_HASHES = 6
    ALIGN_ROWS = 7
    SETUP = 8
    PUBLIC_KEY = 9
    TREE_START = 10
    ROWS = 11
    LEVEL = 12
    SPLIT = 13
    TREE_END = 14
    PREDICT_START = 15
    PREDICT_STEP = 16
    PREDICT_END = 17
    DONE = 18
    ERROR = 19


SMALL, MIDDLE, LARGE = 1 << 16, 8 << 20, 64 << 20
LIMITS = {
    **dict.fromkeys(FrameKind, SMALL),
    **dict.fromkeys(
        (FrameKind.ALIGN_REQUEST, FrameKind.ALIGN_SETUP, FrameKind.ALIGN_RESPONSE, FrameKind.ALIGN_HASHES), MIDDLE
    ),
    **dict.fromkeys((FrameKind.ALIGN_ROWS, FrameKind.SETUP, FrameKind.ROWS), MIDDLE),
    **dict.fromkeys((FrameKind.TREE_START, FrameKind.LEVEL, FrameKind.SPLIT), LARGE),
    **dict.fromkeys((FrameKind.PREDICT_START, FrameKind.PREDICT_STEP, FrameKind.PREDICT_END), LARGE),
}
LONGEST = HEADER.size + LARGE  # of any frame: the network's own limit


@dataclass(frozen=True)
class Frame:
    """One message: its session and key, its position (tree, level, sequence), and its body."""

    kind: FrameKind
    body: bytes = b""
    session: bytes = bytes(16)
    key: bytes = NO_KEY
    tree: int = 0
    level: int = 0
    sequence: int = 0
    reply: bool = False
    version: int = VERSION

    def encode(self) -> bytes:
        """Return the frame as bytes, or raise BadValue where a table is too large for the limits of the protocol."""
        if len(self.body) > LIMITS[self.kind]:
            raise BadValue(
                f"a {self.kind.name} frame would have {len(self.body)} bytes, more than the {LIMITS[self.kind]} it may have",
                remedy="use fewer rows or columns, fewer bins, a smaller depth, or compression",
            )
        place = self.session, self.key, self.tree, self.level, self.sequence
        return HEADER.pack(MAGIC, self.version, self.kind, self.reply, *place, len(self.body)) + self.body

    @classmethod
    def decode(cls, raw: bytes) -> Frame:
        """Return the frame that these bytes are, or raise FrameRefused."""
        if len(raw) < HEADER.size or raw[:4] != MAGIC:
            raise refused("these bytes are not a frame")
        _, version, kind, reply, session, key, tree, level, sequence, length = HEADER.unpack_from(raw)
        if version != VERSION:
            raise FrameRefused(
                f"the other party uses version {version} of the protocol, this one version {VERSION}",
                remedy="install the same release of fedarena at all parties",
            )
        if kind not in LIMITS or reply > 1:
            raise refused(f"there is no frame of kind {kind}")
        if length != len(raw) - HEADER.size or length > LIMITS[FrameKind(kind)]:
            raise refused(f"a {FrameKind(kind).name} frame of {len(raw)} bytes has a wrong length")
        return cls(
            FrameKind(kind), bytes(raw[HEADER.size :]), session, key, tree, level, sequence, bool(reply), version
        )


def refused(what: str) -> FrameRefused:
    """Return the error for a frame that is damaged or not of this protocol."""
    return FrameRefused(what, remedy="a party or the connection is faulty or hostile: stop, and compare versions")


def pack_fields(fields: Fields) -> bytes:
    """Return named values as bytes; `unpack_fields` reverses it.

    >>> unpack_fields(pack_fields({"rows": 3, "name": "bank"}))
    {'rows': 3, 'name': 'bank'}
    """
    if len(fields) > MOST_FIELDS:
        raise refused(f"{len(fields)} fields are beyond {MOST_FIELDS}")
    parts = [struct.pack("<B7x", len(fields))]
    for name, value in fields.items():
        code, head, payload = _written(value)
        label = name.encode("ascii")
        start = struct.pack("<BB", len(label), code) + label + head
        parts += [start, bytes(-len(start) % 8), payload, bytes(-len(payload) % 8)]
    return b"".join(parts)


def _written(value: Any) -> tuple[int, bytes, bytes]:
    """Return the type code of a value, its header and its payload."""
    if isinstance(value, (bool, int, np.integer, np.bool_)):
        return 0, b"", struct.pack("<q", int(value))
    if isinstance(value, (float, np.floating)):
        return 1, b"", struct.pack("<d", float(value))
    if isinstance(value, str):
        text = value.encode()
        return 2, struct.pack("<Q", len(text)), text
    if isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        return 3, struct.pack("<Q", len(raw)), raw
    array = np.ascontiguousarray(value)
    array = array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(np.shape(value))
    if array.dtype not in DTYPES or array.ndim > MOST_DIMENSIONS:
        raise TypeError(f"an array of {array.dtype} with {array.ndim} dimensions cannot be sent")
    head = struct.pack(f"<BB{array.ndim}Q", DTYPES.index(array.dtype), array.ndim, *array.shape)
    return 4, head, array.tobytes()


def unpack_fields(raw: bytes) -> dict[str, Any]:
    """The named values in a body, all of it; arrays are views of it and cannot be written to."""
    try:
        return _Reader(raw).fields()
    except (struct.error, UnicodeDecodeError, IndexError):
        raise refused("a frame's fields are damaged") from None


class _Reader:
    """Goes through a body from left to right and never beyond its end."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def fields(self) -> dict[str, Any]:
        count = self.take("<B7x")[0]
        if count > MOST_FIELDS:
            raise refused(f"{count} fields are beyond {MOST_FIELDS}")
        found: dict[str, Any] = {}
        for _ in range(count):
            length, code = self.take("<BB")
            name = self.bytes(length).decode("ascii")
            if not name.isidentifier() or name in found:
                raise refused("a frame's fields are damaged")
            found[name] = self.value(code)
        if self.at != len(self.raw):
            raise refused("a frame has bytes behind its fields")
        return found

    def value(self, code: int) -> Any:
        if code <= 1:
            self.align()
            return self.take("<q" if code == 0 else "<d")[0]
        if code == 4:
            return self.array()
        if code > 4:
            raise refused(f"there is no field of type {code}")
        (length,) = self.take("<Q")
        self.align()
        raw = self.bytes(length)
        self.align()
        return raw.decode() if code == 2 else raw

    def array(self) -> NDArray[Any]:
        code, dimensions = self.take("<BB")
        if code >= len(DTYPES) or dimensions > MOST_DIMENSIONS:
            raise refused("a frame holds an array of no known type")
        shape = self.take(f"<{dimensions}Q")
        dtype = DTYPES[code]
        count = math.prod(shape)  # Python integers: a product of hostile sizes cannot wrap around
        self.align()
        if count * dtype.itemsize > len(self.raw) - self.at or max(shape, default=0) > len(self.raw):
            raise refused("a frame holds an array longer than itself")
        if dtype == np.bool_ and any(b > 1 for b in set(self.raw[self.at : self.at + count])):
            raise refused("a frame holds truth values that are neither true nor false")
        found = np.frombuffer(self.raw, dtype, count, self.at).reshape(shape)
        self.at += found.nbytes
        self.align()
        return found

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self.raw, self.at)
        self.at += struct.calcsize(layout)
        return values

    def bytes(self, length: int) -> bytes:
        if length > len(self.raw) - self.at:
            raise refused("a frame holds a field longer than itself")
        self.at += length
        return self.raw[self.at - length : self.at]

    def align(self) -> None:
        """Skip padding, which must be zero: a frame has one form only."""
        if any(self.bytes(-self.at % 8)):
            raise refused("a frame's fields are damaged")
