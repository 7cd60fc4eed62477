"""FSVRG, LoAdaBoost, Co-Learning, FedPAGE, FedFA (algorithms 9, 11 to 14), adaptive servers, FedDyn, robust means."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.test_drift import FULL, ROWS, federation, solve
from tests.algorithms.test_fedavg import CENTRES, CURVATURES, on_blobs, on_quadratics
from tests.federations import Quadratic, optimum, quadratics
from torch import nn

import fedarena as fa
from fedarena.algorithms import (
    FSVRG,
    CoLearning,
    FedAdagrad,
    FedAdam,
    FedDyn,
    FedFA,
    FedPAGE,
    FedYogi,
    Krum,
    LoAdaBoost,
    Median,
    TrimmedMean,
)
from fedarena.algorithms.base import Reply
from fedarena.errors import BadValue


def at_optimum(algorithm: Any, rounds: int = 3, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Start at the optimum of the mean by rows: where does it end?"""
    target = optimum(CENTRES, CURVATURES, np.array(ROWS))
    module = Quadratic(2)
    module.w.data = module.w.data.double() + __import__("torch").tensor(target)
    run = fa.run(quadratics(CENTRES, CURVATURES, ROWS), model=module, algorithm=algorithm, partition="natural",
                 dtype="float64", rounds=rounds, out=False, runtime="serial", **settings)  # fmt: skip
    return run.state["w"].numpy(), target


# FSVRG


def test_fsvrg_stays_at_the_optimum() -> None:
    got, target = at_optimum(FSVRG(h=2.0))
    np.testing.assert_allclose(got, target, atol=1e-12)


def test_fsvrg_reaches_the_optimum_from_elsewhere() -> None:
    target = optimum(CENTRES, CURVATURES, np.array(ROWS))
    got = on_quadratics(ROWS, algorithm=FSVRG(h=0.5), rounds=150, evaluate={"every": 150})
    np.testing.assert_allclose(got, target, atol=1e-9)


def test_fsvrg_by_hand() -> None:
    """Equal rows: n_k steps of w <- w - h/n_k [h_k (w - w_t) + grad f], the first of them -h/n_k grad f exactly."""
    n = np.array(ROWS)
    full = (n[:, None] * CURVATURES * (0 - CENTRES)).sum(axis=0) / n.sum()
    ends = []
    for k in range(3):
        w = np.zeros(2)
        for _ in range(n[k]):
            w = w - 0.7 / n[k] * (CURVATURES[k] * w + full)
        ends.append(w)
    expected = (n[:, None] * np.array(ends)).sum(axis=0) / n.sum()
    got = on_quadratics(ROWS, algorithm=FSVRG(h=0.7), rounds=1)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_fsvrg_with_one_row_is_gradient_descent_and_h_0_is_nothing() -> None:
    got = on_quadratics([1], algorithm=FSVRG(h=0.3), rounds=1)
    np.testing.assert_allclose(got, 0.3 * CURVATURES[0] * CENTRES[0], rtol=1e-12)
    assert np.array_equal(on_quadratics(ROWS, algorithm=FSVRG(h=0.0), rounds=2), np.zeros(2))


def test_fsvrg_asks_everyone_twice_and_costs_twice_fedavg() -> None:
    """Section 0.7: two models down (w, grad f) and two up (grad F_k, w_k); uploads 2 K a round."""
    fsvrg, avg = on_blobs("fsvrg", share=0.5, rounds=1).records[-1], on_blobs("fedavg", rounds=1).records[-1]
    assert (fsvrg.uploads, avg.uploads) == (8, 4)
    assert fsvrg.bytes_down == 2 * avg.bytes_down
    assert fsvrg.bytes_up == 2 * avg.bytes_up


def test_fsvrg_refuses_what_is_no_fixed_function() -> None:
    x = np.random.default_rng(0).random((60, 1, 8, 8)).astype(np.float32)
    y = np.arange(60) % 3
    for layer in (nn.BatchNorm2d(1), nn.Dropout(0.5)):
        net = lambda layer=layer: nn.Sequential(layer, nn.Flatten(), nn.Linear(64, 3))
        with pytest.raises(BadValue, match="fsvrg cannot train"):
            fa.run((x, y), model=net, algorithm="fsvrg", out=False, runtime="serial")
    with pytest.raises(BadValue, match="no momentum"):
        on_blobs("fsvrg", local={"lr": 0.1, "momentum": 0.9})


