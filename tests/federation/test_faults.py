"""Clients that stop, crash, return, lose their state or send invalid answers: the run continues, and names them."""

from __future__ import annotations

import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.federation_clients import Federation, differences, write
from tests.support.memory_link import MemoryLink

import fedarena as fa
from fedarena.algorithms.scaffold import ScaffoldUpdate
from fedarena.config.errors import ClientFailed, FedarenaError
from fedarena.federation import coordinator, messages, wire_format
from fedarena.federation.requests import ResponseRule, TooFewAnswers
from fedarena.federation.wire_format import PROTOCOL, Message, Payload, pack, unpack
from fedarena.transport.flower_link import ReceivedMessage

SOON = ResponseRule(deadline=0.3, minimum=2, attempts=2)
SCAFFOLD = {"algorithm": "scaffold", "rounds": 5, "share": 0.75}
TYPES = {"ScaffoldUpdate": ScaffoldUpdate}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check connections in every turn, and invite silent clients again after a tenth of a second."""
    monkeypatch.setattr(coordinator, "LOOK", 0.0)
    monkeypatch.setattr(coordinator, "PROBE", 0.1)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def serial(federation: Federation, **settings: Any) -> fa.Run:
    return fa.run(federation.experiment(**settings), out=False, runtime="serial")


class After:
    """An event at the n-th round request of a client."""

    def __init__(self, client: str, number: int, do: Callable[[], None]) -> None:
        self.client, self.left, self.do = client, number, do

    def __call__(self, link: MemoryLink, name: str, content: bytes) -> None:
        if name == self.client and b'"what":"work"' in content:
            self.left -= 1
            if self.left == 0:
                self.do()


def happens(federation: Federation, *events: After) -> None:
    link = federation.link

    def before(name: str, content: bytes) -> None:
        for event in events:
            event(link, name, content)

    link.before = before


# Processes that die and come back


@pytest.mark.slow
def test_a_client_killed_at_work_and_restarted_changes_nothing(federation: Federation) -> None:
    """Its unfinished work is lost and requested again; its state is in its folder."""
    federation.start()
    happens(federation, *(After("bravo", n, lambda: federation.start("bravo")) for n in (1, 3)))
    run = federation.serve(federation.experiment(**SCAFFOLD))
    assert differences(run, serial(federation, **SCAFFOLD)) == []
    assert federation.server_messages.count("'bravo' is here") == 3


@pytest.mark.slow
@pytest.mark.parametrize("look", [0.0, 0.2])
def test_a_client_that_is_away_for_a_while_is_waited_for(
    look: float, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves when it is asked, and comes back before the deadline: noticed at once, or only when a message fails."""
    monkeypatch.setattr(coordinator, "LOOK", look)
    federation.start()
    happens(federation, After("bravo", 2, lambda: federation.link.disconnect("bravo")))
    away = ("'bravo' is disconnected", "'bravo' is not connected")
    federation.on_message = lambda text: federation.start("bravo") if text in away else None
    run = federation.serve(federation.experiment(**SCAFFOLD))
    assert differences(run, serial(federation, **SCAFFOLD)) == []


@pytest.mark.slow
def test_a_line_that_fails_is_tried_again(federation: Federation) -> None:
    """Messages that come back as problems, as when a SuperLink dies: all are asked again, with the same bits."""
    federation.start()
    fails = [3, 9, 10, 17, 30]
    receive, number = federation.link.receive, [0]

    def lossy(timeout: float) -> list[ReceivedMessage]:
        arrived = []
        for arrival in receive(timeout):
            number[0] += 1
            lost = number[0] in fails
            arrived.append(ReceivedMessage(arrival.node, arrival.ticket, None, "the line broke") if lost else arrival)
        return arrived

    federation.link.receive = lossy  # type: ignore[method-assign]
    run = federation.serve(federation.experiment(**SCAFFOLD))
    assert differences(run, serial(federation, **SCAFFOLD)) == []
    assert any("the line broke" in text for text in federation.server_messages)


