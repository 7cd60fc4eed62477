"""What a stranger may put on the line is unreadable, never an accident; and Flower's version is checked."""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
from flwr.proto.message_pb2 import ObjectTree

from fedarena.config.errors import BadValue, MissingDependency
from fedarena.transport.flower_link import flower_internals
from fedarena.transport.flower_link.flower_internals import ConfigRecord, RecordDict
from fedarena.transport.flower_link.payload import PART, Incoming, UnreadableMessage, wrap

LIMIT = 3 * PART


class Store:
    """A SuperLink's calls, on objects in a dictionary."""

    def __init__(self, objects: list[bytes]) -> None:
        self._objects = {str(i): raw for i, raw in enumerate(objects)}

    def tree(self) -> Any:
        """Return the tree that the SuperLink announces: a message, its dictionary, the records."""
        records = [ObjectTree(object_id=name) for name in self._objects]
        return ObjectTree(object_id="m", children=[ObjectTree(object_id="d", children=records)])

    def PullObject(self, request: Any) -> Any:
        raw = self._objects[request.object_id]
        return SimpleNamespace(object_found=True, object_available=True, object_content=raw)


def read(objects: list[bytes], limit: int = LIMIT) -> bytes:
    store = Store(objects)
    message = SimpleNamespace(metadata=SimpleNamespace(run_id=1, message_id="m"))
    incoming = Incoming(message, store.tree(), limit)
    assert incoming.pull(store, flower_internals.Node(node_id=1), time.monotonic() + 10)
    return incoming.content()


def packed(content: bytes) -> list[bytes]:
    return [record.deflate() for record in wrap(content).values()]


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 3 * PART])
def test_content_survives_its_parts_in_any_order(size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert read(packed(content)) == content
    assert read(packed(content)[::-1]) == content


GARBAGE: dict[str, list[bytes]] = {
    "nothing": [],
    "not Flower's": [b"\x00\xff" * 50],
    "another kind of record": [RecordDict().deflate()],
    "no content": [ConfigRecord({"place": 0}).deflate()],
    "a number for content": [ConfigRecord({"place": 0, "content": 10**9}).deflate()],
    "text for content": [ConfigRecord({"place": 0, "content": "text"}).deflate()],
    "a list for content": [ConfigRecord({"place": 0, "content": [b"a", b"b"]}).deflate()],
    "text for a place": [ConfigRecord({"place": "first", "content": b"a"}).deflate()],
    "a place twice": packed(b"a") * 2,
    "a place that is none": [ConfigRecord({"place": -1, "content": b"a"}).deflate()],
    "a part that is missing": packed(bytes(3 * PART))[:2][1:],
}


@pytest.mark.parametrize("objects", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_unreadable(objects: list[bytes]) -> None:
    with pytest.raises(UnreadableMessage):
        read(objects)


def test_too_much_is_unreadable_before_it_is_all_here() -> None:
    with pytest.raises(UnreadableMessage, match="more than"):
        read(packed(bytes(PART + 2)), limit=PART + 1)
    with pytest.raises(UnreadableMessage, match="more than"):
        read([b""] * 100)


@pytest.mark.parametrize("found", ["1.40.0", "1.43.0", "2.0.0"])
def test_other_versions_of_flower_are_refused(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(flower_internals, "version", lambda _: found)
    with pytest.raises(BadValue, match=rf"works with Flower 1\.41 and 1\.42, not with {found}"):
        flower_internals.check_version()


def test_without_flower_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(flower_internals, "version", missing)
    with pytest.raises(MissingDependency, match="needs the package flwr"):
        flower_internals.check_version()
