"""Time designs in repetitions that alternate, each design in a process of its own.

A noisy machine is then noisy for all designs, and their memory is measured separately. A repetition is a round, or as many
as fit in a second: one short round after seconds of idling would measure cold caches. The first repetition warms up.
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

from fedarena.bench.designs import opened
from fedarena.bench.machine import PeakMemory
from fedarena.bench.reference_loops import Round
from fedarena.bench.workloads import Workload
from fedarena.config.errors import FedarenaError

LEAST = 1.0  # seconds of a repetition
LONGEST = 10.0  # seconds after which a reference loop stops within a round; its time is scaled


class MeasurementFailed(FedarenaError):
    """A design cannot be measured on this machine."""


@dataclass
class Timing:
    """The measurements of a design."""

    seconds: list[float] = field(default_factory=list)  # a round, in each repetition but the first
    share: float = 1.0  # of a round that was done, where it was stopped
    first: tuple[float, float] = (0.0, 1.0)  # seconds from the start of the process, share of the round done by then
    megabytes: float | None = None

    @property
    def median(self) -> float:
        """The median of the seconds that a round takes."""
        return statistics.median(self.seconds)

    @property
    def startup(self) -> float:
        """Seconds from the start of the process to the end of its first round, less a round; samples are made meanwhile."""
        seconds, share = self.first
        return max(seconds - share * self.median, 0.0)


def run_interleaved(workloads: Sequence[tuple[Workload, str]], repetitions: int) -> list[Timing]:
    """Time each workload in its design, one after the other in each repetition."""
    with contextlib.ExitStack() as stack:
        runners = [stack.enter_context(_running(workload, design)) for workload, design in workloads]
        for _ in range(repetitions):
            for runner in runners:
                runner.repeat()
    return [runner.timing for runner in runners]


class DesignProcess:
    """This process's side of a process that runs a design."""

    def __init__(self, pipe: Connection, pid: int | None, name: str) -> None:
        self.pipe, self.peak, self.name = pipe, PeakMemory(pid), name
        self.timing = Timing()

    def request(self, message: str) -> Any:
        """Send a message and wait for the answer."""
        try:
            self.pipe.send(message)
            answer = self.pipe.recv()
        except (EOFError, OSError):
            answer = "its process ended"
        if isinstance(answer, str):
            raise MeasurementFailed(
                f"{self.name} cannot be measured: {answer}", remedy="leave it out, or fix the cause"
            )
        return answer

    def repeat(self) -> None:
        """Time a repetition that counts."""
        seconds, self.timing.share = self.request("repeat")
        self.timing.seconds.append(seconds)
        self.peak.update()
        self.timing.megabytes = self.peak.megabytes


@contextlib.contextmanager
def _running(workload: Workload, design: str) -> Iterator[DesignProcess]:
    """Run a design in a process until the end of the block, after its first repetition."""
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    began = time.perf_counter()
    process = context.Process(target=serve, args=(far, workload, design))
    process.start()
    far.close()
    runner = DesignProcess(near, process.pid, f"{design} on {workload.name}")
    try:
        runner.request("open")
        opened_after = time.perf_counter() - began
        with runner.peak.watching():
            first, share = runner.request("first")
        runner.timing.first = (opened_after + first, share)
        yield runner
    finally:
        near.close()
        process.join(timeout=30)
        if process.is_alive():
            process.kill()
            process.join()


def serve(pipe: Connection, workload: Workload, design: str) -> None:
    """Run in the process of a design: a repetition for each message, until the pipe closes."""
    with contextlib.suppress(EOFError, OSError):
        try:
            pipe.recv()
            with opened(workload, design) as do_round:
                pipe.send(True)
                pipe.recv()
                pipe.send(_time_first(do_round))
                while True:
                    pipe.recv()
                    pipe.send(_time(do_round))
        except EOFError:
            raise
        except BaseException as error:
            pipe.send(f"{type(error).__name__}: {error}")


def _time_first(do_round: Round) -> tuple[float, float]:
    """Return the seconds of the very first round and the share of it that was done; then finish the repetition."""
    began = time.perf_counter()
    share = do_round(LONGEST)
    first = time.perf_counter() - began
    while time.perf_counter() - began < LEAST:
        do_round(LONGEST)
    return first, share


def _time(do_round: Round) -> tuple[float, float]:
    """Return the seconds that a round takes, and the share of one that was done at a time."""
    began, done, share = time.perf_counter(), 0.0, 1.0
    while (taken := time.perf_counter() - began) < LEAST:
        share = do_round(LONGEST)
        done += share
    return taken / done, share
