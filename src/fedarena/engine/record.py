"""The record of a round, and the log in which a run stores its records."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, get_type_hints


@dataclass(frozen=True)
class RoundRecord:
    """The numbers of a round. Counts and bytes are totals since the start; metrics are None if it was not evaluated."""

    round: int
    accuracy: float | None = None  # of the server's model on the global test set
    loss: float | None = None
    weighted_accuracy: float | None = None  # over clients' own test sets, weighted by training rows
    best_accuracy: float | None = None  # of the best round so far, by `evaluate.metric`
    train_loss: float | None = None  # mean over this round's clients, last local epoch
    selected: int = 0
    answered: int = 0
    dropped: int = 0  # never answered, failed, or not finite
    non_finite: int = 0  # of those dropped, sent an update that was no number
    uploads: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    outdated: int = 0  # trainings discarded because the server's model was too new (asynchronous algorithms)
    overactive: int = 0  # trainings after which a client continued from its own model
    steps: int = 0
    samples: int = 0
    client_std: float | None = None  # spread of the clients' accuracies on their own test sets
    client_worst: float | None = None  # mean of the worst tenth of them
    epsilon: float | None = None  # privacy spent so far, where the uplink adds noise
    record_epsilon: float | None = None  # privacy of a record spent so far, where `local.privacy` adds noise
    metric: float | None = None  # value of `evaluate.metric` where that is not accuracy or loss; NaN where undefined
    validation: float | None = None  # the same on the samples held out to choose a round, where there are any
    attack_success: float | None = None  # share of triggered test samples taken for the class of a backdoor
    clock: float = 0.0  # simulated seconds since the start, by the experiment's devices; the same on every machine
    seconds_select: float = 0.0
    seconds_train: float = 0.0
    seconds_aggregate: float = 0.0
    seconds_evaluate: float = 0.0
    seconds_slowest: float = 0.0  # the straggler: the longest any client of the round took
    wall_seconds: float = 0.0  # since the start of the run

    def value_of(self, metric: str) -> float | None:
        """Return the value of the metric that the run follows; None if the round was not evaluated."""
        return self.accuracy if metric == "accuracy" else self.loss if metric == "loss" else self.metric


WHERE_KNOWN = ("validation", "record_epsilon", "attack_success")  # that the log has only where there is a value


def plain_record(record: RoundRecord) -> dict[str, Any]:
    """Return a record as the log has it: without values of WHERE_KNOWN where there are none."""
    plain = asdict(record)
    return {name: value for name, value in plain.items() if name not in WHERE_KNOWN or value is not None}


TIMES = tuple(name for name in RoundRecord.__dataclass_fields__ if "seconds" in name)
NUMBERS = {name: str(kind) for name, kind in get_type_hints(RoundRecord).items()}


def parse_record(line: str | bytes) -> RoundRecord:
    """Read one line of the log of rounds; a ValueError says why a line is no record."""
    plain = json.loads(line)
    if not isinstance(plain, dict) or "round" not in plain:
        raise ValueError("a line of it is no record of a round")
    for name, value in plain.items():
        if name not in NUMBERS:
            raise ValueError(f"a record has the unknown key {name!r}")
        fits = isinstance(value, int) or (isinstance(value, float) and "float" in NUMBERS[name])
        if isinstance(value, bool) or not (fits or (value is None and "None" in NUMBERS[name])):
            raise ValueError(f"a record has {name} = {value!r}")
    return RoundRecord(**plain)


def parse_records(lines: list[bytes]) -> list[RoundRecord]:
    """Read the lines of a log, which must be rounds 1, 2, 3 and so on."""
    records = [parse_record(line) for line in lines]
    for number, record in enumerate(records, 1):
        if record.round != number:
            raise ValueError(f"round {record.round} is where round {number} should be")
    return records
