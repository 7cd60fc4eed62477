"""A federation of a hundred thousand devices over some simulated days: they are there at night, and few of them by day.

Devices live in four time zones, and what they hold depends on where: seven rows of ten are of classes that their own zone
has most of. Who is awake decides what the server learns.
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
AT_ONCE = 100  # devices asked in a round, or at work at the same time
LOOK = 3  # rounds from one look at the model to the next
# Ten rows take the fastest device 100 s, the median one 400 s, and one in forty more than 1,600 s: reading, checking in
# and waiting included.
FLEET: dict[str, Any] = {
    "available": "day", "zones": ZONES, "hours": 8.0, "speed": 0.1, "speeds": "lognormal", "spread": 16.0,
    "bandwidth": 1e5, "latency": 5.0,
}  # fmt: skip
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "fedavg, 130 asked": ("fedavg", {"overselect": 1.3, "deadline": 1800.0}),
    "fedbuff": ("fedbuff", {}),
}


@dataclass(frozen=True)
class Zones:
    """Gaussian clouds, one a class, dealt to devices zone by zone."""

    devices: int = DEVICES

    def load(self, seed: int) -> Dataset:
        """Devices are natural clients; test rows have all classes alike and belong to devices all over the world."""
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


def experiment(way: str, devices: int = DEVICES) -> Experiment:
    """The federation, with one of the ways to ask its devices."""
    algorithm, how = WAYS[way]
    return Experiment.make(
        Zones(devices), model="logreg", algorithm=algorithm, partition="natural", per_round=AT_ONCE, rounds=10**6,
        local={"lr": 0.05, "batch": ROWS}, evaluate={"every": LOOK}, devices={**FLEET, **how},
    )  # fmt: skip


def simulate(way: str, days: float = DAYS, devices: int = DEVICES) -> Row:
    """So many simulated days, and what was seen of them."""
    import fedarena as fa

    began = time.perf_counter()
    rounds = fa.rounds(experiment(way, devices), runtime="serial")  # ten rows are not worth a message to a worker
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
        "design": way,
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
        "by_hour": by_hour(way, records, devices),
        "curve": [[r.clock / HOUR, r.accuracy] for r in records if r.accuracy is not None],
    }


def by_hour(way: str, records: list[RoundRecord], devices: int = DEVICES) -> list[Row]:
    """Of each hour of the day, in the first zone: devices there at its begin, rounds that ended in it, what they lost."""
    known = build_availability(experiment(way, devices), devices, range(devices))
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
