"""The suite of scale: costs of a client and an update, a federation of 100,000 devices, and the overhead of Ray and Flower.

Costs are in `costs.py`, devices in `availability.py`, Ray and Flower in `runtimes.py`; here they are run, printed, and
extrapolated to federations that are too large for one machine.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from fedarena.bench import availability, costs, runtimes
from fedarena.bench.table_format import Row, print_table, read_tables

LOGGER = logging.getLogger(__name__)
SHARE = 0.01  # of all clients, selected in a round
MILLION = ("fedavg", 1.0, 1_000_000)  # one day of ten times as many devices
MEGABYTES = 2000  # at most, with 100,000 devices


def measure(names: Sequence[str], repetitions: int) -> list[Row]:
    """Return the rows of each part, then what they imply."""
    rows: list[Row] = []
    LOGGER.info("scale: a client's part in a round")
    rows += costs.of_clients(repetitions)
    LOGGER.info("scale: the mean, checkpoints, memories, draws")
    for cost in (costs.of_mean, costs.of_checkpoint, costs.of_memory, costs.of_draw):
        rows += cost(repetitions)
    rows += runtimes.measure(repetitions)
    for policy, simulated, devices in [
        *((policy, availability.DAYS, availability.DEVICES) for policy in availability.POLICIES),
        MILLION,
    ]:
        LOGGER.info(f"scale: {devices:,} devices, simulated days: {simulated:g}, {policy}")
        rows.append(_simulate_in_process(policy, simulated, devices))
    return rows + implied(rows)


def _simulate_in_process(policy: str, simulated: float, devices: int) -> Row:
    """Simulate in a process of its own, so that its memory is measured separately."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(availability.simulate, policy, simulated, devices).result()


def implied(rows: Sequence[Row]) -> list[Row]:
    """Extrapolate the costs of a medium client to a round with one in a hundred of many clients.

    Training, aggregation and traffic are linear in the selected clients, stored client states in all clients. The simulated
    days are those after which the server, with a hundred clients at a time, has selected as many clients as there are.
    """
    client = _of(rows, "client")[1]
    size, add = client["parameters"], _between(_of(rows, "mean"), client["parameters"])
    memory = _between(_of(rows, "memory"), size, "bytes")
    drawn = {row["clients"]: row for row in _of(rows, "draw")}
    saved = {row["clients"]: row for row in _of(rows, "checkpoint") if row["parameters"] == costs.VECTORS[0]}
    model = _between([r for r in _of(rows, "checkpoint") if r["clients"] == costs.CROWD], size)
    simulated = next(row for row in _of(rows, "days") if row["design"] == "fedavg")
    asked_a_day = simulated["selected"] / simulated["days"]
    found = []
    for clients in costs.POPULATIONS:
        asked = max(int(SHARE * clients), 1)
        found.append(
            {
                "work": "scale",
                "part": "implied",
                "clients": clients,
                "asked": asked,
                "training_core_seconds": asked * client["core_seconds"],
                "adding_seconds": asked * add,
                "bytes_down": asked * client["bytes_down"],
                "bytes_up": asked * client["bytes_up"],
                "draw_seconds": drawn[clients]["seconds"],
                "known_bytes": drawn[clients]["bytes"],
                "checkpoint_seconds": saved[clients]["seconds"] + model,
                "memories_bytes": clients * memory,
                "days_for_all": clients / asked_a_day,
            }
        )
    return found


def _of(rows: Sequence[Row], part: str) -> list[Row]:
    return [row for row in rows if row["part"] == part]


def _between(rows: Sequence[Row], size: int, key: str = "seconds") -> float:
    """Return the cost of `size` parameters, scaled from the nearest smaller size that was measured."""
    nearest = max((row for row in rows if row["parameters"] <= size), key=lambda row: row["parameters"])
    return float(nearest[key] * size / nearest["parameters"])


def missed_targets(rows: Sequence[Row]) -> list[str]:
    """Return a message for each cost that grows with the number of devices and should not."""
    hundred_thousand = [row for row in _of(rows, "days") if row["clients"] == availability.DEVICES]
    heavy = [row for row in hundred_thousand if (row["memory_mb"] or 0) > MEGABYTES]
    return [
        f"{row['design']}, {row['clients']:,} devices: {row['memory_mb']:,.0f} MB, at most {MEGABYTES:,} are promised"
        for row in heavy
    ]


def print_rows(rows: Sequence[Row]) -> None:
    """Print a table for each part."""
    for part, (title, columns) in TABLES.items():
        print_table(title, columns, _of(rows, part), left=("model", "design", "where"))
    for row in _of(rows, "place"):
        if row["note"]:
            print(row["note"])


TABLES = read_tables(
    "scale",
    SAMPLED=costs.COHORT,
    CLIENTS=len(runtimes.NAMES),
    ROWS=runtimes.ROWS,
    AT_ONCE=availability.AT_ONCE,
    SHARE=SHARE,
)
