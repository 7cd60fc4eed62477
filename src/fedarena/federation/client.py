"""A participant: it has the rows, and answers what the organiser asks. Nothing it says is not in words.py."""

from __future__ import annotations

import json
import threading
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from fedarena.common.files import writing
from fedarena.config.errors import FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.engine.client import Broadcast
from fedarena.engine.setup import build_model_and_algorithm, check_device
from fedarena.federation import messages
from fedarena.federation.client_context import ClientContext
from fedarena.federation.client_data import ClientFile, ClientSamples, ClientTable, statistics_layout
from fedarena.federation.client_states import ClientStateStore, ticket
from fedarena.federation.client_worker import STRANGE, ClientWorker
from fedarena.federation.consent import (
    description_lines,
    differs_beyond_budget,
    experiment_from_text,
    label_lines,
    what_leaves,
)
from fedarena.federation.redaction import ShareableError, full_message, redacted_message
from fedarena.federation.release_log import REFUSED, RELEASED, Binding, ReleaseLog
from fedarena.federation.request_limits import RequestLimits
from fedarena.federation.secure_aggregation import ClientMasks
from fedarena.federation.statistics_release import MASKED_FROM, STALE_KEY, StatisticsMask, encoded
from fedarena.federation.wire_format import NOTHING, Message, Payload, WireRefused, body_of, pack, unpack
from fedarena.models.pytree import types_near
from fedarena.models.task import Buffers, sha256
from fedarena.privacy.secure_aggregation import MaskedExchange
from fedarena.runtimes.run_task import one_thread
from fedarena.transport.certificates import write_secret

LEAST = 10  # training samples over which sums are released, at least
LOGGED = {  # answers that reveal something, as the log of releases calls them
    "described": "description: sample counts, columns, levels and labels",
    "counted": "sample counts",
    "statistics": "sums over training samples",
    "done": "an update",
    "trained": "loss and steps of a training",
    "recomputed": "BatchNorm statistics",
    "looked": "evaluation counts and losses",
    "evaluationsums": "confusion matrix, losses and bins of confidence over test samples",
    "ownmetrics": "AUC and average precision of this client, readable by the server",
    "shown": "the model that this client keeps",
    "revealed": "shares of masks",
    "skips": "a reason not to train",
    "broke": "the kind of an error",
}
Speak = Callable[[str], None]
Consent = Callable[[Experiment, list[str]], str]  # the experiment, and what leaves: why not, or nothing


@dataclass
class Membership:
    """A run in which this participant takes part."""

    run: str
    text: str  # the experiment
    clients: int
    shares_models: bool
    experiment: Experiment
    table: ClientTable
    agreed: str = ""  # its place
    mask: StatisticsMask | None = None  # the key of the release of statistics under way
    rows: ClientSamples | None = None
    site: ClientContext | None = None
    memories: ClientStateStore | None = None
    types: dict[str, type] | None = None
    limits: RequestLimits | None = None
    seals: ClientMasks | None = None  # of the exchange under way, where answers are masked


class UnknownRun(Exception):
    """This process does not know the run."""


