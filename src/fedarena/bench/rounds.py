"""The suite of federated rounds: workloads W1 to W8, our engine against reference loops."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fedarena.bench import flower_simulation
from fedarena.bench.designs import FLOWER, OURS, designs_of
from fedarena.bench.machine import flops, gemm_gflops
from fedarena.bench.reference_loops import PLAIN
from fedarena.bench.runner import MeasurementFailed, Timing, run_interleaved
from fedarena.bench.table_format import Row, print_table, read_tables
from fedarena.bench.workloads import WORKLOADS, Workload

LOGGER = logging.getLogger(__name__)
NO_FLOWER = "Flower is not installed here (`pip install 'flwr[simulation]'`): it is left out"


def measure(names: Sequence[str], repetitions: int) -> list[Row]:
    """Return one row for each workload and design; ratios are to the plain DataLoader loop of the same run."""
    if not flower_simulation.is_installed():
        LOGGER.info(NO_FLOWER)
    peak = gemm_gflops()
    rows = []
    for workload in [WORKLOADS[name] for name in names]:
        LOGGER.info(str(workload))
        rows.extend(_measure_one(workload, repetitions))
        peak = max(peak, gemm_gflops())  # the roofline is the best speed at any time
    LOGGER.info(f"matrix products on this machine: {peak:.0f} GFLOP/s")
    for row in rows:
        row["roofline_percent"] = 100 * row.pop("gflops") / peak
    return rows


def _measure_one(workload: Workload, repetitions: int) -> list[Row]:
    designs = designs_of(workload)
    seen = dict(zip(designs, run_interleaved([(workload, design) for design in designs], repetitions), strict=True))
    if flower_simulation.is_installed() and workload.kind == "training" and workload.beside is None:
        try:  # separately from the others: the processes of Ray are never quite idle
            seen[FLOWER] = run_interleaved([(workload, FLOWER)], repetitions)[0]
        except MeasurementFailed as error:
            LOGGER.info(str(error))
    return [_row(workload, design, timing, seen) for design, timing in seen.items()]


def _row(workload: Workload, design: str, timing: Timing, seen: dict[str, Timing]) -> Row:
    target = workload.target if design == OURS else type(workload.target)()
    beside = seen.get(f"{OURS} {workload.beside}")
    scaled = f"{round(timing.share * workload.cohort)} of {workload.cohort} clients a turn, scaled"
    return {
        "work": workload.name,
        "design": design,
        "samples_per_second": workload.samples / timing.median,
        "ratio_to_plain": seen[PLAIN].median / timing.median,
        "gflops": flops(workload) * workload.samples / timing.median / 1e9,
        "memory_mb": timing.megabytes,
        "startup_seconds": timing.startup,
        "seconds_per_round": timing.median,
        "times": timing.median / beside.median if beside and design == OURS else None,
        "beside": workload.beside if beside and design == OURS else None,
        "floor": target.ratio,
        "floor_roofline": target.roofline,
        "ceiling_times": target.times,
        "note": scaled if timing.share < 1 else "",
    }


def missed_targets(rows: Sequence[Row]) -> list[str]:
    """Return a message for each target that these rows miss."""
    found = []
    for row in rows:
        name = f"{row['work']} {row['design']}"
        if row["floor"] is not None and row["ratio_to_plain"] < row["floor"]:
            found.append(f"{name}: {row['ratio_to_plain']:.2f} times the plain loop, its floor is {row['floor']:g}")
        if row["floor_roofline"] is not None and row["roofline_percent"] < row["floor_roofline"]:
            share, floor = row["roofline_percent"], row["floor_roofline"]
            found.append(f"{name}: {share:.0f} % of the roofline, its floor is {floor:g} %")
        if row["ceiling_times"] is not None and row["times"] > row["ceiling_times"]:
            times, most = row["times"], row["ceiling_times"]
            found.append(f"{name}: {times:.2f} times the time of {row['beside']}, at most {most:g} is promised")
    return found


def print_rows(rows: Sequence[Row]) -> None:
    """Print the measured rows as a table."""
    for title, columns in read_tables("rounds").values():
        print_table(title, columns, rows, left=("work", "design"))
    for row in rows:
        if row["note"]:
            print(f"{row['work']} {row['design']}: {row['note']}")
        if row["times"] is not None:
            most = row["ceiling_times"]
            at_most = "" if most is None else f", at most {most:g} is promised"
            print(f"{row['work']} takes {row['times']:.2f} times the time of {row['beside']}{at_most}")
