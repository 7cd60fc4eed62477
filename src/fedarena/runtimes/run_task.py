"""Running one job in this process, the same way everywhere: one thread, subnormal floats flushed, errors as values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fedarena.engine.client import Common
from fedarena.engine.context import Site
from fedarena.engine.tasks import Failed, Job


def run_job(site: Site, job: Job, common: Common) -> Any:
    """The job's result, or Failed. Subnormal numbers are flushed: products over them are a hundred times slower."""
    torch.set_flush_denormal(True)
    try:
        return job.run(site, common)
    except Exception as error:
        return Failed.by(error)
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
