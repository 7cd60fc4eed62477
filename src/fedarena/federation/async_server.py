"""No rounds, and no virtual clock: participants train at their own pace, and the order is that in which they answer.

The rules are those of engine/async_loop.py, which does the same in simulated time. An algorithm that asks first (CO-OP) gets
facts from a participant, and its model only after a yes. Who gives no answer by the deadline is lost, once, and begins
again when it is heard of.
"""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Reply
from fedarena.engine.async_loop import AsyncLoop, ClientTraining
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.client import ClientState
from fedarena.engine.context import ExperimentContext
from fedarena.engine.round import RoundFacts
from fedarena.engine.tasks import AbsentClient, ClientAnswer, FailedTask, SkippedClient
from fedarena.federation import messages
from fedarena.federation.client_states import ticket
from fedarena.federation.remote_runtime import RemoteRuntime, check_round, ticket_of
from fedarena.federation.requests import RequestBatch, TooFewAnswers
from fedarena.federation.wire_format import NOTHING, Message, Payload, WireRefused, pack
from fedarena.privacy.uplink import CannotSend

Landed = ClientAnswer | SkippedClient | FailedTask | CannotSend


class AsyncServerLoop(AsyncLoop):
    """An experiment under way between participants, without rounds."""

    def __init__(self, site: ExperimentContext, runtime: RemoteRuntime, keeper: CheckpointStore) -> None:
        super().__init__(site, runtime, keeper)
        self.people = runtime
        self.away: dict[int, int] = {}  # lost, and not yet heard of again -> age of the model it had
        self._told: dict[int, messages.AsyncTrainResponse] = {}  # of each client: the training about which it asked
        self._keep_from: dict[int, int] = {}  # of each client: the oldest training that the checkpoint may need
        self._line: RequestBatch | None = None
        self._began = time.monotonic()
        self._enough = time.monotonic()  # when there were last as many at work as there must be
        runtime.patterns.prepare("client", self._initial_broadcast, None)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Answers are taken while this lasts."""
        with self.people.board.inquiry(self._read) as self._line:
            yield

    def restore_queue(self, queue: dict[str, Any]) -> None:
        """Also ask those who were at work once more."""
        super().restore_queue(queue)
        self._began = time.monotonic() - self.clock
        self._told = {int(k): messages.AsyncTrainResponse.model_validate(told) for k, told in queue["told"].items()}
        self._remember_oldest()
        self.away = {int(client): int(age) for client, age in queue["away"].items()}
        for flight in self.flights:
            self._ask(flight)

    def queue(self) -> dict[str, Any]:
        """Also who is lost, and what was asked about."""
        self._remember_oldest()
        told = {client: trained.model_dump() for client, trained in self._told.items()}
        return {**super().queue(), "told": told, "away": dict(self.away)}

    def advance(self, state: Any, round: int) -> tuple[Any, RoundFacts]:
        """So many answers as a synchronous round has participants, taken or lost; where nobody is, one waits."""
        facts = RoundFacts()
        if not self.begun.any():
            for client in self.clients.select(0):
                self._begin(client, 0, 0.0)
        while facts.selected < self.participants and not self.stuck:
            state = self._next_event(state, round, facts)
        return state, facts

    # Asking

    def _begin(self, client: int, age: int, fetching: float) -> None:
        """Unless it is away: then when it is back."""
        if client in self.away:
            self.away[client] = age
        else:
            super()._begin(client, age, fetching)

    def _sending(self, client: int) -> float:
        """After a yes the answer is still to come."""
        return 1.0

    def _client_state(self, client: int) -> ClientState:
        return self.store.client_state(client) or ClientState()

    def _is_idle(self) -> NDArray[np.bool_]:
        """Also not lost."""
        rests = super()._is_idle()
        return rests & ~np.isin(self.clients.population_ids, list(self.away))

    @property
    def _is_deadlocked(self) -> bool:
        """As long as somebody is lost, it may come back and change something."""
        return super()._is_deadlocked and not self.away

    def _schedule(self, flight: ClientTraining, until: float | None = None) -> None:
        """There is no time at which it is due: it is asked for, now."""
        flight = flight._replace(due=self.clock)
        heapq.heappush(self.flights, flight)
        self._ask(flight)

    def _ask(self, flight: ClientTraining) -> None:
        assert self._line is not None
        client, rule, load = flight.client, self.people.rule, NOTHING
        words: messages.MessageBody
        if flight.accepted >= 0:
            words = messages.SendResultRequest(trained=self._told[client])
        else:
            memory = self.store.client_state(client)
            start = (memory.start if memory is not None else None) or self._initial_broadcast
            goes_on = isinstance(start.message, str)  # the ticket of a result that never came here
            load = NOTHING if goes_on else Payload.of(start)
            words = messages.AsyncTrainRequest(
                number=flight.number,
                memory=ticket_of(memory),
                own_model=str(start.message) if goes_on else "",
                ask_first=self.rules.asks,
                keep_from=self._keep_from.get(client, 0),
            )
        content = pack(self.people.board.run, flight.round, words, load)
        self._line.put(self.people.names[client], content, rule.deadline)

    def _remember_oldest(self) -> None:
        """What participants must keep, should this process end now and go on from its checkpoint."""
        under_way = {flight.client: flight.number for flight in self.flights}
        for client in self.population:
            memory = self.store.client_state(client) or ClientState()
            known = [memory.kept, None if memory.start is None else memory.start.message]
            numbers = [int(one.partition(".")[0]) for one in known if isinstance(one, str) and one]
            self._keep_from[client] = min([under_way.get(client, int(self.begun[client])), *numbers])

    # Listening

    def _next_event(self, state: Any, round: int, facts: RoundFacts) -> Any:
        """Somebody answers, or is lost; until then those who are back begin again."""
        began = time.perf_counter()
        client, answer = self._wait(state, round)
        facts.seconds_train += time.perf_counter() - began
        flight = next(flight for flight in self.flights if flight.client == client)
        self.flights.remove(flight)
        heapq.heapify(self.flights)
        self.clock = max(self.clock, time.monotonic() - self._began)
        if isinstance(answer, CannotSend):
            raise answer
        if not isinstance(answer, ClientAnswer):
            self.run_notes.report_failure(client, round, answer)
            if isinstance(answer, AbsentClient):
                self.away[client] = flight.age
            return self._drop_answer(state, flight, round, facts)
        self._ready[client] = answer
        return self._arrived(state, flight, round, facts)

    def _wait(self, state: Any, round: int) -> tuple[int, Landed]:
        board, line, names = self.people.board, self._line, self.people.names
        assert line is not None
        while True:
            self._check_enough()
            self._readmit(state, round)
            board.process_messages(line, 1.0)
            for name in [*line.got, *line.bad]:
                client = names.index(name)
                answer = line.got[name] if name in line.got else self._lost_client(client, line.bad[name])
                line.take(name)
                return client, answer

    def _lost_client(self, client: int, why: str) -> AbsentClient:
        name = self.people.names[client]
        self.people.board.give_up(name, f"'{name}' is lost: {why}")
        return AbsentClient(client, why)

    def _readmit(self, state: Any, round: int) -> None:
        """Who is heard of again begins where it was, or is there to be called."""
        for client in [k for k in self.away if self.people.board.is_connected(self.people.names[k])]:
            age = self.away.pop(client)
            if self.algorithm.everyone:
                self._begin(client, age, 0.0)
        while not self.algorithm.everyone and len(self.flights) < self.participants and self._start_idle_client(state, round):
            pass

    def _check_enough(self) -> None:
        rule, now = self.people.rule, time.monotonic()
        needed = rule.needed(len(self.population) if self.algorithm.everyone else self.participants)
        at_work = len(self.flights)
        if at_work >= needed and len(self.waiting) < at_work:
            self._enough = now
        elif now - self._enough > rule.deadline * rule.attempts:
            missing = ", ".join(f"'{self.people.names[k]}'" for k in sorted(self.away))
            raise TooFewAnswers(
                f"{at_work} participants are at work, and {needed} must be; lost: {missing}",
                remedy="see to those that are missing, then go on with --resume; nothing is lost",
            )

    def _read(self, name: str, message: Message) -> Landed:
        client, told = self.people.names.index(name), message.words
        flight = self._flight_of(client)
        check_round(message, flight.round)
        own, is_asking = ticket(flight.number, 0), self.rules.asks and flight.accepted < 0
        if (
            isinstance(told, messages.RoundResponse | messages.AsyncTrainResponse)
            and isinstance(told, messages.AsyncTrainResponse) != is_asking
        ):
            raise WireRefused(f"'{told.what}' where the other kind of answer belongs")
        if not isinstance(told, messages.AsyncTrainResponse):
            return self.people.answer(client, message, "client", self.buffers, own)
        if told.memory != own:
            raise WireRefused("an answer about another training")
        self._told[client] = told
        report = self.people.report(client, message.round, told, told.finite)
        kept = report.state if self._changes_client_state else None
        # In place of the result, which has not been sent: by what name its owner keeps it.
        return ClientAnswer(report._replace(state=kept), Reply(told.memory), self.buffers)

    def _flight_of(self, client: int) -> ClientTraining:
        return next(flight for flight in self.flights if flight.client == client)
