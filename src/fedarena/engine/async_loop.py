"""The asynchronous loop: clients train at their own pace on a virtual clock, and the server merges updates as they arrive.

The clock decides the order, never the machine: a training ends when the device model says so (engine/devices.py), and of
two that end together the lower client comes first. A client's update depends only on the model it started from and on the
number of its training, so any worker may compute it at any time in between: the updates that are due next are computed
together, ahead of the clock.

A round, for records and budgets, is as many answers as a synchronous round has participants. An algorithm that asks first
(CO-OP) sends its model up only after the server has accepted it; others send it at once.

Where devices are not always available (engine/availability.py), a client that leaves before its answer has arrived is lost
at that moment: it counts as a dropped answer. Another client starts in its place as soon as one is available; where all
clients train all the time, the lost one starts again when it returns, with the model it had.
"""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Asynchronous
from fedarena.config.seeds import stream
from fedarena.engine.age_statistics import age_statistics
from fedarena.engine.batch_plan import continued_passes
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.context import ExperimentContext
from fedarena.engine.loop import TrainingLoop
from fedarena.engine.record import RoundRecord
from fedarena.engine.round import RoundFacts
from fedarena.engine.solver import batch_sizes
from fedarena.engine.tasks import ClientAnswer, ClientTask, FailedTask, Runtime, SkippedClient, in_order
from fedarena.models.pytree import nbytes
from fedarena.models.task import Buffers

AHEAD = 4  # trainings a worker computes ahead of the clock
AGE = 8  # bytes of a model's age, in either direction


def open_loop(context: ExperimentContext, runtime: Runtime, store: CheckpointStore) -> TrainingLoop:
    """Return the loop that the algorithm needs: with rounds, or without."""
    return (AsyncLoop if isinstance(context.algorithm, Asynchronous) else TrainingLoop)(context, runtime, store)


class ClientTraining(NamedTuple):
    """A training under way; trainings are due in the order of these tuples."""

    due: float  # when the answer arrives at the server
    client: int
    number: int  # of the client's trainings
    age: int  # of the model it fetched
    round: int  # of the federation when the training began
    accepted: int = -1  # the answer is on its way up: how old it was when the server accepted it
    leaves: int = 0  # 1: there will be no answer, because the device leaves at this time


