"""Where a participant works: it trains, tests and remembers, and says what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Algorithm, Asynchronous
from fedarena.engine.client import Common, Memory
from fedarena.engine.context import EVALUATION_ROWS, Site
from fedarena.engine.evaluation import OwnModel
from fedarena.engine.task_metrics import Predictions, Scoring
from fedarena.engine.tasks import Answer, ClientJob, EvaluateJob, Failed, Job, Skipped, StatisticsJob, newcomer
from fedarena.federation import messages as say
from fedarena.federation.client_context import NoSeals, OwnSite
from fedarena.federation.client_states import Memories, ticket
from fedarena.federation.metric_sums import MetricSums, layout_of, own_values, why_no_sums
from fedarena.federation.redaction import Told
from fedarena.federation.secure_aggregation import OwnSeals
from fedarena.federation.statistics_release import MASKED_FROM
from fedarena.federation.wire_format import NOTHING, Load, WireRefused
from fedarena.models.pytree import read_only
from fedarena.models.task import Buffers, Keep, Scores
from fedarena.privacy.secure_aggregation import Turn
from fedarena.privacy.uplink import CannotSend, Sealed, Steps
from fedarena.runtimes.run_task import run_job

STRANGE = "is it fedarena on the other side?"


@dataclass(frozen=True)
class Sending:
    """A client's part, in which what cannot be sent is no failure of the client's."""

    job: ClientJob

    def run(self, site: Site, common: Common) -> Answer | Skipped | CannotSend:
        """Do it."""
        try:
            return self.job.run(site, common)
        except CannotSend as error:
            return error


class Desk:
    """Where a participant works on one message."""

    def __init__(
        self,
        site: OwnSite,
        memories: Memories,
        round: int,
        shares_models: bool,
        speak: Callable[[str], None],
        least: int = 1,
    ) -> None:
        self.site, self.memories, self.round, self.least = site, memories, round, least
        self.shares_models, self._speak = shares_models, speak
        self.client = site.agreed.client

    @contextmanager
    def masked_by(self, seals: OwnSeals, asked: say.Work, question: bytes) -> Iterator[None]:
        """What goes up in answer to this question, and to no other, is masked with these secrets."""
        steps = self.site.steps
        if steps is None or asked.turn is None or not {*seals.members} <= {*asked.turn.asked}:
            raise Told("keys of others than those who are asked", remedy=STRANGE)
        seals.take(asked.shares or {})
        seals.bind(question)
        steps.seals = seals
        try:
            yield
        finally:
            steps.seals = NoSeals()

    def answered(self, asked: say.Words, load: Any) -> tuple[say.Words, Load]:
        """What was asked for, and what goes with it."""
        if isinstance(asked, say.Show):
            return self._show(asked)
        if isinstance(asked, say.Send):
            return self._send(asked)
        if isinstance(asked, say.Train):
            return self._train(asked, load)
        common = self._common(load)
        if isinstance(asked, say.Work):
            return self._work(asked, common)
        if isinstance(asked, say.Recompute):
            return self._recompute(common)
        if isinstance(asked, say.Look):
            return self._look(asked, common), NOTHING
        if isinstance(asked, say.OwnMetricsRequest):
            return self._own_metrics(asked, common), NOTHING
        raise WireRefused(f"'{asked.what}' is nothing a participant is asked")

    def check_agreed(self, asked: say.Words) -> None:
        """Refuse what the agreed experiment does not ask for."""
        site = self.site
        budget = site.experiment.rounds or site.experiment.uploads  # a round has an upload at least
        # Without rounds, who is done as the last one ends begins anew before anybody knows that it is over.
        last = -1 if isinstance(asked, say.Work | say.Recompute) else 0
        if self.round < 0 or (budget is not None and self.round > budget + last):
            raise Told(f"asked for round {self.round + 1} of {budget}", remedy="the experiment that was agreed on ends")
        if isinstance(asked, say.Train | say.Send) and not isinstance(site.algorithm, Asynchronous):
            raise Told(f"{site.experiment.algorithm.name} has rounds, and was asked to do without", remedy=STRANGE)
        if isinstance(asked, say.Recompute) and site.buffer_policy != "recompute":
            raise Told("nobody agreed to recompute BatchNorm's statistics", remedy=STRANGE)
        if isinstance(asked, say.Work) and site.steps is not None:
            self._check_turn(asked, site.steps)
        if isinstance(asked, say.EvaluationSumsRequest):
            self._check_sums(asked)
        if isinstance(asked, say.OwnMetricsRequest):
            self._check_own_metrics()

    def _check_sums(self, asked: say.EvaluationSumsRequest) -> None:
        """Refuse sums that the agreement does not have, and those of few samples that the server could read."""
        site, agreed = self.site, self.site.experiment.evaluate.histograms or 0
        if asked.histograms not in (0, agreed):
            has = f"{agreed} bins" if agreed else "none"
            raise Told(
                f"asked for score histograms of {asked.histograms} bins, and the agreed experiment has {has}",
                remedy="the server must agree on evaluate.histograms with all clients",
                where="evaluate.histograms",
            )
        if why := why_no_sums(site):
            raise Told(f"no evaluation sums: {why}", remedy=STRANGE)
        count = len(site.owners.client_tests[self.client])
        if site.agreed.clients < MASKED_FROM and count < self.least:
            raise Told(
                f"sums over {count} test rows that the server can read would tell too much of each",
                remedy=f"have {self.least} test rows or more, or lower --least",
                where="--least",
            )

    def _check_own_metrics(self) -> None:
        """Refuse values of this client alone where the agreement takes them from histograms, or there are none."""
        if self.site.experiment.evaluate.histograms is not None:
            raise Told("the agreed experiment takes AUC and average precision from histograms", remedy=STRANGE)
        if self.site.task_name != "classification":
            raise Told("the model brings its own loss, and has no other metrics", remedy=STRANGE)

    def _check_turn(self, asked: say.Work, steps: Steps) -> None:
        """What clips, rounds, hides or masks an answer must know among whom it is."""
        turn = asked.turn
        if turn is None or (steps.wish.secure and asked.shares is None):
            raise Told("an answer would go up without the steps of the experiment's uplink", remedy=STRANGE)
        people = {*turn.asked}
        if len(people) < len(turn.asked) or self.client not in people or max(people) >= self.site.agreed.clients:
            raise Told("a list of clients that cannot be those who are asked", remedy=STRANGE)
        if steps.wish.secure and steps.wish.noise and turn.number != asked.exchange:  # noise is drawn by this number
            raise Told("one draw of noise would hide two answers", remedy=STRANGE)

    def _common(self, load: Any) -> Common:
        if not isinstance(load, Common) or not isinstance(load.buffers, Buffers):
            raise WireRefused("a message without a model")
        heard: Common = read_only(load)
        return heard

    def _run(self, job: Job, common: Common) -> Any:
        return run_job(self.site, job, common)

    # Training

    def _work(self, asked: say.Work, common: Common) -> tuple[say.Words, Load]:
        check_method(self.site.algorithm, asked.do)
        memory = self.memories.load(asked.memory)
        if asked.exchange == 0:
            self.memories.forget_before(self.round, asked.memory)
        turn = None
        if asked.turn is not None:
            turn = Turn(self.round, asked.turn.number, asked.turn.asked, asked.turn.everyone)
        answer = self._run(Sending(ClientJob(self.round, self.client, asked.do, read_only(memory), turn=turn)), common)
        if isinstance(answer, CannotSend):
            return say.Unsendable(error=answer.what, remedy=answer.remedy, where=answer.where), NOTHING
        if not isinstance(answer, Answer):
            return self._why_not(answer), NOTHING
        kept = self._keep(answer.report.memory, ticket(self.round, asked.exchange))
        return say.Done(weight=float(answer.reply.weight), **_facts(answer, kept)), self._goes_up(answer, turn)

    def _why_not(self, answer: Skipped | Failed) -> say.Words:
        """The kind of an error; its text is for this side, for nobody knows what it quotes."""
        if isinstance(answer, Skipped):
            return say.Skips(reason=answer.reason)
        self._speak(f"round {self.round + 1} failed: {answer.error}" + (f"  ({answer.place})" if answer.place else ""))
        return say.Broke(error=answer.error.partition(":")[0])

    def _keep(self, memory: Memory | None, ticket: str) -> str:
        if memory is None:
            return ""
        self.memories.save(ticket, memory)
        return ticket

    def _goes_up(self, answer: Answer, turn: Turn | None = None) -> Load:
        """What the algorithm sends; BatchNorm's statistics only where they are averaged. What is kept stays."""
        if not answer.report.finite and self.site.experiment.on_nan != "keep":  # nobody will use it; nor was it masked
            return Load.of({"send": None, "buffers": None})
        travels = self.site.task.has_buffers and self.site.buffer_policy == "average"
        send, steps = answer.reply.send, self.site.steps
        if isinstance(send, Sealed) and steps is not None and turn is not None:
            send = replace(send, words=send.words & steps.used_bits(turn))
        squeeze = steps is not None and (steps.wish.secure or bool(steps.wish.top_k or steps.wish.quantise))
        return Load.of({"send": send, "buffers": answer.buffers if travels else None}, squeeze)

    def _recompute(self, common: Common) -> tuple[say.Words, Load]:
        found = self._run(StatisticsJob(self.round, self.client), common)
        return (self._why_not(found), NOTHING) if isinstance(found, Failed) else (say.Recomputed(), Load.of(found))

    # Without rounds

    def _train(self, asked: say.Train, load: Any) -> tuple[say.Words, Load]:
        """From the organiser's model or on from one's own; the result goes up at once, or waits to be asked for."""
        memory = self.memories.load(asked.memory) or newcomer(self.site)
        start = self._result(asked.own_model) if asked.own_model else self._common(load)
        self.memories.forget_before(asked.keep_from, asked.memory)
        job = ClientJob(self.round, self.client, "client", read_only(replace(memory, start=start)), asked.number)
        answer = self._run(job, start)
        if not isinstance(answer, Answer):
            return self._why_not(answer), NOTHING
        left, mine = answer.report.memory, ticket(asked.number, 0)
        if not asked.ask_first:
            kept = self._keep(left, mine)
            return say.Done(weight=float(answer.reply.weight), **_facts(answer, kept)), self._goes_up(answer)
        result = Common(answer.reply.send, answer.buffers)
        self.memories.save(mine, replace(left or Memory(), start=result))
        return say.Trained(**_facts(answer, mine)), NOTHING

    def _result(self, ticket: str) -> Common:
        """What a training of one's own came to."""
        memory = self.memories.load(ticket)
        if memory is None or memory.start is None:
            raise Told(f"no training left its result as {ticket}", remedy="is it fedarena on the other side?")
        return memory.start

    def _send(self, asked: say.Send) -> tuple[say.Words, Load]:
        """The result of a training, now that it is wanted."""
        result = self._result(asked.trained.memory)
        travels = self.site.task.has_buffers and self.site.buffer_policy == "average"
        load = Load.of({"send": result.message, "buffers": result.buffers if travels else None})
        return say.Done(weight=1.0, **asked.trained.model_dump()), load

    # Looking

    def _look(self, asked: say.Look, common: Common) -> say.Words:
        """Counts and a sum: of no row by itself."""
        site = self.site
        w, buffers = self._own_model(asked.memory)
        scores = self._scores(site.owners.test, common, w, buffers)
        own = scores
        if site.experiment.evaluate.on == "train":
            own = self._scores(site.owners.clients[self.client], common, w, buffers)
        return say.Looked(
            right=int(scores.right.sum()),
            count=int(scores.count.sum()),
            loss=math.fsum(scores.loss),
            own_right=int(own.right.sum()),
            own_count=int(own.count.sum()),
        )

    def _own_model(self, memory: str | None) -> OwnModel:
        """Return the model that this client keeps under a ticket; without one, nothing but the common model."""
        if memory is None:
            return None, None
        algorithm = self.site.algorithm
        kept = self.memories.load(memory) or Memory(kept=algorithm.remember(self.site.initial))
        return (kept.kept if algorithm.personal else None), kept.buffers

    def evaluation_sums(self, asked: say.EvaluationSumsRequest, load: Any) -> tuple[int, ...]:
        """Return sums over the test samples, unmasked."""
        rows = self.site.owners.test
        predictions = self._predictions(rows, self._common(load), None, None)
        return MetricSums.of(predictions, layout_of(self.site, asked.histograms)).integers

    def _own_metrics(self, asked: say.OwnMetricsRequest, common: Common) -> say.Words:
        """Return the metrics that need the order of scores, on the samples that clients are compared on."""
        site = self.site
        rows = site.owners.clients[self.client] if site.experiment.evaluate.on == "train" else site.owners.test
        predictions = self._predictions(rows, common, *self._own_model(asked.memory))
        return say.OwnMetrics(count=len(rows), values=own_values(predictions, site.positive, self.least))

    def _predictions(
        self, rows: NDArray[np.int64], common: Common, w: NDArray[Any] | None, buffers: Buffers | None
    ) -> Predictions:
        """Return labels, predicted classes and probabilities of rows; they stay here."""
        scores = self._scores(rows, common, w, buffers, "logits")
        if scores.outputs is None:  # no rows
            scores = replace(scores, outputs=np.empty((0, self.site.data.classes), np.float32))
        return Scoring(self.site).predictions(rows, scores)

    def _scores(
        self,
        rows: NDArray[np.int64],
        common: Common,
        w: NDArray[Any] | None,
        buffers: Buffers | None,
        keep: Keep = "",
    ) -> Scores:
        parts = [Scores.of_nothing()]
        for start in range(0, len(rows), EVALUATION_ROWS):
            part = self._run(EvaluateJob(rows[start : start + EVALUATION_ROWS], None, w, buffers, keep), common)
            if isinstance(part, Failed):
                self._speak(f"evaluation failed: {part.error}")
                raise Told(f"evaluation failed: {part.error.partition(':')[0]}", remedy="is there memory enough?")
            parts.append(part)
        return Scores.joined(parts)

    def _show(self, asked: say.Show) -> tuple[say.Words, Load]:
        """The model of its own, where that was agreed."""
        site = self.site
        if not self.shares_models:
            raise Told("models of one's own stay here", remedy="nobody agreed to show them")
        memory = self.memories.load(asked.memory) or Memory(kept=site.algorithm.remember(site.initial))
        w = memory.kept if site.algorithm.personal else None
        return say.Shown(), Load.of({"w": w, "buffers": memory.buffers})


def _facts(answer: Answer, kept: str) -> dict[str, Any]:
    """What is told of a training besides its result."""
    report = answer.report
    names = ("finite", "steps", "samples", "loss", "seconds", "sent", "sent_buffers")
    return {**{name: getattr(report, name) for name in names}, "memory": kept}


def check_method(algorithm: Algorithm, do: str) -> None:
    """A client's parts are public methods that the algorithm adds to the contract, and `client`."""
    own = do.isidentifier() and not do.startswith("_") and not hasattr(Algorithm, do)
    inside = algorithm
    while getattr(inside, "base", None) is not None:
        inside = inside.base  # type: ignore[attr-defined]
    if do != "client" and not (own and callable(getattr(type(inside), do, None))):
        raise Told(f"{type(algorithm).__name__} has no part '{do[:40]}' for clients", remedy="is it fedarena there?")
