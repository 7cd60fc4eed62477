"""Running one job in this process, the same way everywhere: one thread, subnormal floats flushed, errors as values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.tasks import FailedTask, RuntimeTask


def run_task(site: ExperimentContext, job: RuntimeTask, common: Broadcast) -> Any:
    """The job's result, or Failed. Subnormal numbers are flushed: products over them are a hundred times slower."""
    torch.set_flush_denormal(True)
    try:
        return job.run(site, common)
    except Exception as error:
        return FailedTask.by(error)
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Sums inside torch depend on the number of threads: one, whoever computes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
