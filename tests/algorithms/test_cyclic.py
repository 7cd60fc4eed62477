"""Cyclic weight transfer: exact statements (docs/reference/algorithms.md#cyclic-weight-transfer)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.algorithms.test_fedavg import CENTRES, CURVATURES, on_blobs, on_quadratics, weights
from tests.support.federations import blobs
from torch import nn

import fedarena as fa
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.config.seeds import stream
from fedarena.engine.setup import open_context

LOCAL = {"lr": 0.1, "epochs": 1, "batch": 4}


def after_steps(w: np.ndarray, client: int, steps: int) -> np.ndarray:
    """SGD on the quadratic of a client, whose samples are all equal: w - a shrinks by 1 - eta h in every step."""
    return CENTRES[client] + (1 - 0.1 * CURVATURES[client]) ** steps * (w - CENTRES[client])


def turns(rounds: int, clients: int, seed: int = 0) -> list[int]:
    return [k for t in range(rounds) for k in stream(seed, "algorithm", t).permutation(clients).tolist()]


@pytest.mark.parametrize("order", ["random", "fixed"])
def test_the_model_passes_through_the_clients(order: str) -> None:
    """Three rounds with 8, 12 and 20 samples a client: 2, 3 and 5 steps, one client after the other."""
    rows = [8, 12, 20]
    got = on_quadratics(rows, algorithm={"name": "cyclic", "order": order}, rounds=3, local=LOCAL)
    w = np.zeros(2)
    for client in turns(3, 3) if order == "random" else [0, 1, 2] * 3:
        w = after_steps(w, client, rows[client] // 4)
    assert got == pytest.approx(w, abs=1e-12)


def test_the_order_is_random_and_differs_between_rounds_and_seeds() -> None:
    assert sorted(turns(1, 4)) == [0, 1, 2, 3]
    assert len({tuple(turns(20, 4)[i : i + 4]) for i in range(0, 80, 4)}) > 5
    assert turns(5, 4) != turns(5, 4, seed=1)


def test_one_client_is_centralized_and_fedavg() -> None:
    """To the bit for the model as it is, to rounding for FedAvg, which sends a difference."""
    one = {"clients": 1, "dtype": "float64"}
    cyclic = on_blobs("cyclic", **one)
    assert cyclic.weights_sha256 == on_blobs("centralized", **one).weights_sha256
    assert weights(cyclic) == pytest.approx(weights(on_blobs("fedavg", **one)), abs=1e-12)


def test_a_client_that_does_not_answer_is_passed_over() -> None:
    """Half of the clients drop out of each round; the model passes through the others."""
    run = on_blobs("cyclic", rounds=6, dropouts=0.5)
    answered = [record.answered for record in run.records]
    assert all(record.selected == 4 and record.answered + record.dropped == 4 for record in run.records)
    assert 0 < sum(answered) < 24
    assert run.records[-1].uploads == sum(answered)


def test_costs_are_those_of_fedavg_and_time_adds_up() -> None:
    """The same messages, one after the other: a round takes as long as all its clients together."""
    devices = {"speed": 10.0, "jitter": 0.0, "latency": 1.0}
    cyclic, average = (on_blobs(name, devices=devices) for name in ("cyclic", "fedavg"))
    last, same = cyclic.records[-1], average.records[-1]
    assert (last.bytes_up, last.bytes_down, last.uploads) == (same.bytes_up, same.bytes_down, same.uploads)
    assert last.clock == pytest.approx(4 * same.clock)  # four clients with 48 samples each


def test_batchnorm_statistics_travel_with_the_model() -> None:
    """One client after the other updates the running mean, as one model in their hands would."""
    net = lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    settings = {"model": net, "clients": 2, "rounds": 1, "algorithm": {"name": "cyclic", "order": "fixed"}}
    run = fa.run(blobs(), out=False, runtime="serial", local={"lr": 1e-9, "batch": "inf"}, **settings)
    context = open_context(Experiment.make(blobs(), **settings))
    mean = torch.zeros(6)
    for rows in context.partition.clients:
        mean = 0.9 * mean + 0.1 * torch.from_numpy(context.data.x[rows]).mean(dim=0)
    assert run.state["0.running_mean"].numpy() == pytest.approx(mean.numpy(), abs=1e-6)
    assert int(run.state["0.num_batches_tracked"]) == 2


@pytest.mark.slow
def test_same_bits_for_workers_and_after_resume(tmp_path: Path) -> None:
    settings = {"data": "digits", "model": "logreg", "algorithm": "cyclic", "clients": 5, "share": 0.6, "rounds": 4,
                "dropouts": 0.2, "local": {"lr": 0.1, "batch": 8, "steps": 7}}  # fmt: skip
    whole = fa.run(settings, out=False, runtime="serial")
    parallel = fa.run(settings, out=False, runtime="processes", workers=2)
    fa.run(settings, out=tmp_path / "run", runtime="serial", on_round=lambda record: record.round == 2)
    resumed = fa.run(settings, resume=tmp_path / "run", runtime="serial")
    assert whole.weights_sha256 == parallel.weights_sha256 == resumed.weights_sha256


def test_each_model_is_seen_by_the_next_client() -> None:
    """So that an uplink that lets only means through is refused."""
    with pytest.raises(BadValue, match="cyclic must see each update by itself"):
        on_blobs("cyclic", uplink="mean_only")


def test_published_code_passes_nothing_on() -> None:
    """`pass_on = false`: after three rounds the result is client 0 alone, with its 8 / 4 = 2 steps a round."""
    got = on_quadratics([8, 12, 20], algorithm={"name": "cyclic", "pass_on": False}, rounds=3, local=LOCAL)
    assert got == pytest.approx(after_steps(np.zeros(2), 0, 6), abs=1e-12)
