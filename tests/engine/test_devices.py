"""Simulated time: exact where nothing is random, the same for every algorithm and on any worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import small_net
from tests.support.federations import blobs

import fedarena as fa
from fedarena.config.errors import BadValue, DataBroken
from fedarena.config.experiment import Experiment
from fedarena.engine.devices import Fleet, build_fleet

MODEL_BYTES = 4 * (6 * 8 + 8 + 8 * 3 + 3)
N_K = 8


def timed(algorithm: str = "fedavg", rounds: int = 3, **settings: Any) -> fa.Run:
    """Four clients of 48 rows (240 less a fifth for testing), two epochs."""
    local = settings.pop("local", {"lr": 0.1, "epochs": 2, "batch": 8})
    return fa.run(
        blobs(), model=small_net, algorithm=algorithm, clients=4, partition="iid", rounds=rounds, local=local,
        out=False, runtime="serial", **settings,
    )  # fmt: skip


def fleet(clients: int = 8, seed: int = 0, **devices: Any) -> Fleet:
    return build_fleet(Experiment.make("digits", seed=seed, devices=devices), clients)


def test_a_round_takes_as_long_as_its_parts() -> None:
    """Fetch, train, send: latency + bytes / bandwidth each way, rows x epochs / speed in between."""
    devices = {"speed": 500, "jitter": 0, "bandwidth": 1e4, "latency": 0.25}
    one = (0.25 + MODEL_BYTES / 1e4) + 2 * 48 / 500 + (0.25 + (MODEL_BYTES + N_K) / 1e4)
    assert [r.clock for r in timed(devices=devices).records] == pytest.approx([one, 2 * one, 3 * one], rel=1e-12)


def test_a_round_waits_for_its_slowest_client() -> None:
    devices = {"speeds": "groups", "groups": 4, "spread": 8, "jitter": 0, "speed": 1000}
    assert timed(devices=devices, rounds=1).final.clock == pytest.approx(8 * 2 * 48 / 1000, rel=1e-12)


def test_two_exchanges_take_their_time_twice() -> None:
    """FSVRG: the gradient of 48 rows, then 48 steps of a row each, each message its latency."""
    took = timed("fsvrg", rounds=1, devices={"jitter": 0, "latency": 1.0}).final.clock
    assert took == pytest.approx(4 * 1.0 + 2 * 48 / 1000, rel=1e-12)


def test_all_rows_in_one_place_are_trained_by_the_fastest_device_and_sent_nowhere() -> None:
    devices = {"speeds": "groups", "groups": 2, "spread": 4, "jitter": 0, "latency": 9.0}
    assert timed("centralized", rounds=1, devices=devices).final.clock == pytest.approx(2 * 192 / 1000, rel=1e-12)


def test_who_does_not_answer_is_not_waited_for() -> None:
    run = timed(rounds=40, dropouts=0.999999, devices={"jitter": 0})
    assert run.final.answered == 0
    assert run.final.clock == 0


def test_times_do_not_depend_on_the_algorithm() -> None:
    """The same work takes the same time under any name: the draws belong to client and round."""
    assert [r.clock for r in timed("fedavg").records] == [r.clock for r in timed("fedprox").records]


@pytest.mark.parametrize(
    ("speeds", "slowest"), [("equal", 1.0), ("uniform", 4.0), ("groups", 4.0), ("lognormal", 4.0**1.75)]
)
def test_speeds_are_spread_as_asked(speeds: str, slowest: float) -> None:
    """Slowness is spread^u: u = 0; uniform on 0..1; steps from 0 to 1; normal about 1/2 with deviation 1/4 (5 sigma)."""
    slowness = 1000.0 / fleet(1000, speeds=speeds, spread=4).speed
    assert slowness.max() <= slowest * (1 + 1e-12)
    assert np.median(slowness) == pytest.approx(1.0 if speeds == "equal" else 2.0, rel=0.15)


@pytest.mark.slow
def test_jitter_is_uniform_and_exponential_has_the_same_mean() -> None:
    factors = np.array([fleet(jitter=0.3).training_seconds(0, n, 1000) for n in range(2000)])
    assert 0.7 <= factors.min() < 0.71
    assert 1.29 < factors.max() <= 1.3
    draws = np.array([fleet(durations="exponential").training_seconds(0, n, 1000) for n in range(2000)])
    assert draws.mean() == pytest.approx(1.0, abs=4 / 2000**0.5)  # 4 standard errors of a unit exponential
    assert np.mean(draws > 1) == pytest.approx(np.exp(-1), abs=0.045)


def test_the_servers_own_machine_needs_no_network() -> None:
    made = fleet(6, speeds="groups", groups=3, bandwidth=100.0, latency=2.0)
    assert [made.message_seconds(k, 50) for k in range(6)] == [0.0, 2.5, 2.5, 0.0, 2.5, 2.5]


def test_a_trace_says_what_each_device_is(tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_text("client,speed,dropout\n1,200,0\n0,100,0.5\n")
    made = fleet(2, trace=str(tmp_path / "fleet.csv"), latency=3.0)
    assert made.speed.tolist() == [100, 200]
    assert made.dropout.tolist() == [0.5, 0]
    assert made.latency.tolist() == [3, 3]


def test_a_trace_beside_its_experiment_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fleet.csv").write_text("client,latency\n0,1\n1,1\n")
    (tmp_path / "exp.toml").write_text('data = "digits"\nclients = 2\nrounds = 1\ndevices = { trace = "fleet.csv" }\n')
    monkeypatch.chdir("/")
    exp = Experiment.make(tmp_path / "exp.toml")
    assert Experiment.make(exp).devices.trace == str(tmp_path / "fleet.csv")
    assert fa.run(exp, out=False, runtime="serial").final.clock > 2


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("client,speed\n0,1\n", BadValue, "names 1 clients, the experiment has 2"),
        ("client,speed\n0,1\n1,0\n", BadValue, "client 1 has speed = 0"),
        ("client,dropout\n0,1\n1,0\n", BadValue, "client 0 has dropout = 1"),
        ("client,speed\n0,1\n1,fast\n", DataBroken, "could not convert"),
        ("client,colour\n0,1\n1,2\n", BadValue, "client, colour"),
        ("speed\n1\n", DataBroken, "'client' is missing"),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused(tmp_path: Path, text: str, error: type, said: str) -> None:
    (tmp_path / "fleet.csv").write_text(text)
    with pytest.raises(error, match=said):
        fleet(2, trace=str(tmp_path / "fleet.csv"))


def test_impossible_devices_are_refused() -> None:
    for wrong in ({"speed": 0}, {"jitter": 1.0}, {"spread": 0.5}, {"bandwidth": 0}, {"spede": 1}):
        with pytest.raises(fa.FedarenaError, match=r"devices"):
            Experiment.make("digits", devices=wrong)
