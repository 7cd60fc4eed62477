"""Two parties find their common people without showing the others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedarena.config.errors import BadValue, FrameRefused
from fedarena.transport.channel import LocalChannel
from fedarena.transport.frames import CHUNK, Fields, FrameKind
from fedarena.vertical.align import MOST_IDS, HostAlignment, align, check_ids, salted
from fedarena.vertical.handshake import HostParty, Matching, Purpose, align_guest
from fedarena.vertical.party_tables import PartyTable
from fedarena.vertical.private_intersection import BlindingKey


class Aligning:
    """A host that does nothing but align."""

    def __init__(self, ids: list[str], **settings: Any) -> None:
        self.ids = ids
        self.part = HostAlignment(ids, "host", Matching(**settings))

    def answer(self, kind: FrameKind, fields: dict[str, Any], tree: int, level: int) -> Fields:
        """Answer one request of the alignment."""
        return {} if kind is FrameKind.HELLO else self.part.answer(kind, fields)


class Overheard(LocalChannel):
    """A channel that records all bytes."""

    recorded = b""

    def carry(self, raw: bytes, kind: FrameKind) -> bytes:
        """Record the bytes and pass them on."""
        got = super().carry(raw, kind)
        self.recorded += raw + got
        return got


def connect(*hosts: Aligning) -> list[Overheard]:
    lines = [Overheard(host, f"host-{i}") for i, host in enumerate(hosts)]
    for line in lines:
        line.ask(FrameKind.HELLO)
    return lines


def people(*spans: tuple[int, int]) -> list[str]:
    ids = [f"person {i}" for low, high in spans for i in range(low, high)]
    random.Random(0).shuffle(ids)
    return ids


@pytest.fixture(params=["psi", "hashed"])
def insecure(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "hashed")


def test_all_parties_end_with_the_same_people_in_the_same_order(insecure: bool) -> None:
    guest = people((0, 300))
    hosts = [Aligning(ids, insecure_hashed_ids=insecure) for ids in (people((100, 400)), people((50, 250), (900, 999)))]
    found = align(connect(*hosts), guest, Matching(insecure))
    common = [guest[i] for i in found.rows]
    assert set(common) == set(people((100, 250)))
    for host in hosts:
        assert host.part.result is not None
        assert [host.ids[i] for i in host.part.result.rows] == common
        assert host.part.result.digest == found.digest
    assert found.counts == {"guest": 300, "host-0": 300, "host-1": 299}


def test_the_order_does_not_depend_on_the_files(insecure: bool) -> None:
    """An alignment can be repeated after a restart, and the training continues."""
    orders = []
    for shuffle in (1, 2):
        ids = people((0, 120))
        random.Random(shuffle).shuffle(ids)
        host = Aligning(people((20, 150)), insecure_hashed_ids=insecure)
        orders.append([ids[i] for i in align(connect(host), ids, Matching(insecure)).rows])
    assert orders[0] == orders[1]


def test_no_id_and_no_plain_hash_crosses_the_line_in_a_private_intersection() -> None:
    lines = connect(Aligning(people((50, 200))))
    align(lines, people((0, 150)))
    for i in range(200):
        assert f"person {i}".encode() not in lines[0].recorded
        assert salted(b"", f"person {i}") not in lines[0].recorded


def test_hashed_ids_are_refused_unless_the_host_names_them_insecure() -> None:
    lines = connect(Aligning(people((0, 100))))
    with pytest.raises(BadValue, match=r"host 'host-0': .*reversed by guessing"):
        align(lines, people((0, 100)), Matching(True))


def test_too_few_common_people_are_refused_with_their_number(insecure: bool) -> None:
    for low, message in {200: "no id is known to all parties", 90: "only 10 ids are known"}.items():
        lines = connect(Aligning(people((low, 300)), insecure_hashed_ids=insecure))
        with pytest.raises(BadValue, match=rf"{message}.*guest 100, host-0 {300 - low}"):
            align(lines, people((0, 100)), Matching(insecure))


def test_a_guest_with_too_few_common_ids_reports_it_to_the_host(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fedarena")
    table = PartyTable("bank", np.zeros((110, 0)), (), ids=tuple(people((90, 200))))
    party = HostParty(table, None, Matching(insecure_hashed_ids=True), name="bank", purpose="align")
    with pytest.raises(BadValue, match="only 10 ids"):
        align_guest([LocalChannel(party, "bank")], guest_table(100), Matching(True), purpose="align")
    assert [r.getMessage() for r in caplog.records if "failed" in r.getMessage()] == [
        "the alignment failed: only 10 ids are known to all parties (guest 100, bank 110); at least 50 are needed"
    ]
    assert party.alignment is None


def guest_table(rows: int) -> PartyTable:
    return PartyTable("shop", np.zeros((rows, 0)), (), ids=tuple(people((0, rows))))


@pytest.mark.parametrize("purpose", ["train", "predict", "align"])
@pytest.mark.parametrize("wanted", ["train", "predict", "align"])
def test_a_host_does_only_what_it_was_started_for(purpose: Purpose, wanted: Purpose) -> None:
    same = Matching(insecure_hashed_ids=True)
    party = HostParty(guest_table(100), None, same, purpose=purpose)
    if purpose == wanted:
        assert len(align_guest([LocalChannel(party)], guest_table(100), same, purpose=wanted).rows) == 100
    else:
        with pytest.raises(BadValue, match=f"started to {purpose}, the guest wants to {wanted}"):
            align_guest([LocalChannel(party)], guest_table(100), same, purpose=wanted)


def test_a_guest_that_is_done_before_it_aligned_does_not_end_a_training() -> None:
    line = LocalChannel(party := HostParty(guest_table(100), lambda rows: Aligning(list(rows.ids or ()))))
    line.ask(FrameKind.HELLO)
    with pytest.raises(FrameRefused, match="before the rows were aligned"):
        line.ask(FrameKind.DONE)
    assert not party.finished.is_set()


def test_duplicate_and_empty_ids_are_refused_with_counts() -> None:
    with pytest.raises(BadValue, match="2 ids occur more than once, in 5 of 102 rows"):
        check_ids([*people((0, 97)), "a", "a", "a", "b", "b"])
    with pytest.raises(BadValue, match="1 of 101 ids are empty"):
        check_ids([*people((0, 100)), ""])
    with pytest.raises(BadValue, match="only 3 rows"):
        check_ids(["a", "b", "c"])


BAD: dict[str, tuple[FrameKind, Callable[[], Fields]]] = {
    "unknown method": (FrameKind.ALIGN_START, lambda: {"method": "trust", "count": 5}),
    "no method": (FrameKind.ALIGN_START, dict),
    "request before start": (FrameKind.ALIGN_REQUEST, lambda: {"request": b""}),
    "part of an alignment was requested": (FrameKind.ALIGN_SETUP, lambda: {"part": 7}),
    "stranger": (FrameKind.ALIGN_ROWS, lambda: {"salt": b"", "data": bytes(32), "first": 1, "last": 1}),
    "half a hash": (FrameKind.ALIGN_ROWS, lambda: {"salt": b"", "data": bytes(31), "first": 1, "last": 1}),
    "too many": (FrameKind.ALIGN_ROWS, lambda: {"salt": b"", "data": bytes(32 * 101), "first": 1, "last": 0}),
    "wrong type": (FrameKind.ALIGN_ROWS, lambda: {"salt": 5, "data": np.ones(3), "first": 1, "last": 1}),
}


@pytest.mark.parametrize("name", BAD)
def test_a_host_refuses_steps_that_do_not_fit(name: str) -> None:
    kind, fields = BAD[name]
    with pytest.raises(FrameRefused):
        HostAlignment(people((0, 100))).answer(kind, dict(fields()))


def test_a_guest_cannot_ask_about_more_ids_than_it_said() -> None:
    host = HostAlignment(people((0, 100)))
    host.answer(FrameKind.ALIGN_START, {"method": "psi", "count": 60})
    request = b"".join(BlindingKey().blind(people((0, 61))))
    with pytest.raises(FrameRefused, match="more ids than it has"):
        host.answer(FrameKind.ALIGN_REQUEST, {"request": request})


def test_a_host_answers_about_so_many_ids_and_no_more_however_often_it_is_asked() -> None:
    lines = connect(Aligning(people((0, 100)), most_ids=250))
    for _ in range(2):
        align(lines, people((0, 100)))
    with pytest.raises(BadValue, match="wants to query 100 ids, and this host answers 50 more"):
        align(lines, people((0, 100)))
    lines = connect(Aligning(people((0, 100))))
    with pytest.raises(BadValue, match="query 1001 ids, and this host answers 1000 more"):
        align(lines, people((0, 1001)))


BOUNDLESS: dict[str, tuple[FrameKind, Callable[[Fields], Fields]]] = {
    "more parts than ids": (FrameKind.ALIGN_SETUP, lambda reply: {**reply, "parts": 2}),
    "a large part": (FrameKind.ALIGN_SETUP, lambda reply: {**reply, "data": bytes(CHUNK + 1)}),
    "too many ids": (FrameKind.ALIGN_START, lambda reply: {"count": MOST_IDS + 1}),
    "no ids": (FrameKind.ALIGN_START, lambda reply: {"count": 0}),
}


@pytest.mark.parametrize("name", BOUNDLESS)
def test_a_host_cannot_fill_the_guests_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled, change = BOUNDLESS[name]
    lines = connect(Aligning(people((0, 100))))
    answer = HostAlignment.answer

    def boundless(self: HostAlignment, kind: FrameKind, fields: dict[str, Any]) -> Fields:
        reply = answer(self, kind, fields)
        return change(reply) if kind is spoiled else reply

    monkeypatch.setattr(HostAlignment, "answer", boundless)
    with pytest.raises(FrameRefused, match=r"an integer|list of integers|bytes"):
        align(lines, people((0, 100)))


def test_a_damaged_request_is_refused() -> None:
    host = HostAlignment(people((0, 100)))
    host.answer(FrameKind.ALIGN_START, {"method": "psi", "count": 60})
    good = BlindingKey().blind(["a", "b"])
    for raw in (b"\xff\xff", b"".join(good)[:-1], b"".join(good) + b"\x00", good[0] + bytes(32)):
        with pytest.raises(FrameRefused, match="damaged"):
            host.answer(FrameKind.ALIGN_REQUEST, {"request": raw})


def test_a_host_that_orders_rows_otherwise_is_found(insecure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = connect(Aligning(people((0, 100)), insecure_hashed_ids=insecure))
    answer = HostAlignment.answer

    def reordered(self: HostAlignment, kind: FrameKind, fields: dict[str, Any]) -> Fields:
        reply = answer(self, kind, fields)
        return {**reply, "digest": "0" * 64} if kind is FrameKind.ALIGN_ROWS else reply

    monkeypatch.setattr(HostAlignment, "answer", reordered)
    with pytest.raises(FrameRefused, match="a different order of rows"):
        align(lines, people((0, 100)), Matching(insecure))
