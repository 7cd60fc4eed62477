"""Asynchronous for real: the order is that of arrivals. Where arrivals come in the order of the virtual clock, all bits are
those of the simulation; where they do not, the rules of the algorithm hold all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.federation_clients import Federation, differences
from tests.support.memory_link import MemoryLink, Post

import fedarena as fa
from fedarena.config.experiment import Experiment
from fedarena.engine.devices import build_fleet
from fedarena.federation import coordinator, messages
from fedarena.federation.requests import ResponseRule, TooFewAnswers
from fedarena.federation.wire_format import unpack_body

ALGORITHMS: dict[str, Any] = {
    "coop": {"name": "coop", "b_l": 1, "b_u": 3},
    "coop of all ages": {"name": "coop", "b_l": 0, "b_u": 2},
    "fedasync": "fedasync",
    "fedbuff": {"name": "fedbuff", "buffer": 3},
}
UNEVEN = {"devices": {"speeds": "uniform", "spread": 6.0}}


class OnTime(MemoryLink):
    """Who has trained answers when the virtual clock of the experiment says so; everything else is at once."""

    def __init__(self, experiment: Experiment, sizes: list[int]) -> None:
        super().__init__()
        self.fleet, self.sizes = build_fleet(experiment, len(sizes)), sizes
        self.clock, self.epochs = 0.0, experiment.local.epochs
        self.due: dict[str, float] = {}

    def send(self, node: int, content: bytes, deadline: float) -> str:
        ticket = super().send(node, content, deadline)
        request = unpack_body(content).body
        self.due[ticket] = -1.0
        if isinstance(request, messages.AsyncTrainRequest):
            client = node - 100
            rows = self.sizes[client] * self.epochs
            self.due[ticket] = self.clock + self.fleet.training_seconds(client, request.number, rows)
        return ticket

    def next_post(self) -> Post | None:
        post = min(self.posts, key=lambda post: (self.due[post[1]], self.numbers[post[0]]), default=None)
        if post is not None:
            self.clock = max(self.clock, self.due[post[1]])
        return post


def on_time(federation: Federation, experiment: Experiment) -> None:
    serial = fa.run(experiment, out=False, runtime="serial")
    federation.link = OnTime(experiment, serial.client_sizes.tolist())
    federation.start()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS.keys())
def test_in_the_order_of_the_virtual_clock_it_is_the_simulation(algorithm: Any, tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    experiment = federation.experiment(algorithm=algorithm, rounds=6, share=0.75, **UNEVEN)
    on_time(federation, experiment)
    live, serial = federation.serve(experiment), fa.run(experiment, out=False, runtime="serial")
    assert differences(live, serial, but=["clock"]) == []
    assert live.ages == serial.ages
    assert serial.ages["merges"] == serial.final.uploads > 6


@pytest.mark.slow
def test_client_state_stays_with_the_client(tmp_path: Path) -> None:
    """Momentum that is kept, local buffers, rates that decay by client: with traces, nothing may be skipped or lost."""
    federation = Federation(tmp_path)
    local = {
        "lr": 0.05,
        "batch": 8,
        "momentum": 0.9,
        "reset_momentum": False,
        "decay": 0.1,
        "decay_counter": "per_client",
    }
    settings = {"algorithm": ALGORITHMS["coop"], "rounds": 6, "local": local, "model": "normed", "bn_buffers": "local"}
    experiment = federation.experiment(**settings, **UNEVEN)
    on_time(federation, experiment)
    live = federation.serve(experiment, terms={"shares_models": True})
    assert differences(live, fa.run(experiment, out=False, runtime="serial"), but=["clock"]) == []
    left = list((tmp_path / "clients").rglob("memory-*"))
    assert 4 <= len(left) <= 4 * 6  # what no checkpoint can need is gone


@pytest.mark.slow
def test_killed_and_resumed_clients_at_work_repeat_their_trainings(tmp_path: Path) -> None:
    """All processes are killed after two rounds; no merge is lost or made twice, and the filter holds."""
    federation = Federation(tmp_path)
    experiment = federation.experiment(algorithm=ALGORITHMS["coop of all ages"], rounds=6)
    on_time(federation, experiment)
    federation.serve(experiment, on_round=lambda record: record.round == 2)
    federation.start()
    live = federation.serve(experiment, resume=tmp_path / "run")
    assert live.final.round == 6
    assert live.ages["merges"] == sum(live.ages["merges_of_clients"]) == live.final.uploads == 24
    assert all(0 <= d <= 2 for d, n in enumerate(live.ages["histogram"]) if n)


def test_one_alone_is_the_simulation_whatever_the_time(tmp_path: Path) -> None:
    """K = 1: there is but one order; also when its process is killed over and over."""
    federation = Federation(tmp_path, {"alfa": 40})
    experiment = federation.experiment(algorithm="coop", rounds=5)
    federation.start()
    number = [0]

    def before(name: str, content: bytes) -> None:
        if isinstance(unpack_body(content).body, messages.AsyncTrainRequest | messages.SendResultRequest):
            number[0] += 1
            if number[0] % 3 == 0:
                federation.start("alfa")

    federation.link.before = before
    live = federation.serve(experiment)
    assert differences(live, fa.run(experiment, out=False, runtime="serial"), but=["clock"]) == []
    assert number[0] > 10


@pytest.mark.slow
def test_the_age_filter_holds_for_real_arrivals(tmp_path: Path) -> None:
    """One client answers five times as often as the others: it continues from its own model, and they fetch a new one."""
    federation = Federation(tmp_path)

    class Skewed(MemoryLink):
        def next_post(self) -> Post | None:
            turn = len(self.up) % 6
            fast = [post for post in self.posts if post[0] == "alfa"]
            return fast[0] if fast and turn < 5 else next(iter(self.posts), None)

    federation.link = Skewed()
    federation.start()
    run = federation.serve(federation.experiment(algorithm={"name": "coop", "b_l": 2, "b_u": 4}, rounds=8))
    seen = [d for d, n in enumerate(run.ages["histogram"]) if n]
    assert min(seen) >= 2
    assert max(seen) <= 4
    assert run.final.overactive > 0
    sent = [content for name, content in federation.link.up if name == "alfa"]
    asked = sum(b'"what":"trained"' in content for content in sent)
    models = sum(b'"what":"done"' in content for content in sent)
    assert asked > models == run.ages["merges_of_clients"][0]  # without a yes, no model goes up


SOON = ResponseRule(deadline=0.3, minimum=2, attempts=2)


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "LOOK", 0.0)
    monkeypatch.setattr(coordinator, "PROBE", 0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("algorithm", ["coop", "fedasync"])
def test_one_that_is_lost_is_left_out_until_it_is_back(algorithm: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()

    def on_round(record: Any) -> None:
        if record.round == 2:
            federation.link.stopped.add("delta")
        if "'delta' is lost: no answer in time" in federation.server_messages and record.round > 20:
            federation.link.stopped.clear()

    settings = {"algorithm": algorithm, "rounds": 60, "evaluate": {"every": 60}}
    run = federation.serve(federation.experiment(**settings), rule=SOON, on_round=on_round)
    assert sum(record.dropped for record in run.records) >= 1
    assert any("'delta' is back" in text for text in federation.server_messages)
    assert any("client 3 (delta)" in note for note in run.notes)
    assert run.final.round == 60


@pytest.mark.slow
@pytest.mark.usefixtures("_quick")
def test_too_few_at_work_stop_the_run_safely(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()

    def on_round(record: Any) -> None:
        if record.round == 2:
            federation.link.stopped |= {"bravo", "charlie", "delta"}

    settings = {"algorithm": "coop", "rounds": 4000, "evaluate": {"every": 4000}}
    with pytest.raises(TooFewAnswers, match="1 clients are at work, and 2 must be; lost: 'bravo', 'charlie'"):
        federation.serve(federation.experiment(**settings), rule=SOON, on_round=on_round)
    assert (tmp_path / "run" / "checkpoint" / "rounds.jsonl").read_text().count("\n") >= 2
