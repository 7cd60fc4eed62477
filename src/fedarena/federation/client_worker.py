"""The work of a client on the requests of a run that it has agreed to: training, evaluation and saving its state."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.data.dataset import Rows
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.context import EVALUATION_ROWS
from fedarena.engine.evaluation_tasks import BatchNormTask, EvaluationTask
from fedarena.engine.personal_model import OwnModel, PersonalModelTask
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
from fedarena.engine.training_loss import LossTask
from fedarena.federation import messages
from fedarena.federation.agreed_requests import AgreedRequests, check_method
from fedarena.federation.client_context import ClientContext, NoMasks
from fedarena.federation.client_states import ClientStateStore, ticket
from fedarena.federation.evaluation_sums import layout_of, own_values, sums_of
from fedarena.federation.joined_run import JoinedRun
from fedarena.federation.redaction import ShareableError
from fedarena.federation.request_limits import RequestLimits
from fedarena.federation.secure_aggregation import ClientMasks
from fedarena.federation.wire_format import NOTHING, Message, Payload, WireRefused, unpack
from fedarena.models.pytree import read_only, types_near
from fedarena.models.task import Buffers, Keep, Scores
from fedarena.privacy.secure_aggregation import MaskedExchange
from fedarena.privacy.uplink import CannotSend, MaskedVector
from fedarena.results.own_samples import write_division
from fedarena.runtimes.single_thread import one_thread

Response = tuple[messages.MessageBody, Payload]


class ClientWorker:
    """Processes the requests of the server, one at a time."""

    def __init__(
        self, joined: JoinedRun, context: ClientContext, folder: Path, log: logging.Logger, least: int
    ) -> None:
        self.joined, self.context, self._log, self.least = joined, context, log, least
        self.client = context.agreed.client
        self.states = ClientStateStore(folder, context.algorithm)
        self.checks = AgreedRequests(context, least)
        self.limits = RequestLimits(folder, context, joined.invitation.shares_models)
        self.types = types_near(context.algorithm, Broadcast, Buffers)
        self.masks: ClientMasks | None = None  # of the exchange under way, where answers are masked
        self.round = 0  # of the request

    def answer(self, message: Message, content: bytes) -> Response:
        """Return the response to a request, and its payload."""
        request, self.round = message.body, message.round
        if isinstance(request, messages.KeysRequest | messages.SharesRequest | messages.RevealRequest):
            return self._exchange_secrets(request), NOTHING
        methods: dict[type[messages.MessageBody], Callable[[Any, Any], Response]] = {
            messages.RoundRequest: self._run_round,
            messages.BatchNormRequest: self._recompute,
            messages.LossRequest: self._measure,
            messages.AsyncTrainRequest: self._train,
            messages.SendResultRequest: self._send,
            messages.EvaluateRequest: self._evaluate,
            messages.EvaluationSumsRequest: self._evaluation_sums,
            messages.OwnMetricsRequest: self._own_metrics,
            messages.ModelRequest: self._send_model,
            messages.FinalModelRequest: self._store_model,
        }
        if type(request) not in methods:
            raise WireRefused(f"'{request.what}' is not a request to a client")
        with one_thread(), self._masked(request, content):
            self.checks.check(request, self.round)
            self.limits.check(request, self.round, content)
            return methods[type(request)](request, unpack(content, self.types).payload)

    def _common(self, payload: Any) -> Broadcast:
        if not isinstance(payload, Broadcast) or not isinstance(payload.buffers, Buffers):
            raise WireRefused("a message without a model")
        broadcast: Broadcast = read_only(payload)
        return broadcast

    def _run(self, job: RuntimeTask, common: Broadcast) -> Any:
        return run_task(self.context, job, common)

    # Masks

    def _exchange_secrets(
        self, request: messages.KeysRequest | messages.SharesRequest | messages.RevealRequest
    ) -> messages.MessageBody:
        """Answer the steps of secure aggregation that involve no training."""
        if isinstance(request, messages.KeysRequest):
            seed = self.context.experiment.seed_for("masks")
            self.masks = ClientMasks(seed, self.client, self._exchange_id(request.exchange))
            return self.masks.public_keys()
        masks = self._current_masks(request.exchange)
        if isinstance(request, messages.SharesRequest):
            turn = MaskedExchange(self.round, request.exchange, tuple(request.keys))
            return masks.encrypted_shares(request.keys, turn)
        response = masks.revealed_shares(request.answered)
        self.states.reveal_once(ticket(self.round, request.exchange), request.answered)
        return response

    def _exchange_id(self, exchange: int) -> str:
        """Return the identity of an exchange, to which secrets are bound."""
        return f"{self.joined.run} {self.round} {exchange}"

    def _current_masks(self, exchange: int) -> ClientMasks:
        """Return the secrets of this exchange; refuse if they belong to another one."""
        if self.masks is None or self.masks.exchange_id != self._exchange_id(exchange):
            raise ShareableError(
                "the secrets of this exchange are gone", remedy="this client takes part again in the next exchange"
            )
        return self.masks

    @contextmanager
    def _masked(self, request: messages.MessageBody, content: bytes) -> Iterator[None]:
        """Mask the update that answers this request, and no other, with the secrets of its exchange."""
        if isinstance(request, messages.RoundRequest):
            if self.masks is not None and self.masks.exchange_id != self._exchange_id(request.exchange):
                self.masks = None  # another exchange begins: the secrets of the last one are dropped
            if request.shares is not None:
                masks, steps = self._current_masks(request.exchange), self.context.steps
                if steps is None or request.turn is None or not {*masks.clients} <= {*request.turn.asked}:
                    raise ShareableError("keys of clients that were not selected")
                masks.receive_shares(request.shares)
                masks.bind(content)
                steps.masks = masks
        try:
            yield
        finally:
            if self.context.steps is not None:
                self.context.steps.masks = NoMasks()

    # Training

    def _run_round(self, request: messages.RoundRequest, payload: Any) -> Response:
        common = self._common(payload)
        check_method(self.context.algorithm, request.do)
        memory = self.states.load(request.memory)
        if request.exchange == 0:
            self.states.forget_before(self.round, request.memory)
        turn = None
        if request.turn is not None:
            turn = MaskedExchange(self.round, request.turn.number, request.turn.asked, request.turn.everyone)
        job = ClientTask(
            self.round, self.client, request.do, read_only(memory), exchange=turn, exchange_number=request.exchange
        )
        answer = self._run(job, common)
        if not isinstance(answer, ClientAnswer):
            return self._failure(answer)
        return self._result(answer, ticket(self.round, request.exchange), turn)

    def _failure(self, answer: SkippedClient | FailedTask | CannotSend) -> Response:
        """Return the kind of an error; its text is only logged here, because it may quote samples."""
        if isinstance(answer, CannotSend):
            return messages.UnsendableResponse(error=answer.what, remedy=answer.remedy, where=answer.where), NOTHING
        if isinstance(answer, SkippedClient):
            return messages.CannotTrainResponse(reason=answer.reason), NOTHING
        self._log.info(
            f"round {self.round + 1} failed: {answer.error}" + (f"  ({answer.place})" if answer.place else "")
        )
        return messages.ErrorResponse(error=answer.error.partition(":")[0]), NOTHING

    def _result(self, answer: ClientAnswer, own: str, turn: MaskedExchange | None = None) -> Response:
        """Return the update, with BatchNorm statistics where they are averaged; the client state stays here."""
        report, send, steps = answer.report, answer.reply.send, self.context.steps
        if report.state is not None:
            self.states.save(own, report.state)
        kept = "" if report.state is None else own
        response = messages.RoundResponse(weight=float(answer.reply.weight), **_facts(answer, kept))
        if not report.finite and self.context.experiment.on_nan != "keep":  # it is not used, and was not masked
            return response, Payload.of({"send": None, "buffers": None})
        if isinstance(send, MaskedVector) and steps is not None and turn is not None:
            send = steps.shortened(send, turn)
        compressed = steps is not None and (
            steps.settings.secure or bool(steps.settings.top_k or steps.settings.quantise)
        )
        return response, self._uploads(send, answer.buffers, compressed)

    def _uploads(self, send: Any, buffers: Buffers, compressed: bool = False) -> Payload:
        travels = self.context.task.has_buffers and self.context.buffer_policy == "average"
        return Payload.of({"send": send, "buffers": buffers if travels else None}, compressed)

    def _recompute(self, request: messages.BatchNormRequest, payload: Any) -> Response:
        found = self._run(BatchNormTask(self.round, self.client), self._common(payload))
        return (
            self._failure(found) if isinstance(found, FailedTask) else (messages.BatchNormResponse(), Payload.of(found))
        )

    def _measure(self, request: messages.LossRequest, payload: Any) -> Response:
        task = LossTask(self.round, self.client, self.states.load(request.memory))
        found = self._run(task, self._common(payload))
        return self._failure(found) if isinstance(found, FailedTask) else (messages.LossResponse(loss=found), NOTHING)

    # Without rounds

    def _train(self, request: messages.AsyncTrainRequest, payload: Any) -> Response:
        """Train from the server's model or an own result; send the new result at once, or when it is requested."""
        memory = self.states.load(request.memory) or initial_client_state(self.context)
        start = self._own_result(request.own_model) if request.own_model else self._common(payload)
        self.states.forget_before(request.keep_from, request.memory)
        job = ClientTask(self.round, self.client, "client", read_only(replace(memory, start=start)), request.number)
        answer, own = self._run(job, start), ticket(request.number, 0)
        if not isinstance(answer, ClientAnswer):
            return self._failure(answer)
        if not request.ask_first:
            return self._result(answer, own)
        result = Broadcast(answer.reply.send, answer.buffers)
        self.states.save(own, replace(answer.report.state or ClientState(), start=result))
        return messages.AsyncTrainResponse(**_facts(answer, own)), NOTHING

    def _own_result(self, ticket: str) -> Broadcast:
        """Return the result of an earlier training of this client."""
        memory = self.states.load(ticket)
        if memory is None or memory.start is None:
            raise ShareableError(f"there is no result of a training {ticket}")
        return memory.start

    def _send(self, request: messages.SendResultRequest, payload: Any) -> Response:
        """Return the result of a training that the server has accepted."""
        result = self._own_result(request.trained.memory)
        response = messages.RoundResponse(weight=1.0, **request.trained.model_dump())
        return response, self._uploads(result.message, result.buffers)

    # Evaluation

    def _evaluate(self, request: messages.EvaluateRequest, payload: Any) -> Response:
        """Return counts and a sum of losses, never values of single samples."""
        common = self._common(payload)
        model = self._own_model(request.memory, common)
        scores = own = self._scores(self.context.owners.test, common, model)
        if self.context.experiment.evaluate.on == "train":
            own = self._scores(self._compared_rows, common, model)
        response = messages.EvaluateResponse(
            right=int(scores.right.sum()),
            count=int(scores.count.sum()),
            loss=math.fsum(scores.loss),
            own_right=int(own.right.sum()),
            own_count=int(own.count.sum()),
        )
        return response, NOTHING

    @property
    def _compared_rows(self) -> Rows:
        """Return the samples that clients are compared on."""
        owners, on = self.context.owners, self.context.experiment.evaluate.on
        return owners.clients[self.client] if on == "train" else owners.test

    def _own_model(self, memory: str | None, common: Broadcast) -> OwnModel:
        """Return the model of this client that follows from its state of a ticket; without one, the common model alone."""
        if memory is None:
            return None, None
        model = self._run(PersonalModelTask(self.client, read_only(self.states.load(memory))), common)
        if isinstance(model, FailedTask):
            self._log.info(f"the personal model failed: {model.error}")
            raise ShareableError(f"the personal model failed: {model.error.partition(':')[0]}")
        w, buffers = model
        return w, buffers

    def _evaluation_sums(self, request: messages.EvaluationSumsRequest, payload: Any) -> Response:
        """Return sums over the test samples, masked unless fewer than three clients take part."""
        predictions = self._predictions(self.context.owners.test, self._common(payload))
        integers = sums_of(predictions, layout_of(self.context, request.histograms)).integers
        response = messages.EvaluationSums(histograms=request.histograms)
        return response, self.joined.masked(integers, self.client, request.keys)

    def _own_metrics(self, request: messages.OwnMetricsRequest, payload: Any) -> Response:
        """Return the metrics that need the order of scores, on the samples that clients are compared on."""
        rows = self._compared_rows
        common = self._common(payload)
        predictions = self._predictions(rows, common, self._own_model(request.memory, common))
        values = own_values(predictions, self.context.task_name, self.context.positive, self.least)
        return messages.OwnMetrics(count=len(rows), values=values), NOTHING

    def _predictions(self, rows: Rows, common: Broadcast, model: OwnModel = (None, None)) -> Predictions:
        """Return labels, predicted classes and probabilities of rows; they stay here."""
        scores = self._scores(rows, common, model, "logits")
        if scores.outputs is None:  # no rows
            scores = replace(scores, outputs=np.empty((0, self.context.data.classes), np.float32))
        return TaskMetrics(self.context).predictions(rows, scores)

    def _scores(self, rows: Rows, common: Broadcast, model: OwnModel, keep: Keep = "") -> Scores:
        parts = [Scores.of_nothing()]
        for start in range(0, len(rows), EVALUATION_ROWS):
            part = self._run(EvaluationTask(rows[start : start + EVALUATION_ROWS], None, *model, keep), common)
            if isinstance(part, FailedTask):
                self._log.info(f"evaluation failed: {part.error}")
                raise ShareableError(
                    f"evaluation failed: {part.error.partition(':')[0]}", remedy="check that there is enough memory"
                )
            parts.append(part)
        return Scores.joined(parts)

    def _send_model(self, request: messages.ModelRequest, payload: Any) -> Response:
        """Return the personal model, where that was agreed."""
        if not self.joined.invitation.shares_models:
            raise ShareableError("personal models stay at the client", remedy="sharing them was not agreed on")
        if self.context.algorithm.own_layers is not None:
            raise ShareableError("own layers never leave a client")
        state = self.states.load(request.memory) or initial_client_state(self.context)
        w, buffers = (state.kept if self.context.algorithm.personal else None), state.buffers
        return messages.ModelResponse(), Payload.of({"w": w, "buffers": buffers})

    def _store_model(self, request: messages.FinalModelRequest, payload: Any) -> Response:
        """Store the final model, or the personal one, in a run folder of this client; nothing about it is sent."""
        joined, samples = self.joined, self.joined.samples
        common = self._common(payload)
        joined.model.store(self.context, request, common, self._own_model(request.memory, common))
        if samples is not None and joined.table.source.test_path is None:
            write_division(joined.model.path, Path(joined.table.source.paths[0]), samples.train, samples.test)
        return messages.FinalModelResponse(), NOTHING


def _facts(answer: ClientAnswer, kept: str) -> dict[str, Any]:
    """Return the facts about a training that are sent besides its result."""
    return {**{name: getattr(answer.report, name) for name in messages.TrainingFacts.model_fields}, "memory": kept}
