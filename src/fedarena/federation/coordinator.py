"""Who is there, who was asked what, and what came back: the organiser's half of every conversation.

A participant that appears is greeted, and told what was agreed; then it can be asked. One whose process is a new one, by
its session, is greeted anew and asked once more. Who gave no answer by the deadline is gone: still asked, but no longer
waited for, until it is heard of again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedarena.federation import messages
from fedarena.federation.requests import (
    AdmissionPolicy,
    RequestBatch,
    RequestDeclined,
    ResponseRule,
    SentRequest,
    TooFewAnswers,
)
from fedarena.federation.wire_format import Message, OtherVersion, Types, WireRefused, pack, unpack
from fedarena.transport.flower_link import Link, ReceivedMessage

LOGGER = logging.getLogger(__name__)

LOOK = 0.5  # seconds between two looks at who is connected
PROBE = 5.0  # seconds of silence after which a greeting asks whether it is still the same process; then twice as many
SELDOM = 60.0  # but not more
GREETING = 600.0  # seconds that an answer to a greeting may take: somebody may have to consent
LATE = "no answer in time"
RESENDS = 5  # times that a question goes out anew because the line failed

Stage = Literal["away", "invited", "refused", "known", "ready"]


@dataclass
class ClientConnection:
    """A participant, as the organiser sees it."""

    name: str
    node: int | None = None  # its number on the link, while it is connected
    session: str = ""
    stage: Stage = "away"
    gone: bool = False
    invited_at: float = 0.0  # when, by the clock of this process
    awaited_ticket: str = ""  # a greeting that is not answered yet
    unanswered: int = 0  # greetings since it was last heard of

    @property
    def patience(self) -> float:
        """Seconds until it is greeted again."""
        return min(PROBE * 2.0**self.unanswered, SELDOM)

    @property
    def is_silent(self) -> bool:
        """A greeting has not been answered for a while: it may have gone to a process that is no more."""
        return not self.awaited_ticket or time.monotonic() - self.invited_at > self.patience


class Coordinator:
    """Conversations with all participants over one link."""

    def __init__(
        self,
        link: Link,
        run: str,
        invitation: messages.Invitation,
        policy: AdmissionPolicy,
        types: Types | None = None,
    ) -> None:
        self.link, self.run, self.policy, self.types = link, run, policy, types or {}
        self.connections: dict[str, ClientConnection] = {}
        self._invitation = pack(run, 0, invitation)
        self._sent_requests: dict[str, SentRequest] = {}  # by ticket
        self._batches: list[RequestBatch] = []  # under way
        self._refreshed_at = -LOOK

    def clients_at(self, *stages: Stage) -> list[str]:
        """Participants at these stages."""
        return [name for name, connection in self.connections.items() if connection.stage in stages]

    # Asking

    def ask(
        self,
        requests: Mapping[str, bytes],
        read: Callable[[str, Message], Any],
        rule: ResponseRule,
        what: str,
        stages: tuple[Stage, ...] = ("ready",),
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Ask, wait, and give back the answers; and of those who gave none, why."""
        needed = rule.needed(len(requests))
        with self.open_batch(read) as batch:
            for attempt in range(1, rule.attempts + 1):
                for name in [name for name in requests if name not in batch.responses]:
                    batch.add(name, requests[name], rule.deadline)
                self._wait(batch, needed, stages)
                if len(batch.responses) >= needed:
                    break
                self._too_few(batch, needed, what, attempt, rule)
            late = dict.fromkeys(batch.open, f"no answer within {rule.deadline:g} s")
        for name in late:
            self.give_up(name, f"{what}: '{name}' gave no answer within {rule.deadline:g} s; going on without it")
        return batch.responses, {**batch.failed, **late}

    @contextlib.contextmanager
    def open_batch(self, read: Callable[[str, Message], Any]) -> Iterator[RequestBatch]:
        """Questions under way, until this ends; what comes later is late."""
        batch = RequestBatch(read)
        self._batches.append(batch)
        try:
            yield batch
        finally:
            self._batches.remove(batch)
            self._forget(batch)

    def process_messages(self, batch: RequestBatch, seconds: float) -> None:
        """Send what is to be sent, and listen; what is still open after its time is withdrawn, as a bad answer."""
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
        """Questions that nobody waits for any more take no room."""
        done = [t for t, e in self._sent_requests.items() if e.batch is batch and (name is None or e.name == name)]
        for ticket in done:
            del self._sent_requests[ticket]

    def is_connected(self, name: str) -> bool:
        """Can it be asked, and is it likely to answer?"""
        connection = self._connection(name)
        return connection.stage == "ready" and not connection.gone

    def _too_few(self, batch: RequestBatch, needed: int, what: str, attempt: int, rule: ResponseRule) -> None:
        count, asked = len(batch.responses), len(batch.requests)
        told = f"{what}: {count} of {asked} answered, and {needed} must"
        if attempt == rule.attempts:
            why = [f"'{name}': {reason}" for name, reason in batch.failed.items()]
            why += [f"'{name}': no answer within {rule.deadline:g} s" for name in batch.open]
            raise TooFewAnswers(
                "; ".join([told, *why]),
                remedy="see to those that are missing, then go on with --resume; nothing is lost",
            )
        LOGGER.info(f"{told}; asking again ({attempt + 1} of {rule.attempts})")

    def _wait(self, batch: RequestBatch, needed: int, stages: tuple[Stage, ...]) -> None:
        """Until all have answered whom one waits for, or time is up."""
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
            batch.failed[name] = "the line fails again and again"
            return
        batch.sent_at[name] = now
        request = batch.requests[name]
        self._sent_requests[self.link.send(connection.node, request, left)] = SentRequest(
            name, "request", batch, request
        )

    def _is_given_up(self, name: str) -> bool:
        connection = self._connection(name)
        return connection.gone or connection.stage == "refused"

    def _connection(self, name: str) -> ClientConnection:
        return self.connections.setdefault(name, ClientConnection(name))

    # Listening

    def turn(self, seconds: float) -> None:
        """See who has come or gone, and take in what has arrived, waiting so long at most for the first."""
        if time.monotonic() - self._refreshed_at > LOOK:
            self._refresh_connections()
        for arrival in self.link.receive(seconds):
            self._take(arrival)

    def send_agreement_to_all(self) -> None:
        """Something was agreed: tell those who are there."""
        for connection in self.connections.values():
            if connection.stage == "known":
                self._send_agreement(connection)

    def give_up(self, name: str, told: str = "") -> None:
        """Do not wait for one that is not there, until it is heard of."""
        connection = self._connection(name)
        if told and not connection.gone:
            LOGGER.info(told)
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
        if connection.node is None:
            return
        connection.invited_at, connection.unanswered = time.monotonic(), min(connection.unanswered + 1, 10)
        if connection.stage == "away":
            connection.stage = "invited"
        connection.awaited_ticket = self.link.send(connection.node, self._invitation, GREETING)
        self._sent_requests[connection.awaited_ticket] = SentRequest(connection.name, "invitation")

    def _send_agreement(self, connection: ClientConnection) -> None:
        agreement = self.policy.agreement(connection.name)
        if agreement is None or connection.node is None or not connection.is_silent:
            return
        connection.invited_at, connection.unanswered = time.monotonic(), min(connection.unanswered + 1, 10)
        content = pack(self.run, 0, messages.AgreementRequest(agreement=agreement, tell="ready"))
        connection.awaited_ticket = self.link.send(connection.node, content, GREETING)
        self._sent_requests[connection.awaited_ticket] = SentRequest(connection.name, "agreement")

    def _take(self, arrival: ReceivedMessage) -> None:
        sent = self._sent_requests.pop(arrival.ticket, None)
        if sent is None:
            return  # too late
        connection = self._connection(sent.name)
        if connection.awaited_ticket == arrival.ticket:
            connection.awaited_ticket = ""
        if arrival.content is not None:
            connection.unanswered = 0
        try:
            message = self._message(arrival)
        except WireRefused as error:
            self._reject_message(connection, sent, error)
            return
        if message is None:
            self._take_failure(connection, sent, arrival.problem)
            return
        if connection.gone:
            LOGGER.info(f"'{connection.name}' is back; what it answered too late is not used")
            connection.gone = False
        if isinstance(message.body, messages.RefusalResponse) and message.body.kind == "unready":
            self._reset_client(connection, sent)
        elif sent.what == "invitation":
            self._take_description(connection, message)
        elif sent.what == "agreement":
            self._take_readiness(connection, message)
        elif sent.what == "request":
            self._take_response(connection, sent, message)

    def _message(self, arrival: ReceivedMessage) -> Message | None:
        if arrival.content is None:
            return None
        message = unpack(arrival.content, self.types)
        if message.run != self.run and not isinstance(message.body, messages.RefusalResponse):
            raise WireRefused("an answer of another run")
        return message

    def _reject_message(self, connection: ClientConnection, sent: SentRequest, error: WireRefused) -> None:
        """What came is no message: the participant is named, its answer dropped."""
        LOGGER.info(f"'{connection.name}' sent {error.what}")
        if sent.is_open and sent.batch is not None:
            sent.batch.failed[connection.name] = f"it sent {error.what}"
        elif sent.what != "request":
            connection.stage = "refused"
            if isinstance(error, OtherVersion):
                self.dismiss(connection, error.what)

    def _take_failure(self, connection: ClientConnection, sent: SentRequest, problem: str) -> None:
        """Nothing came: it is greeted once it is there, and asked again."""
        if sent.is_open and sent.batch is not None:
            sent.batch.sent_at.pop(connection.name, None)
        if sent.what != "goodbye" and connection.node is not None:
            LOGGER.info(problem if problem.startswith(f"'{connection.name}'") else f"'{connection.name}': {problem}")
            connection.node, connection.stage = None, "away"

    def _reset_client(self, connection: ClientConnection, sent: SentRequest) -> None:
        """Another process than the one that was greeted: it must be told everything again."""
        if sent.is_open and sent.batch is not None:
            sent.batch.sent_at.pop(connection.name, None)
        connection.session, connection.stage = "", "away"
        if connection.is_silent:
            self._invite(connection)

    def _take_description(self, connection: ClientConnection, message: Message) -> None:
        told = message.body
        if not isinstance(told, messages.TableDescription):
            why = (
                told.why if isinstance(told, messages.RefusalResponse) else f"it answered a greeting with '{told.what}'"
            )
            self._refuse(connection, why)
            return
        if told.session == connection.session and connection.stage == "ready":
            return  # a busy one, asked whether it is still there
        why = self.policy.admit(connection.name, told)
        if why:
            self._refuse(connection, why)
            self.dismiss(connection, why)
            return
        if connection.session != told.session:
            for batch in self._batches:
                batch.sent_at.pop(connection.name, None)
            LOGGER.info(f"'{connection.name}' is here")
        connection.session, connection.stage = told.session, "known"
        self._send_agreement(connection)

    def _take_readiness(self, connection: ClientConnection, message: Message) -> None:
        if isinstance(message.body, messages.ReadyResponse):
            connection.stage = "ready"
            self.policy.is_ready(connection.name, message.body)
            return
        why = (
            message.body.why if isinstance(message.body, messages.RefusalResponse) else f"it said '{message.body.what}'"
        )
        self._refuse(connection, why)

    def _refuse(self, connection: ClientConnection, why: str) -> None:
        connection.stage = "refused"
        LOGGER.info(f"'{connection.name}' does not take part: {why}")

    def _take_response(self, connection: ClientConnection, sent: SentRequest, message: Message) -> None:
        name, batch = connection.name, sent.batch
        if batch is None or not sent.is_open:
            return  # a second time
        try:
            if isinstance(message.body, messages.RefusalResponse):
                raise RequestDeclined(message.body.why)
            batch.responses[name] = batch.read(name, message)
        except (RequestDeclined, WireRefused) as error:
            batch.failed[name] = error.what if isinstance(error, WireRefused) else str(error)
        except Exception as error:  # of whatever kind: one strange answer does not stop the others
            batch.failed[name] = f"an answer that cannot be used: {type(error).__name__}"
        if name in batch.failed:
            LOGGER.info(f"'{name}': {batch.failed[name]}")

    # The end

    def dismiss(self, connection: ClientConnection, reason: str, finished: bool = False) -> None:
        """Tell one that it is not needed any more."""
        if connection.node is not None:
            content = pack(self.run, 0, messages.GoodbyeRequest(reason=reason, finished=finished))
            self._sent_requests[self.link.send(connection.node, content, 60.0)] = SentRequest(
                connection.name, "goodbye"
            )

    @property
    def _are_leaving(self) -> bool:
        """Has somebody been told goodbye, and not answered?"""
        return any(sent.what == "goodbye" for sent in self._sent_requests.values())

    def dismiss_all(self, reason: str = "", seconds: float = 10.0) -> None:
        """Tell all that it is over, and wait a moment for them to hear it."""
        there = [connection for connection in self.connections.values() if connection.node is not None]
        for connection in there:
            self.dismiss(connection, reason, finished=True)
        until = time.monotonic() + seconds
        while self._are_leaving and time.monotonic() < until:
            for arrival in self.link.receive(0.5):
                self._sent_requests.pop(arrival.ticket, None)
