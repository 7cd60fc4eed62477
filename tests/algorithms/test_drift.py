"""FedAvgM, FedProx, FedNova, SCAFFOLD (algorithms 3 to 6): fixed points, conserved quantities. Limits: test_matrix.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.test_fedavg import CENTRES, CURVATURES, on_blobs, on_quadratics, weights
from tests.federations import Quadratic, optimum, quadratics

import fedarena as fa
from fedarena.algorithms import FedAvgM, FedNova, FedProx, Scaffold
from fedarena.algorithms.base import Cohort, Reply
from fedarena.algorithms.scaffold import Controlled, Drift
from fedarena.errors import BadValue

FULL = {"lr": 0.1, "epochs": 5, "batch": math.inf}
ROWS = [10, 30, 60]


def federation(count: int, seed: int = 0) -> tuple[Any, np.ndarray, np.ndarray]:
    """Many unlike quadratics of four rows each."""
    rng = np.random.default_rng(seed)
    centres, curvatures = 3 * rng.standard_normal((count, 3)), rng.uniform(0.5, 2.0, (count, 3))
    return quadratics(centres, curvatures, [4] * count), centres, curvatures


def solve(data: Any, algorithm: Any, rounds: int, **settings: Any) -> np.ndarray:
    defaults = {"partition": "natural", "dtype": "float64", "local": FULL, "out": False, "runtime": "serial"}
    every = {"every": rounds}
    run = fa.run(data, model=lambda: Quadratic(3), algorithm=algorithm, rounds=rounds, evaluate=every,
                 **{**defaults, **settings})  # fmt: skip
    return run.state["w"].numpy()


# FedAvgM


def test_fedavgm_without_momentum_is_fedavg_at_that_server_rate() -> None:
    a, b = on_blobs(FedAvgM(beta=0.0, server_lr=0.3)), on_blobs(fa.FedAvg(server_lr=0.3))
    assert a.weights_sha256 == b.weights_sha256


def test_fedavgm_velocity_of_a_constant_step() -> None:
    """v_t = G (1 - beta^{t+1}) / (1 - beta), by the server alone."""
    server, g = FedAvgM(beta=0.8), np.array([1.0, -2.0])
    state = server.init(np.zeros(2))
    for t in range(6):
        state = server.server(state, fa.Step(g), None)
        np.testing.assert_allclose(state.v, g * (1 - 0.8 ** (t + 1)) / (1 - 0.8))


def test_fedavgm_nesterov_looks_ahead() -> None:
    """From rest: the plain step is G, Nesterov's G + beta G."""
    plain = FedAvgM(beta=0.5).server(FedAvgM().init(np.zeros(1)), fa.Step(np.ones(1)), None)
    ahead = FedAvgM(beta=0.5, nesterov=True).server(FedAvgM().init(np.zeros(1)), fa.Step(np.ones(1)), None)
    assert (plain.w[0], ahead.w[0]) == (-1.0, -1.5)


def test_without_answers_the_velocity_stays() -> None:
    """dropouts ~ 1 for all rounds but that of a first one: the contract test covers the weights, this the state."""
    algorithm = FedAvgM()
    state = algorithm.server(algorithm.init(np.zeros(2)), fa.Step(np.ones(2)), None)
    assert algorithm.round(state, lambda message: None) is state


# FedProx


def test_fedprox_first_step_does_not_feel_the_spring() -> None:
    one = {"lr": 0.1, "epochs": 1, "batch": math.inf}
    runs = {on_blobs(FedProx(mu=mu), local=one, rounds=1).weights_sha256 for mu in (0.0, 0.5, 5.0)}
    assert len(runs) == 1


def test_fedprox_ends_at_the_minimum_of_its_objective() -> None:
    """One client, many steps: argmin F + mu/2 |w - w_t|^2 = (h a + mu w_t) / (h + mu), w_t = 0."""
    got = on_quadratics([5], algorithm=FedProx(mu=0.7), rounds=1, local={**FULL, "epochs": 2000})
    np.testing.assert_allclose(got, CURVATURES[0] * CENTRES[0] / (CURVATURES[0] + 0.7), rtol=1e-10)


