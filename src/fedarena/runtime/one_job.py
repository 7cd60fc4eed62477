"""Running one job in this process, the same way everywhere: one thread, subnormal floats flushed, errors as values."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import fedarena
from fedarena.engine.dispatch import Failed
from fedarena.engine.jobs import Job
from fedarena.engine.site import Site
from fedarena.engine.work import Common

OURS = str(Path(fedarena.__file__).parent)


def run_job(site: Site, job: Job, common: Common) -> Any:
    """The job's result, or Failed. Subnormal numbers are flushed: products over them are a hundred times slower."""
    torch.set_flush_denormal(True)
    try:
        return job.run(site, common)
    except Exception as error:
        return failure(error)
    finally:
        torch.set_flush_denormal(False)


def failure(error: Exception) -> Failed:
    """The error in words, with the last line of it that is not inside an installed package."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(OURS)]
    place = f"{own[-1].filename}, line {own[-1].lineno}" if own else ""
    return Failed(f"{type(error).__name__}: {error}", place)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Sums inside torch depend on the number of threads: one, whoever computes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
