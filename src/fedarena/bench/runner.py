"""Designs take turns, each in a process of its own: a noisy machine is noisy for all, and memory can be told apart.

A turn is a round, or as many as fit in a second: one short round after seconds of idling would measure cold caches. The
first turn warms up.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from fedarena.bench.baselines import Round, opened
from fedarena.bench.machine import PeakMemory
from fedarena.bench.workloads import Workload
from fedarena.config.errors import FedarenaError

LEAST = 1.0  # seconds of a turn
LONGEST = 10.0  # after which a reference loop breaks a round off; its time is scaled


class CannotMeasure(FedarenaError):
    """A design that does not work here."""


@dataclass
class Timing:
    """What was seen of a design."""

    seconds: list[float] = field(default_factory=list)  # a round, in each turn but the first
    share: float = 1.0  # of a round that was done, where it was broken off
    first: tuple[float, float] = (0.0, 1.0)  # seconds from the start of the process, share of the round done by then
    megabytes: float | None = None

    @property
    def median(self) -> float:
        """Seconds a round."""
        return statistics.median(self.seconds)

    @property
    def startup(self) -> float:
        """Seconds from the start of the process to the end of its first round, less a round; rows are made up meanwhile."""
        seconds, share = self.first
        return max(seconds - share * self.median, 0.0)


def run_interleaved(works: Sequence[tuple[Workload, str]], turns: int) -> list[Timing]:
    """Each work in its design, one after the other, again and again."""
    with contextlib.ExitStack() as stack:
        runners = [stack.enter_context(_running(work, design)) for work, design in works]
        for _ in range(turns):
            for runner in runners:
                runner.turn()
    return [runner.timing for runner in runners]


class DesignProcess:
    """The near end of a process that holds a design."""

    def __init__(self, pipe: Connection, pid: int | None, name: str) -> None:
        self.pipe, self.peak, self.name = pipe, PeakMemory(pid), name
        self.timing = Timing()

    def ask(self, word: str) -> Any:
        """Send a word, wait for the answer."""
        try:
            self.pipe.send(word)
            answer = self.pipe.recv()
        except (EOFError, OSError):
            answer = "its process ended"
        if isinstance(answer, str):
            raise CannotMeasure(f"{self.name} cannot be measured: {answer}", remedy="leave it out, or mend the cause")
        return answer

    def turn(self) -> None:
        """A turn that counts."""
        seconds, self.timing.share = self.ask("turn")
        self.timing.seconds.append(seconds)
        self.peak.look()
        self.timing.megabytes = self.peak.megabytes


@contextlib.contextmanager
def _running(work: Workload, design: str) -> Iterator[DesignProcess]:
    """A design in a process that has had its first turn."""
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    began = time.perf_counter()
    process = context.Process(target=serve, args=(far, work, design))
    process.start()
    far.close()
    runner = DesignProcess(near, process.pid, f"{design} on {work.name}")
    try:
        runner.ask("open")
        opened_after = time.perf_counter() - began
        with runner.peak.watching():
            first, share = runner.ask("first")
        runner.timing.first = (opened_after + first, share)
        yield runner
    finally:
        near.close()
        process.join(timeout=30)
        if process.is_alive():
            process.kill()
            process.join()


def serve(pipe: Connection, work: Workload, design: str) -> None:
    """The far end: a turn at each word, until nobody asks any more."""
    with contextlib.suppress(EOFError, OSError):
        try:
            pipe.recv()
            with opened(work, design) as do_round:
                pipe.send(True)
                pipe.recv()
                pipe.send(_first_turn(do_round))
                while True:
                    pipe.recv()
                    pipe.send(_turn(do_round))
        except EOFError:
            raise
        except BaseException as error:
            pipe.send(f"{type(error).__name__}: {error}")


def _first_turn(do_round: Round) -> tuple[float, float]:
    """Seconds of the very first round, and the share of it that was done; then on to the end of the turn."""
    began = time.perf_counter()
    share = do_round(LONGEST)
    first = time.perf_counter() - began
    while time.perf_counter() - began < LEAST:
        do_round(LONGEST)
    return first, share


def _turn(do_round: Round) -> tuple[float, float]:
    """Seconds a round, and the share of one that was done at a time."""
    began, done, share = time.perf_counter(), 0.0, 1.0
    while (taken := time.perf_counter() - began) < LEAST:
        share = do_round(LONGEST)
        done += share
    return taken / done, share