def test_a_stiffer_spring_never_lets_a_client_go_further() -> None:
    steps = [np.linalg.norm(on_quadratics([5], algorithm=FedProx(mu=mu), rounds=1, local={**FULL, "epochs": 20}))
             for mu in (0.0, 0.01, 0.1, 1.0, 5.0)]  # fmt: skip
    assert len(set(steps)) == 5
    assert steps == sorted(steps, reverse=True)


def test_fedprox_refuses_a_spring_that_diverges() -> None:
    with pytest.raises(BadValue, match="fedprox diverges"):
        on_blobs(FedProx(mu=20.0), local={"lr": 0.1})


def test_fedprox_stragglers_stop_early_and_are_kept() -> None:
    usual = on_blobs(FedProx(), local={"lr": 0.1, "epochs": 8, "batch": 8}, rounds=4)
    slow = on_blobs(FedProx(straggler_fraction=0.9), local={"lr": 0.1, "epochs": 8, "batch": 8}, rounds=4)
    assert slow.records[-1].steps < usual.records[-1].steps
    assert slow.records[-1].answered == 4
    none = on_blobs(FedProx(straggler_fraction=1e-12), local={"lr": 0.1, "epochs": 8, "batch": 8}, rounds=4)
    assert none.weights_sha256 == usual.weights_sha256


# FedNova


def test_fednova_with_one_client_is_fedavg() -> None:
    nova = on_blobs("fednova", clients=1, dtype="float64")
    np.testing.assert_allclose(weights(nova), weights(on_blobs(clients=1, dtype="float64")), atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_removes_the_bias_of_unequal_work(momentum: float) -> None:
    """Ten rows a batch: 10, 30 and 60 rows make 1, 3 and 6 steps an epoch. At a small rate FedNova settles at the optimum
    of the mean by rows, FedAvg at one biased towards those who step more often."""
    target = optimum(CENTRES, CURVATURES, np.array(ROWS))
    local = {"lr": 0.01 * (1 - momentum), "epochs": 2, "batch": 10, "momentum": momentum}
    rounds = 500
    nova = on_quadratics(ROWS, algorithm="fednova", rounds=rounds, local=local, evaluate={"every": rounds})
    avg = on_quadratics(ROWS, algorithm="fedavg", rounds=rounds, local=local, evaluate={"every": rounds})
    assert np.abs(nova - target).max() < 0.1
    assert np.abs(avg - target).max() > 0.5


def test_fednova_pace_does_not_know_how_many_steps_there_were() -> None:
    """Twice the steps: sum p_k Delta_k / ||a_k||_1 changes in the second order of eta only. Ten times less eta, ten times
    less of a relative change; with gradients of about 1 and curvatures up to 2 that is of the order of eta tau."""

    def pace(lr: float, epochs: int) -> np.ndarray:
        paces: list[np.ndarray] = []

        class Spy(FedNova):
            def server(self, state: Any, mean: Any, cohort: Any) -> Any:
                paces.append(mean.d / lr)
                return super().server(state, mean, cohort)

        on_quadratics(ROWS, algorithm=Spy(), rounds=1, local={"lr": lr, "epochs": epochs, "batch": 10})
        return paces[0]

    changes = [np.linalg.norm(pace(lr, 4) - pace(lr, 2)) / np.linalg.norm(pace(lr, 2)) for lr in (1e-3, 1e-4, 1e-5)]
    assert changes[0] < 0.02
    assert changes[0] / changes[1] == pytest.approx(10, rel=0.05)
    assert changes[1] / changes[2] == pytest.approx(10, rel=0.05)


def test_fednova_sends_one_model_and_two_numbers() -> None:
    run = on_blobs("fednova", rounds=1)
    model = 4 * sum(v.numel() for v in run.state.values())
    assert run.records[-1].bytes_up == 4 * (model + 16)


def test_fednova_with_steps_as_pace() -> None:
    """Plain SGD: ||a||_1 is the number of steps, both paces are one; with momentum they are not."""
    plain = {"lr": 0.1, "epochs": 2, "batch": 8}
    np.testing.assert_allclose(
        weights(on_blobs(FedNova(tau_eff="steps"), local=plain, dtype="float64")),
        weights(on_blobs(FedNova(), local=plain, dtype="float64")),
        atol=1e-12,
    )
    heavy = {"lr": 0.01, "epochs": 2, "batch": 8, "momentum": 0.9}
    steps, norm = (weights(on_blobs(FedNova(tau_eff=t), local=heavy, dtype="float64")) for t in ("steps", "norm"))
    assert np.abs(steps - norm).max() > 1e-3


# SCAFFOLD


class Spy(Scaffold):
    """SCAFFOLD that lets the test look at every control variate."""

    controls: dict[int, np.ndarray]
    server_controls: list[tuple[np.ndarray, np.ndarray]]

    def client(self, got: Any, c_k: Any, work: Any) -> Reply:
        reply = super().client(got, c_k, work)
        type(self).controls[work.client] = reply.keep
        return reply

    def server(self, state: Any, mean: Any, cohort: Any) -> Any:
        new = super().server(state, mean, cohort)
        mean_c = sum(type(self).controls.values()) / cohort.population
        type(self).server_controls.append((new.c, mean_c))
        return new


def spy(**settings: Any) -> Spy:
    return type("Spying", (Spy,), {"controls": {}, "server_controls": []})(**settings)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1])
