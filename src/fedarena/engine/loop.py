"""Rounds. A generator: the user keeps the loop, and progress, files and early stopping merely read it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Algorithm, Asynchronous, Cohort, Model, Vector
from fedarena.config.errors import ClientFailed
from fedarena.config.experiment import Experiment
from fedarena.config.seeds import stream
from fedarena.engine.checkpoint import CheckpointStore, Snapshot
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.client_batches import BufferMean, client_batch_size
from fedarena.engine.context import ExperimentContext
from fedarena.engine.evaluation import EvaluationResult, open_evaluator
from fedarena.engine.record import RoundRecord, plain_record
from fedarena.engine.round import RoundExchange, RoundFacts
from fedarena.engine.runtime_interface import Runtime, in_order
from fedarena.engine.stopping import StopRule, participants
from fedarena.engine.task_metrics import FinalMetrics, mean_over_clients
from fedarena.engine.tasks import AbsentClient, BatchNormTask, ClientReport, FailedTask, SkippedClient, bytes_up
from fedarena.engine.validated_round import ValidatedRound, ValidatedSnapshot
from fedarena.engine.validation import UNDEFINED, open_validation
from fedarena.models.pytree import WeightedMean, leaves, nbytes
from fedarena.models.task import Buffers
from fedarena.privacy.accountant import Spent, epsilon, usual_delta
from fedarena.privacy.secure_aggregation import MaskedExchange
from fedarena.privacy.uplink import MaskedSum
from fedarena.statistics.fairness import fairness, weighted_accuracy

STILL = "the server's model never changed: no answer came, or too few for its buffer"
NO_CLIENTS_LEFT = "the trace of devices.available has ended: nobody is there any more"
TOTALS = ("uploads", "bytes_up", "bytes_down", "steps", "samples", "outdated", "overactive")


class TrainingLoop:
    """An experiment under way."""

    def __init__(self, site: ExperimentContext, runtime: Runtime, keeper: CheckpointStore) -> None:
        self.site, self.runtime, self.keeper = site, runtime, keeper
        self.experiment: Experiment = site.experiment
        self.algorithm: Algorithm = site.algorithm
        self.population = site.partition.population
        self.sizes = site.partition.sizes
        self.participants = participants(self.experiment, len(site.owners.population))
        self.rule = StopRule(self.experiment, self.algorithm, self.participants, site.metric)
        self.buffers = site.task.buffers()
        self.totals: dict[str, int] = dict.fromkeys(TOTALS, 0)
        self.clock = 0.0  # simulated seconds since the start
        self.spent: Spent = {}  # privacy: what was released, and how often
        self.fleet = site.fleet
        self.client_accuracy: NDArray[np.float64] = np.full(len(site.owners.clients), np.nan)  # at the last look
        self._noted: dict[str, tuple[int, str]] = {}  # what -> how often, and the first case
        self.available = site.availability
        self.overselects = self.experiment.devices.overselect > 1 and not (
            self.algorithm.everyone or isinstance(self.algorithm, Asynchronous)
        )
        self.bundle = client_batch_size(site, self.asked)
        self._people = np.array(self.population)
        self._people_sizes = self.sizes[self._people]
        self._total_rows = int(self.sizes.sum())
        self._model_bytes = site.initial.nbytes
        self._evaluation = open_evaluator(site, runtime)
        self._validation = open_validation(site, self._evaluation)
        self._last_look: EvaluationResult | None = None  # with all metrics, of the state as it is now

    # Who takes part

    @cached_property
    def asked(self) -> int:
        """Clients asked each round; all of the federation where rows are pooled."""
        everybody = len(self.site.owners.population)
        more = self.experiment.devices.overselect if self.overselects else 1.0
        return everybody if self.algorithm.everyone else min(math.ceil(self.participants * more - 1e-9), everybody)

    def here(self) -> list[int]:
        """Those of the population who are there now."""
        return self.available_among(list(self.population))

    def available_among(self, clients: list[int]) -> list[int]:
        """Those of the clients who are there now."""
        if self.available is None:
            return clients
        here = self.available.here(self.clock)
        return [k for k in clients if here[k]]

    def patience(self, clients: list[int]) -> dict[int, float]:
        """Seconds from now that the server waits for each: until it leaves, or to the deadline; {}: for ever."""
        deadline = self.experiment.devices.deadline
        if not self.algorithm.communicates or (self.available is None and deadline is None):
            return {}
        left = np.full(len(clients), np.inf)
        if self.available is not None:
            left = self.available.until(self.clock)[clients] - self.clock
        return dict(zip(clients, np.minimum(left, deadline or np.inf).tolist(), strict=True))

    @property
    def has_no_clients_left(self) -> bool:
        """Is nobody there any more, nor ever again?"""
        return self.available is not None and self.available.next(self.clock) is None

    def select(self, round: int) -> list[int]:
        """S_t, in ascending order; the same for every algorithm that does not choose itself.

        Where nobody is there, the clock moves on to when the first one comes.
        """
        people, sizes = self._people, self._people_sizes
        if self.available is not None:
            self.clock = self.available.next(self.clock) or self.clock
            here = self.available.here(self.clock)[people]
            people, sizes = people[here], sizes[here]
        if self.algorithm.everyone:
            return list(self.population) if self.available is None else people.tolist()
        rng = stream(self.experiment.seed_for("select"), "select", round)
        if self.site.steps is not None and self.site.steps.wish.sampling == "poisson":
            rate = self.participants / len(people)
            chosen = np.flatnonzero(rng.random(len(people)) < rate)
        else:
            chosen = self.algorithm.select(sizes, min(self.asked, len(people)), rng)
        who: list[int] = np.sort(people[chosen]).tolist()
        return who

    def drops_out(self, round: int, client: int) -> bool:
        """A simulated dropout: asked, but never answers."""
        return self.algorithm.communicates and self.fleet.drops_out(client, round)

    def cohort(self, selected: list[int], answered: list[int]) -> Cohort:
        """Who was asked and who answered, with the numbers a server may need."""
        return Cohort(
            tuple(selected),
            tuple(answered),
            len(self.population),
            int(self.sizes[answered].sum()) if answered else 0,
            self._total_rows,
            self.experiment.local.lr,
        )

    # What it costs

    def count_down(self, clients: int, common: Broadcast, turn: MaskedExchange | None = None) -> int:
        """Bytes to the clients: the message, buffers where they travel, keys. Returns those to each."""
        if not self.algorithm.communicates:
            return 0
        travel = self.site.buffer_policy in ("average", "recompute")
        sent = nbytes(common.message) + (nbytes(common.buffers) if travel else 0)
        if self.site.steps is not None and turn is not None:
            sent += self.site.steps.bytes_down(turn)
        self.totals["bytes_down"] += clients * sent
        return sent

    def count_up(self, report: ClientReport) -> int:
        """Bytes, uploads and work of one answer. Returns its bytes."""
        totals = self.totals
        totals["steps"] += report.steps
        totals["samples"] += report.samples
        if not self.algorithm.communicates:
            return 0
        sent = bytes_up(report, self.site)
        totals["bytes_up"] += sent
        totals["uploads"] += max(round(report.sent / max(self._model_bytes, 1)), 1)
        return sent

    def simulated_seconds(self, report: ClientReport, down: int, up: int) -> float:
        """How long a client's part takes on the virtual clock: fetch, train, send."""
        if not self.algorithm.communicates:
            return report.device_seconds
        return self.fleet.part(report.client, down, report.device_seconds, up)

    # What happens on the way up

    def turn(self, round: int, exchange: int, asked: list[int], everyone: bool) -> MaskedExchange | None:
        """An exchange, as the steps on the way up must know it; None where there are none."""
        if self.site.steps is None:
            return None
        return MaskedExchange(round, exchange, tuple(asked), everyone or self.algorithm.everyone)

    def receive(self, mean: WeightedMean, sealed: MaskedSum, turn: MaskedExchange, answered: list[int]) -> Any:
        """The mean as the server gets it; what it tells about clients is noted."""
        assert self.site.steps is not None
        tree = self.site.steps.receive(mean, sealed, turn, answered)
        if tree is None and answered:
            self._note("sums stay masked, too few clients answered", f"round {turn.round + 1}")
        release = self.site.steps.released(turn, len(answered) if tree is not None else 0, len(self.population))
        if release is not None:
            self.spent[release] = self.spent.get(release, 0) + 1
        return tree

    @property
    def epsilon(self) -> float | None:
        """Privacy spent so far; None where nothing bounds it."""
        wish = None if self.site.steps is None else self.site.steps.wish
        if wish is None or not wish.noise:
            return None
        clients = len(self.population)
        return epsilon(self.spent, clients, wish.delta or usual_delta(clients))

    # What clients remember

    def memory(self, client: int) -> ClientState | None:
        """What the client kept from its last round."""
        return self.keeper.memory(client)

    def own_model(self, client: int) -> tuple[Vector | None, Buffers | None]:
        """The weights and buffers that are a client's own; None for what it shares with all."""
        memory = self.memory(client)
        if memory is None:
            return None, None
        return (memory.kept if self.algorithm.personal else None), memory.buffers

    def remember(self, report: ClientReport, round: int) -> None:
        """Keep it for the client; a dropped client's memory stays as it was."""
        if report.memory is not None:
            self.keeper.remember(report.client, round + 1, report.memory)

    def report_failure(self, client: int, round: int, answer: ClientReport | SkippedClient | FailedTask) -> None:
        """A client without a usable answer: stop or note it, as the experiment says."""
        name = f"{self.client_label(client)} in round {round + 1}"
        if isinstance(answer, AbsentClient):
            self._note("answers were missing", f"{name}: {answer.reason}")
            return
        if isinstance(answer, SkippedClient):
            self._note(f"client {client} cannot take part: {answer.reason}")
            return
        if isinstance(answer, FailedTask):
            if self.experiment.on_error == "stop":
                raise ClientFailed(
                    f"{name} failed: {answer.error}",
                    remedy='mend the cause, or set on_error = "drop" to go on without such clients',
                    where=answer.place,
                )
            self._note("clients failed and were dropped", f"{name}: {answer.error}")
            return
        if self.experiment.on_nan == "raise":
            raise ClientFailed(
                f"{name} sent a non-finite update",
                remedy='lower local.lr, or set on_nan = "drop" to leave such updates out',
            )
        self._note("updates were not finite and left out", name)

    def client_label(self, client: int) -> str:
        """How messages call a client: by its number, and by its name where it has one of its own."""
        names = self.site.partition.names
        name = names[client] if names else str(client)
        return f"client {client}" + ("" if name == str(client) else f" ({name})")

    def _note(self, what: str, first: str = "") -> None:
        count, known = self._noted.get(what, (0, first))
        self._noted[what] = (count + 1, known)

    @property
    def notes(self) -> list[str]:
        """What a user should know, each kind of trouble once, with its first case."""
        told = [f"{n} {what}, the first: {first}" if first else what for what, (n, first) in self._noted.items()]
        return [
            *told,
            *([STILL] if self.never_updated else []),
            *([NO_CLIENTS_LEFT] if self.has_no_clients_left else []),
        ]

    @property
    def never_updated(self) -> bool:
        """Did the server end with the model it began with, for want of answers?"""
        return self.algorithm.communicates and self.totals["uploads"] == 0

    # The loop itself

    def rounds(self) -> Iterator[RoundRecord]:
        """Go on from the last saved round, if any, to the end of the budget."""
        snapshot, records = self.keeper.load()
        state = self.algorithm.init(self.site.initial)
        done, before = 0, 0.0
        if snapshot:
            done, state, self.buffers = snapshot.round, snapshot.state, snapshot.buffers
            self.totals = {k: int(snapshot.totals[k]) for k in self.totals}
            before, self.clock = snapshot.totals["wall_seconds"], snapshot.totals["clock"]
            self.client_accuracy = snapshot.client_accuracy
            self._noted = {what: (int(n), str(first)) for what, (n, first) in snapshot.noted.items()}
            self.spent = dict(snapshot.spent)
            self.restore_queue(snapshot.queue)
        self.state = state
        rule = self.rule
        past = []
        for plain in records:
            past.append(self._with_due_metrics(RoundRecord(**plain)))
            rule.see(past[-1])
        if records and plain_record(past[-1]) != records[-1]:
            self.keeper.replace_log([plain_record(record) for record in past])
        if self._validation is not None and isinstance(snapshot, ValidatedSnapshot):
            self._validation.resume(snapshot.validated, past)
        yield from past
        started = time.perf_counter() - before
        while not self.over(done):
            began = time.perf_counter()
            state, facts = self.advance(state, done)
            done += 1
            trained = time.perf_counter()
            record = RoundRecord(
                done,
                train_loss=_mean(facts.losses),
                selected=facts.selected,
                answered=facts.answered,
                dropped=facts.dropped,
                non_finite=facts.non_finite,
                clock=self.clock,
                **self.totals,
            )
            self._last_look, last = None, self.over(done)
            if done % self.experiment.evaluate.every == 0 or last:
                record = replace(record, **self.evaluate(state, done, last))
            record = replace(
                record,
                best_accuracy=rule.best(record),
                seconds_select=facts.seconds_select,
                seconds_train=facts.seconds_train,
                seconds_aggregate=trained - began - facts.seconds_train - facts.seconds_select,
                seconds_slowest=facts.seconds_slowest,
                seconds_evaluate=time.perf_counter() - trained,
                wall_seconds=time.perf_counter() - started,
            )
            totals = {**self.totals, "wall_seconds": record.wall_seconds, "clock": self.clock}
            noted = {what: list(seen) for what, seen in self._noted.items()}
            so_far = (totals, self.client_accuracy, noted, self.queue(), dict(self.spent))
            snapshot = Snapshot(done, state, self.buffers, *so_far)
            self.keeper.save(self._with_validated(snapshot), plain_record(record))
            rule.see(record)
            self.state = state
            yield record

    def _with_validated(self, snapshot: Snapshot) -> Snapshot:
        """Add the validated round so far to a snapshot, where validation samples are held out."""
        if self._validation is None:
            return snapshot
        known = {field.name: getattr(snapshot, field.name) for field in fields(snapshot)}
        return ValidatedSnapshot(**known, validated=self._validation.candidates)

    def over(self, done: int) -> bool:
        """Is the budget spent or the goal reached?"""
        return self.rule.over(done, self.totals["uploads"]) or self.has_no_clients_left

    def advance(self, state: Any, round: int) -> tuple[Any, RoundFacts]:
        """One round."""
        ask = RoundExchange(self, round)
        state = self.algorithm.round(state, ask)
        self._update_buffers(state, ask)
        return state, ask.facts

    def queue(self) -> Any:
        """Who is still at work when a round ends: nobody."""
        return None

    def restore_queue(self, queue: Any) -> None:
        """Go on with those who were at work."""

    @property
    def ages(self) -> dict[str, Any]:
        """How old answers were, where clients keep no rounds."""
        return {}

    def _with_due_metrics(self, record: RoundRecord) -> RoundRecord:
        """A past record as a run with today's budget would have it: its last round was evaluated because it was last."""
        due = record.round % self.experiment.evaluate.every == 0 or self.rule.over(record.round, record.uploads)
        if record.accuracy is None or due:
            return record
        seen = (
            "accuracy",
            "loss",
            "metric",
            "weighted_accuracy",
            "client_std",
            "client_worst",
            "epsilon",
            "validation",
        )
        unseen: dict[str, Any] = dict.fromkeys(seen)
        return replace(record, best_accuracy=self.rule.best(replace(record, accuracy=None, metric=None)), **unseen)

    def _update_buffers(self, state: Any, ask: RoundExchange) -> None:
        """BatchNorm's statistics after the server's step, by policy (docs/reference/algorithms.md#batchnorm-statistics)."""
        if ask.buffers is None or not len(self.buffers.values) or self.site.buffer_policy in ("server", "local"):
            return
        if self.site.buffer_policy == "average":
            self.buffers = ask.buffers
            return
        common = Broadcast(Model(state.w), self.buffers)
        mean, answered = BufferMean(), ask.cohort.answered
        jobs = [BatchNormTask(ask.round, k) for k in answered]
        for client, buffers in zip(answered, in_order(self.runtime.map(jobs, common)), strict=True):
            if isinstance(buffers, FailedTask | AbsentClient):
                self.report_failure(client, ask.round, buffers)
                continue
            mean.add(buffers, float(self.sizes[client]))
            self.totals["bytes_up"] += nbytes(buffers)
        self.count_down(len(answered), common)
        self.buffers = mean.result() or self.buffers

    def evaluate(self, state: Any, done: int, last: bool = False) -> dict[str, Any]:
        """Evaluate the model on the global test set and for every client.

        All metrics are computed after the last round, and after a round that is the best on validation samples so far.
        """
        validation, value = self._validation, None
        if validation is not None:
            value = validation.value(Broadcast(Model(state.w), self.buffers), self.own_model)
        chosen = validation is not None and value is not None and validation.is_best(value)
        seen = self._look(state, last or chosen)
        if validation is not None and value is not None and chosen:
            validation.choose(done, value, self._all_metrics(seen), done % self.experiment.evaluate.every == 0)
        for client in seen.missing:
            self._note("evaluations were without the rows of a client", self.client_label(client))
        for note in seen.notes:
            self._note(note)
        self.client_accuracy = seen.own
        spread = fairness(self.client_accuracy)
        followed, summed = self.site.metric.name, {"log_loss": seen.loss}  # in a real federation there are sums alone
        return {
            "accuracy": seen.accuracy,
            "loss": seen.loss,
            "metric": None if followed in ("accuracy", "loss") else {**summed, **seen.values}.get(followed, math.nan),
            "weighted_accuracy": weighted_accuracy(self.client_accuracy, self.site.owners.sizes),
            "client_std": spread.get("std"),
            "client_worst": spread.get("worst_tenth"),
            "epsilon": self.epsilon,
            "validation": value,
        }

    def _look(self, state: Any, last: bool) -> EvaluationResult:
        """Evaluate every row once, for the metric of the experiment or for all metrics."""
        common, evaluation = Broadcast(Model(state.w), self.buffers), self._evaluation
        followed = [] if self.site.metric.name in ("accuracy", "loss") else [self.site.metric]
        metrics = evaluation.metrics if last else followed
        if self.site.has_personal_models:
            seen = evaluation.personal(common, self.population, self.own_model, metrics, last)
        else:
            seen = evaluation.shared(common, metrics, last)
        self._last_look = seen if last else None
        return seen

    def final_metrics(self) -> FinalMetrics:
        """Return all metrics of the model as it is now."""
        evaluation = self._evaluation
        seen = self._last_look or self._look(self.state, last=True)
        for name, error in evaluation.failed.items():
            self._note(f"the metric '{name}' failed and is left out: {error}")
        return self._all_metrics(seen)

    @property
    def _metric_facts(self) -> dict[str, Any]:
        """Return what is known of the metrics before any evaluation."""
        site, metric = self.site, self.site.metric
        known = {"task": site.task_name, "metric": metric.name, "direction": metric.direction}
        names = site.owners.names or tuple(str(k) for k in range(len(site.owners.clients)))
        return {
            **known,
            "class_names": site.data.class_names,
            "client_names": names,
            "client_tests": site.owners.test_sizes,
        }

    def _all_metrics(self, seen: EvaluationResult) -> FinalMetrics:
        """Return the metrics of an evaluation that computed all of them."""
        own, undefined = mean_over_clients(seen.client_values, self._evaluation.own_samples)
        return FinalMetrics(
            **self._metric_facts,
            common=seen.values,
            own=own,
            undefined=undefined,
            clients=seen.client_values,
            confusion=seen.confusion,
            calibration=seen.calibration,
            bounds=seen.bounds,
        )

    def validated_round(self, records: list[RoundRecord], measured: FinalMetrics) -> ValidatedRound | None:
        """Return the round chosen on validation samples; `measured` are the metrics at the end. None without validation."""
        if self._validation is None:
            return None
        if self._validation.best is None:
            self._note(UNDEFINED.format(metric=self.site.metric.name))
        return self._validation.result(records, measured)

    def result_vectors(self) -> Iterator[Vector]:
        """All that was learned: the server's weights and buffers, and each client's own where they are the result."""
        yield self.state.w
        yield self.buffers.values
        if self.algorithm.personal:
            for client in self.population:
                yield from (leaf for leaf in leaves(self.memory(client)) if isinstance(leaf, np.ndarray))

    def evaluate_last_round(self, records: list[RoundRecord]) -> None:
        """Evaluate the last round of a run that was stopped between two evaluations."""
        seen = replace(records[-1], **self.evaluate(self.state, records[-1].round, last=True))
        records[-1] = replace(seen, best_accuracy=self.rule.best(seen))
        if self.keeper.resumable:
            self.keeper.replace_log([plain_record(record) for record in records])


def _mean(values: list[float]) -> float | None:
    known = [value for value in values if not np.isnan(value)]  # a client that only measured has no training loss
    return float(np.mean(known)) if known else None
