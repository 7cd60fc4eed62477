"""A client's releases are bound to one selection of samples, logged, and limited to what the agreed experiment needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.federation_clients import Federation, write

from fedarena.algorithms.base import Step
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.federation import messages
from fedarena.federation.client import FederationClient
from fedarena.federation.client_data import statistics_layout
from fedarena.federation.consent import experiment_as_text, federated_experiment
from fedarena.federation.release_log import Binding
from fedarena.federation.request_limits import REPEATS
from fedarena.federation.requests import TooFewAnswers
from fedarena.federation.statistics_release import StatisticsMask, is_vector
from fedarena.federation.what_leaves import what_leaves
from fedarena.federation.wire_format import Payload, pack, unpack, unpack_body

SUMS = {"data": {"standardise": True}}
NAMES = ("alfa", "bravo", "charlie", "delta")


def agreement(federation: Federation, name: str = "alfa") -> messages.Agreement:
    """What the server agreed with a client."""
    asked = [unpack_body(c).body for n, c in federation.link.down if n == name and b'"what":"agree"' in c]
    return asked[0].agreement  # type: ignore[union-attr]


def asked_of(
    person: FederationClient, run: str, request: messages.MessageBody, load: Payload | None = None, round: int = 0
) -> messages.MessageBody:
    content = pack(run, round, request) if load is None else pack(run, round, request, load)
    return unpack_body(person.handle(content)).body


def log(federation: Federation, name: str = "alfa") -> list[dict[str, Any]]:
    text = (federation.folder / "clients" / name / "releases.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def served(tmp_path: Path) -> Federation:
    federation = Federation(tmp_path)
    federation.start()
    federation.serve(federation.experiment(**SUMS))
    return federation


# The binding


def greeted(
    federation: Federation, experiment: Experiment, run: str, clients: int = 4, **settings: Any
) -> FederationClient:
    """A new process of alfa, in the folder that it had, in a run of another name."""
    federation.start("alfa", **settings)
    person = federation.clients["alfa"]
    hello = messages.Invitation(experiment=experiment_as_text(experiment), clients=clients)
    assert isinstance(asked_of(person, run, hello), messages.TableDescription)
    return person


OTHER_PLACES: dict[str, dict[str, Any]] = {
    "another position": {"client": 1, "rows_before": 7},
    "more samples in all": {"rows": 900},
    "more clients": {"rows": 200},
}


@pytest.mark.slow
@pytest.mark.parametrize("place", OTHER_PLACES)
def test_another_selection_is_refused_under_any_run_name_and_after_a_restart(place: str, served: Federation) -> None:
    agreed = agreement(served)
    other = agreed.model_copy(update=OTHER_PLACES[place])
    person = greeted(served, served.experiment(**SUMS), "anotherrun")
    for request in (
        messages.AgreementRequest(agreement=other, tell="counts"),
        messages.AgreementRequest(agreement=other, tell="ready"),
        messages.StatisticsRequest(agreement=other),
    ):
        refused = asked_of(person, "anotherrun", request)
        assert isinstance(refused, messages.RefusalResponse)
        assert "this run asks for other training samples" in refused.why
    assert [line["what"] for line in log(served) if line["event"] == "refused"][-1] == refused.why


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"split_seed": 1}, "other training samples"),
        ({"test": 0.3}, "other training samples"),
        ({"drop": ["a"]}, "other columns or labels"),
        ({"missing": "mean"}, "other columns or labels"),
    ],
)
def test_another_experiment_that_selects_otherwise_is_refused(
    data: dict[str, Any], why: str, served: Federation
) -> None:
    experiment = served.experiment(data={"standardise": True, **data})
    served.start()
    with pytest.raises(TooFewAnswers, match=f"'alfa': releases of this client are bound .* asks for {why}"):
        served.serve(experiment, "second")


@pytest.mark.slow
def test_other_held_out_samples_are_refused(served: Federation) -> None:
    """Sums are the same; updates over other samples would differ by single ones."""
    served.start()
    with pytest.raises(TooFewAnswers, match="other training samples"):
        served.serve(served.experiment(**SUMS, validate_share=0.3), "second")


def test_a_changed_table_is_refused(served: Federation) -> None:
    write(served.files["alfa"], served.rows["alfa"][:-1])
    served.start()
    with pytest.raises(TooFewAnswers, match=r"'alfa': releases .* asks for another table, other training samples"):
        served.serve(served.experiment(**SUMS), "second")


@pytest.mark.slow
def test_the_same_binding_serves_another_experiment(served: Federation) -> None:
    """Another algorithm on the same samples: the same sums again, after a new consent."""
    seen: list[list[str]] = []
    served.start(consent=lambda experiment, leaves: seen.append(leaves) or "")
    served.serve(served.experiment(**SUMS, algorithm="scaffold"), "second")
    assert len(seen) == 4
    assert len({line["run"] for line in log(served) if line["event"] == "released"}) == 2


@pytest.mark.slow
def test_a_new_binding_is_allowed_by_the_owner_once(served: Federation) -> None:
    served.start(new_release=True)
    served.serve(served.experiment(data={"standardise": True, "split_seed": 1}), "second")
    assert [line["what"] for line in log(served) if line["event"] == "allowed"] == [
        "a new binding: other training samples"
    ]
    with pytest.raises(BadValue, match="asks for another table"):
        served.clients["alfa"].releases.bind(Binding("another", "", ""), "third")


@pytest.mark.slow
def test_a_damaged_binding_stops_every_release(served: Federation) -> None:
    (served.folder / "clients" / "alfa" / "binding.json").write_text("{}")
    served.start()
    with pytest.raises(TooFewAnswers, match="'alfa': DataBroken"):
        served.serve(served.experiment(**SUMS), "second")


# Masks


@pytest.mark.slow
def test_the_server_reads_totals_and_no_sum_of_one_client(served: Federation) -> None:
    """Every vector on the wire is masked; their total is that of the table of all."""
    experiment = served.experiment(**SUMS)
    layout = statistics_layout(experiment, agreement(served))
    vectors = [
        unpack(c).payload for _, c in served.link.up if isinstance(unpack_body(c).body, messages.StatisticsResponse)
    ]
    assert len(vectors) == 4
    for name, vector in zip(NAMES, vectors, strict=True):
        assert is_vector(vector, layout.size)
        own = served.clients[name]._joined.samples.statistics(layout, 1)  # type: ignore[union-attr]
        assert own.integers[4] not in [int.from_bytes(row.tobytes(), "little") for row in vector]
        assert (np.unpackbits(vector.view(np.uint8)).mean() - 0.5) ** 2 < 0.001  # as many ones as zeros: random


@pytest.mark.slow
@pytest.mark.parametrize("keys", ["none", "too few", "own twice"])
def test_statistics_are_not_released_without_the_keys_of_all(keys: str, served: Federation) -> None:
    agreed = agreement(served)
    person = greeted(served, served.experiment(**SUMS), "anotherrun")
    own = asked_of(person, "anotherrun", messages.StatisticsKeyRequest())
    assert isinstance(own, messages.StatisticsKey)
    given = {
        "none": {},
        "too few": {0: own.key, 1: StatisticsMask().public},
        "own twice": dict.fromkeys(range(4), own.key),
    }[keys]
    refused = asked_of(person, "anotherrun", messages.StatisticsRequest(agreement=agreed, keys=given))
    assert isinstance(refused, messages.RefusalResponse)
    assert "keys that are not those of this exchange" in refused.why


@pytest.mark.slow
def test_the_number_of_clients_is_that_of_the_consent(served: Federation) -> None:
    """Else a server would ask for consent to masked sums, and then say that there are two clients."""
    agreed = agreement(served)
    person = greeted(served, served.experiment(**SUMS), "anotherrun", clients=3)
    refused = asked_of(person, "anotherrun", messages.StatisticsRequest(agreement=agreed))
    assert isinstance(refused, messages.RefusalResponse)
    assert "4 clients, and consent was given to 3" in refused.why


@pytest.mark.slow
def test_a_client_that_is_restarted_between_key_and_sums_gets_new_keys(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()
    experiment = federation.experiment(**SUMS)
    killed: list[str] = []

    def before(name: str, content: bytes) -> None:
        if name == "bravo" and not killed and isinstance(unpack_body(content).body, messages.StatisticsRequest):
            killed.append(name)
            federation.start("bravo")

    federation.link.before = before
    run = federation.serve(experiment)
    assert killed == ["bravo"]
    assert len(run.records) == 3


def test_consent_says_who_reads_the_sums(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text('data = { name = "csv", label = "label" }\n')
    experiment = federated_experiment(tmp_path / "exp.toml", [])
    many, few = ("\n".join(what_leaves(experiment, False, clients)) for clients in (3, 2))
    assert "masked, so that the server reads only the totals over all 3 clients" in many
    assert "the server reads your own sums" in few
    assert "the mean and the spread of every column" in few


def test_two_clients_send_their_own_sums(tmp_path: Path) -> None:
    federation = Federation(tmp_path, {"alfa": 31, "bravo": 45})
    seen: list[str] = []
    federation.start(consent=lambda experiment, leaves: seen.extend(leaves) or "")
    federation.serve(federation.experiment(**SUMS))
    assert any("the server reads your own sums" in text for text in seen)
    assert "sums over training samples, readable by the server" in [line["what"] for line in log(federation)]


@pytest.mark.slow
def test_consent_shows_the_values_of_the_first_message(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    seen: dict[str, list[str]] = {}
    for name in NAMES:
        consent = lambda experiment, leaves, name=name: seen.update({name: leaves}) or ""
        federation.start(name, consent=consent)
    federation.serve(federation.experiment(rounds=1))
    assert seen["alfa"][:3] == ["sample counts: 41 rows", "columns: 'a', 'b', 'c', 'd'", "labels: 'a', 'b', 'c'"]


# One run, and the log


@pytest.mark.slow
def test_a_process_takes_part_in_one_run(served: Federation) -> None:
    with pytest.raises(TooFewAnswers, match="0 of 4 clients came"):
        served.serve(served.experiment(**SUMS, algorithm="scaffold"), "second", terms={"wait": 0.5})
    assert any("takes part in 1 run and no other" in text for text in served.server_messages)
    assert "this process takes part in 1 run and no other" in [line["what"] for line in log(served)]


@pytest.mark.slow
def test_a_process_takes_part_in_as_many_runs_as_it_was_started_for(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start(runs=2)
    federation.serve(federation.experiment())
    assert federation.clients["alfa"].goodbye is None
    federation.serve(federation.experiment(algorithm="scaffold"), "second")
    assert federation.clients["alfa"].goodbye is not None


@pytest.mark.slow
def test_the_log_has_what_to_whom_and_when(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start(server="server.example.org:8440")
    federation.serve(federation.experiment(**SUMS))
    lines = log(federation)
    assert {line["server"] for line in lines} == {"server.example.org:8440"}
    assert all(line["time"].endswith("+00:00") for line in lines)
    person = federation.clients["alfa"]
    assert person.releases.summary(person.runs) == [
        "released: description: sample counts, columns, levels and labels",
        "released: sample counts",
        "released: sums over training samples, masked among 4 clients",
        "released: an update (3 times)",
        "released: evaluation counts and losses (3 times)",
        "released: confusion matrix, losses and bins of confidence over test samples, masked among 4 clients",
        "released: AUC and average precision of this client, readable by the server",
    ]


# Requests are counted


def requests(federation: Federation, kind: type[messages.MessageBody]) -> list[bytes]:
    return [c for name, c in federation.link.down if name == "alfa" and isinstance(unpack_body(c).body, kind)]


def other_models(federation: Federation, content: bytes, number: int) -> list[bytes]:
    """The same request about other models."""
    types = federation.clients["alfa"]._joined.worker.types  # type: ignore[union-attr]
    found = []
    for k in range(number):
        message = unpack(content, types)
        message.payload.message.w[0] += k + 1
        found.append(pack(message.run, message.round, message.body, Payload.of(message.payload)))
    return found


def answers(federation: Federation, contents: list[bytes]) -> list[str]:
    responses = [unpack_body(federation.clients["alfa"].handle(content)).body for content in contents]
    return [one.why if isinstance(one, messages.RefusalResponse) else one.what for one in responses]


@pytest.mark.slow
def test_a_repeated_request_gets_the_same_answer(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start(kind=FederationClient)
    local = {"lr": 0.1, "batch": 8, "privacy": {"clip": 0.5, "noise": 1.0}}
    federation.serve(federation.experiment(uplink={"clip": 0.1, "noise": 0.3}, local=local), terms={"secret": None})
    person, work = federation.clients["alfa"], requests(federation, messages.RoundRequest)[-1]
    first, again = (unpack(person.handle(work), {"Step": Step}).payload["send"] for _ in range(2))
    assert np.array_equal(first.delta, again.delta)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, 1 + REPEATS),
        ({"uplink": {"clip": 0.1, "noise": 0.3}}, 1),
        ({"uplink": {"secure": True}}, 1),
        ({"local": {"lr": 0.1, "batch": 8, "privacy": {"clip": 0.5, "noise": 1.0}}}, 1),
    ],
)
def test_a_round_is_answered_for_few_models_and_for_one_where_noise_or_masks_protect_it(
    settings: dict[str, Any], most: int, tmp_path: Path
) -> None:
    federation = Federation(tmp_path)
    federation.start()
    federation.serve(federation.experiment(**settings))
    limits = federation.clients["alfa"]._joined.worker.limits  # type: ignore[union-attr]
    work = requests(federation, messages.RoundRequest)[-1]
    request = unpack_body(work).body
    for content in other_models(federation, work, most - 1):
        limits.check(request, 2, content)  # type: ignore[union-attr]
    limits.check(request, 2, work)  # type: ignore[union-attr]
    last = other_models(federation, work, most + 5)[-1]
    with pytest.raises(BadValue, match=f"asked {most + 1} different questions as 'round 3, exchange 1'"):
        limits.check(request, 2, last)  # type: ignore[union-attr]


@pytest.mark.slow
def test_without_rounds_each_private_training_is_for_one_model(tmp_path: Path) -> None:
    """Noise is drawn by the number of a training: another model under the same number is refused."""
    federation = Federation(tmp_path)
    federation.start()
    local = {"lr": 0.1, "batch": 8, "privacy": {"clip": 0.5, "noise": 1.0}}
    run = federation.serve(federation.experiment(algorithm="fedasync", local=local))
    assert run.record_epsilon > 0
    limits = federation.clients["alfa"]._joined.worker.limits  # type: ignore[union-attr]
    work = requests(federation, messages.AsyncTrainRequest)[0]
    request = unpack_body(work).body
    limits.check(request, 0, work)  # type: ignore[union-attr]
    with pytest.raises(BadValue, match="asked 2 different questions as 'training 1'"):
        limits.check(request, 0, other_models(federation, work, 1)[0])  # type: ignore[union-attr]


@pytest.mark.slow
def test_requests_are_counted_across_restarts(tmp_path: Path) -> None:
    """A restarted process answers what it answered before, and still refuses the rest."""
    federation = Federation(tmp_path)
    federation.start()
    federation.serve(federation.experiment())
    looks = requests(federation, messages.EvaluateRequest)
    assert answers(federation, looks) == ["looked"] * 3
    federation.start("alfa")
    hello, ready = requests(federation, messages.Invitation)[0], requests(federation, messages.AgreementRequest)[-1]
    assert answers(federation, [hello, ready]) == ["described", "ready"]
    found = answers(federation, other_models(federation, looks[-1], 6))
    assert found[: 1 + REPEATS] == ["looked"] * (1 + REPEATS)  # three rounds and one more, and the repeats
    assert "different questions as 'evaluation'" in found[1 + REPEATS]
    assert answers(federation, looks) == ["looked"] * 3


def test_exchanges_of_a_round_are_limited(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()
    federation.serve(federation.experiment())
    message = unpack_body(requests(federation, messages.RoundRequest)[-1])
    request = message.body.model_copy(update={"exchange": 8})
    assert "asked for exchange 9" in answers(federation, [pack(message.run, 2, request)])[0]


def test_a_budget_of_uploads_bounds_the_rounds(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()
    federation.serve(federation.experiment(uploads=7))
    message = unpack_body(requests(federation, messages.RoundRequest)[-1])
    assert "asked for round 8 of 7" in answers(federation, [pack(message.run, 7, message.body)])[0]
