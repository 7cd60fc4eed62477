"""Power-of-choice: candidates, the largest losses, and what asking for losses costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.support.federations import Quadratic, quadratics

import fedarena as fa
from fedarena.config.errors import BadValue
from fedarena.selection_rules.base import SelectionRound
from fedarena.selection_rules.power_of_choice import PowerOfChoice
from fedarena.selection_rules.uniform import Uniform

SAMPLES = np.array([10, 30, 60, 100])


def refused(clients: Any) -> Any:
    raise AssertionError("no client may be asked")


def view(count: int, losses: Callable[[Any], Any] = refused, seed: int = 0, ids: Any = (0, 1, 2, 3)) -> SelectionRound:
    return SelectionRound(1, np.array(ids), SAMPLES, count, np.random.default_rng(seed), losses)


def test_the_largest_losses_of_the_candidates_are_selected() -> None:
    """All four are candidates: the losses decide, and the order in which they were drawn does not."""
    of = {2: 0.5, 4: 3.0, 6: 0.1, 9: 2.0}
    for seed in range(5):
        chosen = PowerOfChoice(d=4).select(None, view(2, lambda ids: np.array([of[k] for k in ids]), seed, tuple(of)))
        assert chosen.tolist() == [4, 9]


def test_candidates_without_an_answer_come_last() -> None:
    chosen = PowerOfChoice(d=4).select(None, view(3, lambda ids: np.where(ids == 3, np.nan, -1.0 * ids)))
    assert chosen.tolist() == [0, 1, 2]
    nothing = PowerOfChoice(d=4).select(None, view(4, lambda ids: np.full(len(ids), np.nan)))
    assert sorted(nothing.tolist()) == [0, 1, 2, 3]


def test_d_of_m_is_the_draw_alone_and_asks_no_client() -> None:
    for seed in range(10):
        drawn = PowerOfChoice(d=2).select(None, view(2, seed=seed)).tolist()
        rng = np.random.default_rng(seed)
        assert drawn == rng.choice(4, size=2, replace=False, p=SAMPLES / 200).tolist()
        drawn = PowerOfChoice(d=2, candidates="uniform").select(None, view(2, seed=seed)).tolist()
        assert drawn == Uniform().select(None, view(2, seed=seed)).tolist()


def test_candidates_are_drawn_in_proportion_to_their_samples() -> None:
    """One of 4,000 draws: shares within four standard deviations, sqrt(p (1 - p) / 4000) each."""
    rng = np.random.default_rng(0)
    one = SelectionRound(1, np.arange(4), SAMPLES, 1, rng, refused)
    drawn = [int(PowerOfChoice(d=1).select(None, one)[0]) for _ in range(4000)]
    p = SAMPLES / 200
    assert np.all(np.abs(np.bincount(drawn) / 4000 - p) < 4 * np.sqrt(p * (1 - p) / 4000))


# Four clients of 2 samples; client k has the loss (w - k)^2 / 2: the last ones have the largest loss at w = 0.
DATA = quadratics(np.arange(4.0)[:, None], np.ones((4, 1)), [2] * 4)


def solved(**settings: Any) -> fa.Run:
    return fa.run(DATA, model=lambda: Quadratic(1), partition="natural", dtype="float64", out=False, runtime="serial",
                  **{"rounds": 1, "per_round": 1, "local": {"lr": 0.5, "epochs": 1}, **settings})  # fmt: skip


def test_the_client_with_the_largest_loss_trains() -> None:
    """From w = 0 with all four as candidates client 3 trains: w = 0.5 x 3; then client 3 has the loss 1.125, 0 the same."""
    assert solved(select={"name": "power_of_choice", "d": 4}).state["w"].item() == 1.5


def test_asking_candidates_costs_bytes_and_time() -> None:
    """The model is 8 bytes. d = 4 candidates fetch it and send a loss of 8 bytes; one trains and sends 8 + 8.

    A device passes 1,000 samples a second; a loss of 2 samples is a third of that, 1/1500 s, and every message takes 1 s.
    """
    devices = {"jitter": 0.0, "latency": 1.0}
    plain = solved(devices=devices).final
    chosen = solved(select={"name": "power_of_choice", "d": 4}, devices=devices).final
    assert (plain.bytes_down, plain.bytes_up, plain.uploads) == (8, 16, 1)
    assert (chosen.bytes_down, chosen.bytes_up, chosen.uploads) == (8 + 4 * 8, 16 + 4 * 8, 1)
    assert plain.clock == pytest.approx(2 + 2 / 1000)
    assert chosen.clock == pytest.approx(4 + 2 / 1000 + 2 / 3000)
    assert (chosen.steps, chosen.samples) == (plain.steps, plain.samples)
    alone = solved(select={"name": "power_of_choice", "d": 1}, devices=devices).final
    assert (alone.bytes_down, alone.bytes_up, alone.clock) == (plain.bytes_down, plain.bytes_up, plain.clock)


def test_fewer_candidates_than_clients_of_a_round_are_refused() -> None:
    with pytest.raises(BadValue, match="draws d = 2 candidates, and a round has 3 clients"):
        solved(per_round=3, select={"name": "power_of_choice", "d": 2})
    solved(per_round=3, select={"name": "power_of_choice", "d": 50})  # all of them
