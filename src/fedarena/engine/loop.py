"""Rounds. A generator: the user keeps the loop, and progress, files and early stopping merely read it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Algorithm, Cohort, Model, Vector
from fedarena.engine.fairness import fairness, weighted_accuracy
from fedarena.engine.keep import Keeper, Snapshot
from fedarena.engine.site import (
    EVALUATION_ROWS,
    Answer,
    ClientJob,
    Common,
    EvaluateJob,
    Job,
    PersonalJob,
    Site,
    Skipped,
    StatisticsJob,
)
from fedarena.engine.tree import Mean, leaves, nbytes
from fedarena.errors import ClientFailed
from fedarena.models.task import Buffers, Scores
from fedarena.seeds import stream
from fedarena.spec import Experiment


@dataclass(frozen=True)
class Failed:
    """A job that raised: the error in words, with its traceback for the log."""

    error: str
    trace: str


class Runtime(Protocol):
    """Where clients run. It maps jobs over processes and knows nothing of learning."""

    def map(self, jobs: Iterable[Job], common: Common) -> Iterator[tuple[int, Any]]:
        """Run every job; yield (position, result or Failed) in any order."""
        ...


@dataclass(frozen=True)
class RoundRecord:
    """What is known after a round. Counts and bytes are totals since the start; accuracy is None if nobody looked."""

    round: int
    accuracy: float | None = None  # of the server's model on the global test set
    loss: float | None = None
    weighted_accuracy: float | None = None  # over clients' own test sets, weighted by training rows
    best_accuracy: float | None = None  # so far
    train_loss: float | None = None  # mean over this round's clients, last local epoch
    selected: int = 0
    answered: int = 0
    dropped: int = 0  # never answered, failed, or not finite
    uploads: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    steps: int = 0
    samples: int = 0
    client_std: float | None = None  # spread of the clients' accuracies on their own test sets
    client_worst: float | None = None  # mean of the worst tenth of them
    seconds_select: float = 0.0
    seconds_train: float = 0.0
    seconds_aggregate: float = 0.0
    seconds_evaluate: float = 0.0
    seconds_slowest: float = 0.0  # the straggler: the longest any client of the round took
    wall_seconds: float = 0.0  # since the start of the run


TIMES = tuple(name for name in RoundRecord.__dataclass_fields__ if "seconds" in name)


class Exchange:
    """`ask`: one exchange of a round with the selected clients, counted; see algorithms.base.Ask."""

    def __init__(self, loop: Loop, round: int) -> None:
        self.loop, self.round = loop, round
        began = time.perf_counter()
        self.selected = loop.select(round)
        self.seconds_select = time.perf_counter() - began
        self.seconds_exchange = self.seconds_aggregate = self.seconds_slowest = 0.0
        self.cohort = loop.cohort(self.selected, [])
        self.losses: list[float] = []
        self.dropped: set[int] = set()
        self.buffers: Buffers | None = None

    def __call__(self, message: Any, do: str = "client") -> Any:
        """Send, let them work, average what comes back in the order of client ids."""
        loop, exp = self.loop, self.loop.experiment
        began = time.perf_counter()
        common = Common(message, loop.buffers)
        present = [k for k in self.selected if not loop.stays_away(self.round, k)]
        self.dropped |= set(self.selected) - set(present)
        loop.count_down(len(self.selected), common)
        mean, buffers = Mean(), BufferMean()
        answered = []
        jobs = (ClientJob(self.round, k, do, loop.memory(k)) for k in present)
        for client, answer in zip(present, in_order(loop.runtime.map(jobs, common)), strict=True):
            if isinstance(answer, Skipped | Failed):
                loop.complain(client, self.round, answer)
                self.dropped.add(client)
                continue
            loop.count_up(answer)
            if not answer.finite and exp.on_nan != "keep":
                loop.complain(client, self.round, answer)
                self.dropped.add(client)
                continue
            arrived = time.perf_counter()
            loop.remember(client, self.round, answer)
            mean.add(answer.reply.send, answer.reply.weight)
            buffers.add(answer.buffers, float(loop.sizes[client]))
            answered.append(client)
            self.losses.append(answer.loss)
            self.seconds_aggregate += time.perf_counter() - arrived
            self.seconds_slowest = max(self.seconds_slowest, answer.seconds)
        self.cohort = loop.cohort(self.selected, answered)
        self.buffers = buffers.result()
        self.seconds_exchange += time.perf_counter() - began
        return mean.result()


class BufferMean:
    """BatchNorm's statistics averaged by rows; a counter of batches takes the largest."""

    def __init__(self) -> None:
        self.values, self.counters = Mean(), np.empty(0, np.int64)

    def add(self, buffers: Buffers, weight: float) -> None:
        """Take one client's in."""
        self.values.add(buffers.values, weight)
        self.counters = np.maximum(self.counters, buffers.counters) if len(self.counters) else buffers.counters

    def result(self) -> Buffers | None:
        """The mean, or None if nobody sent any."""
        values = self.values.result()
        return None if values is None else Buffers(values, self.counters)