def test_scaffold_c_is_the_mean_of_all_c_k_after_every_round(share: float) -> None:
    """Whatever the participation, dropouts included; it fails with 1/|S| in place of 1/N."""
    algorithm = spy()
    on_blobs(algorithm, clients=10, share=share, rounds=12, dtype="float64", dropouts=0.2)
    assert len(algorithm.server_controls) >= 8
    for c, mean_c in algorithm.server_controls:
        np.testing.assert_allclose(c, mean_c, atol=1e-12)


def test_scaffold_option_ii_is_the_mean_gradient_along_the_path() -> None:
    """Plain SGD on a quadratic: c_k+ = mean_j h (y_j - a), y_{j+1} = y_j - eta (h (y_j - a) - c_k + c)."""
    algorithm = spy()
    on_quadratics([5], algorithm=algorithm, rounds=1, local={**FULL, "epochs": 7})
    y, gradients = np.zeros(2), []
    for _ in range(7):
        gradients.append(CURVATURES[0] * (y - CENTRES[0]))
        y = y - 0.1 * gradients[-1]
    np.testing.assert_allclose(algorithm.controls[0], np.mean(gradients, axis=0), rtol=1e-12)


def test_scaffold_option_ii_does_not_know_the_controls() -> None:
    """Any c and c_k bend the path; the mean gradient along it is c_k+ all the same. Minibatches of a network, round 3."""
    told: dict[int, np.ndarray] = {}
    means: dict[int, np.ndarray] = {}

    class Watched(Scaffold):
        def client(self, got: Any, c_k: Any, work: Any) -> Reply:
            gradients: list[np.ndarray] = []

            def watch(y: np.ndarray, g: np.ndarray) -> np.ndarray:
                gradients.append(g.copy())
                return g - c_k + got.c

            reply = super().client(got, c_k, work)
            if work.round == 2:
                again = type(work)(work.site, work.client, work.round, work.memory)
                again.train(got.w, adjust=watch)  # the same batches: a client's shuffles are those of its round
                told[work.client], means[work.client] = reply.keep, np.mean(gradients, axis=0)
                assert len(gradients) == 12
                assert np.abs(got.c - c_k).max() > 1e-2
            return reply

    on_blobs(Watched(), rounds=3, dtype="float64")
    assert len(told) == 4
    for client, c_k in told.items():
        np.testing.assert_allclose(c_k, means[client], atol=1e-12)


