"""A runtime for clients on other machines: tasks are sent as messages, and answers are aggregated here in the order of
clients, as on one machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from fedarena.algorithms.base import Reply
from fedarena.config.experiment import Experiment
from fedarena.config.settings_tables import Uplink
from fedarena.data.dataset import Dataset, Partition
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.context import ExperimentContext
from fedarena.engine.evaluation_tasks import BatchNormTask
from fedarena.engine.stopping import participants
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
from fedarena.federation import messages
from fedarena.federation.client_states import ticket
from fedarena.federation.coordinator import Coordinator
from fedarena.federation.reply_pattern import ReplyPatterns, first_mismatch
from fedarena.federation.requests import ResponseRule
from fedarena.federation.secure_aggregation import ServerMasks
from fedarena.federation.wire_format import NOTHING, Message, Payload, WireRefused, pack
from fedarena.models.pytree import is_finite, types_near
from fedarena.models.task import Buffers
from fedarena.privacy.uplink import CannotSend, MaskedVector, UplinkSteps

Read = Callable[[str, Message], Any]


class RemoteContext(ExperimentContext):
    """An experiment whose samples are at the clients; here only their numbers are known."""

    def __init__(self, experiment: Experiment, data: Dataset, owners: Partition, secret: int) -> None:
        super().__init__(experiment, data, owners)
        self.secret = secret
        self.masks: ServerMasks | None = None  # set by the runtime, which can send requests

    @cached_property
    def steps(self) -> UplinkSteps | None:
        """Return the steps of the uplink; noise comes from a secret, because all clients know the experiment's seed."""
        exp, uplink = self.experiment, self.experiment.uplink
        if not isinstance(uplink, Uplink) or not self.algorithm.communicates:
            return None
        asked, heaviest = participants(exp, len(self.owners.population)), float(self.partition.sizes.max())
        return UplinkSteps(
            uplink, exp.algorithm.name, exp.seed_for("uplink"), heaviest, asked, noise_seed=self.secret, masks=self.masks
        )


def answer_types(algorithm: Any) -> dict[str, type]:
    """Return the types that answers may consist of."""
    return {**types_near(algorithm), **{t.__qualname__: t for t in (Buffers, MaskedVector)}}


