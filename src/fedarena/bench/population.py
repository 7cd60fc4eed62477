"""The suite of large populations: the time of a round with a hundred clients must not depend on how many others exist."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fedarena.bench.designs import OURS
from fedarena.bench.runner import run_interleaved
from fedarena.bench.table_format import Row, print_table, read_tables
from fedarena.bench.workloads import MNIST, Workload

LOGGER = logging.getLogger(__name__)
POPULATIONS = (1_000, 10_000, 100_000)
ROWS, COHORT = 10, 100
GROWTH = 1.25  # at most: seconds a round with the most clients, to those with the fewest
MEGABYTES = 2000  # at most: with the most clients


def measure(names: Sequence[str], repetitions: int) -> list[Row]:
    """Return one row for each size of the population."""
    LOGGER.info(f"population: scaffold, logreg, {COHORT} clients a round x {ROWS} rows")
    workloads = [_workload(clients) for clients in POPULATIONS]
    timings = run_interleaved([(workload, OURS) for workload in workloads], repetitions)
    fewest = timings[0].median
    return [
        {
            "work": "population",
            "design": OURS,
            "clients": workload.clients,
            "samples_per_second": workload.samples / timing.median,
            "seconds_per_round": timing.median,
            "times": timing.median / fewest,
            "memory_mb": timing.megabytes,
            "startup_seconds": timing.startup,
            "ratio_to_plain": None,
            "roofline_percent": None,
        }
        for workload, timing in zip(workloads, timings, strict=True)
    ]


def _workload(clients: int) -> Workload:
    local = {"lr": 0.05, "epochs": 1, "batch": 10}
    return Workload(
        f"{clients:,} clients", {"name": "logreg"}, MNIST, ROWS, COHORT, clients, local, algorithm="scaffold"
    )


def missed_targets(rows: Sequence[Row]) -> list[str]:
    """Return a message for each cost that grows with the population and should not."""
    found = []
    for row in rows:
        name = f"population of {row['clients']:,}"
        if row["times"] > GROWTH:
            found.append(f"{name}: a round takes {row['times']:.2f} times as long as with {POPULATIONS[0]:,}")
        if row["memory_mb"] is not None and row["memory_mb"] > MEGABYTES:
            found.append(f"{name}: {row['memory_mb']:,.0f} MB, at most {MEGABYTES:,} are promised")
    return found


def print_rows(rows: Sequence[Row]) -> None:
    """Print the measured rows as a table."""
    for title, columns in read_tables("population", COHORT=COHORT).values():
        print_table(title, columns, rows, left=())