class Loop:
    """An experiment under way."""

    def __init__(self, site: Site, runtime: Runtime, keeper: Keeper) -> None:
        self.site, self.runtime, self.keeper = site, runtime, keeper
        self.experiment: Experiment = site.experiment
        self.algorithm: Algorithm = site.algorithm
        self.population = site.partition.population
        self.sizes = site.partition.sizes
        self.participants = participants(self.experiment, len(site.owners.population))
        self.rule = StopRule(self.experiment, self.algorithm, self.participants)
        self.buffers = site.task.buffers()
        self.totals: dict[str, int] = dict.fromkeys(("uploads", "bytes_up", "bytes_down", "steps", "samples"), 0)
        self.client_accuracy: NDArray[np.float64] = np.full(len(site.owners.clients), np.nan)  # at the last look
        self.notes: list[str] = []
        self._evaluation = Evaluation(site)

    # Who takes part

    @property
    def asked(self) -> int:
        """Clients asked each round; all of the federation where rows are pooled."""
        return len(self.site.owners.population) if self.algorithm.everyone else self.participants

    def select(self, round: int) -> list[int]:
        """S_t, in ascending order; the same for every algorithm that does not choose itself."""
        if self.algorithm.everyone:
            return list(self.population)
        rng = stream(self.experiment.seed, "select", round)
        chosen = self.algorithm.select(self.sizes[self.population], self.participants, rng)
        return sorted(self.population[i] for i in chosen)

    def stays_away(self, round: int, client: int) -> bool:
        """A simulated dropout: asked, but never answers."""
        chance = self.experiment.dropouts
        return chance > 0 and bool(stream(self.experiment.seed, "failure", round, client).random() < chance)

    def cohort(self, selected: list[int], answered: list[int]) -> Cohort:
        """Who was asked and who answered, with the numbers a server may need."""
        return Cohort(
            tuple(selected),
            tuple(answered),
            len(self.population),
            int(self.sizes[answered].sum()) if answered else 0,
            int(self.sizes.sum()),
            self.experiment.local.lr,
        )

    # What it costs

    def count_down(self, clients: int, common: Common) -> None:
        """Bytes to the clients: the message, and buffers where they travel."""
        if self.algorithm.communicates:
            sent = nbytes(common.message) + (nbytes(common.buffers.values) if self._buffers_travel else 0)
            self.totals["bytes_down"] += clients * sent

    def count_up(self, answer: Answer) -> None:
        """Bytes, uploads and work of one answer."""
        self.totals["steps"] += answer.steps
        self.totals["samples"] += answer.samples
        if self.algorithm.communicates:
            sent = nbytes(answer.reply.send) + 8  # n_k
            models = max(round(nbytes(answer.reply.send) / max(self.site.initial.nbytes, 1)), 1)
            self.totals["bytes_up"] += sent + (nbytes(answer.buffers.values) if self._buffers_travel else 0)
            self.totals["uploads"] += models

    @property
    def _buffers_travel(self) -> bool:
        return self.site.buffer_policy in ("average", "recompute")

    # What clients remember

    def memory(self, client: int) -> Any:
        """What the client kept from its last round."""
        return self.keeper.memory(client)

    def remember(self, client: int, round: int, answer: Answer) -> None:
        """Keep it for the client; a dropped client's memory stays as it was."""
        memory = answer.memory
        if self.experiment.local.decay_counter != "per_client":
            memory = replace(memory, steps=0)
        self.keeper.remember(client, round + 1, memory)

    def complain(self, client: int, round: int, answer: Answer | Skipped | Failed) -> None:
        """A client without a usable answer: stop or note it, as the experiment says."""
        if isinstance(answer, Skipped):
            note = f"client {client} cannot take part: {answer.reason}"
            if note not in self.notes:
                self.notes.append(note)
            return
        name = f"client {client} in round {round + 1}"
        if isinstance(answer, Failed):
            if self.experiment.on_error == "stop":
                raise ClientFailed(
                    f"{name} failed: {answer.error}",
                    remedy='mend the cause, or set on_error = "drop" to go on without such clients',
                    where=answer.trace.strip().splitlines()[-1] if answer.trace else "",
                )
            self.notes.append(f"{name} failed and was dropped: {answer.error}")
            return
        if self.experiment.on_nan == "raise":
            raise ClientFailed(
                f"{name} sent a non-finite update",
                remedy='lower local.lr, or set on_nan = "drop" to leave such updates out',
            )
        self.notes.append(f"{name} sent a non-finite update, left out of the mean")

    # The loop itself

    def rounds(self) -> Iterator[RoundRecord]:
        """Go on from the last saved round, if any, to the end of the budget."""
        snapshot, records = self.keeper.load()
        state = self.algorithm.init(self.site.initial)
        done, before = 0, 0.0
        if snapshot:
            done, state, self.buffers = snapshot.round, snapshot.state, snapshot.buffers
            self.totals = {k: int(snapshot.totals[k]) for k in self.totals}
            before = snapshot.totals["wall_seconds"]
            self.client_accuracy = snapshot.client_accuracy
        past = [RoundRecord(**record) for record in records]
        self.state = state
        yield from past
        rule = self.rule
        for record in past:
            rule.see(record)
        started = time.perf_counter() - before
        while not rule.over(done, self.totals["uploads"]):
            began = time.perf_counter()
            ask = Exchange(self, done)
            state = self.algorithm.round(state, ask)
            self._take_buffers(state, ask)
            done += 1
            trained = time.perf_counter()
            record = RoundRecord(
                done,
                train_loss=_mean(ask.losses),
                selected=len(ask.selected),
                answered=len(ask.cohort.answered),
                dropped=len(ask.dropped),
                **self.totals,
            )
            if done % self.experiment.evaluate.every == 0 or rule.over(done, self.totals["uploads"]):
                record = replace(record, **self.evaluate(state))
            record = replace(
                record,
                best_accuracy=rule.best(record),
                seconds_select=ask.seconds_select,
                seconds_train=ask.seconds_exchange - ask.seconds_aggregate,
                seconds_aggregate=trained - began - ask.seconds_exchange - ask.seconds_select + ask.seconds_aggregate,
                seconds_slowest=ask.seconds_slowest,
                seconds_evaluate=time.perf_counter() - trained,
                wall_seconds=time.perf_counter() - started,
            )
            totals = {**self.totals, "wall_seconds": record.wall_seconds}
            self.keeper.save(Snapshot(done, state, self.buffers, totals, self.client_accuracy), asdict(record))
            rule.see(record)
            self.state = state
            yield record

    def _take_buffers(self, state: Any, ask: Exchange) -> None:
        """BatchNorm's statistics after the server's step, by policy (algorithms 0.4)."""
        if ask.buffers is None or not len(self.buffers.values) or self.site.buffer_policy in ("server", "local"):
            return
        if self.site.buffer_policy == "average":
            self.buffers = ask.buffers
            return
        common = Common(Model(state.w), self.buffers)
        mean, answered = BufferMean(), ask.cohort.answered
        jobs = [StatisticsJob(ask.round, k) for k in answered]
        for client, buffers in zip(answered, in_order(self.runtime.map(jobs, common)), strict=True):
            if isinstance(buffers, Failed):
                self.complain(client, ask.round, buffers)
                continue
            mean.add(buffers, float(self.sizes[client]))
        self.count_down(len(answered), common)
        self.buffers = mean.result() or self.buffers

    def evaluate(self, state: Any) -> dict[str, Any]:
        """Accuracy and loss on the global test set, and of every client, in one pass over the rows."""
        look = self._evaluation
        if self.algorithm.personal:
            on_test, loss, own = look.personal(self, state)
        else:
            on_test, loss, own = look.shared(self, Common(Model(state.w), self.buffers))
        self.client_accuracy = np.array([np.nan if a is None else a for a in own])
        spread = fairness(self.client_accuracy)
        return {
            "accuracy": on_test,
            "loss": loss,
            "weighted_accuracy": weighted_accuracy(self.client_accuracy, look.owners.sizes),
            "client_std": spread.get("std"),
            "client_worst": spread.get("worst_tenth"),
        }

    def result_vectors(self) -> Iterator[Vector]:
        """All that was learned: the server's weights and buffers, and each client's own where they are the result."""
        yield self.state.w
        yield self.buffers.values
        if self.algorithm.personal:
            for client in self.population:
                yield from (leaf for leaf in leaves(self.memory(client)) if isinstance(leaf, np.ndarray))

    def look_again(self, record: RoundRecord) -> RoundRecord:
        """The record of the last round with an evaluation, where none was due."""
        return replace(record, **self.evaluate(self.state))


