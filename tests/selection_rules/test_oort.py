"""Oort: utilities by hand, exploitation and exploration, the pacer, and reports on the virtual clock."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.federations import Quadratic, quadratics

from fedarena.config.experiment import Experiment
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.loop import TrainingLoop
from fedarena.engine.setup import open_context
from fedarena.runtimes.serial import SerialRuntime
from fedarena.selection_rules.base import SelectionRound, TrainingReport
from fedarena.selection_rules.oort import Oort, OortState


def seen(utility: list[float], seconds: list[float] | None = None, last: list[int] | None = None) -> OortState:
    count = len(utility)
    return OortState(
        np.array(utility), np.array(seconds or [1.0] * count), np.array(last or [1] * count), np.zeros(0), 1.0, 1.0
    )


def draw(rule: Oort, state: OortState, count: int, number: int = 2, seed: int = 0) -> list[int]:
    clients = np.arange(len(state.last))
    rng = np.random.default_rng(seed)
    view = SelectionRound(number, clients, np.ones(len(clients), np.int64), count, rng, lambda ids: 1 / 0)
    chosen: list[int] = sorted(rule.select(state, view).tolist())
    assert len(set(chosen)) == count
    return chosen


def test_utility_by_hand() -> None:
    """Round e^2: log R = 2. Client 1 needs twice the preferred second: (1/2)^2. Client 2 was last seen in round 4."""
    state = seen([10.0, 10.0, 10.0], [0.5, 2.0, 1.0], [1, 1, 4])
    found = Oort(staleness=0.5).utility(state, math.exp(2), np.arange(3))  # type: ignore[arg-type]
    np.testing.assert_allclose(found, [11.0, 11.0 / 4, 10.0 + math.sqrt(0.5 * 2 / 4)], rtol=1e-14)
    flat = Oort(staleness=0.0, alpha=0.0).utility(state, 9, np.arange(3))
    assert flat.tolist() == [10.0, 10.0, 10.0]


def test_utilities_are_clipped_at_their_quantile() -> None:
    """Of 41 clients two are above the 95 % quantile, which is the 39th value; of 20 none is."""
    found = Oort(staleness=0.0).utility(seen([float(i) for i in range(41)]), 2, np.arange(41))
    assert found.tolist() == [float(min(i, 38)) for i in range(41)]
    found = Oort(staleness=0.0).utility(seen([float(i) for i in range(20)]), 2, np.arange(20))
    assert found.max() == 19.0


EXPLOIT = Oort(epsilon=0.0, epsilon_least=0.0, staleness=0.0)


def test_exploitation_admits_clients_near_the_cut_off_alone() -> None:
    """Of two clients the second best has 10: those with 9.5 or more may be drawn, in proportion to their utility."""
    state = seen([20.0, 10.0, 9.6, 9.4, 0.0])
    drawn = [draw(EXPLOIT, state, 2, seed=seed) for seed in range(300)]
    assert {k for one in drawn for k in one} == {0, 1, 2}
    # Client 0 is missing if 1 and 2 are drawn: 10/39.6 x 9.6/29.6 + 9.6/39.6 x 10/30
    missing = 10 / 39.6 * 9.6 / 29.6 + 9.6 / 39.6 * 10 / 30
    share = np.mean([0 not in one for one in drawn])
    assert abs(share - missing) < 4 * math.sqrt(missing * (1 - missing) / 300)
    strict = replace(EXPLOIT, cutoff=1.0)
    assert all(draw(strict, state, 2, seed=seed) == [0, 1] for seed in range(20))


def test_without_any_utility_all_are_alike() -> None:
    assert {tuple(draw(EXPLOIT, seen([0.0] * 4), 2, seed=seed)) for seed in range(100)} == {
        (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3),
    }  # fmt: skip


def test_epsilon_of_a_round_explores_clients_that_were_never_seen() -> None:
    """Of ten clients half are new; epsilon m = 2 of 4 in round 1, 0.5 x 0.5 x 4 = 1 in round 2, at least 0.1."""
    state = seen([1.0] * 10, last=[1] * 5 + [0] * 5)
    rule = Oort(epsilon=0.5, epsilon_decay=0.5, epsilon_least=0.25)
    for number, new in ((1, 2), (2, 1), (3, 1), (50, 1)):
        for seed in range(5):
            assert sum(k >= 5 for k in draw(rule, state, 4, number, seed)) == new
    some = [sum(k >= 5 for k in draw(Oort(epsilon=0.4, epsilon_decay=1.0), state, 4, 1, seed)) for seed in range(200)]
    assert set(some) == {1, 2}  # 1.6 in the mean
    assert np.mean(some) == pytest.approx(1.6, abs=4 * math.sqrt(0.24 / 200))


def test_either_part_fills_up_for_the_other() -> None:
    assert len(draw(Oort(), seen([1.0] * 6, last=[0] * 6), 4)) == 4  # all are new
    assert draw(Oort(epsilon=1.0, epsilon_least=1.0), seen([1.0] * 4, last=[1, 1, 1, 0]), 4) == [0, 1, 2, 3]
    assert draw(EXPLOIT, seen([1.0] * 4, last=[1, 0, 0, 0]), 4) == [0, 1, 2, 3]


def reports(*squares: float, seconds: float = 2.0) -> dict[int, TrainingReport]:
    return {k: TrainingReport(4, seconds, square) for k, square in enumerate(squares)}


def test_reports_become_utilities_and_the_pacer_starts_at_the_median_duration() -> None:
    """U = 4 x sqrt(2.25) = 6; a loss that is no number counts as none."""
    rule = Oort()
    state = rule.update(rule.init(4), 3, {**reports(2.25, math.nan), 3: TrainingReport(9, 7.0, 1.0)})
    assert state.utility.tolist() == [6.0, 0.0, 0.0, 9.0]
    assert state.last.tolist() == [3, 3, 0, 3]
    assert (state.preferred, state.step) == (2.0, 2.0)  # the median of 2, 2 and 7
    assert Oort(pacer_step=0.3).update(rule.init(4), 1, reports(1.0)).preferred == 0.3
    nothing = rule.update(rule.init(4), 1, {})
    assert (nothing.preferred, nothing.last.tolist()) == (0.0, [0] * 4)


def test_the_preferred_duration_grows_when_less_was_achieved_than_before() -> None:
    """W = 2: after rounds of 8, 8, 4, 4 the last two achieved less; then 4, 4, 4, 4 are equal, and nothing changes."""
    rule = Oort(window=2, pacer_step=1.0)
    state, preferred = rule.init(1), []
    for number, square in enumerate([4.0, 4.0, 1.0, 1.0, 1.0, 1.0], 1):
        state = rule.update(state, number, reports(square))
        preferred.append(state.preferred)
    assert preferred == [1.0, 1.0, 1.0, 2.0, 3.0, 3.0]


def loop_of(folder: Path, **settings: Any) -> TrainingLoop:
    """Four clients with 2, 4, 6 and 8 samples; client k has the loss (w - k)^2 / 2, and w is 0."""
    data = quadratics(np.arange(4.0)[:, None], np.ones((4, 1)), [2, 4, 6, 8])
    experiment = Experiment.make(
        data, model=lambda: Quadratic(1), partition="natural", dtype="float64",
        **{"rounds": 1, "select": "oort", "local": {"lr": 0.5, "epochs": 3},
           "devices": {"jitter": 0.0, "latency": 1.0}, **settings},
    )  # fmt: skip
    context = open_context(experiment)
    return TrainingLoop(context, SerialRuntime(context), CheckpointStore(folder, context.algorithm))


def test_clients_report_their_loss_and_take_simulated_time(tmp_path: Path) -> None:
    """U_k = n_k k^2 / 2. A client trains on 3 n_k samples and measures n_k, a third of the time each: 1000 a second."""
    loop = loop_of(tmp_path)
    final = list(loop.rounds())[-1]
    state: Any = loop.clients.snapshot
    assert state["utility"].tolist() == [0.0, 2.0, 12.0, 36.0]
    sizes = np.array([2, 4, 6, 8])
    np.testing.assert_allclose(state["seconds"], 2.0 + (3 + 1 / 3) * sizes / 1000, rtol=1e-12)
    assert state["preferred"] == pytest.approx(2.0 + (3 + 1 / 3) * 5 / 1000)
    assert final.clock == pytest.approx(2.0 + (3 + 1 / 3) * 8 / 1000)
    assert final.bytes_up == 4 * (8 + 8 + 8)  # model, n_k and squared loss


def test_measuring_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    models = []
    for name in ("oort", "uniform"):
        loop = loop_of(tmp_path / name, rounds=3, select=name)
        list(loop.rounds())
        models.append(loop.state.w.tolist())
    assert models[0] == models[1]  # all clients take part


def test_clients_that_train_in_turn_report_their_own_time(tmp_path: Path) -> None:
    loop = loop_of(tmp_path, algorithm={"name": "cyclic"}, per_round=2)
    final = list(loop.rounds())[-1]
    state: Any = loop.clients.snapshot
    here = state["last"] > 0
    assert here.sum() == 2
    assert final.clock == pytest.approx(state["seconds"][here].sum())  # one after the other