# LoAdaBoost


def efforts(**settings: Any) -> tuple[fa.Run, list[float]]:
    """A run, and the epochs that every client made."""
    seen: list[float] = []

    class Spy(LoAdaBoost):
        def client(self, got: Any, kept: Any, work: Any) -> Reply:
            reply = super().client(got, kept, work)
            seen.append(reply.send.epochs)
            return reply

    local = {"lr": 0.05, "epochs": 10, "batch": 16}
    return on_blobs(Spy(**settings), local=local, rounds=2), seen


def test_loadaboost_without_retraining_is_fedavg_with_half_the_epochs() -> None:
    """L_med = +inf in round 0: bitwise FedAvg with E/2."""
    local = {"lr": 0.05, "epochs": 10, "batch": 16}
    boosted = on_blobs("loadaboost", local=local, rounds=1)
    assert boosted.weights_sha256 == on_blobs(local={**local, "epochs": 5}, rounds=1).weights_sha256


def test_loadaboost_retrains_to_the_cap_and_may_overshoot_it() -> None:
    """E = 10, L_med = -inf: 5, 10, 14, 17 >= 15."""
    assert efforts(initial_median=-math.inf)[1][:4] == [17, 17, 17, 17]
    assert efforts(initial_median=-math.inf, hard_cap=True)[1][:4] == [15, 15, 15, 15]
    assert efforts(initial_median=-math.inf, trial_start=1)[1][:4] == [15, 15, 15, 15]  # 5 + 4 + 3 + 2 + 1


def test_loadaboost_mean_epochs_are_in_the_record() -> None:
    """Rows seen in a round, over the rows of those who took part, are the mean epochs of a client, by rows."""
    run, epochs = efforts(initial_median=-math.inf)
    seen = np.diff([0, *(r.samples for r in run.records)]) / 192  # four clients of 48 rows
    assert seen.tolist() == [np.mean(epochs[:4]), np.mean(epochs[4:])]
    assert seen[0] == 17 > seen[1]


def test_loadaboost_directions() -> None:
    """Above: those worse than the last median train on; below: the others; nobody in round 0 either way."""
    for direction in ("above", "below"):
        _, epochs = efforts(direction=direction)
        assert epochs[:4] == [5, 5, 5, 5]
        assert len(epochs) == 8
    assert efforts(direction="below", initial_median=math.inf)[1][:4] == [17, 17, 17, 17]


@pytest.mark.parametrize(("half", "epochs"), [("floor", 2), ("ceil", 3), ("round", 2), ("fractional", 2.5)])
def test_loadaboost_half_of_five(half: Any, epochs: float) -> None:
    """A-20; a half epoch is half of its batches."""
    run = on_blobs(LoAdaBoost(half=half), local={"lr": 0.05, "epochs": 5, "batch": 8}, rounds=1)
    steps = {2: 4 * 2 * 6, 3: 4 * 3 * 6, 2.5: 4 * (2 * 6 + 3)}[epochs]  # four clients of 48 rows: 6 batches an epoch
    assert run.records[0].steps == steps


def test_loadaboost_equal_losses_retrain_nobody() -> None:
    """Strict inequality, both ways: at the optimum every loss is 0, and so is the median of the round before."""
    for direction in ("above", "below"):
        seen: list[float] = []

        class Spy(LoAdaBoost):
            def client(self, got: Any, kept: Any, work: Any, seen: list[float] = seen) -> Reply:
                reply = super().client(got, kept, work)
                seen.append(reply.send.epochs)
                return reply

        fa.run(quadratics(np.zeros((2, 2)), np.ones((2, 2)), [5, 5]), model=lambda: Quadratic(2), partition="natural",
               algorithm=Spy(direction=direction), rounds=3, local={"lr": 0.1, "epochs": 4}, out=False,
               runtime="serial")  # fmt: skip
        assert seen == [2] * 6


# Co-Learning


def test_colearning_rate_falls_by_epochs_and_starts_again() -> None:
    """eta lambda^(e/E): 0.1, 0.1 * 0.25^(1/3), 0.1 * 0.25^(2/3); full batch on a quadratic, by hand, two rounds."""
    got = on_quadratics([5], algorithm=CoLearning(decay=0.25, epsilon=-1.0), rounds=2, local={**FULL, "epochs": 3})
    w = np.zeros(2)
    for _ in range(2):
        for e in range(3):
            w = w - 0.1 * 0.25 ** (e / 3) * CURVATURES[0] * (w - CENTRES[0])
    np.testing.assert_allclose(got, w, rtol=1e-12)


