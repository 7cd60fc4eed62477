"""The device model: how long trainings and messages of each client take in simulated time.

Times come from random streams of their own, by client and by number of the training: they do not depend on the algorithm,
on the order of execution or on the machine.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.config.seeds import stream
from fedarena.data.published_files import reading
from fedarena.models.compiled import can_shuffle, uniform

COLUMNS = ("speed", "bandwidth", "latency", "dropout")


@dataclass(frozen=True)
class Stragglers:
    """Clients whose device is too slow for a whole round: they stop early and send the model that they have."""

    fraction: float = 0.0  # chance that a client is a straggler, in each round
    epochs_min: int = 1  # fewest epochs of a straggler, or steps where the experiment sets `local.steps`

    def amount(self, usual: int, rng: np.random.Generator) -> int:
        """Return the epochs or steps of one client in one round: `usual`, or U{epochs_min..usual} for a straggler."""
        is_straggler = rng.random() < self.fraction
        return int(rng.integers(min(self.epochs_min, usual), usual + 1)) if is_straggler else usual


@dataclass(frozen=True)
class Fleet:
    """The devices of all clients: speed, network and reliability."""

    seed: int
    speed: NDArray[np.float64]  # rows a second
    bandwidth: NDArray[np.float64]  # bytes a second
    latency: NDArray[np.float64]  # seconds, either way
    dropout: NDArray[np.float64]  # chance that an answer never arrives
    jitter: float
    exponential: bool

    def training_seconds(self, client: int, number: int, rows: float) -> float:
        """Return the seconds of a client's training of this number: forward and backward passes of so many rows."""
        return self.usual_seconds(client, rows) * float(self.training_factors([client], number)[0])

    def usual_seconds(self, client: int, rows: float) -> float:
        """Return the seconds of a client's training without random variation."""
        return float(rows / self.speed[client])

    def training_factors(self, clients: Sequence[int], number: int) -> NDArray[np.float64]:
        """Return, for each client, the random factor on the usual seconds of the training of this number."""
        return _training_factors(self.seed, self.exponential, self.jitter, tuple(clients), number)

    def message_seconds(self, client: int, nbytes: int) -> float:
        """Return the seconds of a message in either direction."""
        return float(self.latency[client] + nbytes / self.bandwidth[client])

    def exchange_seconds(self, client: int, down: int, training: float, up: int) -> float:
        """Return the seconds of a client's part in an exchange: fetch `down` bytes, train, send `up` bytes."""
        return self.message_seconds(client, down) + training + self.message_seconds(client, up)

    def fastest(self) -> Fleet:
        """Return the fleet for pooled rows, which are trained on at the speed of the fastest device."""
        return replace(self, speed=np.full_like(self.speed, self.speed.max()))

    def drops_out(self, client: int, number: int) -> bool:
        """Return whether the answer to this training never arrives."""
        chance = self.dropout[client]
        return bool(chance > 0 and stream(self.seed, "failure", number, client).random() < chance)


@functools.lru_cache(maxsize=256)  # every exchange of a round needs them
def _training_factors(
    seed: int, exponential: bool, jitter: float, clients: tuple[int, ...], number: int
) -> NDArray[np.float64]:
    low, high = 1 - jitter, 1 + jitter
    if exponential or not can_shuffle(seed):
        streams = [stream(seed, "latency", number, client) for client in clients]
        factors = np.array([rng.exponential() if exponential else rng.uniform(low, high) for rng in streams])
    else:
        factors = low + (high - low) * uniform(seed, "latency", number, clients)
    factors.flags.writeable = False
    return factors


def build_fleet(experiment: Experiment, clients: int) -> Fleet:
    """Return one device for every client, from the experiment's distribution or trace."""
    devices, same = experiment.devices, np.ones(clients)
    fleet = Fleet(
        experiment.seed_for("latency"),
        devices.speed / _slowness(experiment, clients),
        devices.bandwidth * same,
        devices.latency * same,
        experiment.dropouts * same,
        devices.jitter,
        devices.durations == "exponential",
    )
    if devices.speeds == "groups":  # machine 0 is the server's own: nothing travels
        near = np.arange(clients) % devices.groups == 0
        fleet = replace(
            fleet, bandwidth=np.where(near, np.inf, fleet.bandwidth), latency=np.where(near, 0.0, fleet.latency)
        )
    return fleet if devices.trace is None else _traced(fleet, devices.trace, clients)


def _slowness(experiment: Experiment, clients: int) -> NDArray[np.float64]:
    """Return how many times slower than the fastest each device is, from 1 to `spread`."""
    devices, rng = experiment.devices, stream(experiment.seed_for("latency"), "latency")
    power = np.zeros(clients)  # of `spread`
    if devices.speeds == "uniform":  # even on a logarithmic scale: as many twice too slow as twice too fast
        power = rng.random(clients)
    elif devices.speeds == "lognormal":
        power = 0.5 + rng.standard_normal(clients) / 4
    elif devices.speeds == "groups":
        power = (np.arange(clients) % devices.groups) / max(devices.groups - 1, 1)
    slower: NDArray[np.float64] = np.float64(devices.spread) ** power
    return slower


def _traced(fleet: Fleet, path: str, clients: int) -> Fleet:
    """Return the fleet with the columns of a CSV file in place of its own."""
    where = "devices.trace"
    with reading(path, remedy=f"give a CSV file with the columns client and any of {', '.join(COLUMNS)}"):
        with open(path, encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        known: dict[str, Any] = {name: getattr(fleet, name).copy() for name in COLUMNS}
        given = [name for name in COLUMNS if lines and name in lines[0]]
        rows = [(int(line["client"]), [float(line[name]) for name in given]) for line in lines]
    unknown = set(lines[0]) - {"client", *COLUMNS} if lines else set()
    named = [client for client, _ in rows]
    if not given or unknown:
        raise BadValue(
            f"{path} has the columns {', '.join(lines[0]) if lines else 'none'}",
            remedy=f"use client and any of {', '.join(COLUMNS)}",
            where=where,
        )
    if sorted(named) != list(range(clients)):
        raise BadValue(
            f"{path} names {len(named)} clients, the experiment has {clients}",
            remedy=f"give one line for each client, 0 to {clients - 1}",
            where=where,
        )
    for client, values in rows:
        for name, value in zip(given, values, strict=True):
            lowest = 0.0 if name in ("latency", "dropout") else np.nextafter(0, 1)
            fits = lowest <= value and (name == "bandwidth" or value < np.inf) and (name != "dropout" or value < 1)
            if not fits:
                raise BadValue(
                    f"{path}: client {client} has {name} = {value:g}", remedy=f"correct its {name}", where=where
                )
            known[name][client] = value
    return replace(fleet, **known)
