"""One round as data: its selected clients, what is sent to them, and what came back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fedarena.config.seeds import stream
from fedarena.engine.client import Broadcast
from fedarena.engine.selection import ClientSelection
from fedarena.engine.tasks import BatchResult, ClientReport, FailedTask, LateAnswer
from fedarena.models.task import Buffers
from fedarena.privacy.secure_aggregation import MaskedExchange
from fedarena.selection_rules.base import Clients, Numbers, TrainingReport


@dataclass
class RoundFacts:
    """The numbers of a round that its record shows."""

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
    """The request of one exchange: what is sent to which clients, and how long the server waits."""

    do: str  # method of the algorithm that clients run
    common: Broadcast
    asked: list[int]
    present: list[int]  # of those, all that do not drop out
    key: MaskedExchange | None
    down: int  # bytes to each
    response_times: dict[int, float]  # seconds that the server waits for each; {}: no limit
    number: int  # of the exchange in its round
    separate: bool  # more clients are asked than needed: results stay separate, and the first to arrive count


@dataclass
class Aggregate(BatchResult):
    """The sum of all batches of an exchange."""

    answered: list[int] = field(default_factory=list)
    seconds: float = 0.0  # simulated, of the slowest response
    waited: float = 0.0  # simulated, for responses that never came


class RoundExchange:
    """The selected clients of one round; a call is one exchange with them (see algorithms.base.RequestSender)."""

    def __init__(
        self,
        round: int,
        clients: ClientSelection,
        exchange: Callable[..., Any],
        losses: Callable[[Clients], Numbers] | None = None,
    ) -> None:
        self.round, self.clients, self._exchange = round, clients, exchange
        began = time.perf_counter()
        self.selected = clients.select(round, losses)
        self.reports: dict[int, TrainingReport] = {}  # of the clients with a usable response
        self.facts = RoundFacts(seconds_select=time.perf_counter() - began)
        self.cohort = clients.cohort(self.selected, [])
        self.dropped: set[int] = set()
        self.away: set[int] = set()  # of those, left or too late: they are out for the rest of the round
        self.aggregate = Aggregate()  # of the exchange under way
        self.answered: list[
            int
        ] = []  # in the latest exchange, or in all of a round that asks one client after the other
        self.buffers: Buffers | None = None  # mean of the clients' BatchNorm statistics
        self.exchanges = 0

    @property
    def share(self) -> float:
        """Return the share of the population that is selected each round."""
        return self.clients.participants / len(self.clients.population)

    def coin(self) -> float:
        """Return the random number of this round, from 0 to 1."""
        return float(stream(self.clients.experiment.seed_for("algorithm"), "algorithm", self.round).random())

    def clients_in_turn(self, shuffle: bool = True) -> list[int]:
        """Return the selected clients in a random order of this round, or in the order of their numbers."""
        rng = stream(self.clients.experiment.seed_for("algorithm"), "algorithm", self.round)
        order: list[int] = rng.permutation(self.selected).tolist() if shuffle else list(self.selected)
        return order

    def __call__(self, message: Any, do: str = "client", everyone: bool = False, only: int | None = None) -> Any:
        """Return the mean of the clients' responses to a message (TrainingLoop.exchange)."""
        return self._exchange(self, message, do, everyone, only)

    def count_report(self, report: ClientReport, seconds: float) -> None:
        """Store what the rule that selects clients may know of a usable response, over all exchanges of the round."""
        before = self.reports.get(report.client)
        square = report.squared_loss if before is None else before.squared_loss
        seconds += 0.0 if before is None else before.seconds
        self.reports[report.client] = TrainingReport(int(self.clients.sizes[report.client]), seconds, square)

    def close(self, only: int | None = None) -> None:
        """Record the clients of an exchange that is complete; those asked one after the other count together."""
        before = [] if only is None else self.answered
        self.answered = sorted({*before, *self.aggregate.answered})
        self.cohort = self.clients.cohort(self.selected, self.answered)
        self.buffers = self.aggregate.buffers.result()
        facts = self.facts
        facts.selected, facts.answered = len(self.selected), len(self.answered)
        facts.dropped = len(self.dropped)


def first_arrivals(
    batches: list[tuple[int, ...]],
    results: Iterable[Any],
    needed: int,
    seconds: Callable[[ClientReport], float],
    is_usable: Callable[[ClientReport], bool],
) -> Iterator[BatchResult | FailedTask]:
    """Yield a result of each client: the first `needed` usable ones by their simulated arrival, all others as late."""
    held = list(separated(batches, results))
    reports = [one.reports[0] if isinstance(one, BatchResult) else one for one in held]
    trained = {i: report for i, report in enumerate(reports) if isinstance(report, ClientReport)}
    late = set()
    for _, i in sorted((seconds(report), i) for i, report in trained.items()):
        if needed == 0:
            late.add(i)
        needed -= needed > 0 and is_usable(trained[i])
    yield from (BatchResult([LateAnswer()]) if i in late else result for i, result in enumerate(held))


def separated(batches: list[tuple[int, ...]], results: Iterable[Any]) -> Iterator[BatchResult | FailedTask]:
    """Yield a result of each client from those of batches, in which each client has its own."""
    for clients, several in zip(batches, results, strict=True):
        yield from several if isinstance(several, list) else [several] * len(clients)
