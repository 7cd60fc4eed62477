"""Availability: when devices can train, that is plugged in, idle, on an unmetered network.

A device is available in intervals [from, to) of simulated time, read from a file or synthetic; with a period they repeat.
They are stored as arrays, not as one object per device. All times lie on a grid of 1/1024 s, on which days and seconds add
up exactly: a clock that is moved to the arrival of a device finds it available.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.config.seeds import stream
from fedarena.data.published_files import reading

TICKS = 1024  # of a second
HOUR, DAY = 3600.0, 86400.0
EVENING, EVENINGS = 22.0, 1.5  # hour at which devices are plugged in, and its deviation between devices
NIGHTS = 0.5  # the hours of a device are shorter or longer than the mean by up to this share
COLUMNS = ("client", "from", "to")
WHERE = "devices.available"

Times = NDArray[np.float64]
Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Availability:
    """The intervals of all clients: those of a client are adjacent and in order, and no two of them touch."""

    count: int  # of clients
    clients: Ids
    starts: Times  # within the first period
    ends: Times  # beyond the period where the interval continues in the next; inf where it never ends
    period: float  # inf: intervals do not repeat
    _last: dict[float, Flags] = field(default_factory=dict, init=False, repr=False)  # a round needs it several times

    def is_available(self, clock: float) -> Flags:
        """Return whether each client is available at this time."""
        if clock not in self._last:
            _, now = self._split(clock)
            open_ = ((self.starts <= now) & (now < self.ends)) | (now < self._ends_before)
            here = np.zeros(self.count, bool)
            once = len(self._firsts) == len(open_)  # one interval a client, as most patterns have: much quicker
            here[self.clients[self._firsts]] = open_ if once else np.logical_or.reduceat(open_, self._firsts)
            here.flags.writeable = False
            self._last.clear()
            self._last[clock] = here
        return self._last[clock]

    def available_until(self, clock: float) -> Times:
        """Return the time at which each client leaves; -inf for one that is not available at this time."""
        base, now = self._split(clock)
        leaving = np.full(self.count, -np.inf)
        begun = (self.starts <= now) & (now < self.ends)
        leaving[self.clients[begun]] = base + self.ends[begun]
        before = now < self._ends_before
        leaving[self.clients[before]] = base + self._ends_before[before]
        return leaving

    def next_available(self, clock: float) -> float | None:
        """Return the first time from `clock` on at which any client is available; None if there is none."""
        return clock if self.is_available(clock).any() else self.next_arrival(clock)

    def next_arrival(self, clock: float) -> float | None:
        """Return the first time after `clock` at which a client arrives; None if none ever does."""
        base, now = self._split(clock)
        later = int(np.searchsorted(self._arrivals, now, side="right"))
        if later == len(self._arrivals):
            base, later = base + self.period, 0
        moment = base + float(self._arrivals[later])
        return moment if moment < math.inf else None

    def next_interval(self, client: int, clock: float) -> tuple[float, float] | None:
        """Return the client's current or next interval, from `clock` at the earliest; None if it never comes again."""
        base, now = self._split(clock)
        first, last = np.searchsorted(self.clients, [client, client + 1])
        if first == last:
            return None
        starts, ends = self.starts[first:last], self.ends[first:last]
        if now < self._ends_before[last - 1]:
            return clock, base + float(self._ends_before[last - 1])
        at = int(np.searchsorted(ends, now, side="right"))
        if at == len(ends):
            base, at = base + self.period, 0
        opens = base + float(starts[at])
        return (max(opens, clock), base + float(ends[at])) if opens < math.inf else None

    def _split(self, clock: float) -> tuple[float, float]:
        """Return the start of the current period, and the time since then."""
        now = math.fmod(clock, self.period)
        return clock - now, now

    @cached_property
    def _arrivals(self) -> Times:
        return np.unique(self.starts)

    @cached_property
    def _ends_before(self) -> Times:
        """Return the end, in this period, of intervals that began in the previous one."""
        return self.ends - self.period if self.period < math.inf else np.full(len(self.ends), -np.inf)

    @cached_property
    def _firsts(self) -> Ids:
        """Return the position of the first interval of each client that has any."""
        return np.flatnonzero(np.append(True, np.diff(self.clients)))