def test_colearning_doubles_when_the_model_hardly_moves() -> None:
    """epsilon = inf: 1, 2, 4, 4 (cap) times the epochs; epsilon < 0: never."""
    run = on_blobs(CoLearning(epsilon=1e9, most=4), local={"lr": 0.05, "epochs": 1, "batch": 16}, rounds=4)
    each = np.diff([0, *(r.steps for r in run.records)])
    assert (each / each[0]).tolist() == [1, 2, 4, 4]


def test_colearning_epochs_only_double_and_only_when_the_model_has_settled() -> None:
    """With an epsilon in between: the same, then powers of two, never less."""
    run = on_blobs(CoLearning(epsilon=0.02, decay=0.5, most=8), local={"lr": 0.05, "epochs": 1, "batch": 16}, rounds=30)
    each = np.diff([0, *(r.steps for r in run.records)])
    factors = (each / each[0]).tolist()
    assert factors == sorted(factors)
    assert factors[:3] == [1, 1, 1]
    assert factors[-1] > 1
    assert set(factors) <= {1, 2, 4, 8}


def test_colearning_measures_parameters_not_statistics() -> None:
    """The weights hardly move while BatchNorm's running means go from 0 to those of the rows: epochs double."""
    x = np.random.default_rng(0).random((60, 1, 8, 8)).astype(np.float32) + 100
    net = lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    run = fa.run((x, np.arange(60) % 3), model=net, algorithm=CoLearning(epsilon=1e-3), partition="iid", clients=3,
                 rounds=2, local={"lr": 1e-7, "epochs": 1, "batch": 8}, out=False, runtime="serial")  # fmt: skip
    assert float(run.state["1.running_mean"].abs().max()) > 1
    assert run.records[1].steps == 3 * run.records[0].steps


# FedPAGE


def test_fedpage_telescopes_to_the_exact_gradient() -> None:
    """Q = 1, full batches, everybody: g_t = grad f(w_t), so that any p gives gradient descent."""
    full = {"lr": 0.1, "batch": math.inf}
    lazy = on_quadratics(ROWS, algorithm=FedPAGE(p=1e-9, q=1, server_lr=0.2), rounds=12, local=full)
    exact = on_quadratics(ROWS, algorithm="fedsgd", rounds=12, local={"lr": 0.2})
    np.testing.assert_allclose(lazy, exact, rtol=1e-10)


def test_fedpage_stays_at_the_optimum() -> None:
    got, target = at_optimum(FedPAGE(p=0.3, q=1), rounds=6, local={"lr": 0.1, "batch": math.inf})
    np.testing.assert_allclose(got, target, atol=1e-12)


def test_fedpage_costs_two_models_down_when_it_carries_on() -> None:
    run = on_blobs(FedPAGE(p=1e-9), share=0.5, rounds=2)
    model = 4 * sum(v.numel() for v in run.state.values())
    first, second = run.records
    assert first.bytes_down == 4 * model  # round 0: everybody measures
    assert second.bytes_down - first.bytes_down == 2 * (2 * model + 8)
    assert second.bytes_up - first.bytes_up == 2 * (model + 8)


# FedFA


def test_fedfa_weights_sum_to_one_and_favour_the_weak_and_the_rare() -> None:
    w = FedFA().weights(np.array([0.9, 0.5, 0.7]), np.array([3.0, 3.0, 3.0]))
    assert w.sum() == pytest.approx(1)
    assert w.argmax() == 1
    rare = FedFA().weights(np.full(3, 0.8), np.array([1.0, 5.0, 5.0]))
    often = FedFA(freq="more_more").weights(np.full(3, 0.8), np.array([1.0, 5.0, 5.0]))
    assert rare.argmax() == 0
    assert often.argmin() == 0
    assert (FedFA().weights(np.array([0.4]), np.array([2.0])) == [1.0]).all()
    np.testing.assert_allclose(FedFA().weights(np.full(4, 0.8), np.full(4, 2.0)), 0.25)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 50)), min_size=1, max_size=9), st.sampled_from([0, 0.3, 1]))
