"""Oort: Lai, Zhu, Madhyastha, Chowdhury, "Oort: Efficient Federated Learning via Guided Participant Selection", 2021,
arXiv:2010.06081, algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from fedarena.config.registry import register
from fedarena.selection_rules.base import Clients, Numbers, SelectionRound, SelectionRule, TrainingReport

Share = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True)
class OortState:
    """The reports of all clients so far; a client that was never seen has `last` 0."""

    utility: Numbers  # U, n_k sqrt(mean loss^2) of each client
    seconds: Numbers  # D, of its latest round
    last: NDArray[np.int64]  # L, its latest round
    achieved: Numbers  # the sum of U over the clients of each of the last rounds
    preferred: float = 0.0  # T, seconds
    step: float = 0.0  # Delta, seconds


@register("selection", "oort", paper="Lai et al. 2021, arXiv:2010.06081")
@dataclass(frozen=True)
class Oort(SelectionRule):
    """Clients with many samples of large loss and short rounds are exploited; a share of each round explores new ones."""

    alpha: Annotated[float, Ge(0)] = 2.0  # penalty of slow clients
    staleness: Annotated[float, Ge(0)] = 0.1  # in the bonus of clients that were not selected for long
    clip: Annotated[float, Gt(0), Le(1)] = 0.95  # quantile at which utilities are cut
    cutoff: Share = 0.95  # share of the last exploited client's utility from which others are admitted
    epsilon: Share = 0.9  # share of a round that explores, at first
    epsilon_decay: Share = 0.98  # factor in each round
    epsilon_least: Share = 0.2
    window: Annotated[int, Ge(1)] = 20  # W, rounds
    pacer_step: Annotated[float, Gt(0)] | None = None  # Delta, seconds; none: median duration in the first round

    reports_squared_loss = True

    def init(self, clients: int) -> OortState:
        """Start without any report."""
        return OortState(np.zeros(clients), np.zeros(clients), np.zeros(clients, np.int64), np.zeros(0))

    def select(self, state: OortState, round: SelectionRound) -> Clients:
        """Exploit (1 - epsilon) m clients by utility and explore epsilon m new ones; either fills up for the other."""
        seen = state.last[round.clients] > 0
        old, new = round.clients[seen], round.clients[~seen]
        epsilon = max(self.epsilon * self.epsilon_decay ** (round.number - 1), self.epsilon_least)
        explored = int(epsilon * round.count + round.rng.random())  # epsilon m in the mean
        explored = min(max(explored, round.count - len(old)), len(new))
        utility = self.utility(state, round.number, old)
        exploited = self._exploit(old, utility, round.count - explored, round.rng)
        return np.concatenate([exploited, round.rng.choice(new, size=explored, replace=False)])

    def utility(self, state: OortState, number: int, clients: Clients) -> Numbers:
        """(U, clipped, + sqrt(0.1 log R / L)), times (T / D)^alpha where D > T."""
        if not len(clients):
            return np.zeros(0)
        utility = state.utility[clients]
        utility = np.minimum(utility, np.quantile(utility, self.clip, method="higher"))
        utility = utility + np.sqrt(self.staleness * np.log(number) / state.last[clients])
        seconds = np.maximum(state.seconds[clients], np.finfo(float).tiny)
        penalised: Numbers = utility * np.minimum(state.preferred / seconds, 1.0) ** self.alpha
        return penalised

    def _exploit(self, clients: Clients, utility: Numbers, count: int, rng: np.random.Generator) -> Clients:
        """Draw clients in proportion to their utility, of those with at least `cutoff` of that of the last of the best."""
        if not count:
            return clients[:0]
        least = self.cutoff * np.sort(utility)[-count]
        admitted, chances = clients[utility >= least], utility[utility >= least]
        chances = chances / chances.sum() if np.count_nonzero(chances) >= count else None  # None: uniformly
        return rng.choice(admitted, size=count, replace=False, p=chances)

    def update(self, state: OortState, number: int, reports: Mapping[int, TrainingReport]) -> OortState:
        """Store the reports; T grows by Delta if the last W rounds achieved less than the W before."""
        utility, seconds, last = state.utility.copy(), state.seconds.copy(), state.last.copy()
        clients = sorted(reports)
        for k in clients:
            square = reports[k].squared_loss or 0.0
            utility[k] = reports[k].samples * math.sqrt(square) if math.isfinite(square) else 0.0
            seconds[k], last[k] = reports[k].seconds, number
        achieved = np.append(state.achieved, utility[clients].sum())[-2 * self.window :]
        step, preferred = state.step, state.preferred
        if not step and clients:
            step = preferred = self.pacer_step or float(np.median(seconds[clients]))
        elif len(achieved) == 2 * self.window and achieved[: self.window].sum() > achieved[self.window :].sum():
            preferred += step
        return OortState(utility, seconds, last, achieved, preferred, step)
