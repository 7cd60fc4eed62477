"""The asynchronous server: clients train at their own pace, and their results are used in the order of arrival.

The rules are those of engine/async_loop.py, which does the same in simulated time. An algorithm that asks first (CO-OP) gets
a report of each training, and requests the model only if it accepts it. A client that does not answer by the deadline is
lost, and starts again when it answers again.
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
from fedarena.federation.coordinator import check_round
from fedarena.federation.remote_runtime import RemoteRuntime, ticket_of
from fedarena.federation.requests import RequestBatch, TooFewAnswers
from fedarena.federation.wire_format import NOTHING, Message, Payload, WireRefused, pack
from fedarena.privacy.uplink import CannotSend

Landed = ClientAnswer | SkippedClient | FailedTask | CannotSend


class AsyncServerLoop(AsyncLoop):
    """The loop of an asynchronous experiment between real clients."""

    def __init__(self, context: ExperimentContext, runtime: RemoteRuntime, store: CheckpointStore) -> None:
        super().__init__(context, runtime, store)
        self.remote = runtime
        self.away: dict[int, int] = {}  # lost clients -> age of the model that they had
        self._announced: dict[int, messages.AsyncTrainResponse] = {}  # by client: the training that it has reported
        self._keep_from: dict[int, int] = {}  # of each client: the oldest training that the checkpoint may need
        self._requests: RequestBatch | None = None
        self._began = time.monotonic()
        self._enough = time.monotonic()  # when enough clients were last at work
        runtime.patterns.prepare("client", self._initial_broadcast, None)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Accept answers until the context ends."""
        with self.remote.coordinator.open_batch(self._read) as self._requests:
            yield

    def restore_queue(self, queue: dict[str, Any]) -> None:
        """Restore the queue, and send the requests of clients that were at work again."""
        super().restore_queue(queue)
        self._began = time.monotonic() - self.clients.clock
        self._announced = {int(k): messages.AsyncTrainResponse.model_validate(one) for k, one in queue["told"].items()}
        self._remember_oldest()
        self.away = {int(client): int(age) for client, age in queue["away"].items()}
        for flight in self.flights:
            self._send_request(flight)

    def queue(self) -> dict[str, Any]:
        """Return the state of the queue, with lost clients and reported trainings."""
        self._remember_oldest()
        response = {client: trained.model_dump() for client, trained in self._announced.items()}
        return {**super().queue(), "told": response, "away": dict(self.away)}

    def _has_events(self, state: Any, round: int) -> bool:
        """Return that there is an event to wait for: a client that answers, is lost or connects again."""
        return True

    # Sending

    def _begin(self, client: int, age: int, fetching: float) -> None:
        """Start a client; one that is lost starts when it is back."""
        if client in self.away:
            self.away[client] = age
        else:
            super()._begin(client, age, fetching)

    def _sending(self, client: int) -> float:
        """Return a positive time: an accepted result is still to be sent."""
        return 1.0

    def _client_state(self, client: int) -> ClientState:
        return self.store.client_state(client) or ClientState()

    def _is_idle(self) -> NDArray[np.bool_]:
        """Return which clients are idle; lost clients are not."""
        rests = super()._is_idle()
        return rests & ~np.isin(self.clients.population_ids, list(self.away))

    @property
    def _is_deadlocked(self) -> bool:
        """Return whether no event can happen any more; a lost client may still come back."""
        return super()._is_deadlocked and not self.away

    def _schedule(self, flight: ClientTraining, until: float) -> None:
        """Send the request at once: real clients have no due time."""
        flight = flight._replace(due=self.clients.clock)
        heapq.heappush(self.flights, flight)
        self._send_request(flight)

    def _send_request(self, flight: ClientTraining) -> None:
        assert self._requests is not None
        client, rule, payload = flight.client, self.remote.rule, NOTHING
        request: messages.MessageBody
        if flight.accepted >= 0:
            request = messages.SendResultRequest(trained=self._announced[client])
        else:
            memory = self.store.client_state(client)
            start = (memory.start if memory is not None else None) or self._initial_broadcast
            continues = isinstance(start.message, str)  # the ticket of a result that was not sent to the server
            payload = NOTHING if continues else Payload.of(start)
            request = messages.AsyncTrainRequest(
                number=flight.number,
                memory=ticket_of(memory),
                own_model=str(start.message) if continues else "",
                ask_first=self.rules.asks,
                keep_from=self._keep_from.get(client, 0),
            )
        content = pack(self.remote.coordinator.run, flight.round, request, payload)
        self._requests.add(self.remote.names[client], content, rule.deadline)

    def _remember_oldest(self) -> None:
        """Update which results clients must keep, so that this process can be resumed from its checkpoint."""
        under_way = {flight.client: flight.number for flight in self.flights}
        for client in self.population:
            memory = self.store.client_state(client) or ClientState()
            known = [memory.kept, None if memory.start is None else memory.start.message]
            numbers = [int(one.partition(".")[0]) for one in known if isinstance(one, str) and one]
            self._keep_from[client] = min([under_way.get(client, int(self.begun[client])), *numbers])

    # Receiving

    def _next_event(self, state: Any, round: int, facts: RoundFacts) -> Any:
        """Wait until a client answers or is lost; meanwhile start the clients that are back."""
        began = time.perf_counter()
        client, answer = self._wait(state, round)
        facts.seconds_train += time.perf_counter() - began
        flight = self._flight_of(client)
        self.flights.remove(flight)
        heapq.heapify(self.flights)
        self.clients.clock = max(self.clients.clock, time.monotonic() - self._began)
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
        coordinator, batch, names = self.remote.coordinator, self._requests, self.remote.names
        assert batch is not None
        while True:
            self._check_enough()
            self._readmit(state, round)
            coordinator.process_messages(batch, 1.0)
            for name in [*batch.responses, *batch.failed]:
                client = names.index(name)
                answer = (
                    batch.responses[name] if name in batch.responses else self._lost_client(client, batch.failed[name])
                )
                batch.remove(name)
                return client, answer

    def _lost_client(self, client: int, why: str) -> AbsentClient:
        name = self.remote.names[client]
        self.remote.coordinator.give_up(name, f"'{name}' is lost: {why}")
        return AbsentClient(client, why)

    def _readmit(self, state: Any, round: int) -> None:
        """Start lost clients that are connected again, or make them available for selection."""
        for client in [k for k in self.away if self.remote.coordinator.is_connected(self.remote.names[k])]:
            age = self.away.pop(client)
            if self.algorithm.everyone:
                self._begin(client, age, 0.0)
        while (
            not self.algorithm.everyone
            and len(self.flights) < self.participants
            and self._start_idle_client(state, round)
        ):
            pass

    def _check_enough(self) -> None:
        rule, now = self.remote.rule, time.monotonic()
        needed = rule.needed(len(self.population) if self.algorithm.everyone else self.participants)
        at_work = len(self.flights)
        if at_work >= needed and len(self.waiting) < at_work:
            self._enough = now
        elif now - self._enough > rule.deadline * rule.attempts:
            missing = ", ".join(f"'{self.remote.names[k]}'" for k in sorted(self.away))
            raise TooFewAnswers(
                f"{at_work} clients are at work, and {needed} must be; lost: {missing}",
                remedy="restart the missing clients, then continue with --resume; no round is lost",
            )

    def _read(self, name: str, message: Message) -> Landed:
        client, response = self.remote.names.index(name), message.body
        flight = self._flight_of(client)
        check_round(message, flight.round)
        own, is_asking = ticket(flight.number, 0), self.rules.asks and flight.accepted < 0
        if (
            isinstance(response, messages.RoundResponse | messages.AsyncTrainResponse)
            and isinstance(response, messages.AsyncTrainResponse) != is_asking
        ):
            raise WireRefused(f"'{response.what}' where the other kind of answer belongs")
        if not isinstance(response, messages.AsyncTrainResponse):
            return self.remote.answer(client, message, "client", self.buffers, own)
        if response.memory != own:
            raise WireRefused("an answer about another training")
        self._announced[client] = response
        report = self.remote.report(client, message.round, response, response.finite)
        kept = report.state if self._changes_client_state else None
        # In place of the result, which has not been sent: the ticket under which the client keeps it.
        return ClientAnswer(report._replace(state=kept), Reply(response.memory), self.buffers)

    def _flight_of(self, client: int) -> ClientTraining:
        return next(flight for flight in self.flights if flight.client == client)