def test_fedfa_weights_are_shares(clients: list[tuple[float, int]], mix: float) -> None:
    """Never negative, 1 together, whatever the accuracies and visits."""
    accuracy, visits = (np.array(column, dtype=np.float64) for column in zip(*clients, strict=True))
    for freq in ("less_more", "more_more"):
        share = FedFA(mix=mix, freq=freq).weights(accuracy, visits)
        assert (share >= 0).all()
        assert share.sum() == pytest.approx(1)


def test_fedfa_with_equal_accuracies_and_visits_is_the_uniform_mean() -> None:
    """Unlike quadratics, which know no accuracy, of equal rows, without momentum: FedAvg."""
    settings: dict[str, Any] = {"rounds": 3, "local": FULL}
    fair, plain = (on_quadratics([4, 4, 4], algorithm=a, **settings) for a in (FedFA(beta=0.0), "fedavg"))
    np.testing.assert_allclose(fair, plain, rtol=1e-12)


# Adaptive servers, FedDyn


@pytest.mark.parametrize("kind", [FedAdagrad, FedAdam, FedYogi])
def test_adaptive_servers_by_hand(kind: Any) -> None:
    """Two steps with G = (1, -2): the formulas of algorithm 2, number by number."""
    server = kind(server_lr=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3)
    g = np.array([1.0, -2.0])
    state = server.init(np.zeros(2))
    w, m, v = np.zeros(2), np.zeros(2), np.full(2, 1e-6)
    for _ in range(2):
        state = server.server(state, fa.Step(g), None)
        m = 0.9 * m + 0.1 * g
        v = {FedAdagrad: v + g**2, FedAdam: 0.99 * v + 0.01 * g**2,
             FedYogi: v - 0.01 * g**2 * np.sign(v - g**2)}[kind]  # fmt: skip
        w = w - 0.1 * m / (np.sqrt(v) + 1e-3)
        np.testing.assert_allclose(state.w, w, rtol=1e-12)


def test_feddyn_reaches_the_optimum_of_unlike_quadratics() -> None:
    """With many local steps a round, all clients or some of them, where FedAvg does not."""
    data, centres, curvatures = federation(6)
    target = optimum(centres, curvatures, np.ones(6))
    local = {"lr": 0.2, "epochs": 60, "batch": math.inf}
    np.testing.assert_allclose(solve(data, FedDyn(alpha=1.0), 120, local=local), target, atol=1e-8)
    some = solve(data, FedDyn(alpha=1.0), 250, per_round=3, local=local)
    np.testing.assert_allclose(some, target, atol=1e-6)


def test_feddyn_refuses_a_spring_that_diverges() -> None:
    with pytest.raises(BadValue, match="feddyn diverges"):
        on_blobs(FedDyn(alpha=30.0), local={"lr": 0.1})


# Robust means


def test_robust_centres_by_hand() -> None:
    deltas = np.array([[1.0, 9.0], [2.0, 1.0], [3.0, 2.0], [4.0, 3.0], [100.0, -50.0]])
    assert Median().centre(deltas).tolist() == [3.0, 2.0]
    assert TrimmedMean(share=0.2).centre(deltas).tolist() == [3.0, 2.0]
    assert TrimmedMean(share=0.0).centre(deltas).tolist() == [22.0, -7.0]
    assert Krum(liars=1).centre(deltas).tolist() == [3.0, 2.0]


@pytest.mark.parametrize("algorithm", [Median(), TrimmedMean(share=0.2), Krum(liars=1)])
def test_one_liar_moves_the_mean_and_not_the_robust_ones(algorithm: Any) -> None:
    """One of ten clients sends a thousand times its step, backwards."""

    def lying(kind: Any) -> Any:
        class Lying(type(kind)):  # type: ignore[misc]
            def client(self, got: Any, kept: Any, work: Any) -> Reply:
                reply = super().client(got, kept, work)
                if work.client == 0:
                    payload = type(reply.send)(-1000 * reply.send.delta)
                    return Reply(payload, weight=reply.weight)
                return reply

        return Lying(**vars(kind))

    settings = {"clients": 10, "rounds": 8}
    assert on_blobs(lying(fa.FedAvg()), **settings).final.accuracy < 0.8
    assert on_blobs(lying(algorithm), **settings).final.accuracy > 0.9
