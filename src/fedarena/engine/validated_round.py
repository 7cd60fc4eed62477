"""The round that the validation samples choose, with its test metrics, as a checkpoint holds it."""

from __future__ import annotations

from dataclasses import dataclass

from fedarena.engine.checkpoint_files import Snapshot
from fedarena.engine.task_metrics import FinalMetrics


@dataclass(frozen=True)
class ValidatedRound:
    """A round, its value on the validation samples, and all metrics of its model on test samples."""

    round: int
    value: float  # of `evaluate.metric` on the validation samples; NaN where no round has a defined value
    measured: FinalMetrics


@dataclass(frozen=True)
class ValidatedSnapshot(Snapshot):
    """A snapshot of a run that holds out validation samples.

    `validated` is the best round so far; before it, where that round was evaluated only because it was the last one of its
    budget, the best of the others: a run that continues with a larger budget returns to it.
    """

    validated: tuple[ValidatedRound, ...] = ()