@pytest.mark.slow
def test_a_killed_server_continues_with_the_same_bits(federation: Federation) -> None:
    """Killed when a client has answered and another has not: the answers of that round were as if they never came."""
    experiment = federation.experiment(**SCAFFOLD)
    federation.start()

    def die() -> None:
        raise KeyboardInterrupt

    happens(federation, After("charlie", 2, die))
    with pytest.raises(KeyboardInterrupt) as killed:
        federation.serve(experiment)
    assert killed.value.__notes__ == [f"saved; resume with: fedarena serve --resume {federation.folder / 'run'}"]
    happens(federation)
    run = federation.serve(experiment, resume=federation.folder / "run")
    assert differences(run, serial(federation, **SCAFFOLD)) == []


@pytest.mark.slow
def test_a_federation_killed_as_a_whole_continues_with_the_same_bits(federation: Federation) -> None:
    experiment = federation.experiment(**SCAFFOLD)
    federation.start()
    federation.serve(experiment, on_round=lambda record: record.round == 2)
    federation.start()
    run = federation.serve(experiment, resume=federation.folder / "run")
    assert differences(run, serial(federation, **SCAFFOLD)) == []


@pytest.mark.slow
def test_a_finished_run_may_continue_for_more_rounds(federation: Federation) -> None:
    federation.start()
    federation.serve(federation.experiment(**{**SCAFFOLD, "rounds": 2}))
    federation.start()
    run = federation.serve(federation.experiment(**SCAFFOLD), resume=federation.folder / "run")
    assert differences(run, serial(federation, **SCAFFOLD)) == []


# Late ones


@pytest.mark.slow
def test_a_round_continues_without_a_late_client_and_takes_it_back(federation: Federation) -> None:
    federation.start()
    stop = After("delta", 2, lambda: federation.link.stopped.add("delta"))
    seen: list[int] = []

    def on_round(record: Any) -> None:
        seen.append(record.answered)
        if record.round == 3:
            federation.link.stopped.discard("delta")

    happens(federation, stop)
    run = federation.serve(federation.experiment(algorithm="scaffold", rounds=5), rule=SOON, on_round=on_round)
    assert seen[:3] == [4, 3, 3]
    assert seen[-1] == 4
    assert "round 2: 'delta' gave no answer within 0.3 s; continuing without it" in federation.server_messages
    assert "'delta' is back; its late answer is not used" in federation.server_messages
    assert any(text.startswith("round 3/5") and "(without delta)" in text for text in federation.server_messages)
    assert any("answers were missing, the first: client 3 (delta) in round 2" in note for note in run.notes)
    waits = [record.seconds_train for record in run.records]
    assert waits[1] >= 0.3  # it is waited for once
    assert waits[2] < 0.3  # and then no more, until it is heard of


@pytest.mark.slow
def test_too_few_answers_stop_the_run_safely(federation: Federation) -> None:
    settings = {**SCAFFOLD, "share": 1.0}
    federation.start()
    happens(federation, After("alfa", 2, lambda: federation.link.stopped.update({"bravo", "charlie", "delta"})))
    few = "round 2: 1 of 4 answered, and 2 must; 'bravo': no answer within 0.3 s; 'charlie': "
    with pytest.raises(TooFewAnswers, match=few):
        federation.serve(federation.experiment(**settings), rule=SOON)
    assert "round 2: 1 of 4 answered, and 2 must; asking again (2 of 2)" in federation.server_messages
    happens(federation)
    federation.link.stopped.clear()
    run = federation.serve(federation.experiment(**settings), resume=federation.folder / "run")
    assert differences(run, serial(federation, **settings)) == []


@pytest.mark.slow
def test_asked_again_those_who_come_back_are_enough(federation: Federation) -> None:
    """The first attempt of a round fails, the second succeeds, and the result is the same."""
    settings = {**SCAFFOLD, "share": 1.0}
    federation.start()
    happens(federation, After("alfa", 2, lambda: federation.link.stopped.update({"bravo", "charlie", "delta"})))
    federation.on_message = lambda text: federation.link.stopped.clear() if "asking again" in text else None
    run = federation.serve(federation.experiment(**settings), rule=SOON)
    assert differences(run, serial(federation, **settings)) == []


