"""Who is there, who was asked what, and what came back: the organiser's half of every conversation.

A participant that appears is greeted, and told what was agreed; then it can be asked. One whose process is a new one, by
its session, is greeted anew and asked once more. Who gave no answer by the deadline is gone: still asked, but no longer
waited for, until it is heard of again.
"""

from __future__ import annotations

import contextlib
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

LOOK = 0.5  # seconds between two looks at who is connected
PROBE = 5.0  # seconds of silence after which a greeting asks whether it is still the same process; then twice as many
SELDOM = 60.0  # but not more
GREETING = 600.0  # seconds that an answer to a greeting may take: somebody may have to consent
LATE = "no answer in time"
RESENDS = 5  # times that a question goes out anew because the line failed

Stage = Literal["away", "greeted", "refused", "known", "ready"]
Speak = Callable[[str], None]


@dataclass
class ClientConnection:
    """A participant, as the organiser sees it."""

    name: str
    node: int | None = None  # its number on the link, while it is connected
    session: str = ""
    stage: Stage = "away"
    gone: bool = False
    greeted: float = 0.0  # when, by the clock of this process
    awaits: str = ""  # a greeting that is not answered yet
    unanswered: int = 0  # greetings since it was last heard of

    @property
    def patience(self) -> float:
        """Seconds until it is greeted again."""
        return min(PROBE * 2.0**self.unanswered, SELDOM)

    @property
    def is_silent(self) -> bool:
        """A greeting has not been answered for a while: it may have gone to a process that is no more."""
        return not self.awaits or time.monotonic() - self.greeted > self.patience


