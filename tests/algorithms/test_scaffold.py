"""SCAFFOLD: conserved quantities, fixed points, and the variants of published code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.test_fedavg import CENTRES, CURVATURES, on_blobs, on_quadratics
from tests.support.federations import Quadratic, optimum, quadratics
from tests.support.quadratic_federations import FULL, ROWS, federation, solve

import fedarena as fa
from fedarena.algorithms import Scaffold
from fedarena.algorithms.base import Cohort, Reply
from fedarena.algorithms.scaffold import ScaffoldState, ScaffoldUpdate
from fedarena.config.errors import BadValue


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
    """For any participation, dropouts included; it fails with 1/|S| in place of 1/N."""
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
    controls: dict[int, np.ndarray] = {}
    means: dict[int, np.ndarray] = {}

    class Watched(Scaffold):
        def client(self, got: Any, c_k: Any, work: Any) -> Reply:
            gradients: list[np.ndarray] = []

            def watch(y: np.ndarray, g: np.ndarray) -> np.ndarray:
                gradients.append(g.copy())
                return g - c_k + got.c

            reply = super().client(got, c_k, work)
            if work.round == 2:
                again = type(work)(work.context, work.client, work.round, work.state)
                again.train(got.w, adjust=watch)  # the same batches: a client's shuffles are those of its round
                controls[work.client], means[work.client] = reply.keep, np.mean(gradients, axis=0)
                assert len(gradients) == 12
                assert np.abs(got.c - c_k).max() > 1e-2
            return reply

    on_blobs(Watched(), rounds=3, dtype="float64")
    assert len(controls) == 4
    for client, c_k in controls.items():
        np.testing.assert_allclose(c_k, means[client], atol=1e-12)


def test_scaffold_stays_where_controls_are_gradients() -> None:
    """At w* of the uniform mean with c_k = grad F_k(w*), c = 0 is their mean: no client moves, regardless of its rows."""
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


@pytest.mark.slow
@pytest.mark.parametrize("option", ["i", "ii"])
def test_scaffold_reaches_the_optimum_of_unlike_quadratics(option: Any) -> None:
    """To 1e-10, with three of ten clients a round and five local steps; FedAvg does not."""
    data, centres, curvatures = federation(10)
    target = optimum(centres, curvatures, np.ones(10))
    got = solve(data, Scaffold(option=option), 200, per_round=3)
    np.testing.assert_allclose(got, target, atol=1e-10)
    assert np.abs(solve(data, "fedavg", 40) - target).max() > 1e-2


@pytest.mark.slow
def test_scaffold_at_its_fixed_point_stays() -> None:
    """After convergence one more round changes nothing to rounding."""
    data, _, _ = federation(6)
    a, b = solve(data, "scaffold", 80), solve(data, "scaffold", 81)
    np.testing.assert_allclose(a, b, atol=1e-13)


@pytest.mark.slow
def test_scaffold_control_weighting_decides_which_optimum() -> None:
    """Rows for models and 1/N for controls lead to the uniform mean's optimum; `size` to that of the rows.

    See docs/reference/algorithms.md#a-15.
    """
    uniform = optimum(CENTRES, CURVATURES, np.ones(3))
    by_rows = optimum(CENTRES, CURVATURES, np.array(ROWS))
    for weighting, target in (("uniform", uniform), ("size", by_rows)):
        algorithm = Scaffold(control_weighting=weighting)
        got = on_quadratics(ROWS, algorithm=algorithm, rounds=90, local=FULL, evaluate={"every": 90})
        np.testing.assert_allclose(got, target, atol=1e-10)


@pytest.mark.slow
def test_scaffold_divided_by_the_cohort_has_too_large_a_control() -> None:
    """N/|S_t| times the mean of the c_k; if all take part the algorithm itself, and right at the optimum, where the
    c_k add up to 0 (docs/reference/algorithms.md#a-14)."""
    data, centres, curvatures = federation(10)
    target = optimum(centres, curvatures, np.ones(10))
    divided = Scaffold(control_weighting="cohort")
    np.testing.assert_array_equal(solve(data, divided, 9), solve(data, Scaffold(), 9))
    start, sent = ScaffoldState(np.zeros(2), np.ones(2)), ScaffoldUpdate(np.zeros(2), np.full(2, 6.0))
    cohort = Cohort((1, 2, 5), (1, 2, 5), population=10, rows=30, total_rows=100, lr=0.1)
    assert divided.server(start, sent, cohort).c.tolist() == [3.0, 3.0]  # 1 + 6/3
    assert Scaffold().server(start, sent, cohort).c.tolist() == [1.6, 1.6]  # 1 + 6/10
    np.testing.assert_allclose(solve(data, divided, 250, per_round=3), target, atol=1e-10)


@pytest.mark.slow
def test_scaffold_with_momentum_in_both_forms_comes_near() -> None:
    """Spec 6, simulated: 1.6e-3 inside with ||a||_1, 1.3e-2 outside with tau; wrong pairs 0.37 or divergence."""
    data, centres, curvatures = federation(20)
    target = optimum(centres, curvatures, np.ones(20))
    local = {"lr": 0.005, "epochs": 20, "batch": math.inf, "momentum": 0.9}
    for form in ("inside_norm", "outside_tau"):
        got = solve(data, Scaffold(momentum_form=form), 60, per_round=5, local=local)
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


@pytest.mark.slow
def test_scaffold_weight_decay_is_part_of_the_gradient() -> None:
    """The optimum is then that of the mean of F_k + lambda/2 |w|^2."""
    decayed = {**FULL, "weight_decay": 0.2}
    got = on_quadratics([20, 20, 20], algorithm="scaffold", rounds=90, local=decayed, evaluate={"every": 90})
    target = (CURVATURES * CENTRES).mean(axis=0) / (CURVATURES.mean(axis=0) + 0.2)
    np.testing.assert_allclose(got, target, atol=1e-10)


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
