"""Pack bytes into Flower's messages, and the objects in which Flower transfers them.

A message is a tree: the message, its dictionary of records, the records. Each is sent on its own, under the hash of
its content, and only if the SuperLink does not have it. Content is cut into several records, so that no single call is
long, and content for several clients is uploaded once. Each record holds its position: only records are fetched again.
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
    """A message that is not fedarena's, or is too long."""


def wrap(content: bytes) -> Any:
    """Return content as records of Flower."""
    starts = range(0, max(len(content), 1), PART)
    return RecordDict({f"part-{i}": _part(i, content[at : at + PART]) for i, at in enumerate(starts)})


def _part(place: int, content: bytes) -> Any:
    record = ConfigRecord({"place": place, "content": content})
    packed = record.deflate()
    record.__dict__["deflate"] = lambda: packed  # which Flower would compute again at each use
    return record


class Outgoing:
    """A message on its way to the SuperLink: `proto` and `tree` announce it, `push` sends the objects that are missing."""

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

    def push(self, client: Any, node: Any, response: Any, notify: str, read: float = READ) -> None:
        """Send the objects that the SuperLink named in its response to the announcement; the last call notifies."""
        wanted = set(response.objects_to_push)
        missing = [name for name in self._objects if name in wanted]  # the message itself comes last
        for name in missing:
            request = PushObjectRequest(
                node=node,
                run_id=self.run,
                object_id=name,
                object_content=self._objects[name],
                session_id=response.session_id,
            )
            call(client.PushObject, request, notify=notify if name == missing[-1] else "", read=read)


class Incoming:
    """A message that the SuperLink has announced, and as much of its content as has arrived."""

    def __init__(self, message: Any, tree: Any, limit: int) -> None:
        self.message, self._limit, self._bytes = message, limit, 0
        self._missing = [record.object_id for records in tree.children for record in records.children]
        self._parts: dict[int, bytes] = {}
        self._count = len(self._missing)

    def pull(self, client: Any, node: Any, until: float, read: float = READ) -> bool:
        """Fetch the parts that are missing, until this time; return whether the message is complete."""
        if self._count > self._limit // PART + 1:
            raise UnreadableMessage(f"it has more than {self._limit} bytes")
        while self._missing and time.monotonic() < until:
            name = self._missing[-1]
            request = PullObjectRequest(node=node, run_id=self.message.metadata.run_id, object_id=name)
            got = call(client.PullObject, request, read=read)
            if not got.object_found:
                raise UnreadableMessage("a part of it is lost")
            if not got.object_available:  # its sender has not finished
                return False
            self._take(got.object_content)
            self._missing.pop()
        return not self._missing

    def _take(self, raw: bytes) -> None:
        try:
            record: Any = ConfigRecord.inflate(raw)
            place, part = int(record["place"]), bytes(memoryview(record["content"]))
        except Exception:  # of any kind: the bytes may come from other software
            raise UnreadableMessage("it is not a message of fedarena") from None
        self._parts[place] = part
        self._bytes += len(part)
        if self._bytes > self._limit:
            raise UnreadableMessage(f"it has more than {self._limit} bytes")

    def content(self) -> bytes:
        """Return the content of a complete message."""
        if not self._parts or sorted(self._parts) != list(range(self._count)):
            raise UnreadableMessage("it is not a message of fedarena")
        return b"".join(self._parts[place] for place in range(self._count))


def forget(client: Any, node: Any, run: int, ticket: str) -> None:
    """Let the SuperLink drop the content of a message."""
    call(client.ConfirmMessageReceived, ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=ticket))


def numbered(node: int) -> Any:
    """Return a node in the form of requests."""
    return Node(node_id=node)