class FederationClient:
    """Answers messages, one at a time."""

    def __init__(
        self,
        file: ClientFile,
        folder: Path,
        *,
        consent: Consent = lambda experiment, leaves: "",
        speak: Speak = lambda text: None,
        least: int = LEAST,
        secret: int | None = None,
        runs: int = 1,
        server: str = "",
        new_release: bool = False,
    ) -> None:
        self.file, self.folder, self.least = file, folder, least
        self.session = uuid.uuid4().hex
        self.over: messages.GoodbyeRequest | None = None
        self.trainings = 0  # made here
        self.releases = ReleaseLog(folder, server, new_release)
        self.runs: dict[str, bool] = {}  # runs that this process takes part in, and whether each is finished
        self._most_runs = runs
        self._consent, self._speak, self._secret = consent, speak, secret
        self._member: Membership | None = None
        self._one_at_a_time = threading.Lock()

    def handle(self, content: bytes) -> bytes:
        """The answer to a message. Whatever is wrong is told in words: there, and here."""
        with self._one_at_a_time:
            run, round = "", 0
            try:
                message = body_of(content)
                run, round = message.run, message.round
                answer, load = self._answered(message, content)
                self._log(run, round, answer)
            except UnknownRun as error:
                answer, load = messages.RefusalResponse(why=str(error), kind="unready"), NOTHING
            except Exception as error:  # of any kind: the server must hear of it, and this process continue
                answer, load = messages.RefusalResponse(why=redacted_message(error)), NOTHING
                self._speak(full_message(error))
                if not isinstance(error, FedarenaError | OSError):
                    self._speak("".join(traceback.format_exception(error)))
                with suppress(FedarenaError):  # on a full disk the refusal cannot be logged, and is sent all the same
                    self._log(run, round, answer)
            return pack(run, round, answer, load)

    def _log(self, run: str, round: int, answer: messages.MessageBody) -> None:
        """Log what leaves before it does: an answer that cannot be logged is not sent."""
        if isinstance(answer, messages.RefusalResponse):
            self.releases.record(REFUSED, run, answer.why, round=round + 1)
        elif answer.what in LOGGED:
            what = LOGGED[answer.what]
            if isinstance(answer, messages.EvaluationSums) and answer.histograms:
                what += f", with score histograms of {answer.histograms} bins"
            if isinstance(answer, messages.StatisticsResponse | messages.EvaluationSums) and self._member is not None:
                masked = self._member.clients >= MASKED_FROM
                what += f", masked among {self._member.clients} clients" if masked else ", readable by the server"
            self.releases.record(RELEASED, run, what, round=round + 1)

    def _answered(self, message: Message, content: bytes) -> tuple[messages.MessageBody, Payload]:
        asked = message.words
        if isinstance(asked, messages.Invitation):
            return self._hello(message.run, asked), NOTHING
        if isinstance(asked, messages.GoodbyeRequest):
            self._leave(message.run, asked)
            return messages.GoodbyeResponse(), NOTHING
        member = self._member
        if member is None or member.run != message.run:
            raise UnknownRun("this process has not been greeted")
        if isinstance(asked, messages.AgreementRequest):
            return self._agree(member, asked), NOTHING
        if isinstance(asked, messages.StatisticsKeyRequest):
            member.mask = StatisticsMask()
            return messages.StatisticsKey(key=member.mask.public), NOTHING
        if isinstance(asked, messages.StatisticsRequest):
            return messages.StatisticsResponse(), self._statistics(member, asked)
        if member.site is None or member.memories is None or member.limits is None:
            raise UnknownRun("nothing has been agreed with this process")
        if isinstance(asked, messages.KeysRequest | messages.SharesRequest | messages.RevealRequest):
            return self._keep_secrets(member, message), NOTHING
        desk = ClientWorker(member.site, member.memories, message.round, member.shares_models, self._speak, self.least)
        masked: AbstractContextManager[None] = nullcontext()
        if isinstance(asked, messages.RoundRequest):
            if member.seals is not None and member.seals.place != _place(member, message.round, asked.exchange):
                member.seals = None  # another exchange begins: what belongs to the one before stays closed
            if asked.shares is not None:
                seals = self._seals(member, message.round, asked.exchange)
                masked = desk.masked_by(seals, asked, content)
        with one_thread(), masked:
            desk.check_agreed(asked)
            member.limits.check(asked, message.round, content)
            load = unpack(content, member.types).load
            if isinstance(asked, messages.EvaluationSumsRequest):
                integers, client = desk.evaluation_sums(asked, load), member.site.agreed.client
                return messages.EvaluationSums(histograms=asked.histograms), _hidden(
                    member, integers, client, asked.keys
                )
            found = desk.answered(asked, load)
        if isinstance(asked, messages.RoundRequest | messages.AsyncTrainRequest) and isinstance(
            found[0], messages.RoundResponse | messages.AsyncTrainResponse
        ):
            self.trainings += 1
            self._speak(f"round {message.round + 1}: trained, loss {found[0].loss:.4f}")
        return found

    # Masks

    def _keep_secrets(self, member: Membership, message: Message) -> messages.MessageBody:
        """Steps of secure aggregation in which nothing is trained."""
        assert member.site is not None
        assert member.memories is not None
        asked, round, client = message.words, message.round, member.site.agreed.client
        if isinstance(asked, messages.KeysRequest):
            member.seals = ClientMasks(
                member.experiment.seed_for("masks"), client, _place(member, round, asked.exchange)
            )
            return member.seals.keyed()
        if isinstance(asked, messages.SharesRequest):
            seals = self._seals(member, round, asked.exchange)
            return seals.dealt(asked.keys, MaskedExchange(round, asked.exchange, tuple(asked.keys)))
        assert isinstance(asked, messages.RevealRequest)
        seals = self._seals(member, round, asked.exchange)
        told = seals.revealed(asked.answered)
        member.memories.reveal_once(ticket(round, asked.exchange), asked.answered)
        return told

    @staticmethod
    def _seals(member: Membership, round: int, exchange: int) -> ClientMasks:
        """The secrets of this exchange; another process, or another exchange, had others."""
        seals = member.seals
        if seals is None or seals.place != _place(member, round, exchange):
            raise ShareableError("the secrets of this exchange are gone", remedy="it takes part again in the next one")
        return seals

    # Getting to know each other

    def _hello(self, run: str, hello: messages.Invitation) -> messages.MessageBody:
        member = self._member
        said = (run, hello.experiment, hello.shares_models, hello.clients)
        if member is not None and (member.run, member.text, member.shares_models, member.clients) == said:
            return member.table.described(self.session)
        if run not in self.runs and len(self.runs) >= self._most_runs:
            raise ShareableError(
                f"this process takes part in {len(self.runs)} run{'s' * (len(self.runs) > 1)} and no other",
                remedy="start it again, or with --runs, to take part in more",
                where="--runs",
            )
        experiment = experiment_from_text(hello.experiment)
        check_device(experiment.device)
        table = self.file.opened(experiment.data.made)
        described = table.described(self.session)
        values = [*description_lines(described), *label_lines(experiment, table.class_counts())]
        why = self._agrees(run, hello, experiment, values)
        if why:
            return messages.RefusalResponse(why=why)
        self.runs.setdefault(run, False)
        self._member = Membership(run, hello.experiment, hello.clients, hello.shares_models, experiment, table)
        return described

    def _leave(self, run: str, goodbye: messages.GoodbyeRequest) -> None:
        """End a run; the process ends with the last one, or where the server sends this client away."""
        self._speak(f"goodbye: {goodbye.reason}" if goodbye.reason else "goodbye")
        if run in self.runs:
            self.runs[run] = goodbye.finished
        if not goodbye.finished or (len(self.runs) >= self._most_runs and all(self.runs.values())):
            self.over = goodbye

    def _agrees(self, run: str, hello: messages.Invitation, experiment: Experiment, values: list[str]) -> str:
        """Say why this client does not take part, or nothing. A run that was agreed to may not become another one.

        `values` are what the first messages hold, in words.
        """
        path = self._folder(run) / "experiment.toml"
        text = f"# shares_models = {hello.shares_models}, clients = {hello.clients}\n{hello.experiment}"
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if before == text:
            return ""
        first = text.partition("\n")[0]
        if before and (not before.startswith(first) or differs_beyond_budget(experiment_from_text(before), experiment)):
            return "this run had another experiment before"
        leaves = what_leaves(experiment, hello.shares_models, hello.clients)
        why = self._consent(experiment, [*values, *leaves])
        if not why:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        return why

    def _folder(self, run: str) -> Path:
        if not (run.isascii() and run.isalnum() and len(run) <= 64):
            raise WireRefused("a run without a name")
        return self.folder / run

    def _agree(self, member: Membership, asked: messages.AgreementRequest) -> messages.MessageBody:
        agreed = asked.agreement
        rows = self._placed(member, agreed)
        if asked.tell == "counts":
            self._bind(member, agreed, rows)
            return rows.counted()
        if member.site is None or member.site.agreed != agreed:
            self._get_ready(member, agreed, rows)
        assert member.site is not None
        return messages.ReadyResponse(torch=torch.__version__, initial=sha256(member.site.initial))

    def _placed(self, member: Membership, agreed: messages.Agreement) -> ClientSamples:
        """Return the samples in the place that was agreed, which stays the same in a run."""
        if agreed.clients != member.clients:
            raise ShareableError(
                f"{agreed.clients} clients, and consent was given to {member.clients}", remedy="start a new run"
            )
        if member.rows is None or member.agreed != agreed.place:
            place = self._folder(member.run) / "place.json"
            self._check_unchanged(place, agreed.place, "this run has given this participant another place before")
            member.rows, member.agreed = member.table.placed(agreed), agreed.place
        return member.rows

    def _bind(self, member: Membership, agreed: messages.Agreement, rows: ClientSamples) -> None:
        """Refuse samples and columns that are not those of all earlier runs of this folder."""
        source, share = member.table.source, member.experiment.validate_share
        held_out = "" if share is None else json.dumps([share, member.experiment.seed])
        files = [path for path in (self.file.path, self.file.test) if path is not None]
        how = json.dumps([source.label, source.missing])
        self.releases.bind(Binding.of(files, rows.train, held_out, agreed, how), member.run)

    def _statistics(self, member: Membership, asked: messages.StatisticsRequest) -> Payload:
        """Release sums over the training samples, masked unless fewer than three clients take part."""
        agreed = asked.agreement
        rows, layout = self._placed(member, agreed), statistics_layout(member.experiment, agreed)
        if not layout.size:
            raise ShareableError("the agreed experiment needs no statistics", remedy=STRANGE)
        self._bind(member, agreed, rows)
        return _hidden(member, rows.statistics(layout, self.least).integers, agreed.client, asked.keys)

    def _get_ready(self, member: Membership, agreed: messages.Agreement, rows: ClientSamples) -> None:
        """Build the model, over samples that must be those of the first time."""
        folder = self._folder(member.run)
        data, partition = rows.dealt(agreed, member.experiment)
        other = "the rows are not those with which this participant joined the run"
        self._check_unchanged(folder / "rows.sha256", data.fingerprint(), other)
        self._bind(member, agreed, rows)
        site = ClientContext(member.experiment, data, partition, agreed, self._noise_seed(folder / "secret"))
        with one_thread():
            build_model_and_algorithm(site, agreed.clients)
        member.memories = ClientStateStore(folder, site.algorithm)
        member.limits = RequestLimits(folder, site, member.shares_models)
        member.types = {**types_near(site.algorithm), Broadcast.__qualname__: Broadcast, Buffers.__qualname__: Buffers}
        member.site = site
        counts = f"{data.n_train} rows to train on, {len(data.x) - data.n_train} to test on"
        self._speak(f"ready as client {agreed.client} of {agreed.clients}, with {counts}")

    @staticmethod
    def _check_unchanged(path: Path, now: str, otherwise: str) -> None:
        """What was so at first must be so later."""
        if not path.exists():
            with writing(path):
                path.write_text(now, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != now:
            raise ShareableError(otherwise, remedy="restore what it had, or take part in a new run")

    def _noise_seed(self, path: Path) -> int:
        """Seeds the noise that hides this participant; nobody else knows it."""
        if self._secret is not None:
            return self._secret
        if not path.exists():
            with writing(path):
                write_secret(path, uuid.uuid4().hex.encode())
        return int(path.read_text(encoding="utf-8"), 16)


def _hidden(member: Membership, integers: Sequence[int], client: int, keys: Mapping[int, str]) -> Payload:
    """Mask integers with the keys of all clients, unless fewer than three take part."""
    if member.clients < MASKED_FROM:
        return Payload.of(encoded(integers))
    if {*keys} != {*range(member.clients)} or member.mask is None:
        raise ShareableError(STALE_KEY, remedy="the server must ask for keys again")
    return Payload.of(member.mask.masked(integers, client, keys))


def _place(member: Membership, round: int, exchange: int) -> str:
    """What secrets are bound to."""
    return f"{member.run} {round} {exchange}"
