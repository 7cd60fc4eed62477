"""The contract of a selection rule: a frozen dataclass whose fields are its settings, and whose state is a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Clients = NDArray[np.int64]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class SelectionRound:
    """What a rule may know before a round."""

    number: int  # of the round, from 1
    clients: Clients  # that are available, in ascending order
    samples: NDArray[np.int64]  # training samples of each of them
    count: int  # how many are to be selected; at most as many as are available
    rng: np.random.Generator
    losses: Callable[[Clients], Numbers]  # asks these clients for the mean loss of the current model; NaN: no answer


@dataclass(frozen=True)
class TrainingReport:
    """What the server knows of a client that has taken part in a round."""

    samples: int
    seconds: float  # simulated, for all its messages and trainings of the round
    squared_loss: (
        float | None
    )  # mean over its samples of the squared loss of the model it received, where it is reported


@dataclass(frozen=True)
class SelectionRule:
    """The contract. A subclass must write `select`; one that learns from reports has a state and updates it."""

    asks_losses: ClassVar[bool] = False  # clients are asked for the loss of the model before they are selected
    reports_squared_loss: ClassVar[bool] = False  # clients measure the model that they receive, and report it

    def check(self, count: int) -> None:
        """Raise an error with a remedy if rounds of so many clients cannot be selected, before anything starts."""

    def init(self, clients: int) -> Any:
        """Return the state before the first round: a dataclass of arrays and numbers, or None."""
        return None

    def select(self, state: Any, round: SelectionRound) -> Clients:
        """Return the clients of a round, in any order."""
        raise NotImplementedError(f"{type(self).__name__} does not say which clients it selects")

    def update(self, state: Any, number: int, reports: Mapping[int, TrainingReport]) -> Any:
        """Return the state after a round, from the reports of the clients whose response was usable."""
        return state
