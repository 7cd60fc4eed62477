"""A participant's rows as the engine knows them."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedarena.config.experiment import Experiment, Uplink
from fedarena.data.dataset import Dataset, Partition
from fedarena.engine.context import ExperimentContext
from fedarena.federation import messages
from fedarena.federation.redaction import ShareableError
from fedarena.privacy.secure_aggregation import MaskedExchange
from fedarena.privacy.uplink import UplinkSteps


class ClientContext(ExperimentContext):
    """The rows of one participant; of the others it knows only what was agreed."""

    def __init__(
        self, experiment: Experiment, data: Dataset, owners: Partition, agreed: messages.Agreement, secret: int
    ) -> None:
        super().__init__(experiment, data, owners)
        self.agreed, self.secret = agreed, secret

    @cached_property
    def steps(self) -> UplinkSteps | None:
        """What happens to its answers; its share of the noise is drawn from a secret of its own."""
        wish = self.experiment.uplink
        if not isinstance(wish, Uplink) or not self.algorithm.communicates:
            return None
        name, seed = self.experiment.algorithm.name, self.experiment.seed_for("uplink")
        heaviest = self.agreed.heaviest or 1
        return UplinkSteps(
            wish, name, seed, float(heaviest), self.agreed.clients, noise_seed=self.secret, masks=NoMasks()
        )

    @cached_property
    def all_class_counts(self) -> NDArray[np.int64]:
        """As all participants have told."""
        if self.agreed.class_counts is None:
            raise ShareableError(
                f"{self.experiment.algorithm.name} asks how many rows of each class all have, and nobody was asked",
                remedy="set counts_classes = True in the algorithm: participants must know that they will tell",
            )
        return np.array(self.agreed.class_counts, np.int64)


class NoMasks:
    """Nothing leaves unmasked for want of secrets (privacy.secure_aggregation.Seals)."""

    def mask(self, size: int, turn: MaskedExchange, client: int) -> NDArray[np.uint32]:
        """There are none."""
        raise ShareableError("secrets have not been drawn", remedy="is it fedarena on the other side?")

    def unmask(self, total: NDArray[np.uint32], turn: MaskedExchange, answered: Collection[int]) -> None:
        """Not here."""
        raise NotImplementedError("sums are opened by the organiser")