def test_scaffold_stays_where_controls_are_gradients() -> None:
    """At w* of the uniform mean with c_k = grad F_k(w*), c = 0 is their mean: no client moves, whatever its rows."""
    target = optimum(CENTRES, CURVATURES, np.ones(3))

    class AtRest(Scaffold):
        def client(self, got: Any, c_k: Any, work: Any) -> Reply:
            reply = super().client(got, work.gradient(got.w), work)
            assert np.abs(reply.keep).max() > 0.1  # the gradients themselves are not 0
            return reply

    module = Quadratic(2)
    module.w.data = torch.tensor(target)
    run = fa.run(quadratics(CENTRES, CURVATURES, ROWS), model=module, algorithm=AtRest(weights="uniform"),
                 partition="natural", dtype="float64", rounds=1, local=FULL, out=False, runtime="serial")  # fmt: skip
    np.testing.assert_allclose(run.state["w"], target, atol=1e-14)


def test_scaffold_options_coincide_for_one_full_step() -> None:
    one = {"lr": 0.1, "epochs": 1, "batch": math.inf}
    a = on_quadratics(ROWS, algorithm=Scaffold(option="i"), rounds=9, local=one)
    b = on_quadratics(ROWS, algorithm=Scaffold(option="ii"), rounds=9, local=one)
    np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("option", ["i", "ii"])
def test_scaffold_reaches_the_optimum_of_unlike_quadratics(option: Any) -> None:
    """To 1e-10, with three of ten clients a round and five local steps; FedAvg does not."""
    data, centres, curvatures = federation(10)
    target = optimum(centres, curvatures, np.ones(10))
    got = solve(data, Scaffold(option=option), 400, per_round=3)
    np.testing.assert_allclose(got, target, atol=1e-10)
    assert np.abs(solve(data, "fedavg", 100) - target).max() > 1e-2


def test_scaffold_at_its_fixed_point_stays() -> None:
    """After convergence one more round changes nothing to rounding."""
    data, _, _ = federation(6)
    a, b = solve(data, "scaffold", 150), solve(data, "scaffold", 151)
    np.testing.assert_allclose(a, b, atol=1e-13)


def test_scaffold_control_weighting_decides_which_optimum() -> None:
    """A-15: rows for models and 1/N for controls lead to the uniform mean's optimum; `size` to that of the rows."""
    uniform = optimum(CENTRES, CURVATURES, np.ones(3))
    by_rows = optimum(CENTRES, CURVATURES, np.array(ROWS))
    for weighting, target in (("uniform", uniform), ("size", by_rows)):
        algorithm = Scaffold(control_weighting=weighting)
        got = on_quadratics(ROWS, algorithm=algorithm, rounds=250, local=FULL, evaluate={"every": 250})
        np.testing.assert_allclose(got, target, atol=1e-10)


def test_scaffold_divided_by_the_cohort_has_too_large_a_control() -> None:
    """A-14: N/|S_t| times the mean of the c_k; if all take part the algorithm itself, and right at the optimum, where
    the c_k add up to 0."""
    data, centres, curvatures = federation(10)
    target = optimum(centres, curvatures, np.ones(10))
    divided = Scaffold(control_weighting="cohort")
    np.testing.assert_array_equal(solve(data, divided, 9), solve(data, Scaffold(), 9))
    start, sent = Controlled(np.zeros(2), np.ones(2)), Drift(np.zeros(2), np.full(2, 6.0))
    cohort = Cohort((1, 2, 5), (1, 2, 5), population=10, rows=30, total_rows=100, lr=0.1)
    assert divided.server(start, sent, cohort).c.tolist() == [3.0, 3.0]  # 1 + 6/3
    assert Scaffold().server(start, sent, cohort).c.tolist() == [1.6, 1.6]  # 1 + 6/10
    np.testing.assert_allclose(solve(data, divided, 400, per_round=3), target, atol=1e-10)


