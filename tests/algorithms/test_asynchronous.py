"""FedAsync and FedBuff: what the server makes of answers as they come."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from tests.algorithms.test_coop import many
from tests.algorithms.test_fedavg import on_blobs, weights
from tests.support.federations import Quadratic, quadratics

from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.engine.devices import build_fleet


def events(clients: int, seed: int, answers: int) -> list[tuple[int, int]]:
    """(client, answers taken before it began), in order of arrival, everyone at work all the time."""
    exp = Experiment.make(
        quadratics(np.zeros((clients, 2)), np.ones((clients, 2)), [1] * clients),
        model=lambda: Quadratic(2), partition="natural", seed=seed,
    )  # fmt: skip
    fleet = build_fleet(exp, clients)
    resting: list[tuple[float, int, int, int]] = [(fleet.training_seconds(k, 0, 1), k, 0, 0) for k in range(clients)]
    heapq.heapify(resting)
    finished = []
    for taken in range(answers):
        now, k, number, began = heapq.heappop(resting)
        finished.append((k, began))
        heapq.heappush(resting, (now + fleet.training_seconds(k, number + 1, 1), k, number + 1, taken + 1))
    return finished


CENTRES = np.random.default_rng(7).standard_normal((5, 2))


def test_fedasync_mixes_by_age() -> None:
    """w <- (1 - alpha_t) w + alpha_t w_k with alpha_t = 0.6 (d + 1)^(-1/2), w_k one step from what k had fetched."""
    models = [np.zeros(2)]
    for k, began in events(5, seed=2, answers=20):
        alpha = 0.6 * (len(models) - 1 - began + 1) ** -0.5
        w_k = models[began] - 0.1 * (models[began] - CENTRES[k])
        models.append((1 - alpha) * models[-1] + alpha * w_k)
    run = many(5, 4, 5, {"name": "fedasync", "rho": 0.0}, seed=2)
    np.testing.assert_allclose(run.state["w"].numpy(), models[-1], rtol=0, atol=1e-14)


def test_fedbuff_waits_for_a_full_buffer() -> None:
    """w <- w - 1/K sum (d + 1)^(-1/2) Delta_k at every third answer; d counts models, not answers."""
    models, waiting, age_after = [np.zeros(2)], [], [0]
    for k, began in events(5, seed=2, answers=20):
        start = age_after[began]
        delta = 0.1 * (models[start] - CENTRES[k])
        waiting.append((len(models) - 1 - start + 1) ** -0.5 * delta)
        if len(waiting) == 3:
            models.append(models[-1] - sum(waiting) / 3)
            waiting = []
        age_after.append(len(models) - 1)
    run = many(5, 4, 5, {"name": "fedbuff", "buffer": 3}, seed=2)
    assert len(models) == 7
    np.testing.assert_allclose(run.state["w"].numpy(), models[-1], rtol=0, atol=1e-14)


def test_fedbuff_of_one_client_is_fedavg() -> None:
    """With a buffer of one and a single client no answer is ever old."""
    ours = on_blobs({"name": "fedbuff", "buffer": 1}, clients=1)
    np.testing.assert_allclose(weights(ours), weights(on_blobs("fedavg", clients=1)), rtol=0, atol=1e-6)


def test_fedasync_alone_with_full_weight_is_centralized_sgd() -> None:
    ours = on_blobs({"name": "fedasync", "alpha": 1.0, "rho": 0.0}, clients=1)
    assert np.array_equal(weights(ours), weights(on_blobs("centralized", clients=1)))


def test_fedasync_with_a_spring_too_stiff_is_refused() -> None:
    with pytest.raises(BadValue, match="fedasync diverges"):
        many(3, 1, 1, {"name": "fedasync", "rho": 25.0})


@pytest.mark.slow
def test_only_so_many_work_at_once_and_all_get_their_turn() -> None:
    """2 of 10 clients train at a time, and idle ones are started uniformly: none is left out."""
    run = many(10, 100, 2, "fedasync")
    assert len(run.ages["histogram"]) > 1
    assert min(run.ages["merges_of_clients"]) > 5  # 20 each, and 10 binomial draws of 200 x 1/10 leave 5..35 at 4 sigma
    assert max(run.ages["merges_of_clients"]) < 38


def test_the_buffer_fits_the_federation() -> None:
    assert many(5, 1, 4, "fedbuff").used["buffer"] == 4
    assert many(20, 1, 20, "fedbuff").used["buffer"] == 10


def test_rates_decay_with_the_rounds_of_the_federation() -> None:
    """A training begun after r x 5 answers is in round r, for every client: eta / (1 + lambda r)."""
    models, rounds = [np.zeros(2)], []
    for k, began in events(5, seed=2, answers=20):
        rounds.append(began // 5)
        eta = 0.1 / (1 + 0.5 * rounds[-1])
        alpha = 0.6 * (len(models) - 1 - began + 1) ** -0.5
        models.append((1 - alpha) * models[-1] + alpha * (models[began] - eta * (models[began] - CENTRES[k])))
    local = {"lr": 0.1, "batch": 1, "decay": 0.5, "decay_counter": "round"}
    run = many(5, 4, 5, {"name": "fedasync", "rho": 0.0}, seed=2, local=local)
    assert max(rounds) == 3
    np.testing.assert_allclose(run.state["w"].numpy(), models[-1], rtol=0, atol=1e-14)
