"""The context in which the engine runs one client of a federation."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedarena.config.experiment import Experiment
from fedarena.config.settings_tables import Uplink
from fedarena.data.dataset import Dataset, Partition
from fedarena.engine.context import ExperimentContext
from fedarena.federation import messages
from fedarena.federation.redaction import ShareableError
from fedarena.privacy.secure_aggregation import MaskedExchange
from fedarena.privacy.uplink import UplinkSteps


class ClientContext(ExperimentContext):
    """The experiment with the samples of one client; of the others only the agreement is known."""

    def __init__(
        self, experiment: Experiment, data: Dataset, owners: Partition, agreed: messages.Agreement, secret: int
    ) -> None:
        super().__init__(experiment, data, owners)
        self.agreed, self.secret = agreed, secret

    @cached_property
    def steps(self) -> UplinkSteps | None:
        """Return the steps that its updates go through; its share of the noise is drawn from a secret of its own."""
        uplink = self.experiment.uplink
        if not isinstance(uplink, Uplink) or not self.algorithm.communicates:
            return None
        name, seed = self.experiment.algorithm.name, self.experiment.seed_for("uplink")
        heaviest = self.agreed.heaviest or 1
        return UplinkSteps(
            uplink, name, seed, float(heaviest), self.agreed.clients, noise_seed=self.secret, masks=NoMasks()
        )

    @cached_property
    def all_class_counts(self) -> NDArray[np.int64]:
        """Return the class counts over all clients, as they were agreed."""
        if self.agreed.class_counts is None:
            raise ShareableError(
                f"{self.experiment.algorithm.name} needs the class counts of all clients, and they were not agreed on",
                remedy="set counts_classes = True in the algorithm: clients must consent to send them",
            )
        return np.array(self.agreed.class_counts, np.int64)


class NoMasks:
    """Masks before secrets have been drawn (privacy.secure_aggregation.Seals): any attempt to mask is refused."""

    def mask(self, size: int, turn: MaskedExchange, client: int) -> NDArray[np.uint32]:
        """Refuse: no secrets have been drawn."""
        raise ShareableError("secrets have not been drawn", remedy="is it fedarena on the other side?")

    def unmask(self, total: NDArray[np.uint32], turn: MaskedExchange, answered: Collection[int]) -> None:
        """Refuse: sums are unmasked by the server."""
        raise NotImplementedError("sums are unmasked by the server")