# What is no answer


def spoil(federation: Federation, client: str, change: Callable[[Message], bytes | None], number: int = 2) -> None:
    """Change the n-th answer of a client."""
    left = [number]

    def changed(name: str, content: bytes) -> bytes | None:
        if name != client or b'"what":"done"' not in content:
            return content
        left[0] -= 1
        return change(unpack(content, TYPES)) if left[0] == 0 else content

    federation.link.change = changed


def again(message: Message, **load: Any) -> bytes:
    body = message.body.model_copy(update=load.pop("fields", {}))
    return pack(message.run, message.round, body, Payload.of({**message.payload, **load}))


def with_version(content: bytes, version: str) -> bytes:
    return content.replace(b'"fedarena":"' + fa.__version__.encode(), b'"fedarena":"' + version.encode())


def drift(message: Message, delta: Any) -> Any:
    return ScaffoldUpdate(delta, message.payload["send"].dc)


SPOILT: dict[str, tuple[Callable[[Message], bytes], str]] = {
    "garbage": (lambda m: b"\x80\x04garbage" * 40, "bytes that are not a message of fedarena"),
    "nothing": (lambda m: b"", "bytes that are not a message of fedarena"),
    "cut short": (lambda m: again(m)[:60], "a message that ends too early"),
    "another version": (lambda m: with_version(again(m), "9.9.9"), rf"fedarena 9.9.9 \(protocol {PROTOCOL}\) is connected"),
    "another run": (lambda m: pack("other", m.round, m.body, Payload.of(m.payload)), "an answer of another run"),
    "a number": (lambda m: again(m, send=1.5), "a float as answer"),
    "short vector": (
        lambda m: again(m, send=drift(m, m.payload["send"].delta[:-1])),
        r"an array float32 \(14,\) as answer.delta",
    ),
    "double precision": (lambda m: again(m, send=drift(m, m.payload["send"].delta.astype(float))), "an array float64"),
    "no vector": (lambda m: again(m, send=drift(m, None)), "an array NoneType as answer.delta"),
    "another message": (lambda m: pack(m.run, m.round, messages.GoodbyeResponse()), "'bye' where an answer belongs"),
    "minus three steps": (lambda m: again(m, fields={"steps": -3}), "a message 'done' that does not fit"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SPOILT)
def test_what_is_no_answer_is_dropped_and_its_sender_named(what: str, federation: Federation) -> None:
    change, problem = SPOILT[what]
    federation.start()
    spoil(federation, "charlie", change)
    run = federation.serve(federation.experiment(algorithm="scaffold"))
    assert [record.answered for record in run.records] == [4, 3, 4]
    assert any("charlie" in text and re.search(problem, text) for text in federation.server_messages)
    assert any(re.search(rf"client 2 \(charlie\) in round 2: .*{problem}", note) for note in run.notes)


@pytest.mark.slow
def test_a_huge_message_is_dropped(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_format, "LIMIT", 100_000)
    federation.start()
    spoil(federation, "charlie", lambda m: again(m, send=drift(m, np.zeros(100_000, np.float32))))
    run = federation.serve(federation.experiment(algorithm="scaffold"))
    assert [record.answered for record in run.records] == [4, 3, 4]
    assert any(
        "'charlie' sent a message of 0.4 MB, and 0.1 MB are allowed" in text for text in federation.server_messages
    )


def nan_of(message: Message) -> bytes:
    """Report a finite update, and send one that is not."""
    delta = message.payload["send"].delta.copy()
    delta[3] = np.nan
    return again(message, send=drift(message, delta))


@pytest.mark.slow
def test_nan_follows_on_nan_and_the_sender_is_named(federation: Federation) -> None:
    federation.start()
    spoil(federation, "charlie", nan_of)
    run = federation.serve(federation.experiment(algorithm="scaffold"))
    assert [record.non_finite for record in run.records] == [0, 1, 0]
    assert run.notes == ("1 updates were not finite and left out, the first: client 2 (charlie) in round 2",)
    federation.start()
    spoil(federation, "bravo", nan_of)
    with pytest.raises(ClientFailed, match=r"client 1 \(bravo\) in round 2 sent a non-finite update"):
        federation.serve(federation.experiment(algorithm="scaffold", on_nan="raise"), "raises")


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0])
def test_a_weight_that_is_none_is_not_finite(weight: float, federation: Federation) -> None:
    federation.start()
    spoil(federation, "charlie", lambda m: again(m, fields={"weight": weight}))
    run = federation.serve(federation.experiment(algorithm="scaffold"))
    assert [record.non_finite for record in run.records] == [0, 1, 0]


