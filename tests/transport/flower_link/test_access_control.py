"""Access control in front of an application that does as little as possible."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import pytest

from fedarena.transport.flower_link.access_control import (
    ACTIVATE,
    PULL,
    PUSH,
    PUSH_PART,
    SERVER_PULL,
    AccessControl,
    AccessRules,
)
from fedarena.transport.flower_link.flower_internals import Node, PushMessagesRequest

RULES = AccessRules(secret="s3cret", names={b"key of ash": "ash", b"key of elm": "elm"}, limit=1000, longest_call=300)


class Behind:
    """An application that answers `answers[path]`, and records which nodes were deactivated."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.deactivated: list[bytes] = []
        self.control = AccessControl(self, RULES, self.deactivated.append)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        self.asked.append(scope["path"])
        status, body = self.answers.get(scope["path"], (200, b""))
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def call(self, path: str, body: bytes = b"", gone: asyncio.Event | None = None, **more: str) -> Any:
        """Return the status, the reason of a refusal and the body of a response."""
        headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in more.items()]
        scope = {"type": "http", "path": path, "headers": headers, "client": ("10.0.0.9", 1)}
        events, sent = [{"type": "http.request", "body": body, "more_body": False}], list[dict[str, Any]]()

        async def receive() -> Any:
            if events:
                return events.pop()
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(event: Any) -> None:
            sent.append(event)

        await self.control(scope, receive, send)
        if not sent:
            return None
        return sent[0]["status"], dict(sent[0]["headers"]).get(b"fedarena-refused", b"").decode(), sent[1]["body"]


def of(name: str, instance: str = "1") -> dict[str, str]:
    return {"flwr_public_key": base64.b64encode(f"key of {name}".encode()).decode(), "fedarena_instance": instance}


def pushed(node: int, *writers: int, reply_to: str = "question") -> bytes:
    """Return a call of a node with messages in the names of these writers."""
    request = PushMessagesRequest(node=Node(node_id=node))
    for writer in writers:
        metadata = request.messages_list.add().metadata
        metadata.src_node_id, metadata.reply_to_message_id = writer, reply_to
    content: bytes = request.SerializeToString()
    return content


OWNER = {"fedarena_organiser": "s3cret"}


def test_a_held_call_is_woken_by_its_own_notifications_only() -> None:
    async def story() -> None:
        behind = Behind()
        held = asyncio.create_task(behind.call(PULL, **of("ash"), fedarena_hold="10"))
        other = asyncio.create_task(behind.call(PULL, **of("elm"), fedarena_hold="10"))
        await asyncio.sleep(0.05)
        assert behind.asked.count(PULL) == 2
        behind.answers[PULL] = 200, b"message"
        began = time.monotonic()
        await behind.call("/v1/runtime/push-object", **OWNER, fedarena_ring="ash")
        assert (await held) == (200, "", b"message")
        assert time.monotonic() - began < 5.0
        assert behind.asked.count(PULL) == 3
        other.cancel()

    asyncio.run(story())


@pytest.mark.slow
def test_a_held_call_ends_with_its_time_or_its_caller() -> None:
    async def story() -> None:
        behind = Behind()
        assert (await behind.call(PULL, **of("ash"), fedarena_hold="0.1")) == (200, "", b"")
        gone = asyncio.Event()
        held = asyncio.create_task(behind.call(PULL, gone=gone, **of("ash"), fedarena_hold="60"))
        await asyncio.sleep(0.05)
        gone.set()
        assert await held is None
        asked = behind.asked.count(PULL)
        await behind.call("/v1/runtime/push-object", **OWNER, fedarena_ring="ash")
        assert behind.asked.count(PULL) == asked  # a message is not handed to a caller that has left

    asyncio.run(story())


def test_an_answer_wakes_the_server_and_no_other_client() -> None:
    async def story() -> None:
        behind = Behind()
        server = asyncio.create_task(behind.call(SERVER_PULL, **OWNER, fedarena_hold="10"))
        elm = asyncio.create_task(behind.call(PULL, **of("elm"), fedarena_hold="10"))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await behind.call(PUSH_PART, **of("ash"), fedarena_ring="elm")
        assert (await server)[0] == 200
        assert time.monotonic() - began < 5.0
        assert behind.asked.count(PULL) == 1
        elm.cancel()

    asyncio.run(story())


def test_unknown_callers_are_refused_and_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fedarena")

    async def story() -> None:
        behind = Behind()
        assert (await behind.call(PULL, **of("oak")))[:2] == (403, "unknown key")
        assert (await behind.call(PULL, flwr_public_key="%%%"))[:2] == (403, "unknown key")
        for i in range(50):
            assert (await behind.call(f"/v1/control/{i}", fedarena_organiser="guess"))[0] == 403
        assert behind.asked == []
        assert len(caplog.messages) == 2

    asyncio.run(story())


def test_the_newer_process_replaces_one_that_flower_still_thinks_connected() -> None:
    async def story() -> None:
        behind = Behind()
        assert (await behind.call(ACTIVATE, **of("ash", "1")))[0] == 200
        held = asyncio.create_task(behind.call(PULL, **of("ash", "1"), fedarena_hold="10"))
        await asyncio.sleep(0.05)
        behind.answers[ACTIVATE] = 412, b""
        await behind.call(ACTIVATE, **of("ash", "2"))
        assert behind.deactivated == [b"key of ash"]
        assert behind.control._instances == {"ash": "1"}  # it did not get in
        behind.answers[ACTIVATE] = 200, b""
        await behind.call(ACTIVATE, **of("ash", "2"))
        assert (await held)[:2] == (409, "taken over")
        assert (await behind.call(PULL, **of("ash", "2")))[0] == 200

    asyncio.run(story())


def test_what_a_message_weighs_is_limited_once_the_key_is_proved() -> None:
    async def story() -> None:
        behind = Behind()
        assert (await behind.call(PUSH_PART, bytes(301), **of("ash")))[:2] == (413, "too long")
        behind.answers[PUSH_PART] = 401, b""
        for _ in range(20):  # a caller that only claims to be ash
            assert (await behind.call(PUSH_PART, bytes(300), **of("ash")))[0] == 401
        behind.answers[PUSH_PART] = 200, b""
        for _ in range(4):
            assert (await behind.call(PUSH_PART, bytes(300), **of("ash")))[0] == 200
        assert (await behind.call(PUSH_PART, bytes(300), **of("ash")))[:2] == (413, "too long")
        assert (await behind.call(PUSH, pushed(7, 7), **of("ash")))[0] == 200
        assert (await behind.call(PUSH_PART, bytes(300), **of("ash")))[0] == 200

    asyncio.run(story())


def test_a_client_answers_for_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fedarena")

    async def story() -> None:
        behind = Behind()
        for body in (pushed(7, 8), pushed(7), pushed(7, 7, 7), pushed(7, 7, reply_to=""), b"", b"\xff garbage"):
            assert (await behind.call(PUSH, body, **of("ash")))[:2] == (403, "not its own")
        assert behind.asked == []
        assert caplog.messages == ["refused a message of 'ash': it is not a reply of its own"]
        assert (await behind.call(PUSH, pushed(7, 7), **of("ash")))[0] == 200

    asyncio.run(story())
