"""The privacy guarantees of a run in words; one that promises nothing is called that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedarena.privacy.accountant import promise

if TYPE_CHECKING:
    from fedarena.results.run import Run


def guarantees(run: Run) -> list[str]:
    """Return a line for each guarantee of a run: about a client, and about a record of a client."""
    found = {}
    if run.epsilon is not None:
        found["epsilon"] = f"epsilon {run.epsilon:.3g} at delta {run.delta:.3g}"
    if run.record_epsilon is not None:
        found["record_epsilon"] = f"epsilon of a record {run.record_epsilon:.3g} at delta {run.record_delta:.3g}"
    empty = empty_promises(run)
    return [text + ": promises nothing" * (name in empty) for name, text in found.items()]


def empty_promises(run: Run) -> set[str]:
    """Return which of `epsilon` and `record_epsilon` promise nothing."""
    clients, records = int((run.client_sizes > 0).sum()), int(run.client_sizes.sum())
    found = set()
    if run.epsilon is not None and run.delta is not None and promise(run.epsilon, run.delta, "client", clients):
        found.add("epsilon")
    epsilon, delta = run.record_epsilon, run.record_delta
    if epsilon is not None and delta is not None and promise(epsilon, delta, "record", records):
        found.add("record_epsilon")
    return found
