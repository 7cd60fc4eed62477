"""Selection: the clients of each round, among those that are available at the current simulated time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from fedarena.algorithms.base import Algorithm, Asynchronous, Cohort
from fedarena.algorithms.checks import PRIVATE_REMEDY, unprotected
from fedarena.algorithms.companions import Companion
from fedarena.config.errors import BadValue
from fedarena.config.seeds import stream
from fedarena.engine.context import ExperimentContext
from fedarena.engine.stopping import participants
from fedarena.selection_rules.base import Clients, Numbers, SelectionRound, TrainingReport


class ClientSelection:
    """The population of a run, the simulated clock, and the clients that take part at its time."""

    def __init__(self, context: ExperimentContext) -> None:
        self.context, self.experiment, self.algorithm = context, context.experiment, context.algorithm
        self.population = context.partition.population
        self.sizes = context.partition.sizes
        self.participants = participants(self.experiment, len(context.owners.population))
        self.availability = context.availability  # None: all clients are always available
        self.overselects = self.experiment.devices.overselect > 1 and not (
            self.algorithm.everyone or self.algorithm.in_turn or isinstance(self.algorithm, Asynchronous)
        )
        self.clock = 0.0  # simulated seconds since the start
        self.population_ids = np.array(self.population)
        self._population_sizes = self.sizes[self.population_ids]
        self._total_rows = int(self.sizes.sum())
        self.rule = context.selection_rule
        self._rule_state: Any = None if self.rule is None else self.rule.init(len(self.sizes))

    @cached_property
    def clients_per_round(self) -> int:
        """Return the number of clients asked in each round: all of the population where the algorithm asks all."""
        population = len(self.context.owners.population)
        factor = self.experiment.devices.overselect if self.overselects else 1.0
        asked = min(math.ceil(self.participants * factor - 1e-9), population)
        return population if self.algorithm.everyone else asked

    def available_clients(self, among: list[int] | None = None) -> list[int]:
        """Return the clients of the population, or of `among`, that are available at the current simulated time."""
        clients = list(self.population) if among is None else among
        if self.availability is None:
            return clients
        available = self.availability.is_available(self.clock)
        return [k for k in clients if available[k]]

    def response_times(self, clients: list[int]) -> dict[int, float]:
        """Return the seconds that the server waits for each client: until it leaves, or the deadline; {}: no limit."""
        deadline = self.experiment.devices.deadline
        if not self.algorithm.communicates or (self.availability is None and deadline is None):
            return {}
        left = np.full(len(clients), np.inf)
        if self.availability is not None:
            left = self.availability.available_until(self.clock)[clients] - self.clock
        return dict(zip(clients, np.minimum(left, deadline or np.inf).tolist(), strict=True))

    @property
    def has_no_clients_left(self) -> bool:
        """Return whether no client is available now or at any later time."""
        return self.availability is not None and self.availability.next_available(self.clock) is None

    def select(self, round: int, losses: Callable[[Clients], Numbers] | None = None) -> list[int]:
        """Return S_t in ascending order: the same for every algorithm that has no selection of its own.

        Where no client is available, the clock moves on to the time of the first arrival. `losses` asks clients for the
        loss of the current model, for rules that need it.
        """
        clients, sizes = self.population_ids, self._population_sizes
        if self.availability is not None:
            self.clock = self.availability.next_available(self.clock) or self.clock
            available = self.availability.is_available(self.clock)[clients]
            clients, sizes = clients[available], sizes[available]
        if self.algorithm.everyone:
            return list(self.population) if self.availability is None else clients.tolist()
        rng = stream(self.experiment.seed_for("select"), "select", round)
        steps = self.context.steps
        if steps is not None and steps.settings.sampling == "poisson":
            rate = self.participants / len(clients)
            chosen = clients[rng.random(len(clients)) < rate]
        elif self.rule is not None:
            count = min(self.clients_per_round, len(clients))
            view = SelectionRound(round + 1, clients, sizes, count, rng, losses or _unknown_losses)
            chosen = self.rule.select(self._rule_state, view)
        else:
            chosen = clients[self.algorithm.select(sizes, min(self.clients_per_round, len(clients)), rng)]
        selected: list[int] = np.sort(chosen).tolist()
        return selected

    def learn(self, round: int, reports: Mapping[int, TrainingReport]) -> None:
        """Give the rule the reports of a round."""
        if self.rule is not None:
            self._rule_state = self.rule.update(self._rule_state, round + 1, reports)

    @property
    def snapshot(self) -> dict[str, Any]:
        """Return the state of the rule as a checkpoint stores it."""
        return {} if self._rule_state is None else dict(vars(self._rule_state))

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue with the state of a checkpoint."""
        if snapshot:
            self._rule_state = replace(self._rule_state, **snapshot)

    def drops_out(self, round: int, client: int) -> bool:
        """Return whether a client is a simulated dropout of this round: asked, without ever responding."""
        return self.algorithm.communicates and self.context.fleet.drops_out(client, round)

    def cohort(self, selected: list[int], answered: list[int]) -> Cohort:
        """Return the selected and the responding clients, with the numbers that a server may need."""
        return Cohort(
            tuple(selected),
            tuple(answered),
            len(self.population),
            int(self.sizes[answered].sum()) if answered else 0,
            self._total_rows,
            self.experiment.local.lr,
        )


def _unknown_losses(clients: Clients) -> Numbers:
    """Return no loss of any client, where clients cannot be asked."""
    return np.full(len(clients), np.nan)


def samples_uniformly(algorithm: Algorithm) -> bool:
    """Return whether the algorithm, also one inside a companion, leaves the usual selection of clients as it is."""
    inside = getattr(algorithm, "base", None)
    own = type(algorithm).select not in (Algorithm.select, Companion.select)
    return not own and (inside is None or samples_uniformly(inside))


def check_selection(context: ExperimentContext) -> None:
    """Refuse a selection rule where clients are not selected, or where losses of single clients must not be seen."""
    rule, exp = context.selection_rule, context.experiment
    if rule is None or exp.select is None:
        return
    name, algorithm, problem = exp.select.name, exp.algorithm.name, ""
    if isinstance(context.algorithm, Asynchronous):
        problem = f"{algorithm} has no rounds for which {name} could select clients"
    elif context.algorithm.everyone or not context.algorithm.communicates:
        problem = f"all clients take part in every round of {algorithm}, and {name} has none to select"
    elif not samples_uniformly(context.algorithm):
        problem = f"{algorithm} selects clients by a rule of its own, and not by {name}"
    if problem:
        raise BadValue(problem, remedy="leave out select, or choose an algorithm such as fedavg", where="select")
    uses_losses = rule.asks_losses or rule.reports_squared_loss
    if uses_losses and exp.uplink != "plain":
        raise BadValue(
            f"{name} must see the loss of each client by itself, and the uplink lets only means through",
            remedy='set uplink = "plain", or leave out select',
            where="select",
        )
    if uses_losses and exp.local.privacy is not None:
        raise BadValue(unprotected(name, "the training loss of each client"), remedy=PRIVATE_REMEDY, where="select")
    rule.check(ClientSelection(context).clients_per_round)
