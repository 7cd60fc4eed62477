"""After a run the server and every client hold the final model, which needs no table of all samples to be used."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation.test_federated_bits import newest_memory
from tests.federation.test_only_what_was_agreed import answer, changed, requests_to_alfa
from tests.support import forked_processes
from tests.support.federation_clients import Federation

import fedarena as fa
from fedarena.config.errors import BadValue, CannotWrite, DataBroken
from fedarena.data.table_reader import read_table
from fedarena.engine.client import Broadcast
from fedarena.federation import messages
from fedarena.federation.client_model import check_out
from fedarena.federation.requests import ResponseRule
from fedarena.federation.wire_format import Payload, pack, unpack, unpack_body
from fedarena.models.pytree import types_near
from fedarena.models.task import Buffers
from fedarena.results.samples_elsewhere import read_encoding
from fedarena.transport.certificates import make_federation_keys

FILES = ("model.safetensors", "preprocessing.json")


def without_pooled_table(federation: Federation, **settings: Any) -> Any:
    """Return an experiment whose table of all samples does not exist."""
    experiment = federation.experiment(**settings).with_(**{"data.path": "/participants"})
    federation.pooled.unlink()
    return experiment


def folder_of(federation: Federation, name: str) -> Path:
    (folder,) = (federation.folder / "clients" / name).glob("*/model")
    return folder


def outputs(folder: Path, file: Path) -> np.ndarray:
    """Return what the model of a folder gives for the samples of a file."""
    x, _ = read_encoding(folder).encode(read_table(file))
    with torch.no_grad():
        found: np.ndarray = fa.load(folder).model()(torch.from_numpy(x)).numpy()
    return found


@pytest.mark.slow
def test_every_party_has_the_same_model_and_can_use_it_without_the_samples(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    experiment = without_pooled_table(federation, data={"standardise": True}, model="normed", rounds=2)
    federation.start()
    run = federation.serve(experiment)
    for name, file in federation.files.items():
        own = folder_of(federation, name)
        assert all((own / part).read_bytes() == (tmp_path / "run" / part).read_bytes() for part in FILES)
        assert np.array_equal(outputs(own, file), outputs(tmp_path / "run", file))
        mine = fa.load(own)
        assert mine.weights_sha256 == run.weights_sha256
        k = list(federation.files).index(name)
        assert mine.final.accuracy == run.client_accuracy[k]  # on the client's own test samples
        assert mine.clients["rows"].tolist() == [run.client_sizes[k]]
        assert f"the final model is in {own}" in federation.client_messages[name]
    for folder in (tmp_path / "run", own):
        verdict = fa.verify(folder)
        assert verdict.same
        assert verdict.again is None
        assert "samples are not here" in verdict.unchecked[0]
        assert fa.report(folder, out=tmp_path / "report.html").exists()
    assert fa.load(tmp_path / "run").clients["name"].tolist() == list(federation.rows)
    with pytest.raises(BadValue, match="a run between organisations, whose samples are not here"):
        fa.run(resume=tmp_path / "run")


@pytest.mark.slow
def test_verify_names_a_file_that_was_changed(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()
    federation.serve(without_pooled_table(federation, rounds=1))
    file = folder_of(federation, "alfa") / "preprocessing.json"
    file.write_bytes(file.read_bytes().replace(b'"a"', b'"z"'))
    with pytest.raises(DataBroken, match=r"preprocessing\.json"):
        fa.verify(file.parent)
    model = tmp_path / "run" / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(bytes(content))
    found = fa.verify(tmp_path / "run").differences
    assert found == [
        "model.safetensors: it was changed after the run ended",
        "model.safetensors: not the weights that result.json names",
    ]


@pytest.mark.slow
def test_a_personal_model_is_that_of_the_client(tmp_path: Path) -> None:
    """The server's folder can be verified, and says where the models are."""
    federation = Federation(tmp_path)
    experiment = without_pooled_table(federation, algorithm="local", rounds=2)
    federation.start()
    federation.serve(experiment)
    for name in federation.rows:
        own = newest_memory(tmp_path / "clients" / name, experiment.algorithm.made)
        state = fa.load(folder_of(federation, name)).model().state_dict()
        assert np.array_equal(own.kept, torch.cat([value.flatten() for value in state.values()]).numpy())
    with pytest.raises(BadValue, match="no common model: each client of this federation has its own"):
        fa.load(tmp_path / "run").model()
    assert fa.verify(tmp_path / "run").same
    assert fa.verify(folder_of(federation, "alfa")).same


