"""CO-OP (docs/reference/algorithms.md#co-op): the age filter, its deadlocks, and its limiting cases."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import on_blobs, weights
from tests.support.federations import Quadratic, quadratics

import fedarena as fa
from fedarena.config.errors import BadValue, Deadlock
from fedarena.config.experiment import Experiment
from fedarena.engine.devices import build_fleet


def many(clients: int, rounds: int, merges: int = 1, algorithm: Any = "coop", **settings: Any) -> fa.Run:
    """Unlike quadratics, one row each: what matters here is who merges when."""
    centres = np.random.default_rng(7).standard_normal((clients, 2))
    defaults = {"local": {"lr": 0.1, "batch": 1}, "evaluate": {"every": 1000}, "dtype": "float64"}
    return fa.run(
        quadratics(centres, np.ones((clients, 2)), [1] * clients),
        model=lambda: Quadratic(2),
        partition="natural",
        algorithm=algorithm,
        per_round=merges,
        rounds=rounds,
        out=False,
        runtime="serial",
        **{**defaults, **settings},
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_alone_and_unfiltered_it_is_centralized_sgd(dtype: str) -> None:
    """K = 1, b_l = 0, rho = 0: alpha is 1 and every epoch goes on from the last. Bit by bit, decaying rates included."""
    local = {"lr": 0.1, "epochs": 2, "batch": 8, "decay": 0.01}
    one = on_blobs({"name": "coop", "b_l": 0, "b_u": 1}, clients=1, rounds=5, dtype=dtype, local=local)
    central = on_blobs("centralized", clients=1, rounds=5, dtype=dtype, local=local)
    assert np.array_equal(weights(one), weights(central))
    assert one.ages["histogram"] == [5]


def test_alone_on_a_quadratic_it_is_centralized_sgd() -> None:
    one = many(1, 6, algorithm={"name": "coop", "b_l": 0, "b_u": 1})
    assert np.array_equal(one.state["w"].numpy(), many(1, 6, algorithm="centralized").state["w"].numpy())


def test_the_published_filter_scales_with_the_federation() -> None:
    """16 and 51 belong to 100 clients."""
    used = {k: many(k, 1).used for k in (1, 5, 10, 100)}
    filters = {k: (u["b_l"], u["b_u"]) for k, u in used.items()}
    assert filters == {1: (0, 1), 5: (0, 2), 10: (1, 5), 100: (16, 51)}


@pytest.mark.slow
def test_only_answers_of_the_right_age_are_merged() -> None:
    """b_l <= d <= b_u, hence (b_u + 1)^(-1/2) <= alpha <= (b_l + 1)^(-1/2); the age grows by one a merge."""
    run = many(20, 30, 10, {"name": "coop", "b_l": 3, "b_u": 9})
    seen = [d for d, n in enumerate(run.ages["histogram"]) if n]
    assert min(seen) >= 3
    assert max(seen) <= 9
    assert sum(run.ages["histogram"]) == run.ages["merges"] == run.final.uploads == 300
    assert run.final.outdated > 0


def by_hand(clients: int, merges: int, b_l: int, b_u: int, seed: int, lr: float = 0.1) -> tuple[np.ndarray, list[int]]:
    """The pseudocode of the thesis on one-row quadratics, replayed by its events: final weights, and clients that merged."""
    centres = np.random.default_rng(7).standard_normal((clients, 2))
    exp = Experiment.make(
        quadratics(centres, np.ones((clients, 2)), [1] * clients),
        model=lambda: Quadratic(2),
        partition="natural",
        seed=seed,
    )
    fleet = build_fleet(exp, clients)
    w, a = np.zeros(2), b_l
    own, age, number = [np.zeros(2) for _ in range(clients)], [0] * clients, [0] * clients
    queue = [(fleet.training_seconds(k, 0, 1), k) for k in range(clients)]
    heapq.heapify(queue)
    order: list[int] = []
    while len(order) < merges:
        now, k = heapq.heappop(queue)
        own[k] = own[k] - lr * (own[k] - centres[k])
        d = a - age[k]
        if d > b_u:
            own[k], age[k] = w, a
        elif d >= b_l:
            alpha = (d + 1) ** -0.5
            w, a = (1 - alpha) * w + alpha * own[k], a + 1
            own[k], age[k] = w, a
            order.append(k)
        number[k] += 1
        heapq.heappush(queue, (now + fleet.training_seconds(k, number[k], 1), k))
    return w, order


@pytest.mark.parametrize(("b_l", "b_u"), [(0, 4), (2, 5), (3, 7)])
def test_it_is_the_pseudocode(b_l: int, b_u: int) -> None:
    run = many(8, 15, 4, {"name": "coop", "b_l": b_l, "b_u": b_u}, seed=3)
    w, order = by_hand(8, 60, b_l, b_u, seed=3)
    np.testing.assert_allclose(run.state["w"].numpy(), w, rtol=0, atol=1e-14)
    assert run.ages["merges_of_clients"] == np.bincount(order, minlength=8).tolist()


@pytest.mark.slow
def test_ages_are_those_of_a_simulation_of_100_clients() -> None:
    """Lost work with 16/51 and equal speeds +- 20 % (docs/reference/algorithms.md#co-op):
    1.9 trainings a merge, 48 % outdated, mean d 46, alpha 0.147."""
    ages = many(100, 150, 10).ages
    assert ages["trainings_per_merge"] == pytest.approx(1.9, abs=0.06)
    assert ages["outdated"] == pytest.approx(0.48, abs=0.02)
    assert ages["mean_age"] == pytest.approx(46, abs=1.5)
    assert ages["mean_share"] == pytest.approx(0.147, abs=0.005)


def test_as_many_waiting_as_clients_is_a_deadlock_after_k_merges() -> None:
    """K = b_l = 10: each merges once, then everyone waits for ten merges by others, and there are only nine others."""
    run = many(10, 50, 1, {"name": "coop", "b_l": 10, "b_u": 30, "allow_deadlock": True})
    assert run.ages["deadlock"]
    assert run.ages["merges_of_clients"] == [1] * 10
    assert any("deadlock after 10 merges" in note for note in run.notes)


@pytest.mark.parametrize("seed", range(3))
def test_three_clients_two_apart_deadlock(seed: int) -> None:
    """K = 3, b_l = 2, b_u = 3 (theorem A.1 of Nilsson et al.: b_u < 2 b_l)."""
    assert many(3, 500, 1, {"name": "coop", "b_l": 2, "b_u": 3, "allow_deadlock": True}, seed=seed).ages["deadlock"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_wide_filter_does_not_deadlock_and_a_narrow_one_does(seed: int) -> None:
    """K = 20, b_l = 6: b_u = 8 and 11 deadlock in every simulation, b_u = 2 b_l = 12 never."""
    ends = {
        b_u: many(20, 60, 20, {"name": "coop", "b_l": 6, "b_u": b_u, "allow_deadlock": True}, seed=seed).ages[
            "deadlock"
        ]
        for b_u in (8, 11, 12)
    }
    assert ends == {8: True, 11: True, 12: False}


@pytest.mark.parametrize(("b_l", "b_u", "said"), [(10, 30, "will deadlock after 10 merges"), (6, 9, "may deadlock")])
def test_filters_that_deadlock_are_refused_with_both_conditions(b_l: int, b_u: int, said: str) -> None:
    with pytest.raises(BadValue, match=said) as error:
        many(10, 1, 1, {"name": "coop", "b_l": b_l, "b_u": b_u})
    assert "b_l < clients" in error.value.remedy
    assert "b_u >= 2 b_l" in error.value.remedy


@pytest.mark.slow
def test_a_narrow_filter_is_fine_for_few_clients() -> None:
    """b_u < 2 b_l, but K = 3 < b_u - b_l + 1 = 4: one client is always outdated before all can wait."""
    assert many(3, 70, 3, {"name": "coop", "b_l": 2, "b_u": 5}).ages["merges"] == 210


def test_an_empty_filter_is_refused() -> None:
    with pytest.raises(BadValue, match="age filter is empty"):
        many(10, 1, 1, {"name": "coop", "b_l": 3, "b_u": 3})


def test_a_deadlock_that_no_condition_foresaw_stops_the_run() -> None:
    """Two lie to the check: the loop itself notices that all are overactive, and says so."""

    class Blind(fa.algorithms.coop.COOP):
        def check(self, setting: Any) -> None:
            pass

    with pytest.raises(Deadlock, match="after 10 merges"):
        many(10, 50, 1, Blind(b_l=10, b_u=30))


@pytest.mark.slow
def test_bytes_are_counted_by_poll() -> None:
    """A merge costs a model and an age each way, an outdated poll a model down, an overactive one only the ages."""
    run = many(10, 20, 5, {"name": "coop", "b_l": 3, "b_u": 6}, devices={"durations": "exponential"})
    last, model = run.final, 2 * 8
    polls = last.uploads + last.outdated + last.overactive
    assert last.outdated > 0
    assert last.overactive > 0
    assert last.bytes_up == last.uploads * model + polls * 8
    assert last.bytes_down == (last.uploads + last.outdated) * model + polls * 8


@pytest.mark.slow
def test_work_that_is_thrown_away_is_counted() -> None:
    """One row, one epoch: a step a training, whether its result was merged, kept or thrown away."""
    last = many(10, 20, 5, {"name": "coop", "b_l": 3, "b_u": 6}, devices={"durations": "exponential"}).final
    assert last.steps == last.samples == last.uploads + last.outdated + last.overactive


def test_only_an_answer_that_is_wanted_takes_the_time_to_send_it() -> None:
    """Alone: train, ask, hear yes, send the model; then fetch. Two merges of one client, by the clock, nothing random."""
    devices = {"speed": 10.0, "jitter": 0, "latency": 0.5, "bandwidth": 100.0}
    run = many(1, 2, 1, {"name": "coop", "b_l": 0, "b_u": 1}, devices=devices)
    ask, model, training = 0.5 + 8 / 100, 0.5 + 16 / 100, 1 / 10
    first = training + ask + ask + model
    assert [r.clock for r in run.records] == pytest.approx([first, first + model + first], rel=1e-12)


def test_polls_that_send_nothing_take_no_time_to_send_it() -> None:
    """The same trainings with a line so slow that a model takes 1000 s: who is turned away is back after the ages."""
    devices = {"durations": "exponential", "bandwidth": 16 / 1000}
    run = many(6, 10, 3, {"name": "coop", "b_l": 2, "b_u": 30}, devices=devices)
    assert run.final.overactive > 0
    assert run.ages["merges"] == 30
    assert run.final.clock < 30 * (1000 + 1000 + 3 * 500 + 10)  # each merge a model up and one down, and ages of 500 s


def test_a_diverging_run_is_no_deadlock() -> None:
    """Lost answers leave a client as old as it was: no client becomes overactive by losing."""
    run = fa.run(
        "digits", algorithm="coop", clients=10, partition="iid", model="logreg", rounds=3, local={"lr": 1e38},
        out=False, runtime="serial",
    )  # fmt: skip
    assert run.diverged
    assert not run.ages["deadlock"]
    assert run.final.dropped == 10
