"""Which batches a client trains on in a round that continues the pass over its samples that an earlier round began."""

from __future__ import annotations

from typing import NamedTuple


class BatchPass(NamedTuple):
    """Consecutive batches of one pass over a client's samples."""

    number: int | None  # of the pass, counted over all rounds; None: the next pass of this round
    skipped: int  # samples of the pass that earlier rounds have used
    sizes: list[int]


def continued_passes(sizes: list[int], made: int, steps: int) -> list[BatchPass]:
    """Return the batches of the next `steps` steps after `made` steps, where every pass has batches of these sizes."""
    passes = []
    while steps > 0 and sizes:
        number, first = divmod(made, len(sizes))
        batches = sizes[first : first + steps]
        passes.append(BatchPass(number, sum(sizes[:first]), batches))
        made, steps = made + len(batches), steps - len(batches)
    return passes
