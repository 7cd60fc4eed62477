"""The local solver: batches, rates, corrections, effective steps (docs/reference/algorithms.md)."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.test_fedavg import CENTRES, CURVATURES, on_quadratics
from tests.support.federations import blobs
from torch import nn

import fedarena as fa
from fedarena.algorithms.base import Outcome, Pull, Reply, Step
from fedarena.config.errors import BadValue
from fedarena.engine.solver import UnitSolver, batch_sizes, blocks


@pytest.mark.parametrize(
    ("rows", "batch", "rule", "sizes"),
    [
        (0, 10, "keep", []),
        (25, 10, "keep", [10, 10, 5]),
        (25, 10, "drop", [10, 10]),
        (21, 10, "keep", [10, 10, 1]),
        (21, 10, "merge_one", [10, 11]),
        (22, 10, "merge_one", [10, 10, 2]),
        (7, 10, "drop", [7]),
        (7, math.inf, "keep", [7]),
        (1, 10, "merge_one", [1]),
        (20, 10, "keep", [10, 10]),
    ],
)
def test_batches(rows: int, batch: float, rule: str, sizes: list[int]) -> None:
    assert batch_sizes(rows, batch, rule) == sizes


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 1 << 22))
def test_blocks_keep_every_batch_in_order(sizes: list[int], numbers: int) -> None:
    assert [s for _, block in blocks(sizes, numbers) for s in block] == sizes


class Watch(fa.FedAvg):
    """FedAvg that writes down what the solver reports, with a correction if given."""

    seen: list[Outcome]
    adjust: object = None

    def client(self, got, kept, work):  # type: ignore[no-untyped-def]
        out = work.train(got.w, adjust=type(self).adjust)
        type(self).seen.append(out)
        return Reply(Step(got.w - out.w), weight=work.rows)


def watched(adjust: object = None) -> tuple[Watch, list[Outcome]]:
    seen: list[Outcome] = []
    kind = type("Watched", (Watch,), {"seen": seen, "adjust": adjust})
    return kind(), seen


def outcomes(adjust: object = None, rows: int = 25, rounds: int = 1, **local: object) -> list[Outcome]:
    algorithm, seen = watched(adjust)
    on_quadratics([rows], algorithm=algorithm, rounds=rounds, local={"lr": 0.1, "batch": 10, **local})
    return seen


def test_steps_are_counted_not_derived() -> None:
    """E ceil(n / B) steps (docs/reference/algorithms.md#a-10), fewer where the last batch is dropped."""
    assert outcomes(epochs=3)[0].steps == 9
    assert outcomes(epochs=3, last_batch="drop")[0].steps == 6
    assert [batch_sizes(rows, 4, "drop") for rows in (9, 8, 4, 3, 1, 0)] == [[4, 4], [4, 4], [4], [3], [1], []]


@pytest.mark.parametrize(
    ("counter", "expected"),
    [
        ("global", [0, 1, 2, 3, 4, 5]),  # three steps a round
        ("per_client", [0, 1, 2, 3, 4, 5]),
        ("round", [0, 0, 0, 1, 1, 1]),
        ("reset", [0, 1, 2, 0, 1, 2]),
    ],
)
def test_rates_decay_by_the_chosen_counter(counter: str, expected: list[int]) -> None:
    """eta_i = eta / (1 + lambda i), or eta (1 - lambda)^i."""
    forms = {
        "inverse": [0.1 / (1 + 0.5 * i) for i in expected],
        "geometric": [0.1 * 0.5**i for i in expected],
    }
    for form, rates in forms.items():
        seen = outcomes(rounds=2, decay=0.5, decay_form=form, decay_counter=counter)
        assert seen[0].lr_sum == pytest.approx(sum(rates[:3]), rel=1e-15)
        assert seen[1].lr_sum == pytest.approx(sum(rates[3:]), rel=1e-15)


def test_a_rate_cannot_fall_below_nothing() -> None:
    with pytest.raises(BadValue, match="at most 1"):
        outcomes(decay=1.5, decay_form="geometric")


def test_counters_differ_for_a_client_that_was_not_asked() -> None:
    """After a round's absence, `global` has moved on and `per_client` has not."""
    sums = {}
    for counter in ("global", "per_client"):
        algorithm, seen = watched()
        rows = [10, 10, 10]
        on_quadratics(rows, algorithm=algorithm, per_round=1, rounds=6, seed=1,
                      local={"lr": 0.1, "batch": 10, "decay": 1.0, "decay_counter": counter})  # fmt: skip
        sums[counter] = [out.lr_sum for out in seen]
    assert sums["global"] == pytest.approx([0.1 / (1 + t) for t in range(6)])
    assert sorted(sums["per_client"], reverse=True) != sorted(sums["global"], reverse=True)
    assert max(sums["per_client"][1:]) == pytest.approx(0.1)


@pytest.mark.parametrize("tau", [1, 2, 7, 40])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_effective_steps_with_momentum(tau: int, rho: float) -> None:
    """FedNova's closed form: [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho)."""
    unit = UnitSolver(rho, 0.0)
    for _ in range(tau):
        unit.step(0.05)
    assert unit.effective_steps == pytest.approx((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho))


@pytest.mark.parametrize("tau", [1, 2, 7, 40])
def test_effective_steps_with_a_proximal_term(tau: int) -> None:
    """[1 - (1 - eta mu)^tau] / (eta mu)."""
    unit = UnitSolver(0.0, 0.3)
    for _ in range(tau):
        unit.step(0.05)
    assert unit.effective_steps == pytest.approx((1 - (1 - 0.05 * 0.3) ** tau) / (0.05 * 0.3))


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_pull_as_data_is_the_pull_as_a_function(momentum: float, weight_decay: float) -> None:
    """g + mu (y - centre) + b: fused or as a Python function, the same step."""
    centre, b = np.array([0.5, -0.5]), np.array([0.1, 0.2])
    settings = {"momentum": momentum, "weight_decay": weight_decay, "epochs": 4}
    fused = outcomes(Pull(0.7, centre, b), **settings)[0]
    called = outcomes(staticmethod(lambda y, g: g + 0.7 * (y - centre) + b), **settings)[0]
    np.testing.assert_allclose(fused.w, called.w, rtol=1e-13)


def test_a_strong_pull_holds_the_weights_at_its_fixed_point() -> None:
    """Full batch: the fixed point of g + mu (w - c) is (h a + mu c) / (h + mu)."""
    centre = np.array([3.0, 3.0])
    out = outcomes(Pull(2.0, centre), epochs=400, batch=math.inf)[0]
    expected = (CURVATURES[0] * CENTRES[0] + 2.0 * centre) / (CURVATURES[0] + 2.0)
    np.testing.assert_allclose(out.w, expected, rtol=1e-10)


def test_no_pull_changes_no_bit() -> None:
    plain = outcomes(None, epochs=3)[0].w
    nothing = outcomes(Pull(0.0, np.array([9.0, 9.0])), epochs=3)[0].w
    zero = outcomes(Pull(0.0, None, np.zeros(2)), epochs=3)[0].w
    assert np.array_equal(plain, nothing)
    assert np.array_equal(plain, zero)


def test_clipping_bounds_the_step() -> None:
    """One step from 0 with ||g|| > clip moves exactly lr * clip."""
    out = outcomes(epochs=1, batch=math.inf, clip=0.5)[0]
    assert np.linalg.norm(out.w) == pytest.approx(0.1 * 0.5)
    free = outcomes(epochs=1, batch=math.inf, clip=1e6)[0]
    np.testing.assert_allclose(free.w, 0.1 * CURVATURES[0] * CENTRES[0])


def test_momentum_is_reset_each_round_unless_it_is_kept() -> None:
    """With the buffer kept, two rounds of one step are one of two steps (docs/reference/algorithms.md#a-26)."""
    one = on_quadratics([5], rounds=1, local={"lr": 0.1, "epochs": 2, "batch": math.inf, "momentum": 0.9})
    kept = {"lr": 0.1, "epochs": 1, "batch": math.inf, "momentum": 0.9, "reset_momentum": False}
    two = on_quadratics([5], rounds=2, local=kept)
    reset = on_quadratics([5], rounds=2, local={**kept, "reset_momentum": True})
    np.testing.assert_allclose(two, one, rtol=1e-14)
    assert np.abs(reset - one).max() > 1e-3


def test_losses_are_means_of_epochs() -> None:
    """With a rate too small to matter, every epoch's loss is F(0) = 1/2 sum h a^2."""
    out = outcomes(epochs=2, lr=1e-12)[0]
    expected = 0.5 * (CURVATURES[0] * CENTRES[0] ** 2).sum()
    assert out.losses == pytest.approx([expected, expected])


def test_shuffles_do_not_depend_on_the_algorithm_or_the_others() -> None:
    """Client 1 of round 2 sees the same order with any others (docs/reference/algorithms.md#random-streams)."""
    from fedarena.config.experiment import Experiment
    from fedarena.engine.client import ClientState, ClientWork
    from fedarena.engine.setup import open_context

    orders = []
    for algorithm, share in (("fedavg", 1.0), ("fedsgd", 0.5)):
        context = open_context(Experiment.make("digits", algorithm=algorithm, share=share, partition="iid"))
        work = ClientWork(context, 1, 2, ClientState())
        orders.append(np.concatenate([y.numpy() for _, y in work.epoch()]))
    assert np.array_equal(*orders)


def test_dropout_is_seeded_by_client_and_round() -> None:
    """And leaves the user's own generator as it was."""
    net = lambda: nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.Linear(32, 3))
    settings = {"model": net, "clients": 3, "rounds": 2, "out": False, "runtime": "serial"}
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    a = fa.run(blobs(), **settings)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(99)
    assert fa.run(blobs(), **settings).weights_sha256 == a.weights_sha256
