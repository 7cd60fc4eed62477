"""A client of a federation: it holds samples and answers the server's requests with the messages of messages.py."""

from __future__ import annotations

import json
import logging
import math
import threading
import traceback
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from fedarena.common.files import writing
from fedarena.config.errors import FedarenaError
from fedarena.config.experiment import Experiment
from fedarena.engine.setup import build_model_and_algorithm, check_device
from fedarena.federation import messages
from fedarena.federation.client_context import make_client_context
from fedarena.federation.client_data import AgreedSamples, ClientFile, grows_trees, statistics_layout
from fedarena.federation.client_model import ModelFolder
from fedarena.federation.client_states import is_unchanged
from fedarena.federation.client_worker import ClientWorker, Response
from fedarena.federation.consent import BUDGET, differences, experiment_from_text
from fedarena.federation.evaluation_sums import OWN_IN_WORDS, SUMS_IN_WORDS
from fedarena.federation.joined_run import JoinedRun
from fedarena.federation.redaction import ShareableError, full_message, redacted_message
from fedarena.federation.release_log import REFUSED, RELEASED, Binding, ReleaseLog
from fedarena.federation.statistics_release import MASKED_FROM, StatisticsMask
from fedarena.federation.what_leaves import description_lines, label_lines, what_leaves
from fedarena.federation.wire_format import NOTHING, Message, Payload, WireRefused, pack, unpack_body
from fedarena.models.task import sha256
from fedarena.runtimes.single_thread import one_thread
from fedarena.transport.certificates import write_secret

LEAST = 10  # training samples over which sums are released, at least
# Given the experiment and what leaves, it returns why the client refuses, or an empty text.
Consent = Callable[[Experiment, list[str]], str]


class UnknownRun(Exception):
    """Raised for requests of a run that this process has not joined."""


