"""Clients that send impossible answers: they are named and left out, and the server continues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.federation_clients import Federation

from fedarena.algorithms.base import Model, Step
from fedarena.config.errors import BadValue
from fedarena.federation import coordinator, messages
from fedarena.federation.agreement import LARGEST
from fedarena.federation.client_data import MOST_ROWS
from fedarena.federation.compression import compress, decompress
from fedarena.federation.remote_runtime import RemoteRuntime
from fedarena.federation.requests import ResponseRule, TooFewAnswers
from fedarena.federation.statistics_release import decoded, encoded
from fedarena.federation.wire_format import Message, Payload, pack, unpack, unpack_body

SOON = ResponseRule(deadline=0.3, minimum=2, attempts=2)
COOP = {"algorithm": {"name": "coop", "b_l": 0, "b_u": 2}, "uploads": 12}
SUMS = {"data": {"standardise": True}}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "LOOK", 0.0)
    monkeypatch.setattr(coordinator, "PROBE", 0.1)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    found = Federation(tmp_path)
    found.start()
    return found


def spoil(
    federation: Federation, kind: type[messages.MessageBody], change: Callable[[Message], bytes], number: int = 1
) -> None:
    """The n-th answer of that kind from charlie is another."""
    left = [number]

    def changed(name: str, content: bytes) -> bytes:
        if name != "charlie" or not isinstance(unpack_body(content).body, kind):
            return content
        left[0] -= 1
        return change(unpack(content, {"Step": Step, "Model": Model})) if left[0] == 0 else content

    federation.link.change = changed


def with_fields(**news: Any) -> Callable[[Message], bytes]:
    """Return a function that changes fields of an answer."""
    return lambda m: pack(m.run, m.round, m.body.model_copy(update=news), Payload.of(m.payload))


def named(federation: Federation, why: str) -> bool:
    return any("charlie" in text and why in text for text in federation.server_messages)


# Rounds


@pytest.mark.parametrize("round", [-5, 7, 2**32, 2**70])
def test_an_answer_of_another_round_is_dropped(round: int, federation: Federation) -> None:
    spoil(federation, messages.RoundResponse, lambda m: pack(m.run, round, m.body, Payload.of(m.payload)), 2)
    run = federation.serve(federation.experiment())
    assert [record.answered for record in run.records] == [4, 3, 4]
    assert named(federation, "an answer of round 8" if round == 7 else "an impossible round")


def test_an_answer_that_cannot_be_read_stops_no_other_client(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = RemoteRuntime.answer

    def fails(self: RemoteRuntime, client: int, message: Message, *more: Any) -> Any:
        if client == 2 and message.round == 1:
            raise OverflowError("of whatever kind")
        return answer(self, client, message, *more)

    monkeypatch.setattr(RemoteRuntime, "answer", fails)
    run = federation.serve(federation.experiment())
    assert [record.answered for record in run.records] == [4, 3, 4]
    assert named(federation, "an answer that cannot be used: OverflowError")


def test_arrays_are_limited_together() -> None:
    """Each is small on the line and fits the limit by itself."""
    arrays = {f"a{i}": np.zeros(1000, np.float32) for i in range(3)}
    small = compress(arrays)
    assert sum(part.nbytes for part in small.values()) < 1000
    assert {*decompress(small, 12_000)} == {*arrays}
    for together in (small, arrays, {**small, "b": arrays["a0"]}):
        with pytest.raises(ValueError, match=r"too large together|does not fit"):
            decompress(dict(together), 11_999)


# Joining


LIES: dict[str, tuple[type[messages.MessageBody], dict[str, Any], str]] = {
    "more training rows": (messages.SampleCounts, {"train": 10**11}, "said that it has 33 in all"),
    "no training rows": (messages.SampleCounts, {"train": 0, "test": 33}, "said that it has 33 in all"),
    "a key that is none": (messages.StatisticsKey, {"key": "00" * 32}, "a public key that is not valid"),
}


@pytest.mark.parametrize("what", LIES)
def test_numbers_that_cannot_be_are_reported_with_their_sender(what: str, federation: Federation) -> None:
    kind, news, why = LIES[what]
    spoil(federation, kind, with_fields(**news))
    with pytest.raises(TooFewAnswers, match=f"'charlie': .*{why}"):
        federation.serve(federation.experiment(**SUMS))


def vector(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Message], bytes]:
    """Return a message like this one with another vector of statistics."""
    return lambda m: pack(m.run, m.round, m.body, Payload.of(change(m.payload)))


@pytest.mark.parametrize("change", [lambda v: v[:-1], lambda v: v.astype(np.int64), lambda v: v.reshape(-1)])
def test_statistics_of_another_shape_are_refused_with_their_sender(change: Any, federation: Federation) -> None:
    spoil(federation, messages.StatisticsResponse, vector(change))
    with pytest.raises(TooFewAnswers, match="'charlie': it answered with 'statistics'"):
        federation.serve(federation.experiment(**SUMS))


def added(row: int, number: int) -> Callable[[np.ndarray], np.ndarray]:
    """Add a number to an integer of the vector: under masks this adds it to the total."""

    def change(rows: np.ndarray) -> np.ndarray:
        integers = decoded(rows)
        integers[row] += number
        return encoded(integers)

    return change


IMPOSSIBLE = {  # the vector has 4 counts of values, 4 sums and 4 sums of squares
    "more values than samples": (0, 10**6, "more values are present"),
    "fewer values than none": (0, -(10**6), "more values are present"),
    "a huge sum": (4, 1 << 2500, "a sum is larger than its values can be"),
    "squares below the sum": (8, -(1 << 2500), "a sum of squares is too small"),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_totals_that_cannot_be_stop_the_handshake(what: str, federation: Federation) -> None:
    """Under masks the sender cannot be named."""
    row, number, why = IMPOSSIBLE[what]
    spoil(federation, messages.StatisticsResponse, vector(added(row, number)))
    with pytest.raises(BadValue, match=f"cannot be right: {why}"):
        federation.serve(federation.experiment(**SUMS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("news", "why"),
    [
        ({"rows": 10**11}, f"it has {10**11} rows"),
        ({"label_kind": "numbers", "classes": ("1" * 5000,)}, "described as numbers, and are not"),
    ],
)
def test_a_table_that_cannot_be_does_not_take_part(news: dict[str, Any], why: str, federation: Federation) -> None:
    spoil(federation, messages.TableDescription, with_fields(**news))
    with pytest.raises(TooFewAnswers, match="3 of 4 clients came"):
        federation.serve(federation.experiment(), terms={"wait": 0.5})
    assert named(federation, why)


def test_no_client_draws_an_order_of_too_many_rows(federation: Federation) -> None:
    federation.serve(federation.experiment(rounds=1))
    asked = next(
        content
        for _, content in federation.link.down
        if isinstance(unpack_body(content).body, messages.AgreementRequest)
    )
    agreed = unpack_body(asked).body.agreement  # type: ignore[attr-defined]
    person = federation.clients["alfa"]
    table = person.file.read_table(federation.experiment().data.made)
    for rows in (MOST_ROWS + 1, 40):  # too many; fewer than its own
        with pytest.raises(BadValue, match=f"a table of {rows} rows in all"):
            table.to_samples(agreed.model_copy(update={"rows": rows}))


@pytest.mark.parametrize("news", [{"count": 10**9}, {"own_count": 10**9}, {"loss": 1e308}, {"loss": -float("inf")}])
def test_looks_are_at_the_rows_agreed_on(news: dict[str, Any], federation: Federation) -> None:
    spoil(federation, messages.EvaluateResponse, with_fields(**news), 2)
    run = federation.serve(federation.experiment())
    assert len(run.records) == 3
    assert named(federation, "a loss of" if "loss" in news else "not those agreed on")
    assert all(record.loss is None or record.loss < LARGEST for record in run.records)


# Without rounds


def as_done(m: Message) -> bytes:
    return pack(
        m.run,
        m.round,
        messages.RoundResponse(weight=1.0, **m.body.model_dump()),
        Payload.of({"send": None, "buffers": None}),
    )


def as_trained(m: Message) -> bytes:
    return pack(m.run, m.round, messages.AsyncTrainResponse(**m.body.model_dump(exclude={"weight"})))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        (messages.AsyncTrainResponse, as_done, "'done' where the other kind"),
        (messages.RoundResponse, as_trained, "'trained' where the other kind"),
        (messages.RoundResponse, with_fields(memory="x"), "of another training"),
        (messages.AsyncTrainResponse, lambda m: pack(m.run, m.round + 9, m.body), "an answer of round"),
    ],
)
def test_an_answer_to_another_question_is_a_loss(kind: Any, change: Any, why: str, federation: Federation) -> None:
    spoil(federation, kind, change)
    federation.serve(federation.experiment(**COOP), rule=SOON)
    assert named(federation, why)


def test_a_memory_has_the_name_of_its_exchange(federation: Federation) -> None:
    spoil(federation, messages.RoundResponse, with_fields(memory="99.0"), 2)
    run = federation.serve(federation.experiment())
    assert [record.answered for record in run.records] == [4, 3, 4]
    assert named(federation, "of another training")


# Masks


@pytest.mark.slow
@pytest.mark.parametrize("which", ["mask", "channel"])
def test_a_key_that_is_none_costs_its_owner_alone(which: str, federation: Federation) -> None:
    zeros = lambda m: with_fields(keys=m.body.keys.model_copy(update={which: "00" * 32}))(m)  # type: ignore[attr-defined]
    spoil(federation, messages.KeysResponse, zeros, 2)
    run = federation.serve(federation.experiment(uplink={"secure": True}))
    assert [record.answered for record in run.records] == [4, 3, 4]
    assert any("client 2 (charlie) in round 2: it sent a public key that is not valid" in note for note in run.notes)


def test_a_majority_is_one_of_those_selected() -> None:
    """Of five three must answer at every step; a majority of those left would be two in the end, then one."""
    rule = ResponseRule(selected=5)
    assert [rule.needed(left) for left in (5, 3, 2, 1)] == [3, 3, 3, 3]
    assert ResponseRule(minimum=9, selected=5).needed(2) == 5
    assert ResponseRule().needed(2) == 2


def test_steps_that_lose_one_each_do_not_lower_the_majority(federation: Federation) -> None:
    """One refuses its keys, one its shares: two of four are left, and three must answer."""

    def changed(name: str, content: bytes) -> bytes:
        m = unpack_body(content)
        keys, deals = (
            name == "alfa" and isinstance(m.body, messages.KeysResponse),
            name == "bravo" and isinstance(m.body, messages.SharesResponse),
        )
        return pack(m.run, m.round, messages.RefusalResponse(why="not today")) if keys or deals else content

    federation.link.change = changed
    with pytest.raises(TooFewAnswers, match="2 of 3 answered, and 3 must"):
        federation.serve(federation.experiment(uplink={"secure": True}))