class Coordinator:
    """Conversations with all participants over one link."""

    def __init__(
        self,
        link: Link,
        run: str,
        hello: messages.Invitation,
        host: AdmissionPolicy,
        speak: Speak,
        types: Types | None = None,
    ) -> None:
        self.link, self.run, self.host, self.types = link, run, host, types or {}
        self.members: dict[str, ClientConnection] = {}
        self._hello = pack(run, 0, hello)
        self._speak = speak
        self._errands: dict[str, SentRequest] = {}  # by ticket
        self._inquiries: list[RequestBatch] = []  # under way
        self._looked = -LOOK

    def clients_at(self, *stages: Stage) -> list[str]:
        """Participants at these stages."""
        return [name for name, member in self.members.items() if member.stage in stages]

    # Asking

    def ask(
        self,
        questions: Mapping[str, bytes],
        read: Callable[[str, Message], Any],
        rule: ResponseRule,
        what: str,
        stages: tuple[Stage, ...] = ("ready",),
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Ask, wait, and give back the answers; and of those who gave none, why."""
        needed = rule.needed(len(questions))
        with self.inquiry(read) as inquiry:
            for attempt in range(1, rule.attempts + 1):
                for name in [name for name in questions if name not in inquiry.got]:
                    inquiry.put(name, questions[name], rule.deadline)
                self._wait(inquiry, needed, stages)
                if len(inquiry.got) >= needed:
                    break
                self._too_few(inquiry, needed, what, attempt, rule)
            late = dict.fromkeys(inquiry.open, f"no answer within {rule.deadline:g} s")
        for name in late:
            self.give_up(name, f"{what}: '{name}' gave no answer within {rule.deadline:g} s; going on without it")
        return inquiry.got, {**inquiry.bad, **late}

    @contextlib.contextmanager
    def inquiry(self, read: Callable[[str, Message], Any]) -> Iterator[RequestBatch]:
        """Questions under way, until this ends; what comes later is late."""
        inquiry = RequestBatch(read)
        self._inquiries.append(inquiry)
        try:
            yield inquiry
        finally:
            self._inquiries.remove(inquiry)
            self._forget(inquiry)

    def process_messages(self, inquiry: RequestBatch, seconds: float) -> None:
        """Send what is to be sent, and listen; what is still open after its time is withdrawn, as a bad answer."""
        for name in inquiry.open:
            left = inquiry.until[name] - time.monotonic()
            if left > 0:
                self._send(name, inquiry, left, ("ready",))
            else:
                inquiry.bad[name] = LATE
                self._forget(inquiry, name)
        if not inquiry.got and not inquiry.bad:
            self.turn(seconds)

    def _forget(self, inquiry: RequestBatch, name: str | None = None) -> None:
        """Questions that nobody waits for any more take no room."""
        done = [t for t, e in self._errands.items() if e.inquiry is inquiry and (name is None or e.name == name)]
        for ticket in done:
            del self._errands[ticket]

    def is_connected(self, name: str) -> bool:
        """Can it be asked, and is it likely to answer?"""
        member = self._member(name)
        return member.stage == "ready" and not member.gone

    def _too_few(self, inquiry: RequestBatch, needed: int, what: str, attempt: int, rule: ResponseRule) -> None:
        count, asked = len(inquiry.got), len(inquiry.questions)
        told = f"{what}: {count} of {asked} answered, and {needed} must"
        if attempt == rule.attempts:
            why = [f"'{name}': {reason}" for name, reason in inquiry.bad.items()]
            why += [f"'{name}': no answer within {rule.deadline:g} s" for name in inquiry.open]
            raise TooFewAnswers(
                "; ".join([told, *why]),
                remedy="see to those that are missing, then go on with --resume; nothing is lost",
            )
        self._speak(f"{told}; asking again ({attempt + 1} of {rule.attempts})")

    def _wait(self, inquiry: RequestBatch, needed: int, stages: tuple[Stage, ...]) -> None:
        """Until all have answered whom one waits for, or time is up."""
        while inquiry.open and (left := inquiry.until[inquiry.open[0]] - time.monotonic()) > 0:
            for name in inquiry.open:
                self._send(name, inquiry, left, stages)
            waited_for = [name for name in inquiry.open if not self._is_given_up(name)]
            if not waited_for and len(inquiry.got) >= needed:
                return
            self.turn(min(left, 1.0))

    def _send(self, name: str, inquiry: RequestBatch, left: float, stages: tuple[Stage, ...]) -> None:
        member, now = self._member(name), time.monotonic()
        if name in inquiry.asked:
            if now - max(inquiry.asked[name], member.greeted) > member.patience:
                self._greet(member)
            return
        if member.node is None or member.stage not in stages:
            return
        inquiry.sent[name] = inquiry.sent.get(name, 0) + 1
        if inquiry.sent[name] > RESENDS:
            inquiry.bad[name] = "the line fails again and again"
            return
        inquiry.asked[name] = now
        question = inquiry.questions[name]
        self._errands[self.link.send(member.node, question, left)] = SentRequest(name, "question", inquiry, question)

    def _is_given_up(self, name: str) -> bool:
        member = self._member(name)
        return member.gone or member.stage == "refused"

    def _member(self, name: str) -> ClientConnection:
        return self.members.setdefault(name, ClientConnection(name))

    # Listening

    def turn(self, seconds: float) -> None:
        """See who has come or gone, and take in what has arrived, waiting so long at most for the first."""
        if time.monotonic() - self._looked > LOOK:
            self._refresh_connections()
        for arrival in self.link.receive(seconds):
            self._take(arrival)

    def send_agreement_to_all(self) -> None:
        """Something was agreed: tell those who are there."""
        for member in self.members.values():
            if member.stage == "known":
                self._send_agreement(member)

    def give_up(self, name: str, told: str = "") -> None:
        """Do not wait for one that is not there, until it is heard of."""
        member = self._member(name)
        if told and not member.gone:
            self._speak(told)
        member.gone = True

    def _refresh_connections(self) -> None:
        self._looked = time.monotonic()
        connected = {name: node for node, name in self.link.nodes().items()}
        for member in self.members.values():
            if member.node is not None and member.name not in connected:
                self._speak(f"'{member.name}' is disconnected")
                member.node, member.awaits = None, ""
                member.stage = "away"
        for name, node in connected.items():
            member = self._member(name)
            if member.node is None:
                member.node = node
            if member.stage in ("away", "greeted") and member.is_silent:
                self._greet(member)
        self.send_agreement_to_all()

    def _greet(self, member: ClientConnection) -> None:
        if member.node is None:
            return
        member.greeted, member.unanswered = time.monotonic(), min(member.unanswered + 1, 10)
        if member.stage == "away":
            member.stage = "greeted"
        member.awaits = self.link.send(member.node, self._hello, GREETING)
        self._errands[member.awaits] = SentRequest(member.name, "greeting")

    def _send_agreement(self, member: ClientConnection) -> None:
        agreement = self.host.agreement(member.name)
        if agreement is None or member.node is None or not member.is_silent:
            return
        member.greeted, member.unanswered = time.monotonic(), min(member.unanswered + 1, 10)
        content = pack(self.run, 0, messages.AgreementRequest(agreement=agreement, tell="ready"))
        member.awaits = self.link.send(member.node, content, GREETING)
        self._errands[member.awaits] = SentRequest(member.name, "agreement")

    def _take(self, arrival: ReceivedMessage) -> None:
        errand = self._errands.pop(arrival.ticket, None)
        if errand is None:
            return  # too late
        member = self._member(errand.name)
        if member.awaits == arrival.ticket:
            member.awaits = ""
        if arrival.content is not None:
            member.unanswered = 0
        try:
            message = self._message(arrival)
        except WireRefused as error:
            self._reject_message(member, errand, error)
            return
        if message is None:
            self._line_failed(member, errand, arrival.problem)
            return
        if member.gone:
            self._speak(f"'{member.name}' is back; what it answered too late is not used")
            member.gone = False
        if isinstance(message.words, messages.RefusalResponse) and message.words.kind == "unready":
            self._reset_client(member, errand)
        elif errand.what == "greeting":
            self._greeted(member, message)
        elif errand.what == "agreement":
            self._agreed(member, message)
        elif errand.what == "question":
            self._answered(member, errand, message)

    def _message(self, arrival: ReceivedMessage) -> Message | None:
        if arrival.content is None:
            return None
        message = unpack(arrival.content, self.types)
        if message.run != self.run and not isinstance(message.words, messages.RefusalResponse):
            raise WireRefused("an answer of another run")
        return message

    def _reject_message(self, member: ClientConnection, errand: SentRequest, error: WireRefused) -> None:
        """What came is no message: the participant is named, its answer dropped."""
        self._speak(f"'{member.name}' sent {error.what}")
        if errand.is_open and errand.inquiry is not None:
            errand.inquiry.bad[member.name] = f"it sent {error.what}"
        elif errand.what != "question":
            member.stage = "refused"
            if isinstance(error, OtherVersion):
                self.dismiss(member, error.what)

    def _line_failed(self, member: ClientConnection, errand: SentRequest, problem: str) -> None:
        """Nothing came: it is greeted once it is there, and asked again."""
        if errand.is_open and errand.inquiry is not None:
            errand.inquiry.asked.pop(member.name, None)
        if errand.what != "goodbye" and member.node is not None:
            self._speak(problem if problem.startswith(f"'{member.name}'") else f"'{member.name}': {problem}")
            member.node, member.stage = None, "away"

    def _reset_client(self, member: ClientConnection, errand: SentRequest) -> None:
        """Another process than the one that was greeted: it must be told everything again."""
        if errand.is_open and errand.inquiry is not None:
            errand.inquiry.asked.pop(member.name, None)
        member.session, member.stage = "", "away"
        if member.is_silent:
            self._greet(member)

    def _greeted(self, member: ClientConnection, message: Message) -> None:
        told = message.words
        if not isinstance(told, messages.TableDescription):
            why = (
                told.why if isinstance(told, messages.RefusalResponse) else f"it answered a greeting with '{told.what}'"
            )
            self._refuse(member, why)
            return
        if told.session == member.session and member.stage == "ready":
            return  # a busy one, asked whether it is still there
        why = self.host.admit(member.name, told)
        if why:
            self._refuse(member, why)
            self.dismiss(member, why)
            return
        if member.session != told.session:
            for inquiry in self._inquiries:
                inquiry.asked.pop(member.name, None)
            self._speak(f"'{member.name}' is here")
        member.session, member.stage = told.session, "known"
        self._send_agreement(member)

    def _agreed(self, member: ClientConnection, message: Message) -> None:
        if isinstance(message.words, messages.ReadyResponse):
            member.stage = "ready"
            self.host.is_ready(member.name, message.words)
            return
        why = (
            message.words.why
            if isinstance(message.words, messages.RefusalResponse)
            else f"it said '{message.words.what}'"
        )
        self._refuse(member, why)

    def _refuse(self, member: ClientConnection, why: str) -> None:
        member.stage = "refused"
        self._speak(f"'{member.name}' does not take part: {why}")

    def _answered(self, member: ClientConnection, errand: SentRequest, message: Message) -> None:
        name, inquiry = member.name, errand.inquiry
        if inquiry is None or not errand.is_open:
            return  # a second time
        try:
            if isinstance(message.words, messages.RefusalResponse):
                raise RequestDeclined(message.words.why)
            inquiry.got[name] = inquiry.read(name, message)
        except (RequestDeclined, WireRefused) as error:
            inquiry.bad[name] = error.what if isinstance(error, WireRefused) else str(error)
        except Exception as error:  # of whatever kind: one strange answer does not stop the others
            inquiry.bad[name] = f"an answer that cannot be used: {type(error).__name__}"
        if name in inquiry.bad:
            self._speak(f"'{name}': {inquiry.bad[name]}")

    # The end

    def dismiss(self, member: ClientConnection, reason: str, finished: bool = False) -> None:
        """Tell one that it is not needed any more."""
        if member.node is not None:
            content = pack(self.run, 0, messages.GoodbyeRequest(reason=reason, finished=finished))
            self._errands[self.link.send(member.node, content, 60.0)] = SentRequest(member.name, "goodbye")

    @property
    def _are_leaving(self) -> bool:
        """Has somebody been told goodbye, and not answered?"""
        return any(errand.what == "goodbye" for errand in self._errands.values())

    def dismiss_all(self, reason: str = "", seconds: float = 10.0) -> None:
        """Tell all that it is over, and wait a moment for them to hear it."""
        there = [member for member in self.members.values() if member.node is not None]
        for member in there:
            self.dismiss(member, reason, finished=True)
        until = time.monotonic() + seconds
        while self._are_leaving and time.monotonic() < until:
            for arrival in self.link.receive(0.5):
                self._errands.pop(arrival.ticket, None)
