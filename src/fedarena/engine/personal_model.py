"""The model with which one client predicts: its own weights and BatchNorm statistics, where it has any."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedarena.algorithms.base import Vector
from fedarena.config.seeds import Purpose, number_of, stream, torch_seed
from fedarena.data.dataset import Rows
from fedarena.engine.client import Broadcast, ClientCannotTrain, ClientState, ClientWork
from fedarena.engine.context import ExperimentContext
from fedarena.engine.evaluation_tasks import EvaluationTask
from fedarena.engine.partial_work import PartialWork
from fedarena.engine.tasks import initial_client_state
from fedarena.models.task import Buffers, Keep, Scores, torch_seeded

OwnModel = tuple[Vector | None, Buffers | None]  # of a client; None for what it shares with all


class EvaluationWork(ClientWork):
    """One client at an evaluation: its training has random streams of its own and leaves no trace in the run."""

    def __init__(self, context: ExperimentContext, client: int, state: ClientState, start: Vector | None) -> None:
        super().__init__(context, client, 0, replace(state, momentum=None, steps=0), start=start)

    def stream_of_pass(self, purpose: Purpose, number: int) -> np.random.Generator:
        """Return a random generator that no training of the run has."""
        return stream(self.context.experiment.seed_for("personal"), "personal", number_of(purpose), number, self.client)

    @property
    def _amount(self) -> int:
        return self._usual_amount  # a straggler in training is none here


@dataclass(frozen=True)
class PersonalModelTask:
    """The weights and BatchNorm statistics with which one client predicts after the broadcast of `common`."""

    client: int
    state: ClientState | None  # None: the client has not trained yet

    def run(self, context: ExperimentContext, common: Broadcast) -> tuple[Vector, Buffers]:
        """Ask the algorithm for the client's model; one whose samples are too few to train keeps the server's."""
        task, state = context.task, self.state or initial_client_state(context)
        parts = context.parts
        buffers = state.own_model_buffers or state.complete_buffers(parts, common.buffers)
        if not context.is_personal:
            return common.message.w, buffers
        task.load_buffers(buffers)
        task.class_weights = task.sample_weights = None
        start = state.complete_weights(parts, getattr(common.message, "w", None))
        work = EvaluationWork(context, self.client, state, start)
        partial = None if parts is None else PartialWork(work, parts, state.own_weights(parts))
        seed = torch_seed(context.experiment.seed_for("personal"), "personal", self.client)
        try:
            with torch_seeded(seed):
                w = context.algorithm.personal_model(common.message, state.kept, partial or work)
        except ClientCannotTrain:
            if start is None:
                raise
            return start, buffers
        finally:
            task.class_weights = task.sample_weights = None
        return w if parts is None or partial is None else parts.join(w, partial.own), task.buffers()


@dataclass(frozen=True)
class PersonalTask:
    """The evaluation of one client's own model on some rows."""

    client: int
    state: ClientState | None
    rows: Rows
    noisy: bool = False  # the rows have the client's feature noise
    keep: Keep = ""  # outputs to return for every sample
    validates: bool = False  # the rows are validation samples
    triggered: bool = False  # the rows have the trigger of a backdoor

    def run(self, context: ExperimentContext, common: Broadcast) -> Scores:
        """Return the scores of the client's model on the rows."""
        w, buffers = PersonalModelTask(self.client, self.state).run(context, common)
        noise_of = self.client if self.noisy else None
        with predicting(context, common.message, self.state):
            task = EvaluationTask(self.rows, noise_of, w, buffers, self.keep, self.validates, self.triggered)
            return task.run(context, common)


@contextlib.contextmanager
def predicting(context: ExperimentContext, message: Any, state: ClientState | None) -> Iterator[None]:
    """Let the model predict as the algorithm says, inside the block."""
    state = state or initial_client_state(context)
    if context.is_personal:
        context.task.predictor = context.algorithm.predictor(message, state.kept)
    try:
        yield
    finally:
        context.task.predictor = None
