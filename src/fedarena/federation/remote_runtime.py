"""A runtime for clients on other machines: tasks are sent as messages, and answers are aggregated here in the order of
clients, as on one machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedarena.algorithms.base import Reply
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.context import ExperimentContext
from fedarena.engine.evaluation_tasks import BatchNormTask
from fedarena.engine.tasks import (
    AbsentClient,
    BatchResult,
    ClientAnswer,
    ClientBatch,
    ClientReport,
    FailedTask,
    RuntimeTask,
    SkippedClient,
)
from fedarena.engine.training_loss import FORWARD_SHARE, LossTask
from fedarena.federation import messages
from fedarena.federation.client_states import ticket
from fedarena.federation.coordinator import Coordinator
from fedarena.federation.reply_pattern import ReplyPatterns, check_structure
from fedarena.federation.requests import ResponseRule
from fedarena.federation.secure_aggregation import ServerMasks
from fedarena.federation.wire_format import NOTHING, Message, Payload, WireRefused, expect
from fedarena.models.pytree import is_finite
from fedarena.models.task import Buffers
from fedarena.privacy.uplink import CannotSend, MaskedVector

STATISTICS = "BatchNorm's statistics"

Questions = Mapping[int, messages.MessageBody]  # by client


class RemoteRuntime:
    """Runs tasks at the clients of a federation."""

    def __init__(self, context: ExperimentContext, coordinator: Coordinator, rule: ResponseRule) -> None:
        self.context, self.coordinator, self.rule = context, coordinator, rule
        self._masks: ServerMasks | None = None
        if getattr(context.experiment.uplink, "secure", False):
            context.masks = self._masks = ServerMasks(context.experiment.seed_for("masks"), self._ask_for)
            context.__dict__.pop("steps", None)
        self.names = context.owners.names
        self.looks: Any = None  # the evaluator; set by the server
        self.patterns = ReplyPatterns(context)
        self._rule_now = rule  # knows with how many clients the exchange began
        self._exchange = (-1, -1)  # the round, and the number of its exchange

    def map(self, jobs: Iterable[RuntimeTask], common: Broadcast) -> Iterator[tuple[int, Any]]:
        """Send all tasks at once; by the rule, some answers may be missing."""
        todo: list[Any] = list(jobs)  # all of one kind
        if not todo:
            return
        if isinstance(todo[0], ClientBatch):
            yield from enumerate(self._trained(todo, common))
        elif isinstance(todo[0], BatchNormTask):
            request: Any = lambda task: messages.BatchNormRequest()
            yield from enumerate(self._each(todo, common, request, self._statistics, "statistics"))
        elif isinstance(todo[0], LossTask):
            request = lambda task: messages.LossRequest(memory=ticket_of(task.state))
            loss = lambda message: expect(message, messages.LossResponse).loss
            yield from enumerate(self._each(todo, common, request, loss, "losses"))
        else:
            raise TypeError(f"{type(todo[0]).__name__} needs samples, and the server has none")

    # Training

    def _trained(self, bundles: list[ClientBatch], common: Broadcast) -> Iterator[BatchResult]:
        round, do, turn = bundles[0].round, bundles[0].do, bundles[0].exchange
        exchange = self._exchange[1] + 1 if self._exchange[0] == round else 0
        self._exchange = (round, exchange)
        memories = {k: m for bundle in bundles for k, m in zip(bundle.clients, bundle.states, strict=True)}
        self._rule_now = replace(self.rule, selected=len(memories))
        info = None
        if turn is not None:
            info = messages.ExchangeInfo(number=turn.number, asked=turn.asked, everyone=turn.everyone)
        self.patterns.prepare(do, common, turn)
        shares: dict[int, dict[int, str]] = {}
        absent: dict[int, AbsentClient] = {}
        if self._masks is not None:
            shares, absent = self._masks.exchange(round, exchange, list(memories))
        questions = {
            k: messages.RoundRequest(
                do=do, exchange=exchange, memory=ticket_of(memory), turn=info, shares=shares.get(k)
            )
            for k, memory in memories.items()
            if k not in absent
        }
        own = ticket(round, exchange)
        read = lambda client, message: self.answer(client, message, do, common.buffers, own)
        answers = self.ask(questions, round, Payload.of(common), read, f"round {round + 1}", self._rule_now) | absent
        for bundle in bundles:
            folded = BatchResult()
            for client in bundle.clients:
                folded.add(answers[client], self.context)
            yield folded

    def ask(
        self,
        questions: Questions,
        round: int,
        load: Payload,
        read: Callable[[int, Message], Any],
        what: str,
        rule: ResponseRule | None = None,
    ) -> dict[int, Any]:
        """Return the answer of each client, or that it is absent."""
        number = {name: k for k, name in enumerate(self.names)}
        found, missing = self.coordinator.ask(
            {self.names[k]: question for k, question in questions.items()},
            lambda name, message: read(number[name], message),
            rule or self.rule,
            what,
            round,
            load,
        )
        absent = {number[name]: AbsentClient(number[name], why) for name, why in missing.items()}
        return {number[name]: answer for name, answer in found.items()} | absent

    def _ask_for(
        self, questions: Questions, round: int, kind: type[messages.MessageBody], what: str, minimum: int | None = None
    ) -> dict[int, Any]:
        """Return answers of one kind, without a payload."""
        rule = self._rule_now if minimum is None else replace(self.rule, minimum=minimum)
        return self.ask(questions, round, NOTHING, lambda client, message: expect(message, kind), what, rule)

    def answer(
        self, client: int, message: Message, do: str, before: Buffers, own: str
    ) -> ClientAnswer | SkippedClient | FailedTask | CannotSend:
        """Return the checked answer of a client; whether its numbers are finite is checked here again."""
        done, name = message.body, self.names[client]
        if isinstance(done, messages.CannotTrainResponse):
            return SkippedClient(client, done.reason)
        if isinstance(done, messages.ErrorResponse):
            return FailedTask(f"{name}: {done.error}", done.place)
        if isinstance(done, messages.UnsendableResponse):
            return CannotSend(f"{name}: {done.error}", remedy=done.remedy, where=done.where)
        if not isinstance(done, messages.RoundResponse) or not isinstance(message.payload, dict):
            raise WireRefused(f"'{done.what}' where an answer belongs")
        if done.memory not in ("", own):
            raise WireRefused("an answer of another training")
        send, buffers = message.payload.get("send"), before
        if not done.finite and self.context.experiment.on_nan != "keep":  # then nothing else was sent
            return ClientAnswer(self.report(client, message.round, done, False), Reply(None), buffers)
        self.patterns.check(send, do)
        if self.context.task.has_buffers and self.context.buffer_policy == "average":
            received: Any = message.payload.get("buffers")
            check_structure(received, self.context.initial_buffers, STATISTICS)
            buffers = received
        still = buffers.values == before.values  # a constant may well be infinite
        sound = bool((np.isfinite(buffers.values) | still).all()) and math.isfinite(done.weight) and done.weight >= 0
        finite = done.finite and sound and (isinstance(send, MaskedVector) or is_finite(send))
        return ClientAnswer(self.report(client, message.round, done, finite), Reply(send, weight=done.weight), buffers)

    def report(
        self, client: int, round: int, done: messages.RoundResponse | messages.AsyncTrainResponse, finite: bool
    ) -> ClientReport:
        """Return the report of a training, with the time that the client's device would take on the virtual clock."""
        measured = 0.0 if done.squared_loss is None else FORWARD_SHARE * float(self.context.sizes[client])
        return ClientReport(
            client,
            device_seconds=self.context.fleet.training_seconds(client, round, done.samples + measured),
            state=ClientState(kept=done.memory) if done.memory else None,
            **{**done.model_dump(include={*messages.TrainingFacts.model_fields}), "finite": finite},
        )

    def _each(
        self,
        tasks: Sequence[BatchNormTask | LossTask],
        common: Broadcast,
        request: Callable[[Any], messages.MessageBody],
        value: Callable[[Message], Any],
        what: str,
    ) -> Iterator[Any]:
        """Ask the client of every task, and yield what it answers, or why it does not, in the order of the tasks."""
        round = tasks[0].round

        def read(client: int, message: Message) -> Any:
            if isinstance(message.body, messages.ErrorResponse):
                return FailedTask(f"{self.names[client]}: {message.body.error}", message.body.place)
            return value(message)

        questions = {task.client: request(task) for task in tasks}
        found = self.ask(questions, round, Payload.of(common), read, f"round {round + 1}, {what}")
        yield from (found[task.client] for task in tasks)

    def _statistics(self, message: Message) -> Any:
        check_structure(message.payload, self.context.initial_buffers, STATISTICS)
        return message.payload


def ticket_of(memory: ClientState | None) -> str:
    """Return the ticket of a client state."""
    return "" if memory is None else str(memory.kept or "")
