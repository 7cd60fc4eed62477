"""The context of one client of a real federation, which has the samples of no other client."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.engine.context import ExperimentContext


class SeparateContext(ExperimentContext):
    """The context of one client of a real federation, which knows of the others only the class counts they agreed to send."""

    reported_counts: tuple[int, ...] | None = None

    @cached_property
    def all_class_counts(self) -> NDArray[np.int64]:
        """Return the class counts of all clients; raise `BadValue` if they were not requested."""
        if self.reported_counts is None:
            raise BadValue(
                f"{self.experiment.algorithm.name} needs the class counts of all clients, which were not requested",
                remedy="set counts_classes = True in the algorithm; clients of `fedarena join` must consent to send them",
            )
        return np.array(self.reported_counts, np.int64)
