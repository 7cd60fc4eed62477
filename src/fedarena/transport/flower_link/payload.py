"""Bytes in a message of Flower's, and the objects of which Flower makes it on the way.

A message is a tree: the message, its dictionary of records, the records. Each is sent on its own, under the hash of
its content, and only if the SuperLink does not have it. Content is cut into several records, so that no single call is
long, and what goes to many is uploaded once. Each record says where it belongs: only records are fetched again.
"""

from __future__ import annotations

import time
from typing import Any

from fedarena.transport.flower_link.flower_internals import (
    ConfigRecord,
    ConfirmMessageReceivedRequest,
    Node,
    PullObjectRequest,
    PushObjectRequest,
    RecordDict,
    get_all_nested_objects,
    get_object_tree,
    message_to_proto,
    no_object_id_recompute,
)
from fedarena.transport.flower_link.superlink_calls import READ, call

PART = 4 << 20  # bytes of one record
LONGEST_CALL = PART + (1 << 20)


class UnreadableMessage(Exception):
    """A message that is not one of ours, or is too long."""


def wrap(content: bytes) -> Any:
    """Content as records of Flower's."""
    starts = range(0, max(len(content), 1), PART)
    return RecordDict({f"part-{i}": _part(i, content[at : at + PART]) for i, at in enumerate(starts)})


def _part(place: int, content: bytes) -> Any:
    record = ConfigRecord({"place": place, "content": content})
    packed = record.deflate()
    record.__dict__["deflate"] = lambda: packed  # which Flower would do anew each time it looks
    return record


class Outgoing:
    """A message on its way to the SuperLink: `proto` and `tree` announce it, `push` sends what is missing there."""

    def __init__(self, message: Any) -> None:
        self.run = message.metadata.run_id
        with no_object_id_recompute():
            self.ticket: str = message.object_id
            message.metadata.__dict__["_message_id"] = self.ticket
            self.tree = get_object_tree(message)
            self._objects = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        if not message.has_error():
            message.content = RecordDict()  # announced without its content, which follows object by object
        self.proto = message_to_proto(message)

    def push(self, client: Any, node: Any, told: Any, ring: str, read: float = READ) -> None:
        """Send the objects that the SuperLink named in answer to the announcement; the last call rings."""
        wanted = set(told.objects_to_push)
        missing = [name for name in self._objects if name in wanted]  # the message itself comes last
        for name in missing:
            request = PushObjectRequest(
                node=node,
                run_id=self.run,
                object_id=name,
                object_content=self._objects[name],
                session_id=told.session_id,
            )
            call(client.PushObject, request, ring=ring if name == missing[-1] else "", read=read)


class Incoming:
    """A message of which the SuperLink told us, and as much of its content as we have got."""

    def __init__(self, message: Any, tree: Any, limit: int) -> None:
        self.message, self._limit, self._bytes = message, limit, 0
        self._missing = [record.object_id for records in tree.children for record in records.children]
        self._parts: dict[int, bytes] = {}
        self._count = len(self._missing)
        if self._count > limit // PART + 1:
            raise UnreadableMessage(f"it has more than {limit} bytes")

    def pull(self, client: Any, node: Any, until: float, read: float = READ) -> bool:
        """Get what is missing and there, for so long; whether all is here."""
        while self._missing and time.monotonic() < until:
            name = self._missing[-1]
            request = PullObjectRequest(node=node, run_id=self.message.metadata.run_id, object_id=name)
            got = call(client.PullObject, request, read=read)
            if not got.object_found:
                raise UnreadableMessage("a part of it is lost")
            if not got.object_available:  # its sender is still at it
                return False
            self._take(got.object_content)
            self._missing.pop()
        return not self._missing

    def _take(self, raw: bytes) -> None:
        try:
            record: Any = ConfigRecord.inflate(raw)
            place, part = int(record["place"]), bytes(memoryview(record["content"]))
        except Exception:  # whatever a stranger may put there
            raise UnreadableMessage("it is not a message of fedarena's") from None
        self._parts[place] = part
        self._bytes += len(part)
        if self._bytes > self._limit:
            raise UnreadableMessage(f"it has more than {self._limit} bytes")

    def content(self) -> bytes:
        """What the sender packed."""
        if not self._parts or sorted(self._parts) != list(range(self._count)):
            raise UnreadableMessage("it is not a message of fedarena's")
        return b"".join(self._parts[place] for place in range(self._count))


def forget(client: Any, node: Any, run: int, ticket: str) -> None:
    """Let the SuperLink drop a message."""
    call(client.ConfirmMessageReceived, ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=ticket))


def numbered(node: int) -> Any:
    """A node as it stands in requests."""
    return Node(node_id=node)
