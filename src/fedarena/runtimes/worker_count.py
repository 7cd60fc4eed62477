"""How many workers are of use."""

from __future__ import annotations

import os
import warnings

PER_CORE = 4  # workers that may share a core; more only take memory and wait for each other


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_workers(workers: int, useful: int | None = None, work: str = "", here: bool = True) -> int:
    """Return no more workers than have work and, on this machine, than its cores can serve; warn where that is fewer."""
    limits = [] if useful is None else [(useful, work)]
    if here:
        cores = usable_cores()
        limits.append((PER_CORE * cores, f"{PER_CORE} for each of {cores} core{'s' * (cores != 1)} are enough"))
    most, why = min(limits, default=(workers, ""))
    if workers <= most:
        return workers
    warnings.warn(f"{most} worker{'s' * (most != 1)} instead of {workers}: {why}", stacklevel=2)
    return most