Looked = tuple[float | None, float, list[float | None]]  # accuracy and loss on the test set, accuracy of each client


class Evaluation:
    """Which rows are looked at, and what is made of them."""

    def __init__(self, site: Site) -> None:
        self.owners = owners = site.owners
        own = owners.clients if site.experiment.evaluate.on == "train" else owners.client_tests
        self.rows = np.unique(np.concatenate([owners.test, *own]))
        self.test = np.searchsorted(self.rows, owners.test)
        self.own = [np.searchsorted(self.rows, rows) for rows in own]
        self.own_rows = own

    def shared(self, loop: Loop, common: Common) -> Looked:
        """One model for all: every row is predicted once, whoever it serves."""
        pieces = [self.rows[i : i + EVALUATION_ROWS] for i in range(0, len(self.rows), EVALUATION_ROWS)]
        scores = _joined(in_order(loop.runtime.map([EvaluateJob(piece) for piece in pieces], common)))
        accuracies = [accuracy(scores, rows) for rows in self.own]
        if self.owners.noise is not None:
            accuracies = self._noisy(loop, common)
        return accuracy(scores, self.test), mean_loss(scores, self.test), accuracies

    def _noisy(self, loop: Loop, common: Common) -> list[float | None]:
        """Clients with feature noise see it in their test rows too."""
        jobs = [EvaluateJob(rows, client) for client, rows in enumerate(self.own_rows) if len(rows)]
        results = iter(in_order(loop.runtime.map(jobs, common)))
        return [accuracy(_checked(next(results))) if len(rows) else None for rows in self.own_rows]

    def personal(self, loop: Loop, state: Any) -> Looked:
        """A model for each client: the mean of their accuracies, weighted by rows."""
        people = loop.population
        weights = loop.sizes[people] / loop.sizes[people].sum()
        common = Common(Model(state.w), loop.buffers)

        def jobs() -> Iterator[Job]:
            for k in people:
                memory = loop.memory(k)
                yield PersonalJob(self.rows, *((state.w, None) if memory is None else (memory.kept, memory.buffers)))

        own: list[float | None] = [None] * len(self.own)
        on_all, losses = 0.0, 0.0
        for k, p, scores in zip(people, weights, in_order(loop.runtime.map(jobs(), common)), strict=True):
            scores = _checked(scores)
            on_all += p * (accuracy(scores, self.test) or 0.0)
            losses += p * mean_loss(scores, self.test)
            own[k] = accuracy(scores, self.own[k])
        return float(on_all), float(losses), own