def test_scaffold_with_momentum_in_both_forms_comes_near() -> None:
    """Spec 6, simulated: 1.6e-3 inside with ||a||_1, 1.3e-2 outside with tau; wrong pairs 0.37 or divergence."""
    data, centres, curvatures = federation(20)
    target = optimum(centres, curvatures, np.ones(20))
    local = {"lr": 0.005, "epochs": 20, "batch": math.inf, "momentum": 0.9}
    for form in ("inside_norm", "outside_tau"):
        got = solve(data, Scaffold(momentum_form=form), 150, per_round=5, local=local)
        assert np.abs(got - target).max() < 0.05, form


def test_scaffold_refuses_the_wrong_pair() -> None:
    momentum = {"lr": 0.1, "momentum": 0.9}
    with pytest.raises(BadValue, match="scaffold with momentum"):
        on_blobs(Scaffold(option="i", momentum_form="outside_tau"), local=momentum)


def test_scaffold_costs_twice_fedavg() -> None:
    scaffold, avg = on_blobs("scaffold").records[-1], on_blobs("fedavg").records[-1]
    assert scaffold.uploads == 2 * avg.uploads
    assert scaffold.bytes_down == 2 * avg.bytes_down
    assert scaffold.bytes_up == 2 * avg.bytes_up - 3 * 4 * 8  # n_k is sent once


def test_scaffold_weight_decay_is_part_of_the_gradient() -> None:
    """The optimum is then that of the mean of F_k + lambda/2 |w|^2."""
    decayed = {**FULL, "weight_decay": 0.2}
    got = on_quadratics([20, 20, 20], algorithm="scaffold", rounds=250, local=decayed, evaluate={"every": 250})
    target = (CURVATURES * CENTRES).mean(axis=0) / (CURVATURES.mean(axis=0) + 0.2)
    np.testing.assert_allclose(got, target, atol=1e-10)


def test_fedprox_spring_adapts_to_the_loss() -> None:
    """Section 5.3.2 of the paper, on a made-up curve: +0.1 at every rise, -0.1 after five falls in a row, never below 0."""
    from fedarena.algorithms.base import Cohort
    from fedarena.algorithms.fedprox import Told

    server = FedProx(mu=0.05, schedule="adaptive")
    state = server.init(np.zeros(1))
    cohort = Cohort((0,), (0,), 1, 1, 1, 0.1)
    seen = []
    for loss in (1.0, 0.9, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05):
        state = server.server(state, Told(np.zeros(1), loss), cohort)
        seen.append(round(state.mu, 10))
    assert seen == [0.05, 0.05, 0.15, 0.15, 0.15, 0.15, 0.15, 0.05, 0.05, 0.05, 0.05, 0.05, 0.0]


def test_fedprox_adaptive_runs_and_tells_its_loss() -> None:
    run = on_blobs(FedProx(mu=0.1, schedule="adaptive"), rounds=4)
    model = 4 * sum(v.numel() for v in run.state.values())
    assert run.records[-1].bytes_up == 4 * 4 * (model + 16)
    assert run.final.accuracy > 0.8


def test_scaffold_controls_may_start_from_weights() -> None:
    """As in some published code: the offset is common, so the first round is FedAvg still; a paper's start is 0."""
    odd, w = fa.Scaffold(start="weights"), np.arange(3.0)
    assert np.array_equal(odd.init(w).c, w)
    assert np.array_equal(odd.remember(w), w)
    assert odd.remember(w) is not w
    assert not fa.Scaffold().init(w).c.any()
    easy = {"model": "logreg", "partition": "iid", "clients": 3, "rounds": 1, "out": False, "runtime": "serial"}
    runs = [fa.run("digits", algorithm=a, **easy) for a in ("fedavg", odd)]
    assert runs[0].weights_sha256 == runs[1].weights_sha256
