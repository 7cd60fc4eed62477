"""The context in which the engine runs one client of a federation."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset, Partition
from fedarena.engine.context import ExperimentContext
from fedarena.federation import messages
from fedarena.federation.redaction import ShareableError
from fedarena.privacy.secure_aggregation import MaskedExchange, MaskProvider


class ClientContext(ExperimentContext):
    """The experiment with the samples of one client; of the others only the agreement is known."""

    def __init__(
        self, experiment: Experiment, data: Dataset, owners: Partition, agreed: messages.Agreement, secret: int
    ) -> None:
        super().__init__(experiment, data, owners)
        self.agreed, self.noise_seed, self.masks = agreed, secret, NoMasks()

    @property
    def heaviest(self) -> float:
        """Return the largest number of training samples of a client, as it was agreed."""
        return float(self.agreed.heaviest or 1)

    @cached_property
    def all_class_counts(self) -> NDArray[np.int64]:
        """Return the class counts over all clients, as they were agreed."""
        if self.agreed.class_counts is None:
            raise ShareableError(
                f"{self.experiment.algorithm.name} needs the class counts of all clients, and they were not agreed on",
                remedy="set counts_classes = True in the algorithm: clients must consent to send them",
            )
        return np.array(self.agreed.class_counts, np.int64)


class NoMasks(MaskProvider):
    """Masks before secrets have been drawn: any attempt to mask is refused."""

    def mask(self, size: int, turn: MaskedExchange, client: int) -> NDArray[np.uint32]:
        """Refuse: no secrets have been drawn."""
        raise ShareableError("secrets have not been drawn")
