"""Designs of the bench in forked processes, with short repetitions, small products and one actor of Flower: the order of
designs and their table do not depend on these."""

from __future__ import annotations

import functools
import types
from multiprocessing.connection import Connection

import pytest

from fedarena.bench import flower_simulation, machine, rounds, runner
from fedarena.bench.workloads import Workload
from tests.support import forked_processes

SERVE = runner.serve


def serve(pipe: Connection, workload: Workload, design: str) -> None:
    """Run in the process of a design: repetitions of a twentieth of a second instead of a second."""
    runner.LEAST = 0.05
    flower_simulation.ACTORS = 1
    SERVE(pipe, workload, design)


def use_short_repetitions(patch: pytest.MonkeyPatch) -> None:
    """Fork the processes of designs from one that has imported what they need."""
    patch.setattr(rounds, "gemm_gflops", functools.partial(machine.gemm_gflops, size=512, tries=4))
    patch.setattr(machine, "PAUSE", 1.0)  # a look at the memory of all processes walks all their pages
    patch.setattr(runner, "serve", serve)
    patch.setattr(runner, "multiprocessing", types.SimpleNamespace(get_context=lambda _: forked_processes.CONTEXT))
