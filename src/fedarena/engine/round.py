"""One exchange of a round: the server sends, the selected clients work, what comes back is added up in their order."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedarena.config.seeds import stream
from fedarena.engine.client import Broadcast
from fedarena.engine.client_batches import BatchDeadline, BatchResult, BufferMean, ClientBatch
from fedarena.engine.runtime_interface import in_order
from fedarena.engine.tasks import ClientReport, FailedTask, LateAnswer, SkippedClient, bytes_up
from fedarena.models.pytree import WeightedMean, refuse_single_updates
from fedarena.models.task import Buffers
from fedarena.privacy.secure_aggregation import MaskedExchange
from fedarena.privacy.uplink import MaskedSum

if TYPE_CHECKING:
    from fedarena.engine.loop import TrainingLoop


@dataclass
class RoundFacts:
    """What happened in a round, for its record."""

    selected: int = 0
    answered: int = 0
    dropped: int = 0
    non_finite: int = 0
    losses: list[float] = field(default_factory=list)
    seconds_select: float = 0.0
    seconds_train: float = 0.0  # by clients, and waiting for them
    seconds_slowest: float = 0.0


@dataclass(frozen=True)
class Request:
    """What goes out, and to whom."""

    do: str
    common: Broadcast
    asked: list[int]
    present: list[int]  # of those, all who do not stay away
    turn: MaskedExchange | None
    down: int  # bytes to each
    patience: dict[int, float]  # seconds that the server waits for each; {}: for ever
    apart: bool  # more are asked than needed: answers are held one by one, and the first ones count


@dataclass
class Aggregate:
    """What came back."""

    mean: WeightedMean = field(default_factory=WeightedMean)
    sealed: MaskedSum = field(default_factory=MaskedSum)
    buffers: BufferMean = field(default_factory=BufferMean)
    answered: list[int] = field(default_factory=list)
    took: float = 0.0  # simulated seconds of the slowest answer
    waited: float = 0.0  # and for those that never came


class RoundExchange:
    """`ask`: one exchange of a round with the selected clients, counted; see algorithms.base.RequestSender."""

    def __init__(self, loop: TrainingLoop, round: int) -> None:
        self.loop, self.round = loop, round
        began = time.perf_counter()
        self.selected = loop.select(round)
        self.facts = RoundFacts(seconds_select=time.perf_counter() - began)
        self.cohort = loop.cohort(self.selected, [])
        self.dropped: set[int] = set()
        self.away: set[int] = set()  # of those, left or came too late: they are out for the rest of the round
        self.buffers: Buffers | None = None
        self.exchanges = 0

    @property
    def share(self) -> float:
        """Share of the population that is selected each round."""
        return self.loop.participants / len(self.loop.population)

    def coin(self) -> float:
        """A number from 0 to 1, the round's own."""
        return float(stream(self.loop.experiment.seed_for("algorithm"), "algorithm", self.round).random())

    def __call__(self, message: Any, do: str = "client", everyone: bool = False) -> Any:
        """Send, let them work, average what comes back in the order of client ids."""
        loop, facts = self.loop, self.facts
        if everyone:
            self.selected = sorted({*loop.here(), *self.away})
        began, aggregating = time.perf_counter(), 0.0
        call, came = self._call(message, do, everyone), Aggregate()
        if len(call.present) < len(
            call.asked
        ):  # who says nothing may still answer, until the deadline, if there is one
            came.waited = loop.experiment.devices.deadline or 0.0
        for clients, folded in self._answers(call):
            arrived = time.perf_counter()
            self._take(clients, folded, call, came)
            aggregating += time.perf_counter() - arrived
        enough = call.apart and len(came.answered) == loop.participants
        loop.clock += came.took if enough else max(came.took, came.waited)  # the round waits for its slowest client
        self.cohort = loop.cohort(self.selected, came.answered)
        facts.selected, facts.answered, facts.dropped = len(self.selected), len(came.answered), len(self.dropped)
        self.buffers = came.buffers.result()
        facts.seconds_train += time.perf_counter() - began - aggregating
        if call.turn is None:
            return came.mean.result()
        return loop.receive(came.mean, came.sealed, call.turn, came.answered)

    def _call(self, message: Any, do: str, everyone: bool) -> Request:
        """Who is reached, what it costs, and how long the server waits."""
        loop = self.loop
        common = Broadcast(message, loop.buffers)
        asked = loop.available_among([k for k in self.selected if k not in self.away])
        present = [k for k in asked if not loop.drops_out(self.round, k)]
        self.dropped |= set(self.selected) - set(present)
        turn = loop.turn(self.round, self.exchanges, asked, everyone)
        self.exchanges += 1
        down = loop.count_down(len(asked), common, turn)
        apart = loop.overselects and not everyone
        return Request(do, common, asked, present, turn, down, loop.patience(present), apart)

    def _answers(self, call: Request) -> Iterator[tuple[tuple[int, ...], BatchResult | FailedTask]]:
        """Clients, a bundle at a time, and what came of them, in their order."""
        loop, size = self.loop, self.loop.bundle
        bundles = [tuple(call.present[i : i + size]) for i in range(0, len(call.present), size)]
        answers: Iterable[Any] = in_order(loop.runtime.map((self._bundle(call, c) for c in bundles), call.common))
        if call.apart:
            answers = self._first(bundles, answers, call.down)
            bundles = [(k,) for k in call.present]
        return zip(bundles, answers, strict=True)

    def _bundle(self, call: Request, clients: tuple[int, ...]) -> ClientBatch:
        wait = BatchDeadline(call.down, tuple(call.patience[k] for k in clients)) if call.patience else None
        memories = tuple(map(self.loop.memory, clients))
        return ClientBatch(self.round, call.do, clients, memories, call.turn, wait, call.apart)

    def _first(
        self, bundles: list[tuple[int, ...]], answers: Iterable[Any], down: int
    ) -> Iterator[BatchResult | FailedTask]:
        """Answers one by one: as many as the round needs, by the time of their arrival; all others are late."""
        loop, keep = self.loop, self.loop.experiment.on_nan == "keep"
        held: list[BatchResult | FailedTask] = []
        for clients, several in zip(bundles, answers, strict=True):
            held.extend(several if isinstance(several, list) else [several] * len(clients))
        reports = [one.reports[0] if isinstance(one, BatchResult) else one for one in held]
        arrivals = sorted(
            (loop.simulated_seconds(report, down, bytes_up(report, loop.site)), i)
            for i, report in enumerate(reports)
            if isinstance(report, ClientReport)
        )
        needed, late = loop.participants, set()
        for _, i in arrivals:
            report = reports[i]
            assert isinstance(report, ClientReport)
            if needed == 0:
                late.add(i)
            needed -= needed > 0 and (report.finite or keep)
        yield from (BatchResult([LateAnswer()]) if i in late else folded for i, folded in enumerate(held))

    def _take(self, clients: tuple[int, ...], folded: BatchResult | FailedTask, call: Request, came: Aggregate) -> None:
        """The reports of a bundle one by one, then its sums."""
        if isinstance(folded, FailedTask):
            for client in clients:
                self._hear(client, folded, call, came)
            return
        if folded.refused is not None:
            raise folded.refused
        for client, report in zip(clients, folded.reports, strict=True):
            self._hear(client, report, call, came)
        if self.loop.experiment.uplink != "plain":
            refuse_single_updates(folded.mean.first, self.loop.experiment.algorithm.name)
        came.mean.merge(folded.mean)
        came.sealed.merge(folded.sealed)
        came.buffers.merge(folded.buffers)

    def _hear(
        self,
        client: int,
        report: ClientReport | SkippedClient | FailedTask | LateAnswer,
        call: Request,
        came: Aggregate,
    ) -> None:
        """What one client says of its part: counted, remembered, or told why not."""
        loop, facts = self.loop, self.facts
        if isinstance(report, LateAnswer):
            came.waited = max(came.waited, call.patience.get(client, 0.0))
            self.away.add(client)
            self.dropped.add(client)
            return
        if isinstance(report, SkippedClient | FailedTask):
            loop.report_failure(client, self.round, report)
            self.dropped.add(client)
            return
        up = loop.count_up(report)
        came.took = max(came.took, loop.simulated_seconds(report, call.down, up))
        facts.seconds_slowest = max(facts.seconds_slowest, report.seconds)
        if not report.finite and loop.experiment.on_nan != "keep":
            loop.report_failure(client, self.round, report)
            self.dropped.add(client)
            facts.non_finite += 1
            return
        loop.remember(report, self.round)
        came.answered.append(client)
        facts.losses.append(report.loss)