# Problems on the machine of a client


@pytest.mark.slow
def test_a_client_that_lost_its_folder_is_named_and_left_out(federation: Federation) -> None:
    federation.start()
    experiment = federation.experiment(algorithm="scaffold", rounds=4)
    federation.serve(experiment, on_round=lambda record: record.round == 2)
    shutil.rmtree(federation.folder / "clients" / "alfa")
    federation.start("alfa")
    run = federation.serve(experiment, resume=federation.folder / "run")
    assert [record.answered for record in run.records] == [4, 4, 3, 3]
    assert any("client 0 (alfa) in round 3: the client state of round 2 is not in" in note for note in run.notes)


@pytest.mark.slow
def test_a_client_that_comes_back_with_other_rows_is_refused(federation: Federation) -> None:
    federation.start()
    experiment = federation.experiment(rounds=4)
    federation.serve(experiment, on_round=lambda record: record.round == 2)
    rows = [[*row[:1], "0.5", *row[2:]] for row in federation.rows["alfa"]]
    write(federation.files["alfa"], rows)
    federation.start("alfa")
    run = federation.serve(experiment, resume=federation.folder / "run", terms={"wait": 0.5})
    assert [record.answered for record in run.records] == [4, 4, 3, 3]
    assert any("'alfa' does not take part: the rows are not those" in text for text in federation.server_messages)


@pytest.mark.slow
def test_a_client_that_fails_stops_the_run_or_is_left_out(federation: Federation) -> None:
    """As in a simulation: the error is that of the algorithm, and the client is named."""
    federation.start()

    def breaks(message: Message) -> bytes:
        return pack(message.run, message.round, messages.ErrorResponse(error="RuntimeError: the battery is empty"))

    spoil(federation, "delta", breaks)
    with pytest.raises(ClientFailed, match=r"client 3 \(delta\) in round 2 failed: delta: RuntimeError: the battery"):
        federation.serve(federation.experiment(algorithm="scaffold"))
    federation.start()
    spoil(federation, "delta", breaks)
    run = federation.serve(federation.experiment(algorithm="scaffold", on_error="drop"), "drops")
    assert [record.answered for record in run.records] == [4, 3, 4]


@pytest.mark.slow
def test_a_full_disk_is_reported_by_the_client_and_to_the_server(federation: Federation) -> None:
    """The kernel lets one client write 64 kB a file, and its state is larger, until there is space again."""
    federation.start()
    handle, limits = federation.clients["bravo"].handle, resource.getrlimit(resource.RLIMIT_FSIZE)
    full = [True]

    def cramped(content: bytes) -> bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limits[1]) if full[0] else limits)
        try:
            return handle(content)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    federation.link.connect("bravo", cramped)

    def on_round(record: Any) -> None:
        full[0] = record.round < 2

    run = federation.serve(federation.experiment(algorithm="scaffold", model="mlp_2nn"), on_round=on_round)
    assert [record.answered for record in run.records] == [3, 3, 4]
    assert any(re.search(r"client 1 \(bravo\) in round 1: its disk is full", note) for note in run.notes)
    assert any(
        "the disk is full: " in text and "free some space" in text for text in federation.client_messages["bravo"]
    )


# Coming together


