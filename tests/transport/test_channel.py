"""Questions and answers in one process: order, sessions, keys, errors and transcripts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.small_host import SmallHost

from fedarena.config.errors import BadValue, CannotWrite, FrameRefused, PartyFailed, PartyLost, TranscriptDiffers
from fedarena.transport.channel import LocalChannel
from fedarena.transport.frames import NO_KEY, VERSION, Fields, Frame, FrameKind, pack_fields


class Recording(LocalChannel):
    """A line on which someone listens, and may change what passes."""

    def __init__(self, host: SmallHost) -> None:
        super().__init__(host, "bank")
        self.up: list[bytes] = []
        self.flip: FrameKind | None = None

    def carry(self, raw: bytes, kind: FrameKind) -> bytes:
        """Record a frame, and change one bit of it where asked."""
        self.up.append(raw)
        if kind is self.flip:
            changed = bytearray(raw)
            changed[-8] ^= 1  # the lowest bit of the last number
            raw = bytes(changed)
        return super().carry(raw, kind)


@pytest.fixture
def line(tmp_path: Path) -> Recording:
    channel = Recording(SmallHost(tmp_path))
    channel.ask(FrameKind.HELLO)
    return channel


def one_tree(channel: LocalChannel, tree: int = 1) -> int:
    channel.ask(FrameKind.TREE_START, tree=tree)
    channel.ask(FrameKind.ROWS, {"x": np.arange(10)}, tree=tree)
    total = channel.ask(FrameKind.LEVEL, tree=tree)["sum"]
    channel.ask(FrameKind.TREE_END, tree=tree)
    return int(total)


def test_an_undisturbed_tree_ends_with_equal_transcripts(line: Recording) -> None:
    assert one_tree(line) == 45
    assert line.transcript.digest() == line.session.transcript.digest()


def test_a_changed_frame_is_found_at_the_end_of_the_tree_with_both_digests(line: Recording) -> None:
    line.flip = FrameKind.ROWS
    with pytest.raises(TranscriptDiffers, match=r"[0-9a-f]{64} here, [0-9a-f]{64} there"):
        one_tree(line)


def test_bytes_are_counted_in_both_directions(line: Recording) -> None:
    up, down = line.bytes_up, line.bytes_down
    line.ask(FrameKind.ROWS, {"x": np.zeros(1000, dtype=np.int64)})
    assert 8000 < line.bytes_up - up < 8200
    assert 0 < line.bytes_down - down < 200


@pytest.mark.parametrize("first", [FrameKind.SETUP, FrameKind.PUBLIC_KEY, FrameKind.PREDICT_START])
@pytest.mark.parametrize("last", [FrameKind.TREE_END, FrameKind.PREDICT_END, FrameKind.DONE])
def test_transcripts_begin_with_the_greeting_and_are_compared_at_every_end(
    line: Recording, first: FrameKind, last: FrameKind
) -> None:
    line.ask(first, {"key": NO_KEY, "x": 1})
    line.ask(last)
    line.ask(FrameKind.HELLO)
    line.flip = first
    line.ask(first, {"key": NO_KEY, "x": 1})
    with pytest.raises(TranscriptDiffers):
        line.ask(last)


def test_a_frame_whose_sender_has_given_up_is_not_processed(line: Recording) -> None:
    """A greeting that waited for its turn until the guest gave up must not end the session that came after it."""
    old = Frame(FrameKind.HELLO, pack_fields({}), b"a session of old").encode()
    asked: list[bool] = []

    def wanted() -> bool:
        asked.append(line.session._turn.locked())
        return False

    assert line.session.handle(old, wanted) == b""
    assert asked == [True], "asked when its turn has come, not before"
    assert one_tree(line) == 45


@pytest.mark.parametrize("kind", [FrameKind.HELLO, FrameKind.ROWS])
def test_a_repeated_frame_is_refused_by_name(line: Recording, kind: FrameKind) -> None:
    line.ask(FrameKind.TREE_START, tree=1)
    line.ask(FrameKind.ROWS, {"x": np.arange(10)}, tree=1)
    again = next(raw for raw in line.up if Frame.decode(raw).kind is kind)
    reply = Frame.decode(line.session.handle(again))
    assert reply.kind is FrameKind.ERROR
    assert b"repeated" in reply.body
    assert line.ask(FrameKind.LEVEL, tree=1)["sum"] == 45, "the repeated rows were not added"


def test_a_frame_of_another_session_is_refused_by_name(line: Recording) -> None:
    reply = line.session.handle(Frame(FrameKind.LEVEL, pack_fields({}), b"other session 16", sequence=1).encode())
    assert b"another session" in Frame.decode(reply).body


def test_a_frame_under_another_key_is_refused_by_name(line: Recording) -> None:
    line.key = b"otherkey"
    with pytest.raises(FrameRefused, match="host 'bank': a LEVEL frame came under another key"):
        line.ask(FrameKind.LEVEL)


def test_a_public_key_that_is_not_the_sessions_is_refused(tmp_path: Path) -> None:
    channel = LocalChannel(SmallHost(tmp_path), "bank", key=b"8 bytes!")
    channel.ask(FrameKind.HELLO)
    channel.ask(FrameKind.PUBLIC_KEY, {"key": b"8 bytes! and more"})
    with pytest.raises(FrameRefused, match="public key is not the one of this session"):
        channel.ask(FrameKind.PUBLIC_KEY, {"key": b"another one"})
    with pytest.raises(PartyLost, match="came before HELLO"):
        channel.ask(FrameKind.TREE_START)


def test_a_host_that_was_never_greeted_counts_as_lost(tmp_path: Path) -> None:
    with pytest.raises(PartyLost, match="restarted"):
        LocalChannel(SmallHost(tmp_path), "bank").ask(FrameKind.LEVEL)


def test_errors_of_a_host_keep_their_name_and_say_whose_they_are(line: Recording) -> None:
    with pytest.raises(BadValue, match="host 'bank': a number is negative\n  -> send none"):
        line.ask(FrameKind.ROWS, {"x": np.array([-1])})
    with pytest.raises(PartyFailed, match="host 'bank': it failed with ZeroDivisionError") as caught:
        line.ask(FrameKind.SPLIT)
    assert "a mistake of ours" not in str(caught.value), "what is inside a host stays there"
    assert one_tree(line) == 45, "after an error the line goes on"


class Failing:
    """A host whose errors are not for the guest."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def answer(self, kind: FrameKind, fields: dict[str, Any], tree: int, level: int) -> Fields:
        """Raise the error at every request after HELLO."""
        if kind is not FrameKind.HELLO:
            raise self.error
        return {}


