"""Tasks in which nothing is learned: predictions of a model, and BatchNorm statistics recomputed on a client's rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedarena.algorithms.base import Vector
from fedarena.config.seeds import torch_seed
from fedarena.data.dataset import Rows
from fedarena.engine.client import Broadcast, ClientState, ClientWork
from fedarena.engine.context import ExperimentContext
from fedarena.models.task import Buffers, Keep, Scores, torch_seeded


@dataclass(frozen=True)
class EvaluationTask:
    """The evaluation of a model on some rows: of the broadcast model, or of a client's own."""

    rows: Rows
    noise_of: int | None = None  # the client whose feature noise the rows have
    w: Vector | None = None
    buffers: Buffers | None = None
    keep: Keep = ""  # outputs to return for every sample
    validates: bool = False  # the rows are validation samples, which have noise of their own
    triggered: bool = False  # the rows have the trigger of a backdoor

    def run(self, context: ExperimentContext, common: Broadcast) -> Scores:
        """Load the model and return its scores on the rows."""
        context.task.load(common.message.w if self.w is None else self.w)
        context.task.load_buffers(self.buffers or common.buffers)
        noise = None
        if self.noise_of is not None:  # training rows have the noise they were trained with, test rows their own
            trained = context.experiment.evaluate.on == "train"
            key = (0, 2) if self.validates else () if trained and context.owners.frozen_noise else (0, 1)
            noise = context.feature_noise.of(self.noise_of, len(self.rows), *key)
        first = int(self.rows[0]) if len(self.rows) else 0
        seed = torch_seed(context.experiment.seed_for("evaluate"), "evaluate", first)
        with torch_seeded(seed):  # some models draw random numbers even in evaluation
            return context.evaluate(self.rows, noise, self.keep, context.cut, self.triggered)


@dataclass(frozen=True)
class BatchNormTask:
    """BatchNorm statistics of the broadcast model on one client's rows, as a plain mean over its batches."""

    round: int
    client: int

    def run(self, context: ExperimentContext, common: Broadcast) -> Buffers:
        """Make one pass over the rows in training mode, without a gradient."""
        task = context.task
        task.load(common.message.w)
        task.load_buffers(common.buffers)
        work = ClientWork(context, self.client, self.round, ClientState())
        seed = torch_seed(context.experiment.seed_for("dropout"), "dropout", self.round, self.client)
        return measured_statistics(work, seed)


def measured_statistics(work: ClientWork, seed: int) -> Buffers:
    """Return the buffers of the loaded model after one pass over a client's batches in training mode, without a gradient."""
    module = work.task.module
    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    momenta = [m.momentum for m in norms]
    module.train()
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # in torch: a cumulative mean
        with torch.no_grad(), torch_seeded(seed):
            for x, _ in work.epoch():
                module(x)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    return work.task.buffers()
