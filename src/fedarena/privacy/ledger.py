"""The privacy ledger of a run: what was released so far, about clients by the uplink and about records by private steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.settings_tables import Local
from fedarena.models.pytree import WeightedMean
from fedarena.privacy.accountant import (
    Spent,
    epsilon,
    promise,
    record_epsilon,
    usual_delta,
    usual_record_delta,
)
from fedarena.privacy.secure_aggregation import MaskedExchange
from fedarena.privacy.uplink import MaskedVector, UplinkSteps

STEPS = "steps"  # marks the private steps of a client among the entries of a checkpoint


class RecordLedger:
    """Counts the private steps of every client, from which epsilon of its records follows (`local.privacy`)."""

    def __init__(self, local: Local, sizes: NDArray[np.int64]) -> None:
        self.local, self.sizes = local, sizes
        self.steps: dict[int, int] = {}  # client -> private steps so far

    def count(self, client: int, steps: int) -> None:
        """Count the steps of one training of a client."""
        if self.local.privacy is not None:
            self.steps[client] = self.steps.get(client, 0) + steps

    @property
    def delta(self) -> float:
        """Return the delta at which epsilon is computed."""
        own = None if self.local.privacy is None else self.local.privacy.delta
        return own or usual_record_delta(int(self.sizes.sum()))

    @property
    def epsilons(self) -> NDArray[np.float64] | None:
        """Return epsilon of the records of each client, NaN for one without records; None where no noise bounds it."""
        privacy = self.local.privacy
        if privacy is None or not privacy.noise:
            return None
        known: dict[tuple[int, int], float] = {}  # records and steps -> epsilon
        found = np.full(len(self.sizes), np.nan)
        for client in np.flatnonzero(self.sizes).tolist():
            key = int(self.sizes[client]), self.steps.get(client, 0)
            if key not in known:
                q = min(self.local.batch / key[0], 1.0)
                known[key] = record_epsilon(q, privacy.noise, key[1], self.delta)
            found[client] = known[key]
        return found

    @property
    def epsilon(self) -> float | None:
        """Return the largest epsilon of a client; None where no noise bounds it."""
        found = self.epsilons
        return None if found is None else float(np.nanmax(found))


class PrivacyLedger:
    """Opens the aggregate of an exchange and counts its release; without uplink steps it does neither."""

    def __init__(self, steps: UplinkSteps | None, clients: int, records: RecordLedger) -> None:
        self.steps, self.clients, self.records = steps, clients, records
        self.spent: Spent = {}  # release -> how often

    def exchange_key(self, round: int, number: int, asked: list[int], everyone: bool) -> MaskedExchange | None:
        """Return the identity of an exchange, from which keys and noise follow; None without uplink steps."""
        return None if self.steps is None else MaskedExchange(round, number, tuple(asked), everyone)

    def receive(
        self, mean: WeightedMean, masked: MaskedVector | None, key: MaskedExchange | None, answered: list[int]
    ) -> Any:
        """Return the mean as the server gets it: unmasked and with noise; None if it cannot be opened."""
        if self.steps is None or key is None:
            return mean.result()
        tree = self.steps.receive(mean, masked, key, answered)
        release = self.steps.released(key, len(answered) if tree is not None else 0, self.clients)
        if release is not None:
            self.spent[release] = self.spent.get(release, 0) + 1
        return tree

    @property
    def delta(self) -> float:
        """Return the delta at which epsilon of a client is computed."""
        own = None if self.steps is None else self.steps.settings.delta
        return own or usual_delta(self.clients)

    @property
    def epsilon(self) -> float | None:
        """Return the privacy spent so far; None where no noise bounds it."""
        if self.steps is None or not self.steps.settings.noise:
            return None
        return epsilon(self.spent, self.clients, self.delta)

    @property
    def snapshot(self) -> dict[Any, int]:
        """Return everything that was released so far, as a checkpoint stores it."""
        return {**self.spent, **{(STEPS, client): steps for client, steps in self.records.steps.items()}}

    def restore(self, snapshot: dict[Any, int]) -> None:
        """Continue with the releases of a checkpoint."""
        self.spent = {key: times for key, times in snapshot.items() if key[0] != STEPS}
        self.records.steps = {int(key[1]): steps for key, steps in snapshot.items() if key[0] == STEPS}

    def notes(self, epsilon: float | None, record_epsilon: float | None) -> list[str]:
        """Return what a user should know about the guarantees of a run that ends with these values."""
        found, privacy = [], self.records.local.privacy
        if epsilon is not None:
            found.append(promise(epsilon, self.delta, "client", self.clients))
        if record_epsilon is not None:
            found.append(promise(record_epsilon, self.records.delta, "record", int(self.records.sizes.sum())))
        elif privacy is not None:
            found.append("local.privacy.noise = 0: nothing bounds what the model reveals about a record")
        return [note for note in found if note]
