"""No rounds: clients train at their own pace on a virtual clock, and the server takes each answer as it arrives.

The clock decides the order, never the machine: a training ends when the client's device says so (engine/devices.py), and
of two that end together the lower client comes first. What a client computes depends only on the model it began with and
on the number of its training, so it may be computed at any time in between, on any worker: those that are due next are
computed together, ahead of the clock.

A round, for records and budgets, is as many answers as a synchronous round has participants. An algorithm that asks first
(CO-OP) sends its model up only after the server's yes; others send it at once.

Where devices are not always there (engine/availability.py), one that leaves before its answer has arrived is lost at that
moment: it counts as an answer that never came. Another one is called in its place, as soon as one is there; where
everyone works all the time, it begins again when it is back, with the model it had.
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
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.context import ExperimentContext
from fedarena.engine.loop import TrainingLoop
from fedarena.engine.round import RoundFacts
from fedarena.engine.runtime_interface import Runtime, in_order
from fedarena.engine.solver import batch_sizes
from fedarena.engine.tasks import ClientAnswer, ClientTask, FailedTask, SkippedClient
from fedarena.models.pytree import nbytes
from fedarena.models.task import Buffers

AHEAD = 4  # trainings a worker computes ahead of the clock
AGE = 8  # bytes of a model's age, asked or told


def open_loop(site: ExperimentContext, runtime: Runtime, keeper: CheckpointStore) -> TrainingLoop:
    """The loop that the algorithm needs: with rounds, or without."""
    return (AsyncLoop if isinstance(site.algorithm, Asynchronous) else TrainingLoop)(site, runtime, keeper)


class ClientTraining(NamedTuple):
    """A training under way. They are due in this order."""

    due: float  # when the answer arrives at the server
    client: int
    number: int  # of the client's trainings
    age: int  # of the model it fetched
    round: int  # that the federation was in when it began
    accepted: int = -1  # the answer is on its way up: how old it was when the server said yes
    leaves: int = 0  # 1: there will be no answer, for this is when the device leaves


class AsyncLoop(TrainingLoop):
    """An experiment under way, without rounds."""

    def __init__(self, site: ExperimentContext, runtime: Runtime, keeper: CheckpointStore) -> None:
        super().__init__(site, runtime, keeper)
        assert isinstance(self.algorithm, Asynchronous)
        self.rules: Asynchronous = self.algorithm
        clients = len(self.sizes)
        self.flights: list[ClientTraining] = []
        self.begun = np.zeros(clients, np.int64)  # trainings of each client
        self.merged = np.zeros(clients, np.int64)  # answers of each client that were taken
        self.at_age: dict[int, int] = {}  # d -> answers taken that were so old
        self.finished = 0  # answers taken or lost: so many make a round
        self.called = 0  # times a resting client was called to work
        self.waiting: set[int] = set()  # overactive since the server's model last changed, or anyone fetched it
        self.stuck = False
        self._ready: dict[int, ClientAnswer | SkippedClient | FailedTask] = {}  # computed ahead of the clock, by client
        # What clients train from before they fetch anything: they have it from the start, it is not sent.
        self._first = Broadcast(self.algorithm.broadcast(self.algorithm.init(site.initial)), self.buffers)

    @cached_property
    def _message_bytes(self) -> int:
        travel = self.site.buffer_policy == "average"
        return nbytes(self._first.message) + (nbytes(self._first.buffers) if travel else 0)

    # A round of events

    def over(self, done: int) -> bool:
        """Also when everyone waits for everyone else."""
        return self.stuck or super().over(done)

    def advance(self, state: Any, round: int) -> tuple[Any, RoundFacts]:
        """So many answers as a synchronous round has participants, taken or lost."""
        facts = RoundFacts()
        if not self.begun.any():
            for client in self.select(0) if self.available is None else self._clients_to_start():
                self._begin(client, 0, 0.0)
        while facts.selected < self.participants and not self.stuck:
            if self._has_room:
                self._wait_for_devices(state, round)
            if not self.flights:
                break
            state = self._next_event(state, round, facts)
        return state, facts

    def _next_event(self, state: Any, round: int, facts: RoundFacts) -> Any:
        """The earliest answer arrives."""
        flight = heapq.heappop(self.flights)
        self.clock = flight.due
        return self._arrived(state, flight, round, facts)

    def _arrived(self, state: Any, flight: ClientTraining, round: int, facts: RoundFacts) -> Any:
        """What becomes of an answer, or of the question whether it is wanted."""
        client = flight.client
        if flight.leaves:
            self._ready.pop(client, None)
            return self._drop_answer(state, flight, round, facts)
        if flight.accepted >= 0:
            return self._merge(state, flight, flight.accepted, round, facts)
        if self.fleet.drops_out(client, flight.number):
            self._ready.pop(client, None)
            return self._drop_answer(state, flight, round, facts)
        d = state.age - flight.age
        poll = self.rules.poll(state, d)
        memory = None
        self.totals["bytes_up"] += AGE if poll != "merge" else 0  # with an answer it is counted there
        self.totals["bytes_down"] += AGE
        if poll == "merge":
            sending = self._sending(client) if self.rules.asks else 0.0
            if sending == 0:
                return self._merge(state, flight, d, round, facts)
            self._schedule(flight._replace(due=self.clock + sending, accepted=d))
            return state
        if poll == "outdated" and not self._changes_client_state:  # nobody will ever see what it computed
            self._ready.pop(client, None)
            self._count_work(client)
        else:
            began = time.perf_counter()
            answer = self._answer(flight, state)
            facts.seconds_train += time.perf_counter() - began
            if isinstance(answer, SkippedClient | FailedTask):
                self.report_failure(client, round, answer)
                return self._drop_answer(state, flight, round, facts)
            self.totals["steps"] += answer.report.steps
            self.totals["samples"] += answer.report.samples
            memory = answer.report.memory
            if poll == "overactive":
                return self._train_again(state, flight, answer, round)
        self.totals["outdated"] += 1
        return self._fetch(state, client, round, memory)

    def _merge(self, state: Any, flight: ClientTraining, d: int, round: int, facts: RoundFacts) -> Any:
        """The server takes an answer that was d models old when it was asked for, and the client the new model."""
        client, began = flight.client, time.perf_counter()
        answer = self._answer(flight, state)
        facts.seconds_train += time.perf_counter() - began
        if isinstance(answer, SkippedClient | FailedTask):
            self.report_failure(client, round, answer)
            return self._drop_answer(state, flight, round, facts)
        report = answer.report
        facts.seconds_slowest = max(facts.seconds_slowest, report.seconds)
        self.count_up(report)
        if not report.finite and self.experiment.on_nan != "keep":
            self.report_failure(client, round, report)
            facts.non_finite += 1
            return self._drop_answer(state, flight, round, facts)
        state = self.rules.merge(state, answer.reply.send, d)
        self._mix_buffers(answer.buffers, self.rules.share(d))
        self.merged[client] += 1
        self.at_age[d] = self.at_age.get(d, 0) + 1
        facts.losses.append(report.loss)
        facts.selected, facts.answered = facts.selected + 1, facts.answered + 1
        self.finished += 1
        return self._fetch(state, client, round, report.memory)

    def _drop_answer(self, state: Any, flight: ClientTraining, round: int, facts: RoundFacts) -> Any:
        """An answer that never came, or was no use: another client is called, or the same begins again with what it had."""
        facts.selected, facts.dropped = facts.selected + 1, facts.dropped + 1
        self.finished += 1
        if not self.algorithm.everyone:
            return self._fetch(state, flight.client, round)
        self.waiting.discard(flight.client)
        self._begin(flight.client, flight.age, 0.0)
        return state

    # Who works next, on what

    def _clients_to_start(self) -> list[int]:
        """Who begins: as in a round those who are there; but where everyone works, all others too, once they come."""
        there = self.select(0)
        return list(self.population) if self.algorithm.everyone else there

    @property
    def _has_room(self) -> bool:
        """Do fewer work than should, because there was nobody else?"""
        return self.available is not None and not self.algorithm.everyone and len(self.flights) < self.participants

    def _wait_for_devices(self, state: Any, round: int) -> None:
        """Call whoever comes before the next answer does."""
        assert self.available is not None
        while self._has_room:
            if self._call(state, round):
                continue
            arrival = self.available.next_arrival(self.clock)
            if arrival is None or (self.flights and self.flights[0].due <= arrival):
                return
            self.clock = arrival

    def _call(self, state: Any, round: int) -> bool:
        """Send the server's model to one that rests, by lot; was there one?"""
        rests = self._is_idle().cumsum()  # how many of the population rest, up to each of them
        if not rests[-1]:
            return False
        self.called += 1
        lot = int(stream(self.experiment.seed_for("select"), "select", self.called).integers(rests[-1]))
        self._send(state, int(self._people[np.searchsorted(rests, lot + 1)]), round)
        return True

    def _is_idle(self) -> NDArray[np.bool_]:
        """Of the population: is there, and not at work?"""
        free = np.ones(len(self.sizes), bool) if self.available is None else self.available.here(self.clock).copy()
        free[[flight.client for flight in self.flights]] = False
        rests: NDArray[np.bool_] = free[self._people]
        return rests

    def _fetch(self, state: Any, client: int, round: int, memory: ClientState | None = None) -> Any:
        """The server's model goes to the client, or to the next one where not all work at once.

        `memory` is what the client has from a training that counts; a lost one leaves its memory as it was.
        """
        self.waiting.clear()
        if self.algorithm.everyone:
            self._send(state, client, round, memory)
        else:
            if memory is not None:
                self._keep(client, round, memory)
            self._call(state, round)
        return state

    def _send(self, state: Any, client: int, round: int, memory: ClientState | None = None) -> None:
        start = Broadcast(self.algorithm.broadcast(state), self.buffers)
        self.totals["bytes_down"] += self._message_bytes
        self._keep(client, round, replace(memory or self._remembered(client), start=start))
        self._begin(client, state.age, self.fleet.message(client, self._message_bytes))

    def _train_again(self, state: Any, flight: ClientTraining, answer: ClientAnswer, round: int) -> Any:
        """An overactive client trains on from its own model; when all do, nothing will ever change again."""
        client = flight.client
        self.totals["overactive"] += 1
        self.waiting.add(client)
        memory = replace(answer.report.memory or ClientState(), start=Broadcast(answer.reply.send, answer.buffers))
        self._keep(client, round, memory)
        self._begin(client, flight.age, self.fleet.message(client, AGE))
        if self._is_deadlocked:
            self.stuck = True
            merges = int(self.merged.sum())
            self.rules.deadlock(merges)
            self._note(f"deadlock after {merges} merges: every client is overactive and waits for the others")
        return state

    @property
    def _is_deadlocked(self) -> bool:
        """Is there nobody whose answer could change the server's model?"""
        return len(self.waiting) == len(self.flights)

    def _begin(self, client: int, age: int, fetching: float) -> None:
        """The client fetches for so many seconds and trains; from its return on, if it is not there."""
        stay = (self.clock, math.inf) if self.available is None else self.available.next_interval(client, self.clock)
        if stay is None:
            return
        number = int(self.begun[client])
        self.begun[client] += 1
        training = self.fleet.training(client, number, int(self.sizes[client]) * self.experiment.local.epochs)
        up = AGE if self.rules.asks else self._message_bytes
        due = stay[0] + fetching + training + self.fleet.message(client, up)
        self._schedule(ClientTraining(due, client, number, age, self.finished // self.participants), stay[1])

    def _schedule(self, flight: ClientTraining, until: float | None = None) -> None:
        """The flight is under way; if the device leaves before it is due, it ends there."""
        if until is None:
            until = self._departure_time(flight.client)
        heapq.heappush(self.flights, flight if flight.due <= until else flight._replace(due=until, leaves=1))

    def _departure_time(self, client: int) -> float:
        """When does the client leave that is at work?"""
        if self.available is None:
            return math.inf
        stay = self.available.next_interval(client, self.clock)
        return self.clock if stay is None or stay[0] > self.clock else stay[1]

    def _sending(self, client: int) -> float:
        """From asking to the arrival of the answer: the server's yes comes down, the model goes up."""
        return self.fleet.message(client, AGE) + self.fleet.message(client, self._message_bytes)

    def _remembered(self, client: int) -> ClientState:
        return self.memory(client) or ClientState(kept=self.algorithm.remember(self.site.initial))

    def _keep(self, client: int, round: int, memory: ClientState) -> None:
        self.keeper.remember(client, round + 1, memory)

    # What they compute

    def _answer(self, flight: ClientTraining, state: Any) -> ClientAnswer | SkippedClient | FailedTask:
        """This training's, computed now with those that are due next, or already there."""
        if flight.client not in self._ready:
            workers = getattr(self.runtime, "workers", 1)
            batch = [flight]
            if workers > 1:
                batch += [
                    f for f in heapq.nsmallest(AHEAD * workers, self.flights) if self._is_worth_computing(f, state)
                ]
            jobs = (ClientTask(f.round, f.client, "client", self.memory(f.client), f.number) for f in batch)
            for f, answer in zip(batch, in_order(self.runtime.map(jobs, self._first)), strict=True):
                self._ready[f.client] = answer
        return self._ready.pop(flight.client)

    def _is_worth_computing(self, flight: ClientTraining, state: Any) -> bool:
        """Is it worth computing ahead? Not if it is too old already: it will not get younger."""
        d = state.age - flight.age
        wanted = flight.client not in self._ready and not flight.leaves
        return wanted and (self._changes_client_state or self.rules.poll(state, d) != "outdated")

    @cached_property
    def _changes_client_state(self) -> bool:
        """Does a training change anything on a client that outlives its model?"""
        local = self.experiment.local
        momentum = local.momentum > 0 and (self.algorithm.keeps_momentum or not local.reset_momentum)
        kept = self.algorithm.remember(self.site.initial) is not None
        return momentum or kept or self.site.buffer_policy == "local" or local.decay_counter == "per_client"

    def _count_work(self, client: int) -> None:
        """A training that was not computed, because its result was outdated, has still cost the device its time."""
        local = self.experiment.local
        sizes = batch_sizes(int(self.sizes[client]), local.batch, self.site.last_batch)
        self.totals["steps"] += local.epochs * len(sizes)
        self.totals["samples"] += local.epochs * sum(sizes)

    def _mix_buffers(self, buffers: Buffers, share: float) -> None:
        """BatchNorm's statistics, by the weight of the answer."""
        if self.site.buffer_policy != "average" or not len(self.buffers.values):
            return
        values = buffers.values if share == 1 else (1 - share) * self.buffers.values + share * buffers.values
        counters = np.maximum(self.buffers.counters, buffers.counters)
        self.buffers = Buffers(values.astype(self.buffers.values.dtype, copy=False), counters)

    # What must survive a kill, and what is told at the end

    def queue(self) -> dict[str, Any]:
        """Everyone at work, and what was counted."""
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
        """Go on where they were."""
        self.flights = [ClientTraining(float(due), *map(int, rest)) for due, *rest in queue["flights"]]
        heapq.heapify(self.flights)
        self.begun, self.merged = queue["begun"].copy(), queue["merged"].copy()
        self.at_age = {int(d): int(n) for d, n in queue["at_age"].items()}
        self.finished, self.called = int(queue["finished"]), int(queue["called"])
        self.waiting, self.stuck = set(queue["waiting"]), bool(queue["stuck"])

    @property
    def never_updated(self) -> bool:
        """Also where a buffer never filled."""
        return bool(self.state.age == self.algorithm.init(self.site.initial).age)

    @property
    def ages(self) -> dict[str, Any]:
        """Return the age statistics (docs/reference/metrics.md#communication)."""
        merges = int(self.merged.sum())
        polls = merges + self.totals["outdated"] + self.totals["overactive"]
        ages = np.repeat(list(self.at_age), list(self.at_age.values())) if merges else np.zeros(0)
        each = self.merged[self.population]
        return {
            "merges": merges,
            "mean_age": float(np.mean(ages)) if merges else None,
            "mean_share": float(np.mean([self.rules.share(int(d)) for d in ages])) if merges else None,
            "histogram": [self.at_age.get(d, 0) for d in range(max(self.at_age, default=-1) + 1)],
            "outdated": self.totals["outdated"] / polls if polls else 0.0,
            "overactive": self.totals["overactive"] / polls if polls else 0.0,
            "trainings_per_merge": polls / merges if merges else None,
            "merges_of_clients": each.tolist(),
            "deadlock": self.stuck,
        }
