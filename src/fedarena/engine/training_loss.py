"""The loss of a model on the training samples of one client, for rules that select clients by it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Vector
from fedarena.config.seeds import torch_seed
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.context import ExperimentContext
from fedarena.models.task import torch_seeded

FORWARD_SHARE = 1 / 3  # of the time of a training step: a forward pass without a backward pass, which is twice as long


def training_losses(context: ExperimentContext, client: int, round: int, w: Vector) -> NDArray[np.float64]:
    """Return the loss of these weights on each training sample of a client; buffers are those of the loaded model."""
    context.task.load(w)
    seed = torch_seed(context.experiment.seed_for("evaluate"), "evaluate", round, client)
    with torch_seeded(seed):  # some models draw random numbers even in evaluation
        scores = context.evaluate(context.partition.clients[client], context.feature_noise.in_training(client, round))
    losses: NDArray[np.float64] = scores.loss / scores.count
    return losses


@dataclass(frozen=True)
class LossTask:
    """The mean loss of the broadcast model on one client's training samples."""

    round: int
    client: int
    state: ClientState | None = None  # whose BatchNorm statistics are used, where they are the client's own

    def run(self, context: ExperimentContext, common: Broadcast) -> float:
        """Load the model and return its loss."""
        state = self.state or ClientState()
        context.task.load_buffers(state.complete_buffers(context.parts, common.buffers))
        w = state.complete_weights(context.parts, common.message.w)
        assert w is not None
        return float(training_losses(context, self.client, self.round, w).mean())
