"""How long will it take? One client's part of one round is timed, for every kind of work in a plan."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import NamedTuple

from fedarena.algorithms.base import Asynchronous
from fedarena.config.experiment import Experiment
from fedarena.engine.stopping import StopRule, participants
from fedarena.experiments import run as run_module

WASTED = 2.0  # trainings of an asynchronous algorithm for each that counts (docs/reference/algorithms.md#co-op)


class RoundTimes(NamedTuple):
    """Clients, and the seconds to begin, to end a round, and for one client's training."""

    people: int
    opening: float
    ending: float
    training: float


def estimate_seconds(experiments: Iterable[Experiment]) -> float:
    """Of all of them one after the other, on one core: about, and at most where a run may stop at a target."""
    return sum(seconds_of_each(experiments))


def seconds_of_each(experiments: Iterable[Experiment]) -> list[float]:
    """Return the time of each experiment on one core, in their order; experiments of one kind are timed once."""
    paces: dict[str, RoundTimes] = {}
    found = []
    for experiment in experiments:
        kind = _kind(experiment)
        if kind not in paces:
            paces[kind] = _round_times(experiment)
        pace = paces[kind]
        rounds, clients = _amount(experiment, pace.people)
        found.append(pace.opening + rounds * (pace.ending + clients * pace.training))
    return found


def _kind(experiment: Experiment) -> str:
    """What decides the pace."""
    table = experiment.as_table()
    names = [table[key]["name"] for key in ("partition", "algorithm")]
    whole = [table[key] for key in ("data", "model", "local")]
    return json.dumps([*names, *whole, experiment.clients, experiment.fast], default=str)


def _amount(experiment: Experiment, people: int) -> tuple[int, float]:
    """Rounds, and how many trainings of one client each of them is."""
    algorithm = experiment.algorithm.made
    cohort = participants(experiment, people)
    if isinstance(algorithm, Asynchronous):
        return StopRule(experiment, algorithm, cohort).nominal_rounds, WASTED * cohort
    if algorithm.everyone:  # asked twice a round
        return StopRule(experiment, algorithm, 2 * people).nominal_rounds, people
    return StopRule(experiment, algorithm, cohort).nominal_rounds, cohort if algorithm.communicates else people


def _round_times(experiment: Experiment) -> RoundTimes:
    """One client, one round."""
    began = time.perf_counter()
    algorithm = experiment.algorithm.made
    probe = experiment.with_(rounds=1, per_round=1, evaluate={"every": 1})
    if not algorithm.communicates:  # where all rows lie together, or nobody sends: as much work, a client at a time
        probe = probe.with_(algorithm="fedavg")
    run = run_module.run(probe, out=False, runtime="serial")
    record, people = run.records[-1], int((run.client_sizes > 0).sum())
    asked = people if algorithm.everyone and not isinstance(algorithm, Asynchronous) else 1
    opening = max(time.perf_counter() - began - record.wall_seconds, 0.0)
    ending = record.seconds_evaluate + record.seconds_aggregate + record.seconds_select
    return RoundTimes(people, opening, ending, record.seconds_train / asked)
