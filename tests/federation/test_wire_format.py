"""Packed messages are unpacked unchanged; any other bytes are refused with a reason."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import fedarena
from fedarena.federation import messages, wire_format
from fedarena.federation.reply_pattern import first_mismatch
from fedarena.federation.wire_format import OtherVersion, Payload, WireRefused, pack, unpack, unpack_body

DEEP = settings(max_examples=150)


@dataclass(frozen=True)
class Pair:
    left: Any
    right: Any


TYPES = {"Pair": Pair}
NUMBERS = st.one_of(st.integers(-(2**60), 2**60), st.floats(), st.booleans(), st.none(), st.text(max_size=8))
DTYPES = st.sampled_from([np.float32, np.float64, np.int64, np.int32, np.uint32, np.uint8, np.bool_])
ARRAYS = npst.arrays(DTYPES, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
TREES = st.recursive(
    st.one_of(NUMBERS, ARRAYS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """To the bit: of the same types, NaN equal to itself, zero not to minus zero."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if type(a) is not type(b):
        return False
    if isinstance(a, Pair):
        return same(a.left, b.left) and same(a.right, b.right)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return repr(a) == repr(b)


@pytest.mark.slow
@given(TREES)
@DEEP
def test_any_tree_comes_back_to_the_bit(tree: Any) -> None:
    message = unpack(pack("run", 7, messages.GoodbyeResponse(), Payload.of(tree)), TYPES)
    assert (message.run, message.round, message.body) == ("run", 7, messages.GoodbyeResponse())
    assert same(message.payload, tree)
    assert first_mismatch(message.payload, tree, "it") == ""


DONE = messages.RoundResponse(
    weight=3.0, finite=True, steps=4, samples=9, loss=float("nan"), seconds=0.5, sent=60, sent_buffers=0
)
TREE = {"send": Pair(np.arange(5, dtype=np.float32), 1.5), "buffers": None}
WHOLE = pack("run", 2, DONE, Payload.of(TREE))


def test_message_bodies_come_back_unchanged() -> None:
    message = unpack(WHOLE, TYPES)
    assert isinstance(message.body, messages.RoundResponse)
    assert np.isnan(message.body.loss)
    assert message.body.model_copy(update={"loss": 0.0}) == DONE.model_copy(update={"loss": 0.0})
    assert unpack_body(WHOLE).payload is None


@given(st.binary(max_size=300))
@DEEP
def test_garbage_is_refused(content: bytes) -> None:
    for attempt in (
        content,
        wire_format.MAGIC + content,
        WHOLE[: len(wire_format.MAGIC) + wire_format.LENGTHS.size] + content,
    ):
        with pytest.raises(WireRefused):
            unpack(attempt, TYPES)


@pytest.mark.slow
@given(st.data())
@DEEP
def test_a_damaged_message_is_refused_or_is_a_message(data: st.DataObject) -> None:
    """Bytes changed, left out or added anywhere: never another error than this one, never another class."""
    content = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        do = data.draw(st.sampled_from(["change", "cut", "add"]))
        if do == "change":
            content[at] = data.draw(st.integers(0, 255))
        elif do == "cut":
            del content[at : at + data.draw(st.integers(1, 30))]
        else:
            content[at:at] = data.draw(st.binary(min_size=1, max_size=20))
        content = content or bytearray(b"x")
    with contextlib.suppress(WireRefused):
        assert isinstance(unpack(bytes(content), TYPES).body, messages.MessageBody)


def test_wrong_lengths_are_refused() -> None:
    start = len(wire_format.MAGIC)
    for lengths in ((2**63, 0), (0, 2**63), (2**64 - 1, 2**64 - 1), (5, 10**9)):
        with pytest.raises(WireRefused):
            unpack(
                WHOLE[:start] + wire_format.LENGTHS.pack(*lengths) + WHOLE[start + wire_format.LENGTHS.size :], TYPES
            )


def test_no_class_is_made_that_was_not_named() -> None:
    with pytest.raises(WireRefused, match="a message with a 'Pair', which has no place in it"):
        unpack(WHOLE, {})


def test_deep_nesting_is_refused() -> None:
    deep = b"[" * 100_000
    for tree, body in ((deep, b"{}"), (b"null", deep)):
        content = wire_format.MAGIC + wire_format.LENGTHS.pack(len(tree), 0) + tree + body
        with pytest.raises(WireRefused):
            unpack(content, TYPES)


@pytest.mark.parametrize(("old", "new"), [(b'"protocol":3', b'"protocol":4'), (b'"fedarena":"', b'"fedarena":"1')])
def test_another_version_is_reported_by_both_versions(old: bytes, new: bytes) -> None:
    with pytest.raises(OtherVersion, match=r"fedarena \S+ \(protocol \d\) is connected to fedarena \S+ \(protocol 3\)"):
        unpack(WHOLE.replace(old, new), TYPES)


BAD = [
    ({"steps": -1}, "greater than or equal to 0"),
    ({"steps": "many"}, "valid integer"),
    ({"wrong": 1}, "Extra inputs"),
    ({"finite": None}, "valid boolean"),
]


@pytest.mark.parametrize(("change", "problem"), BAD)
def test_bodies_that_do_not_fit_are_refused(change: dict[str, Any], problem: str) -> None:
    head = {
        "protocol": wire_format.PROTOCOL,
        "fedarena": fedarena.__version__,
        "run": "run",
        "round": 0,
        "what": "done",
    }
    body = json.dumps({**head, "body": {**DONE.model_dump(), **change}}).encode()
    with pytest.raises(WireRefused, match=f"'done' that does not fit: .*{problem}"):
        unpack_body(wire_format.MAGIC + wire_format.LENGTHS.pack(0, 0) + body)
