"""A participant: it has the rows, and answers what the organiser asks. Nothing it says is not in words.py."""

from __future__ import annotations

import threading
import traceback
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from fedarena.authority import write_secret
from fedarena.engine.federation import check_device, settle
from fedarena.engine.keep import writing
from fedarena.engine.masks import Turn
from fedarena.engine.tree import types_near
from fedarena.engine.work import Common
from fedarena.errors import FedarenaError
from fedarena.federation import words as say
from fedarena.federation.at_home import Told, for_oneself, for_others
from fedarena.federation.consent import beyond_budget, from_text, what_leaves
from fedarena.federation.desk import Desk
from fedarena.federation.memories import Memories, ticket
from fedarena.federation.own_site import OwnSite
from fedarena.federation.own_table import OwnFile, OwnRows, OwnTable, needs_means
from fedarena.federation.sealing import OwnSeals
from fedarena.federation.wire import NOTHING, Load, Message, WireRefused, pack, unpack, words_of
from fedarena.models.task import Buffers, sha256
from fedarena.runtime.one_job import one_thread
from fedarena.spec import Experiment

LEAST = 10  # training rows over which sums are told
Speak = Callable[[str], None]
Consent = Callable[[Experiment, list[str]], str]  # the experiment, and what leaves: why not, or nothing


@dataclass
class Membership:
    """A run in which this participant takes part."""

    run: str
    text: str  # the experiment
    shares_models: bool
    experiment: Experiment
    table: OwnTable
    agreed: str = ""  # its place
    rows: OwnRows | None = None
    site: OwnSite | None = None
    memories: Memories | None = None
    types: dict[str, type] | None = None
    seals: OwnSeals | None = None  # of the exchange under way, where answers are masked


class Unready(Exception):
    """This process does not know the run."""


