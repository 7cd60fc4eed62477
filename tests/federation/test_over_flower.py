"""The whole of it over Flower: commands, certificates, processes that are killed, and a run folder like any other."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
from tests.support import forked_processes
from tests.support.federation_clients import Federation, SeededClient, differences

import fedarena as fa
from fedarena.federation.client_data import ClientFile
from fedarena.federation.requests import ResponseRule
from fedarena.federation.server import ServerOptions, serve
from fedarena.results.run_loading import load_run
from fedarena.transport import flower_link
from fedarena.transport.certificates import ClientKeys, ServerKeys, make_federation_keys

SIZES = {"alfa": 31, "bravo": 45}
PATIENCE = 120.0  # of a test, on a machine where many others run


class Command:
    """A `fedarena` command, and what it says."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "fedarena", *arguments]
        self.process = forked_processes.Popen(command, cwd=folder, capture=True)

    @property
    def stderr(self) -> str:
        return self.process.written("stderr")

    def until(self, text: str) -> None:
        """Wait until it has said so."""
        end = time.monotonic() + PATIENCE
        while text not in self.stderr:
            assert self.process.poll() is None, self.stderr
            assert time.monotonic() < end, self.stderr
            time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def result(self) -> Any:
        out, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, self.stderr
        return json.loads(out)


@pytest.fixture
def commands() -> Iterator[list[Command]]:
    started: list[Command] = []
    yield started
    for command in started:
        if command.process.poll() is None:
            command.kill()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["scaffold", {"name": "histboost", "depth": 3, "bins": 16}], ids=["scaffold", "trees"])
def test_killed_on_all_sides_it_is_the_simulation(algorithm: Any, tmp_path: Path, commands: list[Command]) -> None:
    """A client is killed and started again, then the server: with its last rounds the run has the bits of a
    simulation on the table of all, and its folder can be read like any other."""
    federation = Federation(tmp_path, SIZES)
    experiment = federation.experiment(algorithm=algorithm, rounds=12, local={"lr": 0.1, "batch": 1, "epochs": 3})
    (tmp_path / "exp.toml").write_text(experiment.to_toml().replace(str(federation.pooled), "/participants"))
    make_federation_keys(tmp_path / "keys", list(SIZES))

    def begin(name: str, *arguments: str) -> Command:
        commands.append(Command(tmp_path, name, *arguments))
        return commands[-1]

    server = begin("organiser", "serve", "exp.toml", "--address", "127.0.0.1:0", "--out", "run")
    server.until("listening on ")
    address = server.stderr.split("listening on ")[1].split()[0]

    def join(name: str) -> Command:
        return begin(name, "join", "--data", f"{name}.csv", "--server", address, "--name", name, "--yes", "--json")

    clients = {name: join(name) for name in SIZES}
    server.until("round  2/12")
    clients["bravo"].kill()
    clients["bravo"] = join("bravo")
    server.until("round  6/12")
    server.kill()
    server = begin("organiser", "serve", "--resume", "run", "--address", address, "--json")
    result = server.result()
    assert {name: client.result()["name"] for name, client in clients.items()} == {name: name for name in SIZES}
    serial = fa.run(experiment, out=False, runtime="serial")
    assert result["weights_sha256"] == serial.weights_sha256
    run = load_run(tmp_path / "run")
    assert differences(run, serial) == []
    assert fa.report(tmp_path / "run", out=tmp_path / "report.html").exists()
    printed = clients["alfa"].stderr
    assert "what will leave this machine:" in printed
    assert "goodbye: the run is finished" in printed


class Threads:
    """Clients over the real link, in threads of this process: nothing of theirs is random but what has a seed."""

    def __init__(self, folder: Path) -> None:
        self.federation = Federation(folder, SIZES)
        self.keys = make_federation_keys(folder / "keys", list(SIZES))
        self.threads: list[threading.Thread] = []
        self.one_at_a_time = threading.Lock()

    def open(self, folder: Path) -> flower_link.Link:
        link = flower_link.open_link(folder, "127.0.0.1:0", ServerKeys.load(self.keys["organiser"]))
        for name in SIZES:
            work = self._work(name, link.address)
            self.threads.append(threading.Thread(target=work, daemon=True))
            self.threads[-1].start()
        return link

    def _work(self, name: str, address: str) -> Callable[[], None]:
        file, folder = ClientFile(self.federation.files[name]), self.federation.folder / "clients" / name
        me = SeededClient(file, folder)

        def handle(content: bytes) -> bytes:
            with self.one_at_a_time:
                answer = me.handle(content)
            if me.goodbye is not None:
                raise flower_link.FederationEnded(answer)
            return answer

        return lambda: flower_link.join(address, ClientKeys.load(self.keys[name]), handle)

    def serve(self, name: str, experiment: Any) -> fa.Run:
        terms = ServerOptions(len(SIZES), ResponseRule(PATIENCE), PATIENCE, secret=experiment.seed)
        run = serve(experiment, self.open, terms, out=self.federation.folder / name)
        for thread in self.threads:
            thread.join(PATIENCE)
        self.threads.clear()
        return run


@pytest.mark.slow
def test_sealed_and_without_rounds(tmp_path: Path) -> None:
    """Secure aggregation to the bit; and CO-OP, whose rules hold in any order of arrivals."""
    threads = Threads(tmp_path)
    sealed = threads.federation.experiment(uplink={"secure": True}, rounds=2)
    assert differences(threads.serve("sealed", sealed), fa.run(sealed, out=False, runtime="serial")) == []
    coop = threads.federation.experiment(algorithm={"name": "coop", "b_l": 1, "b_u": 2}, rounds=4)
    run = threads.serve("coop", coop)
    assert run.ages["merges"] == run.final.uploads == 8
    assert {d for d, n in enumerate(run.ages["histogram"]) if n} <= {1, 2}
