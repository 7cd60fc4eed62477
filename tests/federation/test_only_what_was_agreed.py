"""A client does what the agreed experiment says, whatever it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.federation_clients import Federation

from fedarena.federation import messages
from fedarena.federation.wire_format import Message, pack, unpack_body


def served(path: Path, **settings: Any) -> Federation:
    federation = Federation(path)
    federation.start()
    federation.serve(federation.experiment(**settings))
    return federation


def requests_to_alfa(federation: Federation, kind: type[messages.MessageBody]) -> list[bytes]:
    """What the server asked alfa."""
    return [c for name, c in federation.link.down if name == "alfa" and isinstance(unpack_body(c).body, kind)]


def answer(federation: Federation, content: bytes) -> str:
    """The reason of alfa's refusal, or what it answers."""
    response: Message = unpack_body(federation.clients["alfa"].handle(content))
    return response.body.why if isinstance(response.body, messages.RefusalResponse) else response.body.what


def changed(content: bytes, round: int | None = None, **fields: Any) -> bytes:
    """Return the same request with other fields."""
    message = unpack_body(content)
    request = type(message.body).model_validate({**message.body.model_dump(), **fields})
    return pack(message.run, message.round if round is None else round, request)


@pytest.mark.slow
@pytest.mark.parametrize("uplink", [{"secure": True}, {"clip": 0.1}])
def test_no_answer_goes_up_beside_the_uplink(uplink: dict[str, Any], tmp_path: Path) -> None:
    federation = served(tmp_path, uplink=uplink)
    work = requests_to_alfa(federation, messages.RoundRequest)[-1]
    assert "without the steps" in answer(federation, changed(work, turn=None, shares=None))
    run = unpack_body(work).run
    assert "asked to train without them" in answer(federation, pack(run, 0, messages.AsyncTrainRequest(number=0)))
    assert "recomputing BatchNorm statistics was not agreed on" in answer(
        federation, pack(run, 0, messages.BatchNormRequest())
    )


def test_losses_are_measured_where_the_agreed_rule_asks_for_them(tmp_path: Path) -> None:
    """The same request gets the same answer; a round after the last and an experiment without such a rule get none."""
    for name in ("chosen", "plain"):
        (tmp_path / name).mkdir()
    federation = served(tmp_path / "chosen", select={"name": "power_of_choice", "d": 4}, share=0.5)
    ask = requests_to_alfa(federation, messages.LossRequest)[-1]
    assert answer(federation, ask) == "lossresponse"
    assert "asked for round 1000" in answer(federation, changed(ask, round=999))
    plain = served(tmp_path / "plain")
    run = unpack_body(requests_to_alfa(plain, messages.RoundRequest)[-1]).run
    assert "measuring the loss of a model to select clients was not agreed on" in answer(
        plain, pack(run, 0, messages.LossRequest())
    )


@pytest.mark.parametrize("asked", [(0, 0, 1), (1, 2), (0, 1, 9)])
def test_those_who_are_asked_are_clients_and_this_one_is_among_them(asked: tuple[int, ...], tmp_path: Path) -> None:
    federation = served(tmp_path, uplink={"clip": 0.1}, rounds=1)
    turn = {"number": 0, "asked": asked, "everyone": False}
    assert "a list of clients" in answer(
        federation, changed(requests_to_alfa(federation, messages.RoundRequest)[-1], turn=turn)
    )


@pytest.mark.slow
def test_secrets_mask_one_answer_and_noise_hides_one(tmp_path: Path) -> None:
    federation = served(tmp_path, uplink={"secure": True, "clip": 0.1, "noise": 0.3})
    work = requests_to_alfa(federation, messages.RoundRequest)[-1]
    assert answer(federation, work) == "done"  # asked again, as when an answer was lost
    assert "have masked another answer" in answer(federation, changed(work, memory="0.0"))
    federation.clients["alfa"]._joined.worker.masks._request = ""  # type: ignore[union-attr]
    turn = {"number": 7, "asked": (0, 1, 2, 3), "everyone": False}
    assert "one draw of noise" in answer(federation, changed(work, turn=turn))
    turn = {"number": 0, "asked": (0, 1), "everyone": False}
    assert "keys of clients that were not selected" in answer(federation, changed(work, turn=turn))


@pytest.mark.slow
def test_what_was_revealed_is_not_forgotten(tmp_path: Path) -> None:
    federation = served(tmp_path, uplink={"secure": True})
    folder = next((tmp_path / "clients" / "alfa").glob("*/revealed-0.0.json")).parent
    assert len([*folder.glob("revealed-*")]) == 3
    reveal, work = (
        requests_to_alfa(federation, messages.RevealRequest)[-1],
        requests_to_alfa(federation, messages.RoundRequest)[-1],
    )
    assert answer(federation, reveal) == "revealed"
    answer(federation, changed(work, round=1))
    assert "secrets of this exchange are gone" in answer(federation, reveal)


def test_statistics_are_released_only_where_the_experiment_needs_them(tmp_path: Path) -> None:
    federation = served(tmp_path)
    ready = unpack_body(requests_to_alfa(federation, messages.AgreementRequest)[-1])
    asked = messages.StatisticsRequest(agreement=ready.body.agreement)  # type: ignore[attr-defined]
    assert "needs no statistics" in answer(federation, pack(ready.run, 0, asked))


def test_work_ends_with_the_last_round(tmp_path: Path) -> None:
    federation = served(tmp_path)
    work = requests_to_alfa(federation, messages.RoundRequest)[-1]
    assert answer(federation, work) == "done"
    assert "asked for round 4 of 3" in answer(federation, changed(work, round=3))
