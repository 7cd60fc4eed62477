"""The privacy ledger of a run: the server's half of the uplink steps, and everything that was released so far."""

from __future__ import annotations

from typing import Any

from fedarena.models.pytree import WeightedMean
from fedarena.privacy.accountant import Spent, epsilon, usual_delta
from fedarena.privacy.secure_aggregation import MaskedExchange
from fedarena.privacy.uplink import MaskedVector, UplinkSteps


class PrivacyLedger:
    """Opens the aggregate of an exchange and counts its release; without uplink steps it does neither."""

    def __init__(self, steps: UplinkSteps | None, clients: int) -> None:
        self.steps, self.clients = steps, clients
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
    def epsilon(self) -> float | None:
        """Return the privacy spent so far; None where no noise bounds it."""
        settings = None if self.steps is None else self.steps.settings
        if settings is None or not settings.noise:
            return None
        return epsilon(self.spent, self.clients, settings.delta or usual_delta(self.clients))