class Participant:
    """Answers messages, one at a time."""

    def __init__(
        self,
        file: OwnFile,
        folder: Path,
        *,
        consent: Consent = lambda experiment, leaves: "",
        speak: Speak = lambda text: None,
        least: int = LEAST,
        secret: int | None = None,
    ) -> None:
        self.file, self.folder, self.least = file, folder, least
        self.session = uuid.uuid4().hex
        self.over: say.Goodbye | None = None
        self.trainings = 0  # made here
        self._consent, self._speak, self._secret = consent, speak, secret
        self._member: Membership | None = None
        self._one_at_a_time = threading.Lock()

    def handle(self, content: bytes) -> bytes:
        """The answer to a message. Whatever is wrong is told in words: there, and here."""
        with self._one_at_a_time:
            run, round = "", 0
            try:
                message = words_of(content)
                run, round = message.run, message.round
                answer, load = self._answered(message, content)
            except Unready as error:
                answer, load = say.Refused(why=str(error), kind="unready"), NOTHING
            except Exception as error:  # of whatever kind: the organiser must hear of it, and this process go on
                answer, load = say.Refused(why=for_others(error)), NOTHING
                self._speak(for_oneself(error))
                if not isinstance(error, FedarenaError | OSError):
                    self._speak("".join(traceback.format_exception(error)))
            return pack(run, round, answer, load)

    def _answered(self, message: Message, content: bytes) -> tuple[say.Words, Load]:
        asked = message.words
        if isinstance(asked, say.Hello):
            return self._hello(message.run, asked), NOTHING
        if isinstance(asked, say.Goodbye):
            self.over = asked
            self._speak(f"goodbye: {asked.reason}" if asked.reason else "goodbye")
            return say.Bye(), NOTHING
        member = self._member
        if member is None or member.run != message.run:
            raise Unready("this process has not been greeted")
        if isinstance(asked, say.Agree):
            return self._agree(member, asked), NOTHING
        if member.site is None or member.memories is None:
            raise Unready("nothing has been agreed with this process")
        if isinstance(asked, say.Keys | say.Deal | say.Reveal):
            return self._keep_secrets(member, message), NOTHING
        desk = Desk(member.site, member.memories, message.round, member.shares_models, self._speak)
        masked: AbstractContextManager[None] = nullcontext()
        if isinstance(asked, say.Work):
            if member.seals is not None and member.seals.place != _place(member, message.round, asked.exchange):
                member.seals = None  # another exchange begins: what belongs to the one before stays closed
            if asked.shares is not None:
                seals = self._seals(member, message.round, asked.exchange)
                masked = desk.masked_by(seals, asked, content)
        with one_thread(), masked:
            found = desk.answered(asked, unpack(content, member.types).load)
        if isinstance(asked, say.Work | say.Train) and isinstance(found[0], say.Done | say.Trained):
            self.trainings += 1
            self._speak(f"round {message.round + 1}: trained, loss {found[0].loss:.4f}")
        return found

    # Masks

    def _keep_secrets(self, member: Membership, message: Message) -> say.Words:
        """Steps of secure aggregation in which nothing is trained."""
        assert member.site is not None
        assert member.memories is not None
        asked, round, client = message.words, message.round, member.site.agreed.client
        if isinstance(asked, say.Keys):
            member.seals = OwnSeals(member.experiment.seed_for("masks"), client, _place(member, round, asked.exchange))
            return member.seals.keyed()
        if isinstance(asked, say.Deal):
            seals = self._seals(member, round, asked.exchange)
            return seals.dealt(asked.keys, Turn(round, asked.exchange, tuple(asked.keys)))
        assert isinstance(asked, say.Reveal)
        seals = self._seals(member, round, asked.exchange)
        told = seals.revealed(asked.answered)
        member.memories.reveal_once(ticket(round, asked.exchange), asked.answered)
        return told

    @staticmethod
    def _seals(member: Membership, round: int, exchange: int) -> OwnSeals:
        """The secrets of this exchange; another process, or another exchange, had others."""
        seals = member.seals
        if seals is None or seals.place != _place(member, round, exchange):
            raise Told("the secrets of this exchange are gone", remedy="it takes part again in the next one")
        return seals

    # Getting to know each other

    def _hello(self, run: str, hello: say.Hello) -> say.Words:
        member = self._member
        told = (run, hello.experiment, hello.shares_models)
        if member is not None and (member.run, member.text, member.shares_models) == told:
            return member.table.described(self.session)
        experiment = from_text(hello.experiment)
        check_device(experiment.device)
        table = self.file.opened(experiment.data.made)
        described = table.described(self.session)
        why = self._agrees(run, hello, experiment)
        if why:
            return say.Refused(why=why)
        self._member = Membership(run, hello.experiment, hello.shares_models, experiment, table)
        return described

    def _agrees(self, run: str, hello: say.Hello, experiment: Experiment) -> str:
        """Why not, or nothing. What was agreed to once is not asked again; nor may a run become another one."""
        path = self._folder(run) / "experiment.toml"
        text = f"# shares_models = {hello.shares_models}\n{hello.experiment}"
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if before == text:
            return ""
        first = text.partition("\n")[0]
        if before and (not before.startswith(first) or beyond_budget(from_text(before), experiment)):
            return "this run had another experiment before"
        why = self._consent(experiment, what_leaves(experiment, hello.shares_models))
        if not why:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        return why

    def _folder(self, run: str) -> Path:
        if not (run.isascii() and run.isalnum() and len(run) <= 64):
            raise WireRefused("a run without a name")
        return self.folder / run

    def _agree(self, member: Membership, asked: say.Agree) -> say.Words:
        agreed, folder = asked.agreement, self._folder(member.run)
        if member.rows is None or member.agreed != agreed.place:
            # Sums over other training rows would tell, by their difference, what single rows are.
            self._same(folder / "place.json", agreed.place, "this run has given this participant another place before")
            member.rows, member.agreed = member.table.placed(agreed), agreed.place
        if asked.tell == "counts":
            return member.rows.counted(agreed, member.experiment, self.least)
        if asked.tell == "squares":
            if not needs_means(member.table.source):
                raise Told("nobody agreed to tell sums of squares", remedy="is it fedarena on the other side?")
            return member.rows.squares(agreed.means or (), self.least)
        if member.site is None or member.site.agreed != agreed:
            self._get_ready(member, agreed)
        assert member.site is not None
        return say.Ready(torch=torch.__version__, initial=sha256(member.site.initial))

    def _get_ready(self, member: Membership, agreed: say.Agreement) -> None:
        """Build the model, over rows that must be those of the first time."""
        assert member.rows is not None
        folder = self._folder(member.run)
        data, partition = member.rows.dealt(agreed, member.experiment)
        other = "the rows are not those with which this participant joined the run"
        self._same(folder / "rows.sha256", data.fingerprint(), other)
        site = OwnSite(member.experiment, data, partition, agreed, self._kept_secret(folder / "secret"))
        with one_thread():
            settle(site, agreed.clients)
        member.memories = Memories(folder, site.algorithm)
        member.types = {**types_near(site.algorithm), Common.__qualname__: Common, Buffers.__qualname__: Buffers}
        member.site = site
        rows = f"{data.n_train} rows to train on, {len(data.x) - data.n_train} to test on"
        self._speak(f"ready as client {agreed.client} of {agreed.clients}, with {rows}")

    @staticmethod
    def _same(path: Path, now: str, otherwise: str) -> None:
        """What was so at first must be so later."""
        if not path.exists():
            with writing(path):
                path.write_text(now, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != now:
            raise Told(otherwise, remedy="restore what it had, or take part in a new run")

    def _kept_secret(self, path: Path) -> int:
        """Seeds the noise that hides this participant; nobody else knows it."""
        if self._secret is not None:
            return self._secret
        if not path.exists():
            with writing(path):
                write_secret(path, uuid.uuid4().hex.encode())
        return int(path.read_text(encoding="utf-8"), 16)


def _place(member: Membership, round: int, exchange: int) -> str:
    """What secrets are bound to."""
    return f"{member.run} {round} {exchange}"
