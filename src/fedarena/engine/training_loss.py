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


def training_losses(
    context: ExperimentContext, client: int, round: int, common: Broadcast, state: ClientState
) -> NDArray[np.float64] | None:
    """Return the loss on each training sample of the model with which a client would begin, the one with the least mean.

    BatchNorm statistics are those of the loaded model. There is no loss where the message has no model.
    """
    starts, parts = context.algorithm.starts(common.message, state.kept), context.parts
    complete = [w if parts is None else parts.join(w, state.own_weights(parts)) for w in starts]
    losses = [_losses(context, client, round, w) for w in complete]
    return losses[int(np.argmin([each.mean() for each in losses]))] if losses else None


def _losses(context: ExperimentContext, client: int, round: int, w: Vector) -> NDArray[np.float64]:
    context.task.load(w)
    seed = torch_seed(context.experiment.seed_for("evaluate"), "evaluate", round, client)
    with torch_seeded(seed):  # some models draw random numbers even in evaluation
        scores = context.evaluate(context.partition.clients[client], context.feature_noise.in_training(client, round))
    losses: NDArray[np.float64] = scores.loss / scores.count
    return losses


@dataclass(frozen=True)
class LossTask:
    """The mean loss on one client's training samples of the model with which it would begin."""

    round: int
    client: int
    state: ClientState | None = None  # whose BatchNorm statistics are used, where they are the client's own

    def run(self, context: ExperimentContext, common: Broadcast) -> float:
        """Load the client's BatchNorm statistics and return the loss."""
        state = self.state or ClientState(context.algorithm.remember(context.initial))
        context.task.load_buffers(state.complete_buffers(context.parts, common.buffers))
        losses = training_losses(context, self.client, self.round, common, state)
        assert losses is not None, "the algorithm's message `measured` has a model"
        return float(losses.mean())