class StopRule:
    """When is it enough? Budget, target, patience."""

    def __init__(self, experiment: Experiment, algorithm: Algorithm, cohort: int) -> None:
        self.experiment, self.algorithm = experiment, algorithm
        self.nominal_rounds = experiment.rounds or math.ceil((experiment.uploads or 1) / cohort)
        self._best: float | None = None
        self._stale = 0
        self._target_at: int | None = None

    def best(self, record: RoundRecord) -> float | None:
        """The best accuracy including this record."""
        known = [a for a in (self._best, record.accuracy) if a is not None]
        return max(known) if known else None

    def see(self, record: RoundRecord) -> None:
        """Take an evaluation into account."""
        if record.accuracy is None:
            return
        self._stale = 0 if self._best is None or record.accuracy > self._best else self._stale + 1
        self._best = self.best(record)
        target = self.experiment.evaluate.target
        if self._target_at is None and target is not None and record.accuracy >= target:
            self._target_at = record.round

    def over(self, done: int, uploads: int) -> bool:
        """Is the budget spent or the goal reached?"""
        wish = self.experiment.evaluate
        if wish.stop_at_target and self._target_at is not None and done >= self._target_at + wish.after_target:
            return True
        if wish.patience is not None and self._stale >= wish.patience:
            return True
        if self.experiment.uploads is None or not self.algorithm.communicates:
            return done >= self.nominal_rounds
        # A federation whose clients hardly ever answer would never spend its uploads.
        return uploads >= self.experiment.uploads or done >= 100 * self.nominal_rounds


