"""How good is the model? Every participant tests it on rows of its own and tells counts and a sum; here they are pooled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Model
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.evaluation import EvaluationResult, OwnModel
from fedarena.engine.tasks import AbsentClient
from fedarena.federation import messages
from fedarena.federation.agreement import LARGEST
from fedarena.federation.released_metrics import ReleasedMetrics
from fedarena.federation.remote_runtime import RemoteRuntime, ticket_of
from fedarena.federation.reply_pattern import first_mismatch
from fedarena.federation.wire_format import Message, Payload, WireRefused
from fedarena.statistics.metric_registry import Metric

Seen = dict[int, messages.EvaluateResponse | AbsentClient]


class FederatedEvaluator:
    """The evaluation of a federation. Models that clients keep for themselves are tested where they are.

    With `shares_models` such a model also goes to all other participants, and its accuracy is that on all test rows, as
    it is in a simulation; without, it is that on the rows of its owner.
    """

    def __init__(
        self, runtime: RemoteRuntime, memory: Callable[[int], ClientState | None], shares_models: bool
    ) -> None:
        self.runtime, self.memory, self.shares_models = runtime, memory, shares_models
        self.site = runtime.site
        self.missing: tuple[int, ...] = ()  # at the last look: clients whose rows it was without
        self.failed: dict[str, str] = {}
        self._released = ReleasedMetrics(runtime)
        self.metrics = self._released.metrics

    @property
    def own_samples(self) -> NDArray[np.int64]:
        """Return how many samples each client is compared on."""
        owners = self.site.owners
        return owners.sizes if self.site.experiment.evaluate.on == "train" else owners.test_sizes

    def evaluate_shared(self, common: Broadcast, metrics: Sequence[Metric] = (), clients: bool = False) -> EvaluationResult:
        """One model for all."""
        people = self.site.owners.population
        seen = self._look(dict.fromkeys(people, messages.EvaluateRequest()), common)
        right, count, loss = _pooled(seen)
        found = self._looked(right / count if count else None, loss, seen)
        found = self._released.with_sums(found, common, metrics)
        return self._released.with_own(found, common, dict.fromkeys(people)) if clients else found

    def evaluate_personal(
        self,
        common: Broadcast,
        people: list[int],
        own_model: Callable[[int], OwnModel],
        metrics: Sequence[Metric] = (),
        clients: bool = False,
    ) -> EvaluationResult:
        """A model for each, weighted by training rows."""
        tickets = {k: ticket_of(self.memory(k)) for k in people}
        seen = self._look({k: messages.EvaluateRequest(memory=ticket) for k, ticket in tickets.items()}, common)
        there = [k for k in people if isinstance(seen[k], messages.EvaluateResponse)]
        sizes = self.site.owners.sizes[there]
        on_test = losses = 0.0
        for k, p in zip(there, sizes / max(sizes.sum(), 1), strict=True):
            right, count, loss = _pooled(self._evaluate_everywhere(k, common) if self.shares_models else {k: seen[k]})
            on_test += p * (right / count if count else 0.0)
            losses += p * loss
        found = self._released.with_sums(self._looked(float(on_test), float(losses), seen), common, metrics)
        return self._released.with_own(found, common, tickets) if clients else found

    def _evaluate_everywhere(self, client: int, common: Broadcast) -> Seen:
        """One client's own model on the test rows of all."""

        def read(name: str, message: Message) -> OwnModel:
            load = message.load
            buffers, w = self.site.task.buffers(), self.site.initial
            if (
                not isinstance(message.words, messages.ModelResponse)
                or not isinstance(load, dict)
                or {*load} != {"w", "buffers"}
            ):
                raise WireRefused(f"'{message.words.what}' where a model belongs")
            problems = [load["w"] is not None and first_mismatch(load["w"], w, "a model")]
            problems += [
                load["buffers"] is not None and first_mismatch(load["buffers"], buffers, "BatchNorm's statistics")
            ]
            for problem in filter(None, problems):
                raise WireRefused(str(problem))
            return load["w"], load["buffers"]

        asked = {client: messages.ModelRequest(memory=ticket_of(self.memory(client)))}
        found = self.runtime.ask(asked, 0, Payload.of(None), read, "testing")[client]
        if isinstance(found, AbsentClient):
            return {client: found}
        w, buffers = found
        shown = Broadcast(common.message if w is None else Model(w), buffers or common.buffers)
        return self._look(dict.fromkeys(self.site.owners.population, messages.EvaluateRequest()), shown)

    def _look(self, questions: dict[int, messages.EvaluateRequest], common: Broadcast) -> Seen:
        def read(name: str, message: Message) -> messages.EvaluateResponse:
            told, client = message.words, self.runtime.names.index(name)
            if (
                not isinstance(told, messages.EvaluateResponse)
                or not told.right <= told.count
                or not told.own_right <= told.own_count
            ):
                raise WireRefused(f"'{told.what}' where counts belong")
            if (told.count, told.own_count) != self._counts(client):
                raise WireRefused(f"counts of {told.count} and {told.own_count} rows, which are not those agreed on")
            if LARGEST < abs(told.loss) < math.inf or told.loss == -math.inf:  # a model that diverged has inf or nan
                raise WireRefused(f"a loss of {told.loss:g}")
            return told

        return self.runtime.ask(questions, 0, Payload.of(common), read, "testing")

    def _counts(self, client: int) -> tuple[int, int]:
        """Rows on which a client tests, and those that clients are compared on."""
        owners, on = self.site.owners, self.site.experiment.evaluate.on
        tests = len(owners.client_tests[client])
        return tests, len(owners.clients[client]) if on == "train" else tests

    def _looked(self, accuracy: float | None, loss: float, seen: Seen) -> EvaluationResult:
        own = np.full(len(self.site.owners.clients), np.nan)
        for k, told in seen.items():
            if isinstance(told, messages.EvaluateResponse) and told.own_count:
                own[k] = told.own_right / told.own_count
        self.missing = tuple(k for k, told in seen.items() if isinstance(told, AbsentClient))
        return EvaluationResult(accuracy, loss, own, self.missing)


def _pooled(seen: Seen) -> tuple[int, int, float]:
    """Right, of how many, and the mean loss."""
    told = [one for one in seen.values() if isinstance(one, messages.EvaluateResponse)]
    right, count = sum(one.right for one in told), sum(one.count for one in told)
    return right, count, math.fsum(one.loss for one in told) / count if count else math.nan
