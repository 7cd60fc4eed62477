"""Designs of the bench in forked processes, with short repetitions: their order and their table do not depend on either."""

from __future__ import annotations

import types
from multiprocessing.connection import Connection

import pytest

from fedarena.bench import machine, runner
from fedarena.bench.workloads import Workload
from tests.support import forked_processes

SERVE = runner.serve


def serve(pipe: Connection, workload: Workload, design: str) -> None:
    """Run in the process of a design: repetitions of a twentieth of a second instead of a second."""
    runner.LEAST = 0.05
    SERVE(pipe, workload, design)


def use_short_repetitions(patch: pytest.MonkeyPatch) -> None:
    """Fork the processes of designs from one that has imported what they need."""
    patch.setattr(machine, "PAUSE", 1.0)  # a look at the memory of all processes walks all their pages
    patch.setattr(runner, "serve", serve)
    patch.setattr(runner, "multiprocessing", types.SimpleNamespace(get_context=lambda _: forked_processes.CONTEXT))
