"""A server that is not honest, over the real link: TLS, node keys, and `fedarena join --experiment agreed.toml --yes`.

It repeats the handshake under new run names and asks for another selection of samples each time. Every sum that it gets
is one linear equation in the samples of the client. It must end with fewer equations than unknowns.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
from tests.support import forked_processes
from tests.support.federation_clients import HEAD, rows_of, write

from fedarena.federation import messages
from fedarena.federation.client_data import statistics_layout
from fedarena.federation.consent import experiment_as_text, federated_experiment
from fedarena.federation.statistics_release import Totals, decoded
from fedarena.federation.wire_format import Message, pack, unpack
from fedarena.transport import flower_link
from fedarena.transport.certificates import ServerKeys, make_federation_keys

SAMPLES = 13
HANDSHAKES = 14  # each would be one equation in every column: more than there are samples
PATIENCE = 60.0
AGREED = 'data = { name = "csv", label = "label", client = "site" }\nrounds = 1\nmodel = "logreg"\n'


class MaliciousServer:
    """The server's end of the link, with messages of the attacker's own making."""

    def __init__(self, folder: Path, keys: Path) -> None:
        self.link = flower_link.open_link(folder, "127.0.0.1:0", ServerKeys.load(keys / "organiser"))

    def ask(self, run: str, request: messages.MessageBody) -> Message:
        """Send a message to the only client, and return its answer."""
        end = time.monotonic() + PATIENCE
        while not self.link.nodes():
            assert time.monotonic() < end
            time.sleep(0.05)
        ticket = self.link.send(next(iter(self.link.nodes())), pack(run, 0, request), PATIENCE)
        while time.monotonic() < end:
            for arrival in self.link.receive(1.0):
                if arrival.ticket == ticket:
                    assert arrival.content is not None, arrival.problem
                    return unpack(arrival.content)
        raise AssertionError("no answer")


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[tuple[Path, MaliciousServer]]:
    make_federation_keys(tmp_path / "keys", ["alfa"])
    (tmp_path / "agreed.toml").write_text(AGREED)
    write(tmp_path / "alfa.csv", rows_of({"alfa": SAMPLES})["alfa"])
    server = MaliciousServer(tmp_path, tmp_path / "keys")
    yield tmp_path, server
    server.link.close()


def join(folder: Path, server: MaliciousServer, *options: str) -> forked_processes.Popen:
    command = [sys.executable, "-m", "fedarena", "join", "--data", "alfa.csv", "--server", server.link.address]
    command += ["--keys", "keys/alfa", "--experiment", "agreed.toml", "--yes", *options]
    return forked_processes.Popen(command, cwd=folder, capture=True)


def equations(folder: Path, server: MaliciousServer, first: int, number: int) -> set[tuple[int, ...]]:
    """Repeat the handshake with another selection each time; return the different sums that were released."""
    experiment = federated_experiment(folder / "agreed.toml", [])
    found = set()
    for k in range(first, first + number):
        run = f"attack{k}"
        described = server.ask(run, messages.Invitation(experiment=experiment_as_text(experiment), clients=2)).body
        if not isinstance(described, messages.TableDescription):
            continue
        agreed = messages.Agreement(
            client=k % 2,
            clients=2,
            rows_before=(k % 2) * (3 + k),
            rows=60 + 7 * k,
            classes=described.classes,
            columns=described.columns,
        )
        server.ask(run, messages.AgreementRequest(agreement=agreed, tell="counts"))
        answer = server.ask(run, messages.StatisticsRequest(agreement=agreed))
        if isinstance(answer.body, messages.StatisticsResponse):
            found.add(Totals.of(decoded(answer.payload), statistics_layout(experiment, agreed)).sums)
    return found


@pytest.mark.slow
def test_a_table_cannot_be_read_by_repeated_handshakes(attacked: tuple[Path, MaliciousServer]) -> None:
    """Not under new run names, and not after a restart of the client: one equation a column, for thirteen unknowns."""
    folder, server = attacked
    client = join(folder, server, "--runs", str(HANDSHAKES))
    found = equations(folder, server, 0, HANDSHAKES)
    client.kill()
    client.wait()
    client = join(folder, server, "--runs", "2")
    found |= equations(folder, server, HANDSHAKES, 2)
    client.kill()
    client.wait()
    assert len(found) == 1 < SAMPLES
    lines = [json.loads(line) for line in (folder / "federation/alfa/releases.jsonl").read_text().splitlines()]
    refused = [line for line in lines if line["event"] == "refused"]
    assert len(refused) > HANDSHAKES
    assert all("asks for other training samples" in line["what"] for line in refused)


@pytest.mark.slow
def test_a_client_serves_one_run_unless_it_was_started_for_more(attacked: tuple[Path, MaliciousServer]) -> None:
    folder, server = attacked
    client = join(folder, server)
    experiment = experiment_as_text(federated_experiment(folder / "agreed.toml", []))
    assert isinstance(
        server.ask("first", messages.Invitation(experiment=experiment, clients=2)).body, messages.TableDescription
    )
    refused = server.ask("second", messages.Invitation(experiment=experiment, clients=2)).body
    assert isinstance(refused, messages.RefusalResponse)
    assert "takes part in 1 run and no other" in refused.why
    server.ask("first", messages.GoodbyeRequest(reason="over", finished=True))
    out, err = client.communicate(timeout=PATIENCE)
    assert client.returncode == 0
    assert out.strip() == "alfa: 0 trainings"
    assert "releases, as logged in federation/alfa/releases.jsonl:" in err
    assert "released: description: sample counts, columns, levels and labels" in err


@pytest.mark.slow
def test_histograms_are_released_over_the_real_link_only_as_agreed(attacked: tuple[Path, MaliciousServer]) -> None:
    """An experiment with other histograms is refused at consent, and a request for them later."""
    folder, server = attacked
    client = join(folder, server, "--runs", "2")
    agreed = federated_experiment(folder / "agreed.toml", [])
    asked = experiment_as_text(federated_experiment(folder / "agreed.toml", ["evaluate.histograms=50"]))
    refused = server.ask("first", messages.Invitation(experiment=asked, clients=2)).body
    assert isinstance(refused, messages.RefusalResponse)
    assert "evaluate" in refused.why
    described = server.ask("second", messages.Invitation(experiment=experiment_as_text(agreed), clients=2)).body
    assert isinstance(described, messages.TableDescription)
    place: dict[str, Any] = {"client": 0, "clients": 2, "rows_before": 0, "rows": 2 * SAMPLES}
    shape = {"classes": described.classes, "columns": described.columns}
    means = (0.0,) * len(described.columns)
    agreement = messages.Agreement(**place, **shape, means=means, deviations=means)
    assert isinstance(
        server.ask("second", messages.AgreementRequest(agreement=agreement, tell="ready")).body, messages.ReadyResponse
    )
    response = server.ask("second", messages.EvaluationSumsRequest(histograms=50)).body
    assert isinstance(response, messages.RefusalResponse)
    assert response.why == "asked for score histograms of 50 bins, and the agreed experiment has none"
    client.kill()
    client.wait()
    lines = [json.loads(line) for line in (folder / "federation/alfa/releases.jsonl").read_text().splitlines()]
    assert [line["what"] for line in lines if line["event"] == "refused"] == [refused.why, response.why]
    assert not any("histogram" in line["what"] for line in lines if line["event"] == "released")


@pytest.mark.slow
def test_without_a_terminal_consent_must_be_given_by_option(tmp_path: Path) -> None:
    make_federation_keys(tmp_path / "keys", ["alfa"])
    write(tmp_path / "alfa.csv", rows_of({"alfa": SAMPLES})["alfa"], HEAD)
    command = [sys.executable, "-m", "fedarena", "join", "--data", "alfa.csv", "--server", "127.0.0.1:1"]
    ended = forked_processes.run([*command, "--keys", "keys/alfa"], cwd=tmp_path)  # its stdin is /dev/null
    assert ended.returncode == 2
    assert "no terminal on which to ask for your consent" in ended.stderr
    assert "Traceback" not in ended.stderr
