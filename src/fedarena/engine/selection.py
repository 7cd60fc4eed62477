"""Selection: the clients of each round, among those that are available at the current simulated time."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from fedarena.algorithms.base import Asynchronous, Cohort
from fedarena.config.seeds import stream
from fedarena.engine.context import ExperimentContext
from fedarena.engine.stopping import participants


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

    def select(self, round: int) -> list[int]:
        """Return S_t in ascending order: the same for every algorithm that has no selection of its own.

        Where no client is available, the clock moves on to the time of the first arrival.
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
            chosen = np.flatnonzero(rng.random(len(clients)) < rate)
        else:
            chosen = self.algorithm.select(sizes, min(self.clients_per_round, len(clients)), rng)
        selected: list[int] = np.sort(clients[chosen]).tolist()
        return selected

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
