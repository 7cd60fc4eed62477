"""A federation of a hundred thousand devices over some simulated days: most are available at night, few by day.

Devices are in four time zones, on which their data depend: seven samples of ten are of classes that are frequent in their
zone. Which devices are available decides what the server learns.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedarena.bench.machine import proportional_megabytes
from fedarena.bench.table_format import Row
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset
from fedarena.engine.availability import DAY, HOUR, build_availability
from fedarena.engine.record import RoundRecord

DEVICES, DAYS = 100_000, 3.0
ROWS, FEATURES, CLASSES, TEST_ROWS = 10, 20, 10, 2000
ZONES, OWN = 4, 0.7
AT_ONCE = 100  # devices selected in a round, or training at the same time
EVALUATE_EVERY = 3  # rounds
# Ten rows take the fastest device 100 s, the median one 400 s, and one in forty more than 1,600 s: reading, checking in
# and waiting included.
FLEET: dict[str, Any] = {
    "available": "day", "zones": ZONES, "hours": 8.0, "speed": 0.1, "speeds": "lognormal", "spread": 16.0,
    "bandwidth": 1e5, "latency": 5.0,
}  # fmt: skip
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "fedavg, 130 asked": ("fedavg", {"overselect": 1.3, "deadline": 1800.0}),
    "fedbuff": ("fedbuff", {}),
}


@dataclass(frozen=True)
class Zones:
    """A Gaussian cloud for each class, partitioned over the devices by zone."""

    devices: int = DEVICES

    def load(self, seed: int) -> Dataset:
        """Return a data set whose natural clients are the devices; test samples are balanced over classes and devices."""
        rng, rows = np.random.default_rng(seed), self.devices * ROWS
        owner = np.repeat(np.arange(self.devices), ROWS)
        anywhere = rng.integers(0, CLASSES, rows)
        here = (anywhere // ZONES * ZONES + owner * ZONES // self.devices) % CLASSES
        y = np.append(np.where(rng.random(rows) < OWN, here, anywhere), np.arange(TEST_ROWS) % CLASSES)
        centres = rng.standard_normal((CLASSES, FEATURES), np.float32)
        x = centres[y]
        x += 1.5 * rng.standard_normal(x.shape, np.float32)
        testers = np.arange(TEST_ROWS) * self.devices // TEST_ROWS
        names = tuple(map(str, range(self.devices)))
        return Dataset("zones", x, y, rows, CLASSES, owner=np.append(owner, testers), owner_names=names)


def experiment(policy: str, devices: int = DEVICES) -> Experiment:
    """Return the experiment with one of the policies to select devices."""
    algorithm, how = POLICIES[policy]
    return Experiment.make(
        Zones(devices), model="logreg", algorithm=algorithm, partition="natural", per_round=AT_ONCE, rounds=10**6,
        local={"lr": 0.05, "batch": ROWS}, evaluate={"every": EVALUATE_EVERY}, devices={**FLEET, **how},
    )  # fmt: skip


def simulate(policy: str, days: float = DAYS, devices: int = DEVICES) -> Row:
    """Simulate some days, and return what was measured."""
    import fedarena as fa

    began = time.perf_counter()
    rounds = fa.rounds(experiment(policy, devices), runtime="serial")  # workers do not pay off for ten samples
    records, opened, worked, megabytes = [], time.perf_counter(), time.process_time(), 0.0
    for record in rounds:
        records.append(record)
        if len(records) % 50 == 1:
            megabytes = max(megabytes, proportional_megabytes() or 0.0)
        if record.clock >= days * DAY:
            break
    took, worked = time.perf_counter() - opened, time.process_time() - worked
    rounds.close()  # type: ignore[attr-defined]
    return {
        "work": "scale",
        "part": "days",
        "design": policy,
        "clients": devices,
        "days": records[-1].clock / DAY,
        "rounds": len(records),
        "selected": sum(r.selected for r in records),
        "answered": sum(r.answered for r in records),
        "lost_share": sum(r.dropped for r in records) / sum(r.selected for r in records),
        "seconds": took,
        "core_seconds": worked,
        "startup_seconds": opened - began,
        "memory_mb": megabytes or None,
        "accuracy": max((r.accuracy for r in records if r.accuracy is not None), default=None),
        "by_hour": by_hour(policy, records, devices),
        "curve": [[r.clock / HOUR, r.accuracy] for r in records if r.accuracy is not None],
    }


def by_hour(policy: str, records: list[RoundRecord], devices: int = DEVICES) -> list[Row]:
    """Return, for each hour of the day in the first zone, the available devices, the rounds that ended, and losses."""
    known = build_availability(experiment(policy, devices), devices, range(devices))
    assert known is not None
    hours: list[Row] = []
    for hour in range(24):
        ended = [r for r in records if int(r.clock % DAY // HOUR) == hour]
        selected = sum(r.selected for r in ended)
        hours.append(
            {
                "hour": hour,
                "available": int(known.is_available(hour * HOUR).sum()),
                "rounds": len(ended),
                "lost_share": sum(r.dropped for r in ended) / selected if selected else None,
            }
        )
    return hours
