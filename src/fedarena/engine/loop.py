"""The round loop: select -> broadcast -> train -> receive -> aggregate -> server update -> evaluate -> checkpoint.

`TrainingLoop.rounds` is a generator: the caller owns the loop, and progress, files and early stopping only read it.
Selection and availability, costs, privacy, notes and evaluation are collaborators with files of their own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fedarena.algorithms.base import Algorithm, Model, Vector
from fedarena.config.errors import ClientFailed
from fedarena.config.experiment import Experiment
from fedarena.engine.attacked_updates import open_update_attack
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.checkpoint_files import Snapshot
from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.evaluation_tasks import BatchNormTask
from fedarena.engine.notes import RunNotes
from fedarena.engine.personal_model import PersonalModelTask
from fedarena.engine.record import RoundRecord, plain_record
from fedarena.engine.round import Aggregate, Request, RoundExchange, RoundFacts, first_arrivals, separated
from fedarena.engine.round_evaluation import EvaluatedModel, RoundEvaluation
from fedarena.engine.run_costs import RunCosts
from fedarena.engine.selection import ClientSelection
from fedarena.engine.stopping import StopRule
from fedarena.engine.tasks import (
    AbsentClient,
    BatchDeadline,
    BatchResult,
    BufferMean,
    ClientBatch,
    ClientReport,
    FailedTask,
    LateAnswer,
    Report,
    Runtime,
    SkippedClient,
    bytes_up,
    client_batch_size,
    in_order,
)
from fedarena.engine.training_loss import LossTask
from fedarena.models.pytree import leaves, nbytes, refuse_single_updates
from fedarena.privacy.ledger import PrivacyLedger, RecordLedger
from fedarena.selection_rules.base import Clients, Numbers

NEVER_UPDATED = "the server's model never changed: no usable answer came, or too few for its buffer"
DIVERGED = "the model diverged: its loss is not finite"
NOTHING_FINITE = "training diverged: no client of the last round sent a finite update"
NO_CLIENTS_LEFT = "the trace of devices.available has ended: no client is available any more"


class TrainingLoop:
    """The loop of one experiment: iterate over `rounds()`, then read `state`, `buffers` and the collaborators."""

    def __init__(self, context: ExperimentContext, runtime: Runtime, store: CheckpointStore) -> None:
        self.context, self.runtime, self.store = context, runtime, store
        self.experiment: Experiment = context.experiment
        self.algorithm: Algorithm = context.algorithm
        self.clients = ClientSelection(context)
        self.costs = RunCosts(context)
        records = RecordLedger(self.experiment.local, context.sizes)
        self.privacy = PrivacyLedger(context.steps, len(self.clients.population), records)
        self.run_notes = RunNotes(context)
        self.evaluation = RoundEvaluation(context, runtime, store, self.run_notes)
        self.rule = StopRule(self.experiment, self.algorithm, self.clients.participants, context.metric)
        self.state: Any = None  # of the server, after `done` rounds
        self.buffers = context.initial_buffers
        self.done = 0
        self._attack = open_update_attack(context)
        self._batch_size = client_batch_size(context, self.clients.clients_per_round)

    # The life of a round

    def rounds(self) -> Iterator[RoundRecord]:
        """Yield the record of each round: those of the checkpoint, then new ones until the run is finished."""
        seconds_before = yield from self._resume()
        started = time.perf_counter() - seconds_before
        while not self.is_finished(self.done):
            began = time.perf_counter()
            state, facts = self.advance(self.state, self.done)
            trained = time.perf_counter()
            record = self._evaluated(self._counted(facts), state)
            record = replace(
                record,
                best_accuracy=self.rule.best(record),
                seconds_aggregate=trained - began - facts.seconds_train - facts.seconds_select,
                seconds_evaluate=time.perf_counter() - trained,
                wall_seconds=time.perf_counter() - started,
            )
            self._checkpoint(record, state)
            self.state, self.done = state, record.round
            yield record

    def advance(self, state: Any, round: int) -> tuple[Any, RoundFacts]:
        """Run one round: select clients, let the algorithm make its exchanges and update the server, update buffers."""
        losses = lambda clients: self._measure(round, state, clients)
        exchange = RoundExchange(round, self.clients, self.exchange, losses)  # selects the clients
        after = self.algorithm.round(state, exchange)
        self._update_buffers(after, exchange)
        self.clients.learn(round, exchange.reports)
        return after, exchange.facts

    def exchange(self, round: RoundExchange, message: Any, do: str, everyone: bool, only: int | None) -> Any:
        """Run one exchange: broadcast, train on workers, receive and aggregate in the order of clients."""
        began, aggregating = time.perf_counter(), 0.0
        request = self._broadcast(round, message, do, everyone, only)
        aggregate = round.aggregate = Aggregate()
        if len(request.present) < len(request.asked):  # silent clients may still respond until the deadline
            aggregate.waited = self.experiment.devices.deadline or 0.0
        for clients, result in self._train(round, request):
            arrived = time.perf_counter()
            self._receive(round, request, clients, result)
            aggregating += time.perf_counter() - arrived
        has_enough = request.separate and len(aggregate.answered) == self.clients.participants
        self.clients.clock += aggregate.seconds if has_enough else max(aggregate.seconds, aggregate.waited)
        round.close(only)
        if only is not None and self.context.buffer_policy == "average":  # they travel with the model
            self.buffers = round.buffers or self.buffers
        round.facts.seconds_train += time.perf_counter() - began - aggregating
        mean = self.privacy.receive(aggregate.mean, aggregate.masked, request.key, aggregate.answered)
        if mean is None and aggregate.answered and request.key is not None:
            self.run_notes.add("sums stay masked, too few clients answered", f"round {round.round + 1}")
        return mean

    def _measure(self, round: int, state: Any, clients: Clients) -> Numbers:
        """Ask clients for the loss of the current model, for a rule that selects by it; NaN for one without an answer."""
        common = Broadcast(self.algorithm.measured(state), self.buffers)
        losses = np.full(len(clients), np.nan)
        asked = [(i, k) for i, k in enumerate(clients.tolist()) if not self.clients.drops_out(round, k)]
        tasks = [LossTask(round, k, self.store.client_state(k)) for _, k in asked]
        for (i, k), loss in zip(asked, in_order(self.runtime.map(tasks, common)), strict=True):
            if isinstance(loss, float):
                losses[i] = loss
            else:
                self.run_notes.report_failure(k, round, loss)
        answered = clients[~np.isnan(losses)].tolist()
        self.clients.clock += self.costs.count_measurement(len(clients), answered, common)
        return losses

    # The steps of an exchange

    def _broadcast(self, round: RoundExchange, message: Any, do: str, everyone: bool, only: int | None) -> Request:
        """Decide which clients are asked, count the bytes sent to them, and how long the server waits."""
        clients = self.clients
        if everyone:
            round.selected = sorted({*clients.available_clients(), *round.away})
        common = Broadcast(message, self.buffers)
        wanted = round.selected if only is None else [only]
        asked = clients.available_clients([k for k in wanted if k not in round.away])
        present = [k for k in asked if not clients.drops_out(round.round, k)]
        round.dropped |= set(wanted) - set(present)
        key = self.privacy.exchange_key(round.round, round.exchanges, asked, everyone or self.algorithm.everyone)
        number, round.exchanges = round.exchanges, round.exchanges + 1
        down = self.costs.count_broadcast(len(asked), common, key)
        separate = clients.overselects and not everyone and only is None
        return Request(do, common, asked, present, key, down, clients.response_times(present), number, separate)

    def _train(
        self, round: RoundExchange, request: Request
    ) -> Iterator[tuple[tuple[int, ...], BatchResult | FailedTask]]:
        """Run the clients in batches on the workers; yield each batch with its result, in the order of clients."""
        size, present = self._batch_size, request.present
        batches = [tuple(present[i : i + size]) for i in range(0, len(present), size)]
        tasks = (self._batch(round.round, request, clients) for clients in batches)
        results: Iterable[Any] = in_order(self.runtime.map(tasks, request.common))
        if request.separate:
            results = first_arrivals(
                batches,
                results,
                self.clients.participants,
                lambda report: self.costs.simulated_seconds(report, request.down, bytes_up(report, self.context)),
                self._is_usable,
            )
        elif self._attack is not None:
            results = separated(batches, results)
        if self._attack is not None:
            message = request.common.message
            results = self._attack.replaced(present, results, message, (round.round, request.number))
        if request.separate or self._attack is not None:
            batches = [(k,) for k in present]
        return zip(batches, results, strict=True)

    def _batch(self, round: int, request: Request, clients: tuple[int, ...]) -> ClientBatch:
        times = request.response_times
        deadline = BatchDeadline(request.down, tuple(times[k] for k in clients)) if times else None
        states = tuple(map(self.store.client_state, clients))
        separate = request.separate or self._attack is not None
        return ClientBatch(round, request.do, clients, states, request.key, deadline, separate, request.number)

    def _is_usable(self, report: ClientReport) -> bool:
        return report.finite or self.experiment.on_nan == "keep"

    def _receive(
        self, round: RoundExchange, request: Request, clients: tuple[int, ...], result: BatchResult | FailedTask
    ) -> None:
        """Count the reports of a batch one by one, then add its sums to the aggregate."""
        if isinstance(result, FailedTask):
            for client in clients:
                self._count_report(round, request, client, result)
            return
        if result.refused is not None:
            raise result.refused
        for client, report in zip(clients, result.reports, strict=True):
            self._count_report(round, request, client, report)
        if self.experiment.uplink != "plain":
            refuse_single_updates(result.mean.first, self.experiment.algorithm.name)
        round.aggregate.merge(result)

    def _count_report(self, round: RoundExchange, request: Request, client: int, report: Report) -> None:
        """Count one client's response and save its state, or record why there is no usable response."""
        aggregate = round.aggregate
        if isinstance(report, LateAnswer):
            aggregate.waited = max(aggregate.waited, request.response_times.get(client, 0.0))
            round.away.add(client)
            round.dropped.add(client)
            return
        if isinstance(report, SkippedClient | FailedTask):
            self.run_notes.report_failure(client, round.round, report)
            round.dropped.add(client)
            return
        up = self.costs.count_response(report)
        self.privacy.records.count(client, report.steps)
        seconds = self.costs.simulated_seconds(report, request.down, up)
        aggregate.seconds = max(aggregate.seconds, seconds)
        round.facts.seconds_slowest = max(round.facts.seconds_slowest, report.seconds)
        if not self._is_usable(report):
            self.run_notes.report_failure(client, round.round, report)
            round.dropped.add(client)
            round.facts.non_finite += 1
            return
        if report.state is not None:
            self.store.save_client_state(client, round.round + 1, report.state)
        aggregate.answered.append(client)
        round.count_report(report, seconds)
        round.facts.losses.append(report.loss)

    def _update_buffers(self, state: Any, exchange: RoundExchange) -> None:
        """Update BatchNorm statistics after the server's step (docs/reference/algorithms.md#batchnorm-statistics)."""
        policy = self.context.buffer_policy
        if exchange.buffers is None or not len(self.buffers.values) or policy in ("server", "local"):
            return
        if policy == "average":
            self.buffers = exchange.buffers
            return
        common = Broadcast(Model(state.w), self.buffers)
        mean, answered = BufferMean(), exchange.cohort.answered
        tasks = [BatchNormTask(exchange.round, k) for k in answered]
        for client, buffers in zip(answered, in_order(self.runtime.map(tasks, common)), strict=True):
            if isinstance(buffers, FailedTask | AbsentClient):
                self.run_notes.report_failure(client, exchange.round, buffers)
                continue
            mean.add(buffers, float(self.clients.sizes[client]))
            self.costs.totals["bytes_up"] += nbytes(buffers)
        self.costs.count_broadcast(len(answered), common)
        self.buffers = mean.result() or self.buffers

    # Records, evaluation and checkpoints

    def _counted(self, facts: RoundFacts) -> RoundRecord:
        """Return the record of the round that was just run, before its evaluation."""
        known = [loss for loss in facts.losses if not np.isnan(loss)]  # a client that only measured has no loss
        counted = {name: value for name, value in vars(facts).items() if name != "losses"}
        train_loss = float(np.mean(known)) if known else None
        return RoundRecord(
            self.done + 1, train_loss=train_loss, clock=self.clients.clock, **counted, **self.costs.totals
        )

    def _evaluated(self, record: RoundRecord, state: Any) -> RoundRecord:
        """Return the record with the metrics of the model, where an evaluation is due after its round."""
        last = self.is_finished(record.round)
        self.evaluation.complete = None
        is_due = record.round % self.experiment.evaluate.every == 0
        return self._with_metrics(record, state, last) if is_due or last else record

    def _with_metrics(self, record: RoundRecord, state: Any, last: bool) -> RoundRecord:
        metrics = self.evaluation.evaluate(self._evaluated_model(state), record.round, last)
        spent = self.privacy.records.epsilon
        return replace(record, epsilon=self.privacy.epsilon, record_epsilon=spent, **metrics)

    def evaluate_last_round(self, records: list[RoundRecord]) -> None:
        """Evaluate the last round of a run that was stopped between two evaluations."""
        seen = self._with_metrics(records[-1], self.state, last=True)
        records[-1] = replace(seen, best_accuracy=self.rule.best(seen))
        if self.store.resumable:
            self.store.replace_log([plain_record(record) for record in records])

    def _checkpoint(self, record: RoundRecord, state: Any) -> None:
        """Save the snapshot and the record of a round."""
        totals = {**self.costs.totals, "wall_seconds": record.wall_seconds, "clock": self.clients.clock}
        notes, spent = self.run_notes.snapshot, self.privacy.snapshot
        so_far = (totals, self.evaluation.client_accuracy, notes, self.queue(), spent)
        snapshot = Snapshot(record.round, state, self.buffers, *so_far, selection=self.clients.snapshot)
        self.store.save(self.evaluation.with_validated(snapshot), plain_record(record))
        self.rule.update(record)

    def _resume(self) -> Generator[RoundRecord, None, float]:
        """Continue from the checkpoint: restore its snapshot, yield its records, and return the seconds they took."""
        snapshot, records = self.store.load()
        self.done, self.state, seconds = 0, self.algorithm.init(self.context.initial), 0.0
        if snapshot:
            self.done, self.state, self.buffers = snapshot.round, snapshot.state, snapshot.buffers
            self.costs.totals.update((name, int(snapshot.totals[name])) for name in self.costs.totals)
            seconds, self.clients.clock = snapshot.totals["wall_seconds"], snapshot.totals["clock"]
            self.run_notes.restore(snapshot.noted)
            self.privacy.restore(snapshot.spent)
            self.clients.restore(snapshot.selection)
            self.restore_queue(snapshot.queue)
        past = []
        for plain in records:
            past.append(self.rule.without_early_evaluation(RoundRecord(**plain)))
            self.rule.update(past[-1])
        if records and plain_record(past[-1]) != records[-1]:
            self.store.replace_log([plain_record(record) for record in past])
        self.evaluation.restore(snapshot, past)
        yield from past
        return seconds

    def is_finished(self, done: int) -> bool:
        """Return whether the budget is spent, the target is reached, or no client will be available again."""
        return self.rule.is_finished(done, self.costs.totals["uploads"]) or self.clients.has_no_clients_left

    def queue(self) -> Any:
        """Return the trainings under way at the end of a round, for the checkpoint: none in synchronous rounds."""
        return None

    def restore_queue(self, queue: Any) -> None:
        """Continue with the trainings that a checkpoint has under way."""

    def _evaluated_model(self, state: Any) -> EvaluatedModel:
        common = Broadcast(Model(state.w), self.buffers)
        personal = self.context.is_personal
        return EvaluatedModel(common, Broadcast(self.algorithm.broadcast(state), self.buffers) if personal else common)

    # The result

    @property
    def model(self) -> EvaluatedModel:
        """Return the server's model as it is evaluated."""
        return self._evaluated_model(self.state)

    def personal_models(self) -> Iterator[tuple[int, Broadcast]]:
        """Yield the model of each client where each has its own: the weights and buffers with which it predicts."""
        clients = self.clients.population if self.context.has_personal_models else []
        tasks = (PersonalModelTask(k, self.store.client_state(k)) for k in clients)
        for client, found in zip(clients, in_order(self.runtime.map(tasks, self.model.message)), strict=True):
            if isinstance(found, FailedTask):
                raise ClientFailed(f"the model of client {client} failed: {found.error}", remedy="fix `personal_model`")
            yield client, Broadcast(Model(found[0]), found[1])

    @property
    def ages(self) -> dict[str, Any]:
        """Return statistics about the staleness of updates, for asynchronous algorithms."""
        return {}

    def was_never_updated(self, records: list[RoundRecord]) -> bool:
        """Return whether the server still has its initial model because no usable response arrived."""
        return self.algorithm.communicates and not any(record.answered for record in records)

    def notes(self, records: list[RoundRecord]) -> list[str]:
        """Return what a user should know about the run: each kind of problem once, with its first case."""
        last = records[-1]
        lost = last.non_finite > 0 and last.answered == 0
        problems = {
            NEVER_UPDATED: self.was_never_updated(records),
            DIVERGED: not math.isfinite(last.loss or 0.0),
            NOTHING_FINITE: lost,
            NO_CLIENTS_LEFT: self.clients.has_no_clients_left,
        }
        return [*self.run_notes.lines, *(note for note, applies in problems.items() if applies)]

    def result_vectors(self) -> Iterator[Vector]:
        """Yield everything that was learned: the server's weights and buffers, and personal models of clients."""
        yield self.state.w
        yield self.buffers.values
        if self.algorithm.learns_own_models and self.context.is_personal:
            for client in self.clients.population:
                states = leaves(self.store.client_state(client))
                yield from (leaf for leaf in states if isinstance(leaf, np.ndarray))