class FederationClient:
    """Answers the messages of a server, one at a time."""

    def __init__(
        self,
        file: ClientFile,
        folder: Path,
        *,
        consent: Consent = lambda experiment, leaves: "",
        name: str = "",
        least: int = LEAST,
        runs: int = 1,
        server: str = "",
        new_release: bool = False,
        out: Path | None = None,
    ) -> None:
        self.file, self.folder, self.least, self.out = file, folder, least, out
        self.name = name or folder.name
        self.log = logging.getLogger(f"{__name__}.{self.name}")  # clients of one process log apart
        self.session = uuid.uuid4().hex
        self.goodbye: messages.GoodbyeRequest | None = None
        self.trainings = 0  # of this process
        self.releases = ReleaseLog(folder, server, new_release)
        self.runs: dict[str, bool] = {}  # runs that this process takes part in, and whether each is finished
        self._most_runs = runs
        self._consent = consent
        self._joined: JoinedRun | None = None
        self._one_at_a_time = threading.Lock()

    def handle(self, content: bytes) -> bytes:
        """Return the response to a message; an error is logged here in full, and its redacted text is sent."""
        with self._one_at_a_time:
            run, round = "", 0
            try:
                message = unpack_body(content)
                run, round = message.run, message.round
                answer, payload = self._answered(message, content)
                self._log(run, round, answer)
            except UnknownRun as error:
                answer, payload = messages.RefusalResponse(why=str(error), kind="unready"), NOTHING
            except Exception as error:  # of any kind: the server must hear of it, and this process continue
                answer, payload = messages.RefusalResponse(why=redacted_message(error)), NOTHING
                self.log.info(full_message(error))
                if not isinstance(error, FedarenaError | OSError):
                    self.log.info("".join(traceback.format_exception(error)))
                with suppress(FedarenaError):  # on a full disk the refusal cannot be logged, and is sent all the same
                    self._log(run, round, answer)
            return pack(run, round, answer, payload)

    def _log(self, run: str, round: int, answer: messages.MessageBody) -> None:
        """Log what leaves before it does: an answer that cannot be logged is not sent."""
        if isinstance(answer, messages.RefusalResponse):
            self.releases.record(REFUSED, run, answer.why, round=round + 1)
        elif what := answer.release:
            if self._joined is not None:
                what = _in_words(answer, what, self._joined)
            self.releases.record(RELEASED, run, what, round=round + 1)

    def _answered(self, message: Message, content: bytes) -> Response:
        request = message.body
        if isinstance(request, messages.Invitation):
            return self._accept_invitation(message.run, request), NOTHING
        if isinstance(request, messages.GoodbyeRequest):
            self._leave(message.run, request)
            return messages.GoodbyeResponse(), NOTHING
        joined = self._joined
        if joined is None or joined.run != message.run:
            raise UnknownRun("this process has not been invited")
        if isinstance(request, messages.AgreementRequest):
            return self._take_agreement(joined, request), NOTHING
        if isinstance(request, messages.StatisticsKeyRequest):
            joined.mask = StatisticsMask()
            return messages.StatisticsKey(key=joined.mask.public), NOTHING
        if isinstance(request, messages.StatisticsRequest):
            return messages.StatisticsResponse(), self._statistics(joined, request)
        if joined.worker is None:
            raise UnknownRun("nothing has been agreed with this process")
        response, payload = joined.worker.answer(message, content)
        if isinstance(request, messages.RoundRequest | messages.AsyncTrainRequest) and isinstance(
            response, messages.RoundResponse | messages.AsyncTrainResponse
        ):
            self.trainings += 1
            loss = "" if math.isnan(response.loss) else f", loss {response.loss:.4f}"  # sums for trees have none
            self.log.info(f"round {message.round + 1}: trained{loss}")
        if isinstance(response, messages.FinalModelResponse):
            self.log.info(f"the final model is in {joined.model.path}")
        return response, payload

    # Enrollment

    def _accept_invitation(self, run: str, invitation: messages.Invitation) -> messages.MessageBody:
        joined = self._joined
        if joined is not None and (joined.run, joined.invitation) == (run, invitation):
            return joined.table.describe(self.session)
        if run not in self.runs and len(self.runs) >= self._most_runs:
            raise ShareableError(
                f"this process takes part in {len(self.runs)} run{'s' * (len(self.runs) > 1)} and no other",
                remedy="start it again, or with --runs, to take part in more",
                where="--runs",
            )
        model = self.model_folder(run)
        model.check()
        experiment = experiment_from_text(invitation.experiment)
        check_device(experiment.device)
        table = self.file.read_table(experiment.data.made, grows_trees(experiment))
        described = table.describe(self.session)
        values = [*description_lines(described), *label_lines(experiment, table.class_counts())]
        why = self._agrees(run, invitation, experiment, values)
        if why:
            return messages.RefusalResponse(why=why)
        self.runs.setdefault(run, False)
        self._joined = JoinedRun(run, invitation, experiment, table, model)
        return described

    def _leave(self, run: str, goodbye: messages.GoodbyeRequest) -> None:
        """End a run; the process ends with the last one, or where the server sends this client away."""
        self.log.info(f"goodbye: {goodbye.reason}" if goodbye.reason else "goodbye")
        if run in self.runs:
            self.runs[run] = goodbye.finished
            if goodbye.finished and not self.model_folder(run).is_complete:
                self.log.info(
                    "this client has not received the final model: join again when the server resumes the run"
                )
        if not goodbye.finished or (len(self.runs) >= self._most_runs and all(self.runs.values())):
            self.goodbye = goodbye

    def _agrees(self, run: str, invitation: messages.Invitation, experiment: Experiment, values: list[str]) -> str:
        """Return why this client does not take part, or an empty text. A run that was agreed to must not become another one.

        `values` are what the first messages hold, in words.
        """
        path = self._folder(run) / "experiment.toml"
        text = f"# shares_models = {invitation.shares_models}, clients = {invitation.clients}\n{invitation.experiment}"
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if before == text:
            return ""
        first = text.partition("\n")[0]
        if before and (
            not before.startswith(first) or differences(experiment_from_text(before), experiment).keys() - BUDGET
        ):
            return "this run had another experiment before"
        leaves = what_leaves(experiment, invitation.shares_models, invitation.clients)
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

    def model_folder(self, run: str) -> ModelFolder:
        """Return the folder for the final model of a run."""
        return ModelFolder(self.out or self._folder(run) / "model", run, self.name)

    def _take_agreement(self, joined: JoinedRun, request: messages.AgreementRequest) -> messages.MessageBody:
        agreed = request.agreement
        samples = self._samples(joined, agreed)
        if request.tell == "counts":
            self._bind(joined, agreed, samples)
            return samples.sample_counts()
        worker = joined.worker
        if worker is None or worker.context.agreed != agreed:
            worker = joined.worker = self._build_worker(joined, agreed, samples)
        return messages.ReadyResponse(torch=torch.__version__, initial=sha256(worker.context.initial))

    def _samples(self, joined: JoinedRun, agreed: messages.Agreement) -> AgreedSamples:
        """Return the samples in the place that was agreed, which stays the same in a run."""
        consented = joined.invitation.clients
        if agreed.clients != consented:
            what = f"{agreed.clients} clients, and consent was given to {consented}"
            raise ShareableError(what, remedy="start a new run")
        if joined.samples is None or joined.position != agreed.position:
            path = self._folder(joined.run) / "place.json"
            self._check_unchanged(path, agreed.position, "this run has given this client another position before")
            joined.samples, joined.position = joined.table.to_samples(agreed), agreed.position
        return joined.samples

    def _bind(self, joined: JoinedRun, agreed: messages.Agreement, samples: AgreedSamples) -> None:
        """Refuse samples and columns that are not those of all earlier runs of this folder."""
        source, share = joined.table.source, joined.experiment.validate_share
        held_out = "" if share is None else json.dumps([share, joined.experiment.seed])
        files = [path for path in (self.file.path, self.file.test) if path is not None]
        how = json.dumps([source.label, source.missing])
        self.releases.bind(Binding.of(files, samples.train, held_out, agreed, how), joined.run)

    def _statistics(self, joined: JoinedRun, request: messages.StatisticsRequest) -> Payload:
        """Release sums over the training samples, masked unless fewer than three clients take part."""
        agreed = request.agreement
        samples, layout = self._samples(joined, agreed), statistics_layout(joined.experiment, agreed)
        if not layout.size:
            raise ShareableError("the agreed experiment needs no statistics")
        self._bind(joined, agreed, samples)
        used = samples.without_held_out(agreed, joined.experiment)
        return joined.masked(used.statistics(layout, self.least).integers, agreed.client, request.keys)

    def _build_worker(self, joined: JoinedRun, agreed: messages.Agreement, samples: AgreedSamples) -> ClientWorker:
        """Build the model, over samples that must be those of the first time."""
        folder = self._folder(joined.run)
        data, partition = samples.to_dataset(agreed, joined.experiment)
        other = "the rows are not those with which this client joined the run"
        self._check_unchanged(folder / "rows.sha256", data.fingerprint(), other)
        self._bind(joined, agreed, samples)
        context = make_client_context(joined.experiment, data, partition, agreed, self._noise_seed(folder / "secret"))
        with one_thread():
            build_model_and_algorithm(context, agreed.clients)
        counts = f"{data.n_train} rows to train on, {len(data.x) - data.n_train} to test on"
        self.log.info(f"ready as client {agreed.client} of {agreed.clients}, with {counts}")
        return ClientWorker(joined, context, folder, self.log, self.least)

    @staticmethod
    def _check_unchanged(path: Path, now: str, otherwise: str) -> None:
        """Write a value to a file at first, and refuse any other value later."""
        if not is_unchanged(path, now):
            raise ShareableError(otherwise, remedy="restore what it had, or take part in a new run")

    def _noise_seed(self, path: Path) -> int:
        """Return the secret seed of the noise that protects this client."""
        if not path.exists():
            with writing(path):
                write_secret(path, uuid.uuid4().hex.encode())
        return int(path.read_text(encoding="utf-8"), 16)


def _in_words(answer: messages.MessageBody, what: str, joined: JoinedRun) -> str:
    """Return what an answer releases, with the words of the task and the parties that can read it."""
    if isinstance(answer, messages.OwnMetrics):
        return f"{OWN_IN_WORDS[joined.table.task]}, readable by the server"
    if isinstance(answer, messages.EvaluationSums):
        what = SUMS_IN_WORDS[joined.table.task]
        what += f", with score histograms of {answer.histograms} bins" if answer.histograms else ""
    elif not isinstance(answer, messages.StatisticsResponse):
        return what
    clients = joined.invitation.clients
    return what + (f", masked among {clients} clients" if clients >= MASKED_FROM else ", readable by the server")