@pytest.mark.slow
def test_tables_that_cannot_be_combined_are_refused(federation: Federation, tmp_path: Path) -> None:
    write(
        tmp_path / "bravo.csv",
        [row[:4] + row[5:] for row in federation.rows["bravo"]],
        ["site", "a", "b", "c", "label"],
    )
    federation.start()
    with pytest.raises(TooFewAnswers, match=r"3 of 4 clients came within 0\.5 s"):
        federation.serve(federation.experiment(), terms={"wait": 0.5})
    line = "'bravo' does not take part: its table lacks 'd', compared with that of 'alfa'"
    assert line in federation.server_messages
    assert federation.clients["bravo"].goodbye is not None
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_client_that_does_not_consent_sends_nothing(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "PROBE", 5.0)  # a slow client is not invited twice
    federation.start("alfa", "bravo", "charlie")
    federation.start("delta", consent=lambda experiment, leaves: "it does not agree to the experiment")
    with pytest.raises(TooFewAnswers, match="3 of 4"):
        federation.serve(federation.experiment(), terms={"wait": 3.0})
    assert "'delta' does not take part: it does not agree to the experiment" in federation.server_messages
    assert [b'"what":"refused"' in content for name, content in federation.link.up if name == "delta"] == [True]


@pytest.mark.slow
def test_consent_is_asked_once(federation: Federation) -> None:
    """Not again for the same experiment of the same run; but again when it grows."""
    asked: list[list[str]] = []

    def consent(experiment: Any, leaves: list[str]) -> str:
        asked.append(leaves)
        return ""

    federation.start(consent=consent)
    federation.serve(federation.experiment(rounds=2))
    federation.start(consent=consent)
    assert len(asked) == 4
    federation.serve(federation.experiment(rounds=2), resume=federation.folder / "run")
    assert len(asked) == 4
    federation.start(consent=consent)
    federation.serve(federation.experiment(rounds=3), resume=federation.folder / "run")
    assert len(asked) == 8


REFUSED = [
    ({"algorithm": "centralized"}, "centralized needs all samples in one place"),
    ({"partition": "iid"}, "partition 'iid' splits a pooled table"),
    ({"partition": {"name": "natural", "max_clients": 2}}, "partition 'natural' splits a pooled table"),
    ({"folds": 5, "fold": 0}, "folds split a pooled table"),
    ({"devices": {"overselect": 2.0}}, "devices that come and go are for simulations"),
]


@pytest.mark.parametrize(("settings", "problem"), REFUSED)
def test_what_cannot_be_federated_is_refused_before_any_client_is_asked(
    settings: dict[str, Any], problem: str, federation: Federation
) -> None:
    with pytest.raises(FedarenaError, match=problem):
        federation.experiment(**settings)


@pytest.mark.slow
def test_a_client_does_what_it_is_asked_and_nothing_else(federation: Federation) -> None:
    """Parts that clients do not have, rounds that were not agreed on, states with invalid names: all refused."""
    federation.start()
    run = federation.serve(federation.experiment(algorithm="scaffold"))
    alfa, roster = federation.clients["alfa"], next((federation.folder / "clients" / "alfa").glob("*/")).name
    last = [content for name, content in federation.link.down if name == "alfa" and b'"what":"work"' in content][-1]

    def asked(*change: tuple[bytes, bytes]) -> str:
        content = last
        for old, new in change:
            assert old in content
            content = content.replace(old, new)
        return unpack(alfa.handle(content)).body.why  # type: ignore[attr-defined,no-any-return]

    assert run.final.round == 3
    assert "has no method 'server'" in asked((b'"do":"client"', b'"do":"server"'))
    assert "has no method '__init__'" in asked((b'"do":"client"', b'"do":"__init__"'))
    assert "asked for round 9 of 3" in asked((b'"round":2', b'"round":8'))
    assert "'../../x' is not a ticket of a client state" in asked((b'"memory":"1.0"', b'"memory":"../../x"'))
    assert "has not been invited" in asked((roster.encode(), b"0" * len(roster)))
    assert "is connected to fedarena" in asked((fa.__version__.encode(), b"0.0.1"))
