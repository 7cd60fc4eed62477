"""The suite of scale: costs of a client and an update, a federation of 100,000 devices, and the overhead of Ray and Flower.

Costs are in `costs.py`, devices in `availability.py`, Ray and Flower in `runtimes.py`; here they are run, printed, and
extrapolated to federations that are too large for one machine.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

from fedarena.bench import availability, costs, runtimes
from fedarena.bench.table_format import Row, number, print_table

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


def _of_days(row: Row, key: str, best: Callable[[list[float]], float]) -> float:
    return best([hour[key] for hour in row["by_hour"] if hour[key] is not None])


Columns = dict[str, Callable[[Row], str]]
TABLES: dict[str, tuple[str, Columns]] = {
    "client": (
        "A client's part in a round, everything included",
        {
            "model": lambda r: r["model"],
            "parameters": lambda r: number(r["parameters"]),
            "rows x epochs": lambda r: number(r["rows"]),
            "a round of": lambda r: number(r["clients"]),
            "takes": lambda r: number(1000 * r["seconds_per_round"], 0, " ms"),
            "core time a client": lambda r: number(1e3 * r["core_seconds"], 2, " ms"),
            "down": lambda r: number(r["bytes_down"] / 1e3, 1, " kB"),
            "up": lambda r: number(r["bytes_up"] / 1e3, 1, " kB"),
            "memory": lambda r: number(r["memory_mb"], unit=" MB"),
        },
    ),
    "mean": (
        "One core adds answers to the mean",
        {
            "parameters": lambda r: number(r["parameters"]),
            "an answer": lambda r: number(1000 * r["seconds"], 3, " ms"),
            "answers/s": lambda r: number(r["answers_per_second"], 0 if r["answers_per_second"] >= 100 else 1),
        },
    ),
    "checkpoint": (
        "The server's checkpoint after a round",
        {
            "parameters": lambda r: number(r["parameters"]),
            "clients": lambda r: number(r["clients"]),
            "takes": lambda r: number(1000 * r["seconds"], 1, " ms"),
            "size": lambda r: number(r["bytes"] / 1e6, 2, " MB"),
        },
    ),
    "memory": (
        "What a client remembers, on disk",
        {
            "parameters": lambda r: number(r["parameters"]),
            "write": lambda r: number(1000 * r["seconds_write"], 2, " ms"),
            "read": lambda r: number(1000 * r["seconds_read"], 2, " ms"),
            "size": lambda r: number(r["bytes"] / 1e6, 2, " MB"),
        },
    ),
    "draw": (
        f"Who is there, and {costs.COHORT:,} of them",
        {
            "clients": lambda r: number(r["clients"]),
            "takes": lambda r: number(1000 * r["seconds"], 2, " ms"),
            "known of all": lambda r: number(r["bytes"] / 1e6, 1, " MB"),
        },
    ),
    "place": (
        f"The same round in three places: {len(runtimes.NAMES)} clients, {runtimes.ROWS} rows each",
        {
            "where": lambda r: r["design"],
            "a round": lambda r: (
                number(None) if r["seconds_per_round"] is None else number(1000 * r["seconds_per_round"], 1, " ms")
            ),
        },
    ),
    "days": (
        f"Devices that come and go, {availability.AT_ONCE} at a time",
        {
            "devices": lambda r: number(r["clients"]),
            "design": lambda r: r["design"],
            "simulated": lambda r: number(r["days"], 2, " days"),
            "rounds": lambda r: number(r["rounds"]),
            "answers": lambda r: number(r["answered"]),
            "lost": lambda r: number(100 * r["lost_share"], 1, " %"),
            "lost, best hour": lambda r: number(100 * _of_days(r, "lost_share", min), 1, " %"),
            "worst hour": lambda r: number(100 * _of_days(r, "lost_share", max), 1, " %"),
            "there, fewest": lambda r: number(_of_days(r, "available", min)),
            "most": lambda r: number(_of_days(r, "available", max)),
            "accuracy": lambda r: number(r["accuracy"], 3),
            "real time": lambda r: number(r["seconds"], 0, " s"),
            "core time": lambda r: number(r["core_seconds"], 0, " s"),
            "start-up": lambda r: number(r["startup_seconds"], 0, " s"),
            "memory": lambda r: number(r["memory_mb"], unit=" MB"),
        },
    ),
    "implied": (
        f"What that implies: mlp_2nn, {SHARE:.0%} of the clients in a round",
        {
            "clients": lambda r: number(r["clients"]),
            "asked": lambda r: number(r["asked"]),
            "training, one core": lambda r: number(r["training_core_seconds"], 1, " s"),
            "adding, one core": lambda r: number(r["adding_seconds"], 2, " s"),
            "down": lambda r: number(r["bytes_down"] / 1e9, 3, " GB"),
            "up": lambda r: number(r["bytes_up"] / 1e9, 3, " GB"),
            "draw": lambda r: number(1000 * r["draw_seconds"], 1, " ms"),
            "known of all": lambda r: number(r["known_bytes"] / 1e6, 1, " MB"),
            "checkpoint": lambda r: number(1000 * r["checkpoint_seconds"], 1, " ms"),
            "memories, on disk": lambda r: number(r["memories_bytes"] / 1e9, 1, " GB"),
            f"all, {availability.AT_ONCE} at a time": lambda r: number(r["days_for_all"], 1, " days"),
        },
    ),
}
