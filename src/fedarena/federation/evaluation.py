"""Evaluate models in a federation: clients test on their own samples and send counts and sums, which are pooled here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Model
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.evaluation import ClientStates, EvaluationResult
from fedarena.engine.tasks import AbsentClient
from fedarena.federation import messages
from fedarena.federation.agreement import LARGEST
from fedarena.federation.released_metrics import ReleasedMetrics
from fedarena.federation.remote_runtime import STATISTICS, RemoteRuntime, ticket_of
from fedarena.federation.reply_pattern import check_structure
from fedarena.federation.wire_format import Message, Payload, WireRefused, expect
from fedarena.statistics.metric_registry import Metric

Seen = dict[int, messages.EvaluateResponse | AbsentClient]


class FederatedEvaluator(ReleasedMetrics):
    """The evaluation of a federation. Personal models are tested at their clients.

    With `shares_models` a personal model also goes to all other clients, and its accuracy is that on all test samples, as
    in a simulation; without, it is that on the samples of its client.
    """

    def __init__(
        self, runtime: RemoteRuntime, memory: Callable[[int], ClientState | None], shares_models: bool
    ) -> None:
        super().__init__(runtime)
        self.memory, self.shares_models = memory, shares_models
        self.missing: tuple[int, ...] = ()  # clients whose samples the last evaluation is without
        self.failed: dict[str, str] = {}

    @property
    def own_samples(self) -> NDArray[np.int64]:
        """Return how many samples each client is compared on."""
        owners = self.context.owners
        return owners.sizes if self.context.experiment.evaluate.on == "train" else owners.test_sizes

    def evaluate_shared(
        self, common: Broadcast, metrics: Sequence[Metric] = (), clients: bool = False
    ) -> EvaluationResult:
        """Evaluate one model on the test samples of all clients."""
        population = self.context.owners.population
        seen = self._look(dict.fromkeys(population, messages.EvaluateRequest()), common)
        right, count, loss = _pooled(seen)
        found = self._looked(right / count if count else None, loss, seen)
        found = self.with_sums(found, common, metrics)
        return self.with_own(found, common, dict.fromkeys(population)) if clients else found

    def evaluate_personal(
        self, common: Broadcast, message: Broadcast, states: ClientStates, metrics: Sequence[Metric], clients: bool
    ) -> EvaluationResult:
        """Evaluate a model for each client, weighted by training samples."""
        population = self.context.owners.population
        tickets = {k: ticket_of(self.memory(k)) for k in population}
        seen = self._look({k: messages.EvaluateRequest(memory=ticket) for k, ticket in tickets.items()}, message)
        score = self.context.common_score
        if score != "mean":
            asked = (
                seen if score == "none" else self._look(dict.fromkeys(population, messages.EvaluateRequest()), common)
            )
            right, count, loss = _pooled(asked)
            found = self.with_sums(self._looked(right / count if count else None, loss, seen), message, metrics)
            return self.with_own(found, message, tickets) if clients else found
        there = [k for k in population if isinstance(seen[k], messages.EvaluateResponse)]
        sizes = self.context.owners.sizes[there]
        on_test = losses = 0.0
        for k, p in zip(there, sizes / max(sizes.sum(), 1), strict=True):
            right, count, loss = _pooled(self._evaluate_everywhere(k, common) if self.shares_models else {k: seen[k]})
            on_test += p * (right / count if count else 0.0)
            losses += p * loss
        found = self.with_sums(self._looked(float(on_test), float(losses), seen), common, metrics)
        return self.with_own(found, common, tickets) if clients else found

    def _evaluate_everywhere(self, client: int, common: Broadcast) -> Seen:
        """Evaluate the personal model of one client on the test samples of all."""

        def read(client: int, message: Message) -> tuple[Any, Any]:
            payload = message.payload
            expect(message, messages.ModelResponse)
            if not isinstance(payload, dict) or {*payload} != {"w", "buffers"}:
                raise WireRefused(f"'{message.body.what}' where a model belongs")
            if payload["w"] is not None:
                check_structure(payload["w"], self.context.initial, "a model")
            if payload["buffers"] is not None:
                check_structure(payload["buffers"], self.context.task.buffers(), STATISTICS)
            return payload["w"], payload["buffers"]

        asked = {client: messages.ModelRequest(memory=ticket_of(self.memory(client)))}
        found = self.runtime.ask(asked, 0, Payload.of(None), read, "testing")[client]
        if isinstance(found, AbsentClient):
            return {client: found}
        w, buffers = found
        shown = Broadcast(common.message if w is None else Model(w), buffers or common.buffers)
        return self._look(dict.fromkeys(self.context.owners.population, messages.EvaluateRequest()), shown)

    def _look(self, questions: dict[int, messages.EvaluateRequest], common: Broadcast) -> Seen:
        def read(client: int, message: Message) -> messages.EvaluateResponse:
            response = expect(message, messages.EvaluateResponse)
            if response.right > response.count or response.own_right > response.own_count:
                raise WireRefused(f"'{response.what}' where counts belong")
            labels = self.context.data.classes if self.context.task_name == "multilabel" else 1  # of a sample
            expected = labels * self.context.owners.test_sizes[client], labels * self.own_samples[client]
            if (response.count, response.own_count) != expected:
                raise WireRefused(
                    f"counts of {response.count} and {response.own_count} labels, which are not those agreed on"
                )
            # A model that diverged has a loss of inf or nan.
            if LARGEST < abs(response.loss) < math.inf or response.loss == -math.inf:
                raise WireRefused(f"a loss of {response.loss:g}")
            return response

        return self.runtime.ask(questions, 0, Payload.of(common), read, "testing")

    def _looked(self, accuracy: float | None, loss: float, seen: Seen) -> EvaluationResult:
        own = np.full(len(self.context.owners.clients), np.nan)
        for k, response in seen.items():
            if isinstance(response, messages.EvaluateResponse) and response.own_count:
                own[k] = response.own_right / response.own_count
        self.missing = tuple(k for k, response in seen.items() if isinstance(response, AbsentClient))
        return EvaluationResult(accuracy, loss, own, self.missing)


def _pooled(seen: Seen) -> tuple[int, int, float]:
    """Return correct predictions, their number of samples, and the mean loss."""
    response = [one for one in seen.values() if isinstance(one, messages.EvaluateResponse)]
    right, count = sum(one.right for one in response), sum(one.count for one in response)
    return right, count, math.fsum(one.loss for one in response) / count if count else math.nan