def participants(experiment: Experiment, population: int) -> int:
    """m = max(floor(C K), 1), or the count that was asked for."""
    if experiment.per_round is not None:
        return min(experiment.per_round, population)
    return max(math.floor((experiment.share or 1.0) * population + 1e-9), 1)


def in_order(results: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    """Results in the order of their jobs, each as soon as those before it are there."""
    waiting: dict[int, Any] = {}
    wanted = 0
    for position, result in results:
        waiting[position] = result
        while wanted in waiting:
            yield waiting.pop(wanted)
            wanted += 1


def accuracy(scores: Scores, rows: NDArray[np.int64] | slice = slice(None)) -> float | None:
    """Share of right predictions on these rows: whole counts, then one division."""
    count = int(scores.count[rows].sum())
    return int(scores.right[rows].sum()) / count if count else None


def mean_loss(scores: Scores, rows: NDArray[np.int64]) -> float:
    """Mean cross-entropy over labelled positions."""
    return float(scores.loss[rows].sum() / scores.count[rows].sum())


def _joined(parts: Iterable[Any]) -> Scores:
    done = [_checked(part) for part in parts]
    return Scores(*(np.concatenate([getattr(p, name) for p in done]) for name in ("right", "count", "loss")))


def _checked(scores: Any) -> Scores:
    if isinstance(scores, Failed):
        raise ClientFailed(f"evaluation failed: {scores.error}", remedy="see the log above; is there memory enough?")
    return scores  # type: ignore[no-any-return]


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
