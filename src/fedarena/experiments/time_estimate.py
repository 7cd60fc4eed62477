"""Estimate how long experiments take, by timing one client in one round of every kind of experiment."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import NamedTuple

from fedarena.algorithms.base import Asynchronous
from fedarena.config.experiment import Experiment
from fedarena.engine.stopping import StopRule, participants
from fedarena.experiments import run as run_module

WASTED = 2.0  # trainings of an asynchronous algorithm for each update that is used


class RoundTimes(NamedTuple):
    """The number of clients, and the seconds to open a run, to end a round, and to train one client."""

    clients: int
    opening: float
    ending: float
    training: float


def estimate_seconds(experiments: Iterable[Experiment]) -> float:
    """Return the estimated time of all experiments on one core; less where a run stops early at a target."""
    return sum(seconds_of_each(experiments))


def seconds_of_each(experiments: Iterable[Experiment]) -> list[float]:
    """Return the time of each experiment on one core, in their order; experiments of one kind are timed once."""
    times: dict[str, RoundTimes] = {}
    found = []
    for experiment in experiments:
        kind = _kind(experiment)
        if kind not in times:
            times[kind] = _round_times(experiment)
        one = times[kind]
        rounds, trainings = _amount(experiment, one.clients)
        found.append(one.opening + rounds * (one.ending + trainings * one.training))
    return found


def _kind(experiment: Experiment) -> str:
    """Return a key that is equal for experiments with the same time per client and round."""
    table = experiment.as_table()
    names = [table[key]["name"] for key in ("partition", "algorithm")]
    whole = [table[key] for key in ("data", "model", "local")]
    return json.dumps([*names, *whole, experiment.clients, experiment.fast], default=str)


def _amount(experiment: Experiment, clients: int) -> tuple[int, float]:
    """Return the number of rounds, and of client trainings in each."""
    algorithm = experiment.algorithm.made
    cohort = participants(experiment, clients)
    if isinstance(algorithm, Asynchronous):
        return StopRule(experiment, algorithm, cohort).nominal_rounds, WASTED * cohort
    if algorithm.everyone:  # all clients are asked twice per round
        return StopRule(experiment, algorithm, 2 * clients).nominal_rounds, clients
    return StopRule(experiment, algorithm, cohort).nominal_rounds, cohort if algorithm.communicates else clients


def _round_times(experiment: Experiment) -> RoundTimes:
    """Run one round with one client and return its times."""
    began = time.perf_counter()
    algorithm = experiment.algorithm.made
    probe = experiment.with_(rounds=1, per_round=1, evaluate={"every": 1})
    if not algorithm.communicates:  # pooled or local training: the same work, one client at a time
        probe = probe.with_(algorithm="fedavg")
    run = run_module.run(probe, out=False, runtime="serial")
    record, clients = run.records[-1], int((run.client_sizes > 0).sum())
    trained = clients if algorithm.everyone and not isinstance(algorithm, Asynchronous) else 1
    opening = max(time.perf_counter() - began - record.wall_seconds, 0.0)
    ending = record.seconds_evaluate + record.seconds_aggregate + record.seconds_select
    return RoundTimes(clients, opening, ending, record.seconds_train / trained)