def build_availability(experiment: Experiment, clients: int, population: Sequence[int]) -> Availability | None:
    """Return when clients with rows are available, by the experiment's pattern or trace; None where that is always."""
    devices = experiment.devices
    if devices.available == "always":
        return None
    if devices.available == "day":
        who, starts, ends = _nights(experiment, clients)
        period = DAY
    else:
        who, starts, ends = _traced(devices.available, clients, devices.period)
        period = math.inf if devices.period is None else round(devices.period * TICKS) / TICKS
    with_rows = np.zeros(clients, bool)
    with_rows[np.asarray(population)] = True
    known = with_rows[who]
    if not known.any():
        raise BadValue(
            f"{devices.available} names no client that has rows", remedy="give some client an interval", where=WHERE
        )
    return join(clients, who[known], starts[known], ends[known], period)


def _nights(experiment: Experiment, clients: int) -> tuple[Ids, Times, Times]:
    """Return synthetic intervals: each device is plugged in every evening at its own time, for its own number of hours.

    Time zones are an hour apart, the first clients in the first one; there it is midnight when the clock starts.
    """
    devices, rng = experiment.devices, stream(experiment.seed_for("available"), "available")
    who = np.arange(clients)
    evening = EVENING + EVENINGS * rng.standard_normal(clients) + who * devices.zones // clients
    wide = min(NIGHTS, 24 / devices.hours - 1)  # no device has more than 24 hours
    hours = devices.hours * rng.uniform(1 - wide, 1 + wide, clients)
    starts = evening % 24 * HOUR
    return who, starts, starts + np.maximum(hours * HOUR, 1 / TICKS)


def _traced(path: str, clients: int, period: float | None) -> tuple[Ids, Times, Times]:
    """Read the intervals of clients from a CSV file."""
    remedy = f'give "always", "day", or a CSV file with the columns {", ".join(COLUMNS)}'
    with reading(path, remedy=remedy), open(path, encoding="utf-8", newline="") as file:
        names = [name.strip() for name in file.readline().split(",")]
        at = [names.index(name) for name in COLUMNS]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an empty file is reported below
            lines = np.loadtxt(file, delimiter=",", usecols=at, ndmin=2)
    who, starts, ends = lines.T if len(lines) else np.empty((3, 0))
    unknown = np.flatnonzero((who % 1 != 0) | (who < 0) | (who >= clients))
    if len(unknown):
        raise BadValue(
            f"{path} names client {who[unknown[0]]:g}, but the experiment has {clients}",
            remedy=f"number clients from 0 to {clients - 1}",
            where=WHERE,
        )
    last, lengths = math.inf if period is None else period, ends - starts
    fits = (starts >= 0) & (starts < last) & (lengths >= 1 / TICKS) & (lengths <= last) & (ends < math.inf)
    if not fits.all():
        client, start, end = lines[np.flatnonzero(~fits)[0]]
        within = "" if period is None else f", start within the period of {period:g} s, and not last longer"
        raise BadValue(
            f"{path}: client {client:.0f} is available from {start:g} to {end:g}",
            remedy=f"an interval must end at least a millisecond after its start{within}",
            where=WHERE,
        )
    return who.astype(np.int64), starts, ends


def join(count: int, who: Ids, starts: Times, ends: Times, period: float) -> Availability:
    """Build an Availability from intervals in any order: those that overlap or touch become one."""
    begin, end = np.rint(starts * TICKS).astype(np.int64), np.rint(ends * TICKS).astype(np.int64)
    if period < math.inf:  # what continues in the next period is available at the start of each
        ticks = round(period * TICKS)
        over = end > ticks
        who = np.concatenate([who, who[over]])
        begin = np.concatenate([begin, np.zeros(int(over.sum()), np.int64)])
        end = np.concatenate([np.minimum(end, ticks), end[over] - ticks])
    order = np.lexsort((begin, who))
    who, begin, end = who[order], begin[order], end[order]
    span = int(end.max()) + 1  # clients one after the other on one line: intervals of different clients cannot meet
    reach = np.maximum.accumulate(who * span + end)
    first = np.flatnonzero(np.append(True, (who * span + begin)[1:] > reach[:-1]))
    who, starts, ends = who[first], begin[first] / TICKS, np.maximum.reduceat(end, first) / TICKS
    if period < math.inf:
        who, starts, ends = _around(who, starts, ends, period)
    return Availability(count, who, starts, ends, period)


def _around(who: Ids, starts: Times, ends: Times, period: float) -> tuple[Ids, Times, Times]:
    """Join a client's last interval with its first one, where they meet at the end of the period."""
    change = np.flatnonzero(np.diff(who)) + 1
    first, last = np.append(0, change), np.append(change, len(who)) - 1
    meet = (starts[first] == 0) & (ends[last] == period)
    ends[last[meet]] += ends[first[meet]]
    ends[last[meet & (first == last)]] = np.inf  # all the time
    gone = first[meet & (first != last)]
    return np.delete(who, gone), np.delete(starts, gone), np.delete(ends, gone)
