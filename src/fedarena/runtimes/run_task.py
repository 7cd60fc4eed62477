"""Run one task in this process, in the same way everywhere: one thread, subnormal floats flushed, errors as values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.tasks import FailedTask, RuntimeTask


def run_task(context: ExperimentContext, task: RuntimeTask, common: Broadcast) -> Any:
    """Return the task's result or a FailedTask.

    Subnormal numbers are flushed to zero: products with them are a hundred times slower.
    """
    torch.set_flush_denormal(True)
    try:
        return task.run(context, common)
    except Exception as error:
        return FailedTask.by(error)
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread within the block: its sums depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