class RemoteRuntime:
    """Runs tasks at the clients of a federation."""

    def __init__(self, context: RemoteContext, coordinator: Coordinator, rule: ResponseRule) -> None:
        self.context, self.coordinator, self.rule = context, coordinator, rule
        if getattr(context.experiment.uplink, "secure", False):
            context.masks = ServerMasks(context.experiment.seed_for("masks"), self._ask_for)
            context.__dict__.pop("steps", None)
        self.names = context.owners.names
        self.looks: Any = None  # the evaluator; set by the server
        self.patterns = ReplyPatterns(context)
        self._rule_now = rule  # knows with how many clients the exchange began
        self._exchange = (-1, -1)  # the round, and the number of its exchange

    def map(self, jobs: Iterable[RuntimeTask], common: Broadcast) -> Iterator[tuple[int, Any]]:
        """Send all tasks at once; by the rule, some answers may be missing."""
        todo = list(jobs)
        if not todo:
            return
        if all(isinstance(job, ClientBatch) for job in todo):
            yield from enumerate(self._trained(todo, common))  # type: ignore[arg-type]
        elif all(isinstance(job, BatchNormTask) for job in todo):
            yield from enumerate(self._recomputed(todo, common))  # type: ignore[arg-type]
        else:
            raise TypeError(f"{type(todo[0]).__name__} needs samples, and the server has none")

    def close(self) -> None:
        """Do nothing: the link is closed by the server."""

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
        if self.context.masks is not None:
            shares, absent = self.context.masks.exchange(round, exchange, list(memories))
        questions = {
            k: messages.RoundRequest(
                do=do, exchange=exchange, memory=ticket_of(memory), turn=info, shares=shares.get(k)
            )
            for k, memory in memories.items()
            if k not in absent
        }
        own = ticket(round, exchange)
        read = lambda name, message: self.answer(self.names.index(name), message, do, common.buffers, own)
        answers = self.ask(questions, round, Payload.of(common), read, f"round {round + 1}", self._rule_now) | absent
        for bundle in bundles:
            folded = BatchResult()
            for client in bundle.clients:
                add_answer(folded, answers[client], self.context)
            yield folded

    def ask(
        self,
        questions: Mapping[int, messages.MessageBody],
        round: int,
        load: Payload,
        read: Read,
        what: str,
        rule: ResponseRule | None = None,
    ) -> dict[int, Any]:
        """Return the answer of each client, or that it is absent."""

        def of_this_round(name: str, message: Message) -> Any:
            check_round(message, round)
            return read(name, message)

        packed = {self.names[k]: pack(self.coordinator.run, round, asked, load) for k, asked in questions.items()}
        found, missing = self.coordinator.ask(packed, of_this_round, rule or self.rule, what)
        answers = {self.names.index(name): answer for name, answer in found.items()}
        return answers | {
            self.names.index(name): AbsentClient(self.names.index(name), why) for name, why in missing.items()
        }

    def _ask_for(
        self,
        questions: Mapping[int, messages.MessageBody],
        round: int,
        kind: type[messages.MessageBody],
        what: str,
        minimum: int | None = None,
    ) -> dict[int, Any]:
        """Return answers of one kind, without a payload."""

        def read(name: str, message: Message) -> messages.MessageBody:
            if not isinstance(message.body, kind):
                raise WireRefused(f"'{message.body.what}' where '{kind.what}' belongs")
            return message.body

        rule = self._rule_now if minimum is None else replace(self.rule, minimum=minimum)
        return self.ask(questions, round, NOTHING, read, what, rule)

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
            buffers = self._buffers(message.payload.get("buffers"))
        still = buffers.values == before.values  # a constant may well be infinite
        sound = bool((np.isfinite(buffers.values) | still).all()) and math.isfinite(done.weight) and done.weight >= 0
        finite = done.finite and sound and (isinstance(send, MaskedVector) or is_finite(send))
        return ClientAnswer(self.report(client, message.round, done, finite), Reply(send, weight=done.weight), buffers)

    def report(
        self, client: int, round: int, done: messages.RoundResponse | messages.AsyncTrainResponse, finite: bool
    ) -> ClientReport:
        """Return the report of a training, with the time that the client's device would take on the virtual clock."""
        fleet = self.context.fleet
        return ClientReport(
            client,
            finite=finite,
            steps=done.steps,
            samples=done.samples,
            loss=done.loss,
            seconds=done.seconds,
            device_seconds=fleet.usual_seconds(client, done.samples)
            * float(fleet.training_factors([client], round)[0]),
            sent=done.sent,
            sent_buffers=done.sent_buffers,
            state=ClientState(kept=done.memory) if done.memory else None,
        )

    # BatchNorm's statistics

    def _recomputed(
        self, jobs: list[BatchNormTask], common: Broadcast
    ) -> Iterator[Buffers | FailedTask | AbsentClient]:
        round = jobs[0].round

        def read(name: str, message: Message) -> Buffers | FailedTask:
            if isinstance(message.body, messages.ErrorResponse):
                return FailedTask(f"{name}: {message.body.error}", message.body.place)
            return self._buffers(message.payload)

        questions = {job.client: messages.BatchNormRequest() for job in jobs}
        found = self.ask(questions, round, Payload.of(common), read, f"round {round + 1}, statistics")
        yield from (found[job.client] for job in jobs)

    def _buffers(self, received: Any) -> Buffers:
        problem = first_mismatch(received, self.context.task.buffers(), "BatchNorm's statistics")
        if problem:
            raise WireRefused(problem)
        buffers: Buffers = received
        return buffers


def check_round(message: Message, round: int) -> None:
    """Refuse an answer of another round."""
    if message.round != round:
        raise WireRefused(f"an answer of round {message.round + 1}, where one of round {round + 1} belongs")


def ticket_of(memory: ClientState | None) -> str:
    """Return the ticket of a client state."""
    return "" if memory is None else str(memory.kept or "")


def add_answer(
    folded: BatchResult, answer: ClientAnswer | SkippedClient | FailedTask | CannotSend, context: ExperimentContext
) -> None:
    """Add the answer of one client to a batch."""
    if isinstance(answer, CannotSend):
        folded.refused = answer
        folded.reports.append(FailedTask(answer.what))
    elif isinstance(answer, ClientAnswer):
        folded.add(answer, context)
    else:
        folded.reports.append(answer)
