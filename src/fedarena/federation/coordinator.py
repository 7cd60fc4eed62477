"""The server's connections: which clients are connected, which requests were sent to them, and their responses.

A client that connects is invited, and gets the agreement; then it is ready for requests. If its session shows that its
process is a new one, it is invited again, and its requests are sent again. A client that has not answered by the deadline
is gone: requests are still sent to it, but not waited for, until it answers again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedarena.federation import messages
from fedarena.federation.requests import (
    Answers,
    Read,
    RequestBatch,
    ResponseRule,
    SentRequest,
    TooFewAnswers,
)
from fedarena.federation.roster import Roster
from fedarena.federation.wire_format import NOTHING, Message, OtherVersion, Payload, Types, WireRefused, pack, unpack
from fedarena.transport.flower_link import Link, ReceivedMessage

LOGGER = logging.getLogger(__name__)

LOOK = 0.5  # seconds between two checks of the connected clients
# An invitation checks that a process which does not answer still runs: after PROBE seconds, then after twice as many each
# time, SELDOM at most.
PROBE, SELDOM = 5.0, 60.0
INVITATION_DEADLINE = 600.0  # seconds for the answer to an invitation: a person may have to consent
LATE = "no answer in time"
GOODBYE = 10.0  # seconds for all clients to confirm the end
RESENDS = 5  # times that a request is sent again because the connection failed

Stage = Literal["away", "invited", "refused", "known", "ready"]


@dataclass
class ClientConnection:
    """The state of the connection to one client."""

    name: str
    node: int | None = None  # its number on the link, while it is connected
    session: str = ""
    stage: Stage = "away"
    gone: bool = False
    invited_at: float = 0.0  # when, by the clock of this process
    awaited_ticket: str = ""  # of an invitation or agreement that is not answered yet
    unanswered: int = 0  # invitations since its last answer

    @property
    def patience(self) -> float:
        """Return the seconds until it is invited again."""
        return min(PROBE * 2.0**self.unanswered, SELDOM)

    @property
    def is_silent(self) -> bool:
        """Return whether an invitation may have gone to a process that has ended: it has not been answered for a while."""
        return not self.awaited_ticket or time.monotonic() - self.invited_at > self.patience


class Coordinator:
    """Sends requests to all clients over one link, and collects their responses."""

    def __init__(self, link: Link, roster: Roster, invitation: messages.Invitation, types: Types) -> None:
        self.link, self.roster, self.run, self.types = link, roster, roster.run, types
        self.connections: dict[str, ClientConnection] = {}
        self._invitation = pack(self.run, 0, invitation)
        self._sent_requests: dict[str, SentRequest] = {}  # by ticket
        self._batches: list[RequestBatch] = []  # under way
        self._refreshed_at = -LOOK

    def clients_at(self, *stages: Stage) -> list[str]:
        """Return the clients at these stages."""
        return [name for name, connection in self.connections.items() if connection.stage in stages]

    # Requests

    def ask(
        self,
        requests: Mapping[str, messages.MessageBody],
        read: Read,
        rule: ResponseRule,
        what: str,
        round: int = 0,
        payload: Payload = NOTHING,
        stages: tuple[Stage, ...] = ("ready",),
    ) -> Answers:
        """Send requests of a round, wait, and return the responses, and for clients without one the reason."""
        needed = rule.needed(len(requests))
        packed = {name: pack(self.run, round, request, payload) for name, request in requests.items()}

        def read_this_round(name: str, message: Message) -> Any:
            check_round(message, round)
            return read(name, message)

        with self.open_batch(read_this_round) as batch:
            for attempt in range(1, rule.attempts + 1):
                for name in [name for name in requests if name not in batch.responses]:
                    batch.add(name, packed[name], rule.deadline)
                self._wait(batch, needed, stages)
                if len(batch.responses) >= needed:
                    break
                self._too_few(batch, needed, what, attempt, rule)
            late = dict.fromkeys(batch.open, f"no answer within {rule.deadline:g} s")
        for name in late:
            self.give_up(name, f"{what}: '{name}' gave no answer within {rule.deadline:g} s; continuing without it")
        return batch.responses, {**batch.failed, **late}

    @contextlib.contextmanager
    def open_batch(self, read: Read) -> Iterator[RequestBatch]:
        """Open a batch of requests; responses after the end of the context are dropped."""
        batch = RequestBatch(read)
        self._batches.append(batch)
        try:
            yield batch
        finally:
            self._batches.remove(batch)
            self._forget(batch)

    def process_messages(self, batch: RequestBatch, seconds: float) -> None:
        """Send open requests and receive messages; a request past its deadline has failed."""
        for name in batch.open:
            left = batch.deadlines[name] - time.monotonic()
            if left > 0:
                self._send(name, batch, left, ("ready",))
            else:
                batch.failed[name] = LATE
                self._forget(batch, name)
        if not batch.responses and not batch.failed:
            self.turn(seconds)

    def _forget(self, batch: RequestBatch, name: str | None = None) -> None:
        """Drop the records of requests that are not waited for any more."""
        open_requests = self._sent_requests.items()
        self._sent_requests = {t: e for t, e in open_requests if e.batch is not batch or name not in (None, e.name)}

    def is_connected(self, name: str) -> bool:
        """Return whether a client is ready and likely to answer."""
        connection = self._connection(name)
        return connection.stage == "ready" and not connection.gone

    def _too_few(self, batch: RequestBatch, needed: int, what: str, attempt: int, rule: ResponseRule) -> None:
        count, asked = len(batch.responses), len(batch.requests)
        summary = f"{what}: {count} of {asked} answered, and {needed} must"
        if attempt == rule.attempts:
            why = [f"'{name}': {reason}" for name, reason in batch.failed.items()]
            why += [f"'{name}': no answer within {rule.deadline:g} s" for name in batch.open]
            raise TooFewAnswers(
                "; ".join([summary, *why]),
                remedy="restart the missing clients, then continue with --resume; no round is lost",
            )
        LOGGER.info(f"{summary}; asking again ({attempt + 1} of {rule.attempts})")

    def _wait(self, batch: RequestBatch, needed: int, stages: tuple[Stage, ...]) -> None:
        """Wait until all clients that are waited for have answered, or the time is up."""
        while batch.open and (left := batch.deadlines[batch.open[0]] - time.monotonic()) > 0:
            for name in batch.open:
                self._send(name, batch, left, stages)
            waited_for = [name for name in batch.open if not self._is_given_up(name)]
            if not waited_for and len(batch.responses) >= needed:
                return
            self.turn(min(left, 1.0))

    def _send(self, name: str, batch: RequestBatch, left: float, stages: tuple[Stage, ...]) -> None:
        connection, now = self._connection(name), time.monotonic()
        if name in batch.sent_at:
            if now - max(batch.sent_at[name], connection.invited_at) > connection.patience:
                self._invite(connection)
            return
        if connection.node is None or connection.stage not in stages:
            return
        batch.attempts[name] = batch.attempts.get(name, 0) + 1
        if batch.attempts[name] > RESENDS:
            batch.failed[name] = "the connection fails repeatedly"
            return
        batch.sent_at[name] = now
        self._transmit(connection, SentRequest(name, "request", batch, batch.requests[name]), left)

    def _transmit(self, connection: ClientConnection, sent: SentRequest, seconds: float) -> str:
        """Send a message to a connected client, and return the ticket under which its response will arrive."""
        assert connection.node is not None
        ticket = self.link.send(connection.node, sent.request, seconds)
        self._sent_requests[ticket] = sent
        return ticket

    def _is_given_up(self, name: str) -> bool:
        connection = self._connection(name)
        return connection.gone or connection.stage == "refused"

    def _connection(self, name: str) -> ClientConnection:
        return self.connections.setdefault(name, ClientConnection(name))

    # Responses

    def turn(self, seconds: float) -> None:
        """Update the connections and process the messages that have arrived; wait at most `seconds` for the first."""
        if time.monotonic() - self._refreshed_at > LOOK:
            self._refresh_connections()
        for arrival in self.link.receive(seconds):
            self._take(arrival)

    def send_agreement_to_all(self) -> None:
        """Send the agreement to all clients that wait for it."""
        for connection in self.connections.values():
            if connection.stage == "known":
                self._send_agreement(connection)

    def give_up(self, name: str, message: str = "") -> None:
        """Do not wait for a client until it answers again."""
        connection = self._connection(name)
        if message and not connection.gone:
            LOGGER.info(message)
        connection.gone = True

    def _refresh_connections(self) -> None:
        self._refreshed_at = time.monotonic()
        connected = {name: node for node, name in self.link.nodes().items()}
        for connection in self.connections.values():
            if connection.node is not None and connection.name not in connected:
                LOGGER.info(f"'{connection.name}' is disconnected")
                connection.node, connection.awaited_ticket = None, ""
                connection.stage = "away"
        for name, node in connected.items():
            connection = self._connection(name)
            if connection.node is None:
                connection.node = node
            if connection.stage in ("away", "invited") and connection.is_silent:
                self._invite(connection)
        self.send_agreement_to_all()

    def _invite(self, connection: ClientConnection) -> None:
        if connection.node is not None:
            if connection.stage == "away":
                connection.stage = "invited"
            self._await(connection, SentRequest(connection.name, "invitation", request=self._invitation))

    def _send_agreement(self, connection: ClientConnection) -> None:
        agreement = self.roster.agreed.get(connection.name)
        if agreement is not None and connection.node is not None and connection.is_silent:
            content = pack(self.run, 0, messages.AgreementRequest(agreement=agreement, tell="ready"))
            self._await(connection, SentRequest(connection.name, "agreement", request=content))

    def _await(self, connection: ClientConnection, sent: SentRequest) -> None:
        """Send an invitation or the agreement, and note when."""
        connection.invited_at, connection.unanswered = time.monotonic(), min(connection.unanswered + 1, 10)
        connection.awaited_ticket = self._transmit(connection, sent, INVITATION_DEADLINE)

    def _take(self, arrival: ReceivedMessage) -> None:
        sent = self._sent_requests.pop(arrival.ticket, None)
        if sent is None:
            return  # too late
        connection = self._connection(sent.name)
        if connection.awaited_ticket == arrival.ticket:
            connection.awaited_ticket = ""
        if arrival.content is None:
            self._take_failure(connection, sent, arrival.problem)
            return
        connection.unanswered = 0
        try:
            message = unpack(arrival.content, self.types)
            if message.run != self.run and not isinstance(message.body, messages.RefusalResponse):
                raise WireRefused("an answer of another run")
        except WireRefused as error:
            self._reject_message(connection, sent, error)
            return
        if connection.gone:
            LOGGER.info(f"'{connection.name}' is back; its late answer is not used")
            connection.gone = False
        if isinstance(message.body, messages.RefusalResponse) and message.body.kind == "unready":
            self._reset_client(connection, sent)
        elif sent.what == "invitation":
            self._take_description(connection, message)
        elif sent.what == "agreement":
            self._take_readiness(connection, message)
        elif sent.what == "request":
            self._take_response(connection, sent, message)

    def _reject_message(self, connection: ClientConnection, sent: SentRequest, error: WireRefused) -> None:
        """Drop an unreadable message, and name the client that sent it."""
        LOGGER.info(f"'{connection.name}' sent {error.what}")
        if batch := sent.open_batch:
            batch.failed[connection.name] = f"it sent {error.what}"
        elif sent.what != "request":
            connection.stage = "refused"
            if isinstance(error, OtherVersion):
                self.dismiss(connection, error.what)

    def _take_failure(self, connection: ClientConnection, sent: SentRequest, problem: str) -> None:
        """Mark a client as disconnected; it is invited, and its request is sent again, when it is back."""
        if batch := sent.open_batch:
            batch.sent_at.pop(connection.name, None)
        if sent.what != "goodbye" and connection.node is not None:
            LOGGER.info(problem if problem.startswith(f"'{connection.name}'") else f"'{connection.name}': {problem}")
            connection.node, connection.stage = None, "away"

    def _reset_client(self, connection: ClientConnection, sent: SentRequest) -> None:
        """Invite a client whose process is another one than before."""
        if batch := sent.open_batch:
            batch.sent_at.pop(connection.name, None)
        connection.session, connection.stage = "", "away"
        if connection.is_silent:
            self._invite(connection)

    def _take_description(self, connection: ClientConnection, message: Message) -> None:
        body = message.body
        if not isinstance(body, messages.TableDescription):
            self._refuse(connection, _reason(body))
            return
        if body.session == connection.session and connection.stage == "ready":
            return  # a busy client has answered a repeated invitation
        why = self.roster.admit(connection.name, body)
        if why:
            self._refuse(connection, why)
            self.dismiss(connection, why)
            return
        if connection.session != body.session:
            for batch in self._batches:
                batch.sent_at.pop(connection.name, None)
            LOGGER.info(f"'{connection.name}' is here")
        connection.session, connection.stage = body.session, "known"
        self._send_agreement(connection)

    def _take_readiness(self, connection: ClientConnection, message: Message) -> None:
        if isinstance(message.body, messages.ReadyResponse):
            connection.stage = "ready"
            self.roster.is_ready(connection.name, message.body)
        else:
            self._refuse(connection, _reason(message.body))

    def _refuse(self, connection: ClientConnection, why: str) -> None:
        connection.stage = "refused"
        LOGGER.info(f"'{connection.name}' does not take part: {why}")

    def _take_response(self, connection: ClientConnection, sent: SentRequest, message: Message) -> None:
        name, batch = connection.name, sent.open_batch
        if batch is None:
            return  # answered already
        try:
            if isinstance(message.body, messages.RefusalResponse):
                raise WireRefused(message.body.why)
            batch.responses[name] = batch.read(name, message)
        except WireRefused as error:
            batch.failed[name] = error.what
        except Exception as error:  # of any kind: one unusable answer does not stop the others
            batch.failed[name] = f"an answer that cannot be used: {type(error).__name__}"
        if name in batch.failed:
            LOGGER.info(f"'{name}': {batch.failed[name]}")

    # End of the run

    def dismiss(self, connection: ClientConnection, reason: str, finished: bool = False) -> None:
        """Send a client the message that it takes no further part."""
        if connection.node is not None:
            content = pack(self.run, 0, messages.GoodbyeRequest(reason=reason, finished=finished))
            self._transmit(connection, SentRequest(connection.name, "goodbye", request=content), 60.0)

    def dismiss_all(self) -> None:
        """Send all clients the end of the run, and wait a moment for their answers."""
        for connection in self.connections.values():
            self.dismiss(connection, "the run is finished", finished=True)
        until = time.monotonic() + GOODBYE
        while any(sent.what == "goodbye" for sent in self._sent_requests.values()) and time.monotonic() < until:
            for arrival in self.link.receive(0.5):
                self._sent_requests.pop(arrival.ticket, None)


def check_round(message: Message, round: int) -> None:
    """Refuse an answer of another round."""
    if message.round != round:
        raise WireRefused(f"an answer of round {message.round + 1}, where one of round {round + 1} belongs")


def _reason(body: messages.MessageBody) -> str:
    """Return why a client does not take part, from a message that is not the expected one."""
    return body.why if isinstance(body, messages.RefusalResponse) else f"it answered with '{body.what}'"
