"""Frames say one thing in one way: what was packed comes back, and anything else is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedarena.config.errors import BadValue, FrameRefused
from fedarena.transport.frames import (
    DTYPES,
    HEADER,
    LIMITS,
    LONGEST,
    VERSION,
    Frame,
    FrameKind,
    pack_fields,
    unpack_fields,
)

ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=20), st.binary(max_size=40), ARRAYS
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,20}", fullmatch=True)


def frame(**changes: object) -> Frame:
    body = pack_fields({"a": np.arange(4, dtype=np.int32)})
    return Frame(**{"kind": FrameKind.LEVEL, "body": body, "session": b"s" * 16, "key": b"k" * 8, "tree": 3, **changes})


@pytest.mark.slow
@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_fields_come_back_as_they_were(fields: dict[str, object]) -> None:
    back = unpack_fields(pack_fields(fields))
    assert list(back) == list(fields)
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            assert back[name].dtype == value.dtype
            assert back[name].shape == value.shape
            assert back[name].tobytes() == value.tobytes()
        else:
            assert back[name] == value
            assert type(back[name]) is type(value)


def test_arrays_are_aligned_and_cannot_be_written_to() -> None:
    raw = frame(body=pack_fields({"x": "odd", "words": np.arange(3, dtype=np.uint64)})).encode()
    words = unpack_fields(Frame.decode(raw).body)["words"]
    assert words.ctypes.data % 8 == 0
    with pytest.raises(ValueError, match="read-only"):
        words[0] = 1


def test_a_frame_comes_back_as_it_was() -> None:
    sent = frame(level=2, sequence=9, reply=True)
    assert Frame.decode(sent.encode()) == sent


@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_refused(raw: bytes) -> None:
    for decode in (Frame.decode, unpack_fields):
        try:
            decode(raw)
        except FrameRefused:
            continue


def test_every_truncation_is_refused() -> None:
    raw = frame(body=pack_fields({"a": np.ones((2, 3)), "b": "text", "c": b"raw", "d": 1, "e": 0.5})).encode()
    for length in range(len(raw)):
        with pytest.raises(FrameRefused):
            Frame.decode(raw[:length])
    body = Frame.decode(raw).body
    for length in range(len(body)):
        with pytest.raises(FrameRefused):
            unpack_fields(body[:length])
    with pytest.raises(FrameRefused, match="behind"):
        unpack_fields(body + bytes(8))


def test_another_version_is_reported_in_one_message() -> None:
    raw = bytearray(frame().encode())
    struct.pack_into("<H", raw, 4, VERSION + 1)
    with pytest.raises(FrameRefused, match=f"uses version {VERSION + 1} of the protocol, this one version {VERSION}"):
        Frame.decode(bytes(raw))


def test_every_kind_has_a_limit_and_keeps_it() -> None:
    assert set(LIMITS) == set(FrameKind)
    assert max(LIMITS.values()) + HEADER.size == LONGEST
    with pytest.raises(BadValue, match="more than the 65536"):
        frame(kind=FrameKind.HELLO, body=bytes(LIMITS[FrameKind.HELLO] + 1)).encode()
    raw = bytearray(frame(kind=FrameKind.ROWS, body=bytes(LIMITS[FrameKind.HELLO] + 8)).encode())
    raw[6] = FrameKind.HELLO  # the same bytes under a kind that may not be so long
    with pytest.raises(FrameRefused, match="wrong length"):
        Frame.decode(bytes(raw))


@pytest.mark.parametrize("shape", [(2**62,), (2**32, 2**32), (2**63, 0), (0, 2**40)])
def test_a_size_is_not_believed(shape: tuple[int, ...]) -> None:
    """An array that claims more elements than there are bytes is refused before memory is asked for."""
    head = struct.pack("<B7xBB", 1, 1, 4) + b"x" + struct.pack(f"<BB{len(shape)}Q", 7, len(shape), *shape)
    raw = head + bytes(-len(head) % 8) + bytes(16)
    with pytest.raises(FrameRefused):
        unpack_fields(raw)


def test_fields_have_one_form() -> None:
    twice = pack_fields({"a": 1})[8:]
    with pytest.raises(FrameRefused):
        unpack_fields(struct.pack("<B7x", 2) + twice + twice)
    dirty = bytearray(pack_fields({"a": b"x"}))
    dirty[-1] = 1  # padding
    with pytest.raises(FrameRefused):
        unpack_fields(bytes(dirty))


def test_objects_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        pack_fields({"a": np.array([object()])})