def test_a_hosts_folders_are_logged_by_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fedarena")
    line = LocalChannel(Failing(CannotWrite("cannot write /home/eve/model.json", remedy="make room")), "bank")
    line.ask(FrameKind.HELLO)
    with pytest.raises(PartyFailed, match="host 'bank': it cannot read or write its files") as caught:
        line.ask(FrameKind.LEVEL)
    assert "eve" not in str(caught.value)
    assert "/home/eve" in caplog.text


def test_what_a_host_says_cannot_steer_a_terminal() -> None:
    line = LocalChannel(Failing(BadValue("red \x1b[31m\r\nand \u202e more", remedy="\x07", where="\x9b")), "bank")
    line.ask(FrameKind.HELLO)
    with pytest.raises(BadValue) as caught:
        line.ask(FrameKind.LEVEL)
    assert caught.value.what == "host 'bank': red [31mand  more"
    assert (caught.value.remedy, caught.value.where) == ("", "")


def test_an_answer_is_not_taken_as_a_question(line: Recording) -> None:
    raw = line.session.handle(Frame(FrameKind.LEVEL, pack_fields({}), line._session, sequence=1).encode())
    assert b"a response came" in Frame.decode(line.session.handle(raw)).body


def test_parties_of_unlike_versions_part_with_one_plain_message(tmp_path: Path) -> None:
    """At the greeting, on both sides: neither guesses what the other means."""
    newer = VERSION + 1

    class Newer(LocalChannel):
        """A guest of the next version: its frames say so, and it reads no others."""

        def carry(self, raw: bytes, kind: FrameKind) -> bytes:
            """Each party sees the other's version."""
            asked = dataclasses.replace(Frame.decode(raw), version=newer)
            reply = Frame.decode(super().carry(asked.encode(), kind))
            assert reply.kind is FrameKind.ERROR
            assert f"uses version {newer} of the protocol, this one version {VERSION}".encode() in reply.body
            return dataclasses.replace(reply, version=newer).encode()

    with pytest.raises(FrameRefused, match=f"host 'bank': the other party uses version {newer}") as caught:
        Newer(SmallHost(tmp_path), "bank").ask(FrameKind.HELLO)
    assert "install the same release" in str(caught.value)
