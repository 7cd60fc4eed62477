"""The evaluation of clients that never trained: what they predict with at once, and after adapting on their own samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Algorithm, Vector
from fedarena.config.errors import BadValue
from fedarena.config.seeds import torch_seed
from fedarena.data.dataset import Rows, count_labels
from fedarena.data.exclusion import client_names
from fedarena.engine.client import Broadcast, ClientCannotTrain
from fedarena.engine.context import ExperimentContext
from fedarena.engine.evaluation import ClientStates, LocalEvaluator, accuracy
from fedarena.engine.evaluation_tasks import EvaluationTask, measured_statistics
from fedarena.engine.partial_work import PartialWork
from fedarena.engine.personal_model import EvaluationWork, predicting
from fedarena.engine.task_metrics import UnseenMetrics, stacked
from fedarena.engine.tasks import initial_client_state
from fedarena.engine.tree_context import TreeContext
from fedarena.models.pytree import WeightedMean
from fedarena.models.task import Buffers, Keep, Scores, torch_seeded
from fedarena.trees.boosted_rows import BoostedRows


@dataclass(frozen=True)
class UnseenBroadcast(Broadcast):
    """What a client receives that never trained: the server's message, and own layers where it needs those of others."""

    own: Vector | None = None


class UnseenWork(EvaluationWork):
    """One client that never trains, at an evaluation: its samples are in no partition of the training."""

    @property
    def own_rows(self) -> Rows:
        """Return the client's training rows in the data set."""
        return self.context.owners.unseen_clients[self.client]

    @cached_property
    def _noise(self) -> NDArray[np.float32] | None:
        return self.context.feature_noise.of(self.client, self.rows, *(() if self.context.owners.frozen_noise else (1,)))

    def statistics(self, seed: int) -> Buffers:
        """Return BatchNorm's statistics of the loaded model on the client's training samples."""
        self._check_single_row()
        return measured_statistics(self, seed)

    @cached_property
    def boosted_rows(self) -> BoostedRows:
        """Return the client's raw columns and labels for growing trees."""
        assert isinstance(self.context, TreeContext)
        return self.context.read_rows(self.own_rows)


@dataclass(frozen=True)
class UnseenTask:
    """The evaluation of one client that never trained, after so many steps on its training samples."""

    client: int
    rows: Rows  # its test samples
    steps: int
    noisy: bool = False  # the rows have the client's feature noise
    keep: Keep = ""  # outputs to return for every sample

    def run(self, context: ExperimentContext, common: Broadcast) -> Scores:
        """Return the scores of the client's model on its test samples."""
        assert isinstance(common, UnseenBroadcast)
        w, buffers = self.model(context, common)
        with predicting(context, common.message, None):
            task = EvaluationTask(self.rows, self.client if self.noisy else None, w, buffers, self.keep)
            return task.run(context, common)

    def model(self, context: ExperimentContext, common: UnseenBroadcast) -> tuple[Vector, Buffers]:
        """Return the weights and the BatchNorm statistics with which the client predicts.

        Statistics that stay with each client are those of its own training samples. A client whose samples are too few to
        train keeps what it received.
        """
        task, parts, shared = context.task, context.parts, common.buffers
        buffers = shared if parts is None else parts.join_buffers(shared, None)
        task.class_weights = task.sample_weights = None
        task.load_buffers(buffers)
        w = self._trained(context, common, 0)
        try:
            if context.buffer_policy == "local" if parts is None else parts.values.any():
                task.load(w)
                measured = self._work(context, common).statistics(self._seed(context))
                buffers = measured if parts is None else parts.join_buffers(shared, parts.own_buffers(measured))
            task.load_buffers(buffers)
            if self.steps:
                w = self._trained(context, common, self.steps)
        except ClientCannotTrain:
            task.load_buffers(buffers)
        finally:
            task.class_weights = task.sample_weights = None
        return w, task.buffers()

    def _trained(self, context: ExperimentContext, common: UnseenBroadcast, steps: int) -> Vector:
        """Return the complete weights that the algorithm gives the client after some steps."""
        parts, work = context.parts, self._work(context, common)
        partial = None if parts is None else PartialWork(work, parts, work.state.own_weights(parts))
        with torch_seeded(self._seed(context)):
            w = context.algorithm.unseen_model(common.message, work.state.kept, partial or work, steps)
        return w if parts is None or partial is None else parts.join(w, partial.own)

    def _work(self, context: ExperimentContext, common: UnseenBroadcast) -> UnseenWork:
        """Return the client's work from the beginning of its random streams."""
        state = replace(initial_client_state(context), own=common.own)
        start = state.complete_weights(context.parts, getattr(common.message, "w", None))
        return UnseenWork(context, self.client, state, start)

    def _seed(self, context: ExperimentContext) -> int:
        return torch_seed(context.experiment.seed_for("personal"), "personal", self.client)


