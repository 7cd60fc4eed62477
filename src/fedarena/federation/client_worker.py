"""The work of a client on one request: training, evaluation and saving its state."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Algorithm, Asynchronous
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.context import EVALUATION_ROWS, ExperimentContext
from fedarena.engine.evaluation import OwnModel
from fedarena.engine.evaluation_tasks import BatchNormTask, EvaluationTask
from fedarena.engine.task_metrics import Predictions, TaskMetrics
from fedarena.engine.tasks import (
    ClientAnswer,
    ClientTask,
    FailedTask,
    RuntimeTask,
    SkippedClient,
    initial_client_state,
    run_task,
)
from fedarena.federation import messages
from fedarena.federation.client_context import ClientContext, NoMasks
from fedarena.federation.client_states import ClientStateStore, ticket
from fedarena.federation.metric_sums import MetricSums, layout_of, own_values, why_no_sums
from fedarena.federation.redaction import ShareableError
from fedarena.federation.secure_aggregation import ClientMasks
from fedarena.federation.statistics_release import MASKED_FROM
from fedarena.federation.wire_format import NOTHING, Payload, WireRefused
from fedarena.models.pytree import read_only
from fedarena.models.task import Buffers, Keep, Scores
from fedarena.privacy.secure_aggregation import MaskedExchange
from fedarena.privacy.uplink import CannotSend, MaskedVector, UplinkSteps

STRANGE = "is it fedarena on the other side?"


@dataclass(frozen=True)
class UplinkTask:
    """A client task that returns `CannotSend` instead of failing with it."""

    job: ClientTask

    def run(self, context: ExperimentContext, common: Broadcast) -> ClientAnswer | SkippedClient | CannotSend:
        """Run the task and apply the steps of the uplink to its answer."""
        try:
            return self.job.run(context, common)
        except CannotSend as error:
            return error


class ClientWorker:
    """Processes one request of the server."""

    def __init__(
        self,
        context: ClientContext,
        states: ClientStateStore,
        round: int,
        shares_models: bool,
        log: logging.Logger,
        least: int = 1,
    ) -> None:
        self.context, self.states, self.round, self.least = context, states, round, least
        self.shares_models, self._log = shares_models, log
        self.client = context.agreed.client

    @contextmanager
    def masked_by(self, masks: ClientMasks, request: messages.RoundRequest, content: bytes) -> Iterator[None]:
        """Mask the update that answers this request, and no other, with these secrets."""
        steps = self.context.steps
        if steps is None or request.turn is None or not {*masks.clients} <= {*request.turn.asked}:
            raise ShareableError("keys of clients that were not selected", remedy=STRANGE)
        masks.receive_shares(request.shares or {})
        masks.bind(content)
        steps.masks = masks
        try:
            yield
        finally:
            steps.masks = NoMasks()

    def answered(self, request: messages.MessageBody, payload: Any) -> tuple[messages.MessageBody, Payload]:
        """Return the response to a request, and its payload."""
        if isinstance(request, messages.ModelRequest):
            return self._send_model(request)
        if isinstance(request, messages.SendResultRequest):
            return self._send(request)
        if isinstance(request, messages.AsyncTrainRequest):
            return self._train(request, payload)
        common = self._common(payload)
        if isinstance(request, messages.RoundRequest):
            return self._run_round(request, common)
        if isinstance(request, messages.BatchNormRequest):
            return self._recompute(common)
        if isinstance(request, messages.EvaluateRequest):
            return self._evaluate(request, common), NOTHING
        if isinstance(request, messages.OwnMetricsRequest):
            return self._own_metrics(request, common), NOTHING
        raise WireRefused(f"'{request.what}' is not a request to a client")

    def check_agreed(self, request: messages.MessageBody) -> None:
        """Refuse what the agreed experiment does not ask for."""
        context = self.context
        budget = context.experiment.rounds or context.experiment.uploads  # a round has an upload at least
        # Without rounds, a client that finishes as the run ends starts once more before the server knows that it has ended.
        last = -1 if isinstance(request, messages.RoundRequest | messages.BatchNormRequest) else 0
        if self.round < 0 or (budget is not None and self.round > budget + last):
            raise ShareableError(
                f"asked for round {self.round + 1} of {budget}", remedy="the agreed experiment has ended"
            )
        if isinstance(request, messages.AsyncTrainRequest | messages.SendResultRequest) and not isinstance(
            context.algorithm, Asynchronous
        ):
            raise ShareableError(
                f"{context.experiment.algorithm.name} has rounds, and was asked to train without them", remedy=STRANGE
            )
        if isinstance(request, messages.BatchNormRequest) and context.buffer_policy != "recompute":
            raise ShareableError("recomputing BatchNorm statistics was not agreed on", remedy=STRANGE)
        if isinstance(request, messages.RoundRequest) and context.steps is not None:
            self._check_turn(request, context.steps)
        if isinstance(request, messages.EvaluationSumsRequest):
            self._check_sums(request)
        if isinstance(request, messages.OwnMetricsRequest):
            self._check_own_metrics()

    def _check_sums(self, request: messages.EvaluationSumsRequest) -> None:
        """Refuse sums that the agreement does not have, and those of few samples that the server could read."""
        context, agreed = self.context, self.context.experiment.evaluate.histograms or 0
        if request.histograms not in (0, agreed):
            has = f"{agreed} bins" if agreed else "none"
            raise ShareableError(
                f"asked for score histograms of {request.histograms} bins, and the agreed experiment has {has}",
                remedy="the server must agree on evaluate.histograms with all clients",
                where="evaluate.histograms",
            )
        if why := why_no_sums(context):
            raise ShareableError(f"no evaluation sums: {why}", remedy=STRANGE)
        count = len(context.owners.client_tests[self.client])
        if context.agreed.clients < MASKED_FROM and count < self.least:
            raise ShareableError(
                f"sums over {count} test rows that the server can read would reveal too much of each",
                remedy=f"have {self.least} test rows or more, or lower --least",
                where="--least",
            )

    def _check_own_metrics(self) -> None:
        """Refuse values of this client alone where the agreement takes them from histograms, or there are none."""
        if self.context.experiment.evaluate.histograms is not None:
            raise ShareableError(
                "the agreed experiment takes AUC and average precision from histograms", remedy=STRANGE
            )
        if self.context.task_name != "classification":
            raise ShareableError("the model brings its own loss, and has no other metrics", remedy=STRANGE)

    def _check_turn(self, request: messages.RoundRequest, steps: UplinkSteps) -> None:
        """Refuse a request whose list of clients does not fit the steps of the uplink."""
        turn = request.turn
        if turn is None or (steps.settings.secure and request.shares is None):
            raise ShareableError("an answer would go up without the steps of the experiment's uplink", remedy=STRANGE)
        clients = {*turn.asked}
        if len(clients) < len(turn.asked) or self.client not in clients or max(clients) >= self.context.agreed.clients:
            raise ShareableError("a list of clients that cannot be the selected ones", remedy=STRANGE)
        uses_both = steps.settings.secure and steps.settings.noise
        if uses_both and turn.number != request.exchange:  # noise is drawn by this number
            raise ShareableError("one draw of noise would hide two answers", remedy=STRANGE)

    def _common(self, payload: Any) -> Broadcast:
        if not isinstance(payload, Broadcast) or not isinstance(payload.buffers, Buffers):
            raise WireRefused("a message without a model")
        broadcast: Broadcast = read_only(payload)
        return broadcast

    def _run(self, job: RuntimeTask, common: Broadcast) -> Any:
        return run_task(self.context, job, common)

    # Training

    def _run_round(self, request: messages.RoundRequest, common: Broadcast) -> tuple[messages.MessageBody, Payload]:
        check_method(self.context.algorithm, request.do)
        memory = self.states.load(request.memory)
        if request.exchange == 0:
            self.states.forget_before(self.round, request.memory)
        turn = None
        if request.turn is not None:
            turn = MaskedExchange(self.round, request.turn.number, request.turn.asked, request.turn.everyone)
        answer = self._run(
            UplinkTask(ClientTask(self.round, self.client, request.do, read_only(memory), exchange=turn)), common
        )
        if isinstance(answer, CannotSend):
            return messages.UnsendableResponse(error=answer.what, remedy=answer.remedy, where=answer.where), NOTHING
        if not isinstance(answer, ClientAnswer):
            return self._failure_response(answer), NOTHING
        kept = self._save_state(answer.report.state, ticket(self.round, request.exchange))
        return messages.RoundResponse(weight=float(answer.reply.weight), **_facts(answer, kept)), self._uploads(
            answer, turn
        )

    def _failure_response(self, answer: SkippedClient | FailedTask) -> messages.MessageBody:
        """Return the kind of an error; its text is only logged here, because it may quote samples."""
        if isinstance(answer, SkippedClient):
            return messages.CannotTrainResponse(reason=answer.reason)
        self._log.info(
            f"round {self.round + 1} failed: {answer.error}" + (f"  ({answer.place})" if answer.place else "")
        )
        return messages.ErrorResponse(error=answer.error.partition(":")[0])

    def _save_state(self, memory: ClientState | None, ticket: str) -> str:
        if memory is None:
            return ""
        self.states.save(ticket, memory)
        return ticket

    def _uploads(self, answer: ClientAnswer, turn: MaskedExchange | None = None) -> Payload:
        """Return the update, with BatchNorm statistics where they are averaged; the client state stays here."""
        if not answer.report.finite and self.context.experiment.on_nan != "keep":  # it is not used, and was not masked
            return Payload.of({"send": None, "buffers": None})
        travels = self.context.task.has_buffers and self.context.buffer_policy == "average"
        send, steps = answer.reply.send, self.context.steps
        if isinstance(send, MaskedVector) and steps is not None and turn is not None:
            send = replace(send, words=send.words & steps.used_bits(turn))
        compressed = steps is not None and (steps.settings.secure or bool(steps.settings.top_k or steps.settings.quantise))
        return Payload.of({"send": send, "buffers": answer.buffers if travels else None}, compressed)

    def _recompute(self, common: Broadcast) -> tuple[messages.MessageBody, Payload]:
        found = self._run(BatchNormTask(self.round, self.client), common)
        return (
            (self._failure_response(found), NOTHING)
            if isinstance(found, FailedTask)
            else (messages.BatchNormResponse(), Payload.of(found))
        )

    # Without rounds

    def _train(self, request: messages.AsyncTrainRequest, payload: Any) -> tuple[messages.MessageBody, Payload]:
        """Train from the server's model or an own result; send the new result at once, or when it is requested."""
        memory = self.states.load(request.memory) or initial_client_state(self.context)
        start = self._result(request.own_model) if request.own_model else self._common(payload)
        self.states.forget_before(request.keep_from, request.memory)
        job = ClientTask(self.round, self.client, "client", read_only(replace(memory, start=start)), request.number)
        answer = self._run(job, start)
        if not isinstance(answer, ClientAnswer):
            return self._failure_response(answer), NOTHING
        left, mine = answer.report.state, ticket(request.number, 0)
        if not request.ask_first:
            kept = self._save_state(left, mine)
            return messages.RoundResponse(weight=float(answer.reply.weight), **_facts(answer, kept)), self._uploads(
                answer
            )
        result = Broadcast(answer.reply.send, answer.buffers)
        self.states.save(mine, replace(left or ClientState(), start=result))
        return messages.AsyncTrainResponse(**_facts(answer, mine)), NOTHING

    def _result(self, ticket: str) -> Broadcast:
        """Return the result of an earlier training of this client."""
        memory = self.states.load(ticket)
        if memory is None or memory.start is None:
            raise ShareableError(
                f"there is no result of a training {ticket}", remedy="is it fedarena on the other side?"
            )
        return memory.start

    def _send(self, request: messages.SendResultRequest) -> tuple[messages.MessageBody, Payload]:
        """Return the result of a training that the server has accepted."""
        result = self._result(request.trained.memory)
        travels = self.context.task.has_buffers and self.context.buffer_policy == "average"
        payload = Payload.of({"send": result.message, "buffers": result.buffers if travels else None})
        return messages.RoundResponse(weight=1.0, **request.trained.model_dump()), payload

    # Evaluation

    def _evaluate(self, request: messages.EvaluateRequest, common: Broadcast) -> messages.MessageBody:
        """Return counts and a sum of losses, never values of single samples."""
        context = self.context
        w, buffers = self._own_model(request.memory)
        scores = self._scores(context.owners.test, common, w, buffers)
        own = scores
        if context.experiment.evaluate.on == "train":
            own = self._scores(context.owners.clients[self.client], common, w, buffers)
        return messages.EvaluateResponse(
            right=int(scores.right.sum()),
            count=int(scores.count.sum()),
            loss=math.fsum(scores.loss),
            own_right=int(own.right.sum()),
            own_count=int(own.count.sum()),
        )

    def _own_model(self, memory: str | None) -> OwnModel:
        """Return the model that this client keeps under a ticket; without one, nothing but the common model."""
        if memory is None:
            return None, None
        algorithm = self.context.algorithm
        kept = self.states.load(memory) or ClientState(kept=algorithm.remember(self.context.initial))
        return (kept.kept if algorithm.personal else None), kept.buffers

    def evaluation_sums(self, request: messages.EvaluationSumsRequest, payload: Any) -> tuple[int, ...]:
        """Return sums over the test samples, unmasked."""
        rows = self.context.owners.test
        predictions = self._predictions(rows, self._common(payload), None, None)
        return MetricSums.of(predictions, layout_of(self.context, request.histograms)).integers

    def _own_metrics(self, request: messages.OwnMetricsRequest, common: Broadcast) -> messages.MessageBody:
        """Return the metrics that need the order of scores, on the samples that clients are compared on."""
        context = self.context
        rows = context.owners.clients[self.client] if context.experiment.evaluate.on == "train" else context.owners.test
        predictions = self._predictions(rows, common, *self._own_model(request.memory))
        return messages.OwnMetrics(count=len(rows), values=own_values(predictions, context.positive, self.least))

    def _predictions(
        self, rows: NDArray[np.int64], common: Broadcast, w: NDArray[Any] | None, buffers: Buffers | None
    ) -> Predictions:
        """Return labels, predicted classes and probabilities of rows; they stay here."""
        scores = self._scores(rows, common, w, buffers, "logits")
        if scores.outputs is None:  # no rows
            scores = replace(scores, outputs=np.empty((0, self.context.data.classes), np.float32))
        return TaskMetrics(self.context).predictions(rows, scores)

    def _scores(
        self,
        rows: NDArray[np.int64],
        common: Broadcast,
        w: NDArray[Any] | None,
        buffers: Buffers | None,
        keep: Keep = "",
    ) -> Scores:
        parts = [Scores.of_nothing()]
        for start in range(0, len(rows), EVALUATION_ROWS):
            part = self._run(EvaluationTask(rows[start : start + EVALUATION_ROWS], None, w, buffers, keep), common)
            if isinstance(part, FailedTask):
                self._log.info(f"evaluation failed: {part.error}")
                raise ShareableError(
                    f"evaluation failed: {part.error.partition(':')[0]}", remedy="is there memory enough?"
                )
            parts.append(part)
        return Scores.joined(parts)

    def _send_model(self, request: messages.ModelRequest) -> tuple[messages.MessageBody, Payload]:
        """Return the personal model, where that was agreed."""
        context = self.context
        if not self.shares_models:
            raise ShareableError("personal models stay at the client", remedy="sharing them was not agreed on")
        memory = self.states.load(request.memory) or ClientState(kept=context.algorithm.remember(context.initial))
        w = memory.kept if context.algorithm.personal else None
        return messages.ModelResponse(), Payload.of({"w": w, "buffers": memory.buffers})


def _facts(answer: ClientAnswer, kept: str) -> dict[str, Any]:
    """Return the facts about a training that are sent besides its result."""
    report = answer.report
    names = ("finite", "steps", "samples", "loss", "seconds", "sent", "sent_buffers")
    return {**{name: getattr(report, name) for name in names}, "memory": kept}


def check_method(algorithm: Algorithm, do: str) -> None:
    """Refuse a method that is not `client` or a public method which the algorithm adds to the contract."""
    own = do.isidentifier() and not do.startswith("_") and not hasattr(Algorithm, do)
    inside = algorithm
    while getattr(inside, "base", None) is not None:
        inside = inside.base  # type: ignore[attr-defined]
    if do != "client" and not (own and callable(getattr(type(inside), do, None))):
        raise ShareableError(
            f"{type(algorithm).__name__} has no method '{do[:40]}' for clients", remedy="is it fedarena there?"
        )