WAYS: dict[str, dict[str, Any]] = {
    "masked": {"uplink": {"secure": True}, "rounds": 2},
    "without rounds": {"algorithm": "fedasync", "rounds": 3},
    "a budget of uploads": {"uploads": 4, "share": 0.5},
    "private steps": {"local": {"lr": 0.1, "batch": 8, "privacy": {"clip": 0.5, "noise": 1.0}}, "rounds": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS.keys())
def test_every_way_of_training_ends_with_the_model_at_all_clients(settings: dict[str, Any], tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()
    run = federation.serve(without_pooled_table(federation, **settings))
    found = {fa.load(folder_of(federation, name)).weights_sha256 for name in federation.rows}
    assert found == {run.weights_sha256}


@pytest.mark.slow
def test_statistics_of_batchnorm_that_a_client_keeps_are_in_its_model(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    experiment = without_pooled_table(federation, model="normed", bn_buffers="local", rounds=2)
    federation.start()
    federation.serve(experiment)
    own = newest_memory(tmp_path / "clients" / "alfa", experiment.algorithm.made).buffers
    state = fa.load(folder_of(federation, "alfa")).model().state_dict()
    stored = [value.numpy() for name, value in state.items() if "running" in name]
    assert own is not None
    assert np.array_equal(own.values, np.concatenate(stored))
    assert fa.verify(tmp_path / "run").same


@pytest.mark.slow
def test_a_client_that_dies_before_it_has_stored_the_model_gets_it_again(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    dead: list[bytes] = []

    def die(name: str, content: bytes) -> None:
        if name == "bravo" and not dead and isinstance(unpack_body(content).body, messages.FinalModelRequest):
            dead.append(content)
            federation.link.disconnect("bravo")
            federation.start("bravo")

    federation.link.before = die
    federation.start()
    run = federation.serve(federation.experiment(rounds=1))
    assert dead
    assert fa.load(folder_of(federation, "bravo")).weights_sha256 == run.weights_sha256


@pytest.mark.slow
def test_a_client_that_is_away_at_the_end_is_named_and_gets_the_model_when_the_server_resumes(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()
    gone = lambda record: federation.link.disconnect("delta") if record.round == 1 else None
    run = federation.serve(federation.experiment(), rule=ResponseRule(1.0, 2, 2), on_round=gone)
    assert not [*(tmp_path / "clients" / "delta").glob("*/model")]
    assert any(text.startswith("'delta' has not received the final model") for text in federation.server_messages)
    before = {name: (folder_of(federation, name) / "result.json").read_bytes() for name in ("alfa", "bravo")}
    recorded = (tmp_path / "run" / "result.json").read_bytes()
    federation.start("delta")  # the others have the model, and are not needed
    again = federation.serve(federation.experiment(), resume=tmp_path / "run")
    assert again.weights_sha256 == run.weights_sha256
    assert (tmp_path / "run" / "result.json").read_bytes() == recorded
    assert fa.load(folder_of(federation, "delta")).weights_sha256 == run.weights_sha256
    assert before == {name: (folder_of(federation, name) / "result.json").read_bytes() for name in before}


def test_a_goodbye_without_the_model_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation = Federation(tmp_path)
    federation.start("alfa")
    text = federation.experiment().to_toml()
    asked = pack("a1", 0, messages.Invitation(experiment=text, clients=4))
    assert answer(federation, asked) == "described"
    with caplog.at_level(logging.INFO, "fedarena.federation.client"):
        assert answer(federation, pack("a1", 0, messages.GoodbyeRequest(finished=True))) == "bye"
    assert "this client has not received the final model" in caplog.text


@pytest.mark.slow
def test_a_final_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()
    federation.serve(federation.experiment(rounds=2))
    request = requests_to_alfa(federation, messages.FinalModelRequest)[-1]
    assert answer(federation, request) == "stored"  # repeated, as when an answer was lost
    types = types_near(federation.experiment().algorithm.made, Broadcast, Buffers)
    message = unpack(request, types)

    def resent(model: Any, **fields: Any) -> str:
        body = messages.FinalModelRequest.model_validate({**message.body.model_dump(), **fields})
        return answer(federation, pack(message.run, 0, body, Payload.of(model)))

    assert "another sha256" in resent(message.payload, sha256="0" * 64)
    assert "a final model after round 3 of 2" in resent(message.payload, rounds=3)
    assert "a final model after round 0 of 2" in resent(message.payload, rounds=0)
    short = Broadcast(type(message.payload.message)(message.payload.message.w[:-1]), message.payload.buffers)
    assert "a model" in resent(short)
    assert "a message without a model" in answer(federation, changed(request))


def test_a_folder_that_holds_something_else_is_not_touched(tmp_path: Path) -> None:
    """The client refuses the invitation, before anything about its table leaves."""
    federation = Federation(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "letter.txt").write_text("mine")
    federation.start("alfa", out=tmp_path / "taken")
    text = federation.experiment().to_toml()
    asked = pack("a1", 0, messages.Invitation(experiment=text, clients=4))
    assert answer(federation, asked) == "its folder for the final model is not empty"
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["letter.txt"]
    with pytest.raises(CannotWrite, match="exists already"):
        check_out(tmp_path / "taken")
    assert check_out(tmp_path / "free") == tmp_path / "free"


class Party:
    """A `fedarena` command in a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = forked_processes.Popen([sys.executable, "-m", "fedarena", *arguments], cwd=folder, capture=True)

    def until(self, text: str) -> str:
        """Wait until it has logged a text; return all that it has logged."""
        end = time.monotonic() + 120
        while text not in (logged := self.process.written("stderr")):
            assert self.process.poll() is None, logged
            assert time.monotonic() < end, logged
            time.sleep(0.02)
        return logged

    def result(self) -> Any:
        out, err = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, err
        return json.loads(out)


@pytest.fixture
def parties() -> Iterator[list[Party]]:
    started: list[Party] = []
    yield started
    for party in started:
        party.process.kill()


@pytest.mark.slow
def test_over_tls_with_a_client_that_is_killed_in_the_last_round(tmp_path: Path, parties: list[Party]) -> None:
    pytest.importorskip("flwr")
    sizes = {"alfa": 41, "bravo": 55, "charlie": 33}
    federation = Federation(tmp_path, sizes)
    experiment = without_pooled_table(federation, data={"standardise": True}, rounds=2)
    (tmp_path / "exp.toml").write_text(experiment.to_toml())
    make_federation_keys(tmp_path / "keys", list(sizes))

    def begin(*arguments: str) -> Party:
        parties.append(Party(tmp_path, *arguments, "--json"))
        return parties[-1]

    server = begin("serve", "exp.toml", "--address", "127.0.0.1:0", "--out", "run")
    address = server.until("listening on ").split("listening on ")[1].split()[0]
    join = lambda name: begin(
        "join", "--data", f"{name}.csv", "--server", address, "--name", name, "--yes", "--out", f"{name}-model"
    )
    clients = {name: join(name) for name in sizes}
    server.until("round 1/2")
    clients["bravo"].process.kill()
    clients["bravo"] = join("bravo")
    sha = server.result()["weights_sha256"]
    for name, client in clients.items():
        folder = tmp_path / f"{name}-model"
        assert client.result()["models"] == [folder.name]
        assert fa.load(folder).weights_sha256 == sha
        assert all((folder / part).read_bytes() == (tmp_path / "run" / part).read_bytes() for part in FILES)
        file = federation.files[name]
        assert np.array_equal(outputs(folder, file), outputs(tmp_path / "run", file))
