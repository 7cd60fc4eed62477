"""The context in which the engine runs one client of a federation."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from fedarena.algorithms.tree_algorithm import TreeAlgorithm
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset, Partition
from fedarena.engine.separate_context import SeparateContext
from fedarena.engine.tree_context import TreeContext
from fedarena.federation import messages
from fedarena.federation.redaction import ShareableError
from fedarena.privacy.secure_aggregation import MaskedExchange, MaskProvider, Word, Words


class ClientContext(SeparateContext):
    """The experiment with the samples of one client; of the others only the agreement is known."""

    def __init__(
        self, experiment: Experiment, data: Dataset, owners: Partition, agreed: messages.Agreement, secret: int
    ) -> None:
        super().__init__(experiment, data, owners)
        self.agreed, self.reported_counts = agreed, agreed.class_counts
        self.noise_seed, self.masks = secret, NoMasks()

    @cached_property
    def label_scale(self) -> tuple[float, float]:
        """Return mean and deviation of a regression's labels over all clients, as they were agreed; else 0 and 1."""
        return self.agreed.label_scale or (0.0, 1.0)

    @property
    def heaviest(self) -> float:
        """Return the largest number of training samples of a client, as it was agreed."""
        return float(self.agreed.heaviest or 1)


class TreeClientContext(ClientContext, TreeContext):
    """The experiment with the raw columns of one client, which grows trees."""


def make_client_context(
    experiment: Experiment, data: Dataset, owners: Partition, agreed: messages.Agreement, secret: int
) -> ClientContext:
    """Return the context of one client: one that grows a forest where the algorithm does."""
    kind = TreeClientContext if isinstance(experiment.algorithm.made, TreeAlgorithm) else ClientContext
    return kind(experiment, data, owners, agreed, secret)


def round_budget(experiment: Experiment) -> int | None:
    """Return how many rounds an experiment may take; with a budget of uploads as many, since a round has one at least."""
    return experiment.algorithm.made.own_rounds or experiment.rounds or experiment.uploads


class NoMasks(MaskProvider):
    """Masks before secrets have been drawn: any attempt to mask is refused."""

    def mask(self, size: int, turn: MaskedExchange, client: int, word: Word = np.uint32) -> Words:
        """Refuse: no secrets have been drawn."""
        raise ShareableError("secrets have not been drawn")