class AsyncLoop(TrainingLoop):
    """The loop of an asynchronous algorithm, which merges one update at a time."""

    def __init__(self, context: ExperimentContext, runtime: Runtime, store: CheckpointStore) -> None:
        super().__init__(context, runtime, store)
        assert isinstance(self.algorithm, Asynchronous)
        self.rules: Asynchronous = self.algorithm
        self.population, self.participants = self.clients.population, self.clients.participants
        self.totals, self.fleet = self.costs.totals, context.fleet
        clients = len(self.clients.sizes)
        self.flights: list[ClientTraining] = []
        self.begun = np.zeros(clients, np.int64)  # trainings of each client
        self.merged = np.zeros(clients, np.int64)  # merged answers of each client
        self.at_age: dict[int, int] = {}  # d -> merged answers of that age
        self.finished = 0  # answers merged or lost: so many make a round
        self.called = 0  # times an idle client was started
        self.waiting: set[int] = set()  # overactive since the server's model last changed or was last fetched
        self.stuck = False
        self._ready: dict[int, ClientAnswer | SkippedClient | FailedTask] = {}  # computed ahead of the clock, by client
        # Clients have this model from the start: it is not sent.
        self._initial_broadcast = Broadcast(
            self.algorithm.broadcast(self.algorithm.init(context.initial)), self.buffers
        )

    @cached_property
    def _message_bytes(self) -> int:
        travel = self.context.buffer_policy == "average"
        return nbytes(self._initial_broadcast.message) + (nbytes(self._initial_broadcast.buffers) if travel else 0)

    # A round of events

    def is_finished(self, done: int) -> bool:
        """Return whether the run is finished, or every client waits for the others."""
        return self.stuck or super().is_finished(done)

    def advance(self, state: Any, round: int) -> tuple[Any, RoundFacts]:
        """Process as many answers, merged or lost, as a synchronous round has participants."""
        facts = RoundFacts()
        if not self.begun.any():
            selected = self.clients.select(0)  # moves the clock to the first arrival
            for client in self.population if self.algorithm.everyone else selected:  # others start once they arrive
                self._begin(client, 0, 0.0)
        while facts.selected < self.participants and not self.stuck and self._has_events(state, round):
            state = self._next_event(state, round, facts)
        return state, facts

    def _next_event(self, state: Any, round: int, facts: RoundFacts) -> Any:
        """Move the clock to the earliest answer and process it."""
        flight = heapq.heappop(self.flights)
        self.clients.clock = flight.due
        return self._arrived(state, flight, round, facts)

    def _arrived(self, state: Any, flight: ClientTraining, round: int, facts: RoundFacts) -> Any:
        """Process an answer, or the question whether the server wants it."""
        client = flight.client
        if flight.leaves or (flight.accepted < 0 and self.fleet.drops_out(client, flight.number)):
            self._ready.pop(client, None)
            return self._drop_answer(state, flight, round, facts)
        if flight.accepted >= 0:
            return self._merge(state, flight, flight.accepted, round, facts)
        d = state.age - flight.age
        poll = self.rules.poll(state, d)
        client_state = None
        self.totals["bytes_up"] += AGE if poll != "merge" else 0  # with an answer it is counted there
        self.totals["bytes_down"] += AGE
        if poll == "merge":
            sending = self._sending(client) if self.rules.asks else 0.0
            if sending == 0:
                return self._merge(state, flight, d, round, facts)
            accepted = flight._replace(due=self.clients.clock + sending, accepted=d)
            self._schedule(accepted, self._departure_time(client))
            return state
        if poll == "outdated" and not self._changes_client_state:  # its result is never used
            self._ready.pop(client, None)
            self._count_work(client)
        else:
            answer = self._timed_answer(state, flight, round, facts)
            if answer is None:
                return self._drop_answer(state, flight, round, facts)
            self.totals["steps"] += answer.report.steps
            self.totals["samples"] += answer.report.samples
            client_state = answer.report.state
            if poll == "overactive":
                return self._train_again(state, flight, answer, round)
        self.totals["outdated"] += 1
        return self._fetch(state, client, round, client_state)

    def _merge(self, state: Any, flight: ClientTraining, d: int, round: int, facts: RoundFacts) -> Any:
        """Merge an answer that was d models old when it was offered, and send the client the new model."""
        client, answer = flight.client, self._timed_answer(state, flight, round, facts)
        if answer is None:
            return self._drop_answer(state, flight, round, facts)
        report = answer.report
        facts.seconds_slowest = max(facts.seconds_slowest, report.seconds)
        self.costs.count_response(report)
        if not report.finite and self.experiment.on_nan != "keep":
            self.run_notes.report_failure(client, round, report)
            facts.non_finite += 1
            return self._drop_answer(state, flight, round, facts)
        state = self.rules.merge(state, answer.reply.send, d)
        self._mix_buffers(answer.buffers, self.rules.share(d))
        self.merged[client] += 1
        self.at_age[d] = self.at_age.get(d, 0) + 1
        facts.losses.append(report.loss)
        facts.selected, facts.answered = facts.selected + 1, facts.answered + 1
        self.finished += 1
        return self._fetch(state, client, round, report.state)

    def _drop_answer(self, state: Any, flight: ClientTraining, round: int, facts: RoundFacts) -> Any:
        """Count an answer that never came or was unusable; another client starts, or the same one starts again."""
        facts.selected, facts.dropped = facts.selected + 1, facts.dropped + 1
        self.finished += 1
        if not self.algorithm.everyone:
            return self._fetch(state, flight.client, round)
        self.waiting.discard(flight.client)
        self._begin(flight.client, flight.age, 0.0)
        return state

    # Which client trains next

    def _has_events(self, state: Any, round: int) -> bool:
        """Start the clients that become available before the next answer arrives; return whether any client trains."""
        available = None if self.algorithm.everyone else self.clients.availability
        while available is not None and len(self.flights) < self.participants:
            if self._start_idle_client(state, round):
                continue
            arrival = available.next_arrival(self.clients.clock)
            if arrival is None or (self.flights and self.flights[0].due <= arrival):
                break
            self.clients.clock = arrival
        return bool(self.flights)

    def _start_idle_client(self, state: Any, round: int) -> bool:
        """Send the server's model to a random idle client; return whether there was one."""
        idle = self._is_idle().cumsum()  # how many of the population are idle, up to each of them
        if not idle[-1]:
            return False
        self.called += 1
        drawn = int(stream(self.experiment.seed_for("select"), "select", self.called).integers(idle[-1]))
        self._send(state, int(self.clients.population_ids[np.searchsorted(idle, drawn + 1)]), round)
        return True

    def _is_idle(self) -> NDArray[np.bool_]:
        """Return which clients of the population are available and not training."""
        available = self.clients.availability
        count = len(self.clients.sizes)
        free = np.ones(count, bool) if available is None else available.is_available(self.clients.clock).copy()
        free[[flight.client for flight in self.flights]] = False
        idle: NDArray[np.bool_] = free[self.clients.population_ids]
        return idle

    def _fetch(self, state: Any, client: int, round: int, client_state: ClientState | None = None) -> Any:
        """Send the server's model to the client, or to an idle one where not all clients train at once.

        `client_state` is the client's new state after a training that counts; a lost training leaves its state as it was.
        """
        self.waiting.clear()
        if self.algorithm.everyone:
            self._send(state, client, round, client_state)
        else:
            if client_state is not None:
                self.store.save_client_state(client, round + 1, client_state)
            self._start_idle_client(state, round)
        return state

    def _send(self, state: Any, client: int, round: int, client_state: ClientState | None = None) -> None:
        start = Broadcast(self.algorithm.broadcast(state), self.buffers)
        self.totals["bytes_down"] += self._message_bytes
        self.store.save_client_state(
            client, round + 1, replace(client_state or self._client_state(client), start=start)
        )
        self._begin(client, state.age, self.fleet.message_seconds(client, self._message_bytes))

    def _train_again(self, state: Any, flight: ClientTraining, answer: ClientAnswer, round: int) -> Any:
        """Let an overactive client continue from its own model; when all clients do, the run is stuck."""
        client = flight.client
        self.totals["overactive"] += 1
        self.waiting.add(client)
        start = Broadcast(answer.reply.send, answer.buffers)
        self.store.save_client_state(client, round + 1, replace(answer.report.state or ClientState(), start=start))
        self._begin(client, flight.age, self.fleet.message_seconds(client, AGE))
        if self._is_deadlocked:
            self.stuck = True
            merges = int(self.merged.sum())
            self.rules.deadlock(merges)
            self.run_notes.add(f"deadlock after {merges} merges: every client is overactive and waits for the others")
        return state

    @property
    def _is_deadlocked(self) -> bool:
        """Return whether no answer under way could change the server's model."""
        return len(self.waiting) == len(self.flights)

    def _begin(self, client: int, age: int, fetching: float) -> None:
        """Let the client fetch for so many seconds and train, starting when it is next available."""
        stay = self._stay(client)
        if stay is None:
            return
        number = int(self.begun[client])
        self.begun[client] += 1
        training = self.fleet.training_seconds(client, number, self._samples(client))
        up = AGE if self.rules.asks else self._message_bytes
        due = stay[0] + fetching + training + self.fleet.message_seconds(client, up)
        self._schedule(ClientTraining(due, client, number, age, self.finished // self.participants), stay[1])

    def _samples(self, client: int) -> int:
        """Return the samples that the client's next training computes, as its device takes time for them."""
        local, rows = self.experiment.local, int(self.clients.sizes[client])
        if local.steps is None:
            return rows * local.epochs
        made, sizes = self._client_state(client).steps, batch_sizes(rows, local.batch, self.context.last_batch)
        return sum(sum(part.sizes) for part in continued_passes(sizes, made, local.steps))

    def _schedule(self, flight: ClientTraining, until: float) -> None:
        """Add a training to the queue; if the device leaves before it is due, it ends at that time."""
        heapq.heappush(self.flights, flight if flight.due <= until else flight._replace(due=until, leaves=1))

    def _stay(self, client: int) -> tuple[float, float] | None:
        """Return from when until when the client is available, now or next; None if it never comes again."""
        available, now = self.clients.availability, self.clients.clock
        return (now, math.inf) if available is None else available.next_interval(client, now)

    def _departure_time(self, client: int) -> float:
        """Return the time at which a client that is training leaves."""
        stay, now = self._stay(client), self.clients.clock
        return now if stay is None or stay[0] > now else stay[1]

    def _sending(self, client: int) -> float:
        """Return the seconds from the offer of an answer to its arrival: the acceptance comes down, the model goes up."""
        return self.fleet.message_seconds(client, AGE) + self.fleet.message_seconds(client, self._message_bytes)

    def _client_state(self, client: int) -> ClientState:
        return self.store.client_state(client) or ClientState(kept=self.algorithm.remember(self.context.initial))

    # Computing answers

    def _timed_answer(self, state: Any, flight: ClientTraining, round: int, facts: RoundFacts) -> ClientAnswer | None:
        """Return the answer of a training, and count the time it took; report a failure and return None."""
        began = time.perf_counter()
        answer = self._answer(flight, state)
        facts.seconds_train += time.perf_counter() - began
        if isinstance(answer, ClientAnswer):
            self.privacy.records.count(flight.client, answer.report.steps)
            return answer
        self.run_notes.report_failure(flight.client, round, answer)
        return None

    def _answer(self, flight: ClientTraining, state: Any) -> ClientAnswer | SkippedClient | FailedTask:
        """Return the answer of a training, computed now together with those that are due next, or ahead of time."""
        if flight.client not in self._ready:
            workers = getattr(self.runtime, "workers", 1)
            batch = [flight]
            if workers > 1:
                batch += [
                    f for f in heapq.nsmallest(AHEAD * workers, self.flights) if self._is_worth_computing(f, state)
                ]
            jobs = (ClientTask(f.round, f.client, "client", self.store.client_state(f.client), f.number) for f in batch)
            for f, answer in zip(batch, in_order(self.runtime.map(jobs, self._initial_broadcast)), strict=True):
                self._ready[f.client] = answer
        return self._ready.pop(flight.client)

    def _is_worth_computing(self, flight: ClientTraining, state: Any) -> bool:
        """Return whether an answer is worth computing ahead: one that is too old already will be discarded."""
        d = state.age - flight.age
        wanted = flight.client not in self._ready and not flight.leaves
        return wanted and (self._changes_client_state or self.rules.poll(state, d) != "outdated")

    @cached_property
    def _changes_client_state(self) -> bool:
        """Return whether a training changes client state that outlives the model."""
        kept = self.algorithm.remember(self.context.initial) is not None
        return (
            self.context.keeps_momentum
            or kept
            or self.context.buffer_policy == "local"
            or self.context.counts_client_steps
        )

    def _count_work(self, client: int) -> None:
        """Count an outdated training that was not computed here but has still cost the device its time."""
        local = self.experiment.local
        sizes = batch_sizes(int(self.clients.sizes[client]), local.batch, self.context.last_batch)
        self.totals["steps"] += local.epochs * len(sizes)
        self.privacy.records.count(client, local.epochs * len(sizes))
        self.totals["samples"] += local.epochs * sum(sizes)

    def _mix_buffers(self, buffers: Buffers, share: float) -> None:
        """Mix BatchNorm statistics by the weight of the answer."""
        if self.context.buffer_policy != "average" or not len(self.buffers.values):
            return
        values = buffers.values if share == 1 else (1 - share) * self.buffers.values + share * buffers.values
        counters = np.maximum(self.buffers.counters, buffers.counters)
        self.buffers = Buffers(values.astype(self.buffers.values.dtype, copy=False), counters)

    # Checkpoint and result

    def queue(self) -> dict[str, Any]:
        """Return the trainings under way and the counters, for the checkpoint."""
        return {
            "flights": [list(flight) for flight in sorted(self.flights)],
            "begun": self.begun.copy(),
            "merged": self.merged.copy(),
            "at_age": dict(self.at_age),
            "finished": self.finished,
            "called": self.called,
            "waiting": sorted(self.waiting),
            "stuck": self.stuck,
        }

    def restore_queue(self, queue: dict[str, Any]) -> None:
        """Continue with the trainings and counters of a checkpoint."""
        self.flights = [ClientTraining(float(due), *map(int, rest)) for due, *rest in queue["flights"]]
        heapq.heapify(self.flights)
        self.begun, self.merged = queue["begun"].copy(), queue["merged"].copy()
        self.at_age = {int(d): int(n) for d, n in queue["at_age"].items()}
        self.finished, self.called = int(queue["finished"]), int(queue["called"])
        self.waiting, self.stuck = set(queue["waiting"]), bool(queue["stuck"])

    def was_never_updated(self, records: list[RoundRecord]) -> bool:
        """Return whether the server still has its initial model, also because its buffer never filled."""
        return bool(self.state.age == self.algorithm.init(self.context.initial).age)

    @property
    def ages(self) -> dict[str, Any]:
        """Return statistics about the age of merged answers (docs/reference/metrics.md#communication)."""
        each = self.merged[self.population]
        counts = self.totals["outdated"], self.totals["overactive"]
        return age_statistics(self.at_age, each, *counts, self.rules.share) | {"deadlock": self.stuck}