class UnseenEvaluation:
    """Evaluates the clients that never trained with the model of a round."""

    def __init__(self, context: ExperimentContext, evaluator: LocalEvaluator) -> None:
        self.context, self.evaluator = context, evaluator
        self.clients, self.steps = context.owners.unseen, context.experiment.evaluate.adaptation_steps

    def metrics(self, message: Broadcast, states: ClientStates) -> UnseenMetrics:
        """Return all metrics of each client on its own test samples, before and after its adaptation."""
        context = self.context
        names, tests = client_names(context.owners), [context.owners.unseen_tests[k] for k in self.clients]
        common = UnseenBroadcast(message.message, message.buffers, self._own_layers(states))
        before = self._values(common, tests, 0)
        return UnseenMetrics(
            tuple(names[k] for k in self.clients),
            self.steps,
            np.array([count_labels(context.data.y[rows]) for rows in tests], np.int64),
            before,
            self._values(common, tests, self.steps) if self.steps else before,
        )

    def _values(self, common: UnseenBroadcast, tests: Sequence[Rows], steps: int) -> dict[str, NDArray[np.float64]]:
        evaluator, noisy = self.evaluator, self.context.owners.noise is not None
        metrics, scoring = evaluator.metrics, evaluator.scoring
        keep = scoring.keep(metrics)
        pairs = zip(self.clients, tests, strict=True)
        jobs = (UnseenTask(k, rows, steps, noisy, keep) for k, rows in pairs)
        each = []
        for rows, scores in zip(tests, evaluator.scores(jobs, common), strict=True):
            each.append(evaluator.values(metrics, scoring.predictions(rows, scores), accuracy(scores)))
        return stacked(each, [metric.name for metric in metrics])

    def _own_layers(self, states: ClientStates) -> Vector | None:
        """Return the mean of the clients' own layers, weighted by their samples, where the algorithm starts from it."""
        context = self.context
        if context.parts is None or context.algorithm.unseen_own == "initial":
            return None
        mean = WeightedMean()
        for k in context.owners.population:
            state = states(k)
            if state is not None and state.own is not None:
                mean.add(state.own, float(context.owners.sizes[k]))
        own: Vector | None = mean.result()
        return own


def open_unseen(context: ExperimentContext, evaluator: object) -> UnseenEvaluation | None:
    """Return the evaluation of clients that never train; None where there are none."""
    if not context.owners.unseen:
        return None
    assert isinstance(evaluator, LocalEvaluator)  # a real federation refuses them
    return UnseenEvaluation(context, evaluator)


def check_unseen(context: ExperimentContext) -> None:
    """Refuse unseen clients where an algorithm does not say what they start from, or their adaptation is not private."""
    exp, algorithm = context.experiment, context.algorithm
    if exp.evaluate.unseen is None:
        return
    says = type(algorithm).unseen_model is not Algorithm.unseen_model
    if context.is_personal and algorithm.common_score != "shared" and not says and context.parts is None:
        raise BadValue(
            f"{exp.algorithm.name} gives clients models of their own, and does not say what a client that never trained "
            "starts from",
            remedy="write its method unseen_model, or leave out evaluate.unseen",
            where="evaluate.unseen",
        )
    if exp.local.privacy is not None and exp.evaluate.adaptation_steps:
        raise BadValue(
            "unseen clients adapt on their samples at an evaluation, which local.privacy does not count",
            remedy="set evaluate.unseen_steps = 0, or leave out local.privacy",
            where="evaluate.unseen_steps",
        )
