"""The suite of federated rounds: works W1 to W8, our engine against reference loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedarena.bench import flower_simulation
from fedarena.bench.baselines import FLOWER, OURS, PLAIN, designs_of
from fedarena.bench.machine import flops, gemm_gflops
from fedarena.bench.runner import CannotMeasure, Timing, run_interleaved
from fedarena.bench.table_format import Row, number, print_table
from fedarena.bench.workloads import WORKLOADS, Workload

NO_FLOWER = "Flower is not installed here (`pip install 'flwr[simulation]'`): it is left out"


def measure(names: Sequence[str], turns: int, say: Callable[[str], None]) -> list[Row]:
    """One row for each work and design; ratios are to the plain DataLoader loop of the same run."""
    if not flower_simulation.is_installed():
        say(NO_FLOWER)
    peak = gemm_gflops()
    rows = []
    for work in [WORKLOADS[name] for name in names]:
        say(str(work))
        rows.extend(_measure_one(work, turns, say))
        peak = max(peak, gemm_gflops())  # a roof is what the machine can do at its best hour
    say(f"matrix products on this machine: {peak:.0f} GFLOP/s")
    for row in rows:
        row["roofline_percent"] = 100 * row.pop("gflops") / peak
    return rows


def _measure_one(work: Workload, turns: int, say: Callable[[str], None]) -> list[Row]:
    designs = designs_of(work)
    seen = dict(zip(designs, run_interleaved([(work, design) for design in designs], turns), strict=True))
    if flower_simulation.is_installed() and work.kind == "training" and work.beside is None:
        try:  # apart from the others: Ray's own processes are never quite idle
            seen[FLOWER] = run_interleaved([(work, FLOWER)], turns)[0]
        except CannotMeasure as error:
            say(str(error))
    return [_row(work, design, timing, seen) for design, timing in seen.items()]


def _row(work: Workload, design: str, timing: Timing, seen: dict[str, Timing]) -> Row:
    promise = work.promise if design == OURS else type(work.promise)()
    beside = seen.get(f"{OURS} {work.beside}")
    scaled = f"{round(timing.share * work.cohort)} of {work.cohort} clients a turn, scaled"
    return {
        "work": work.name,
        "design": design,
        "samples_per_second": work.samples / timing.median,
        "ratio_to_plain": seen[PLAIN].median / timing.median,
        "gflops": flops(work) * work.samples / timing.median / 1e9,
        "memory_mb": timing.megabytes,
        "startup_seconds": timing.startup,
        "seconds_per_round": timing.median,
        "times": timing.median / beside.median if beside and design == OURS else None,
        "beside": work.beside if beside and design == OURS else None,
        "floor": promise.ratio,
        "floor_roofline": promise.roofline,
        "ceiling_times": promise.times,
        "note": scaled if timing.share < 1 else "",
    }


def broken(rows: Sequence[Row]) -> list[str]:
    """Promises that these rows do not keep, in words."""
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
    """For people."""
    columns: dict[str, Callable[[Row], str]] = {
        "work": lambda r: r["work"],
        "design": lambda r: r["design"],
        "samples/s": lambda r: number(r["samples_per_second"]),
        "ratio to plain": lambda r: number(r["ratio_to_plain"], 2),
        "promised": lambda r: number(r["floor"], 1),
        "of the roofline": lambda r: number(r["roofline_percent"], unit=" %"),
        "promised ": lambda r: number(r["floor_roofline"], unit=" %"),
        "memory": lambda r: number(r["memory_mb"], unit=" MB"),
        "start-up": lambda r: number(r["startup_seconds"], 1, " s"),
    }
    print_table("One round, side by side", columns, rows, left=("work", "design"))
    for row in rows:
        if row["note"]:
            print(f"{row['work']} {row['design']}: {row['note']}")
        if row["times"] is not None:
            most = row["ceiling_times"]
            told = "" if most is None else f", at most {most:g} is promised"
            print(f"{row['work']} takes {row['times']:.2f} times the time of {row['beside']}{told}")
