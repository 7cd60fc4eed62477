"""The suites of the benchmark, by name.

A suite is a module with `measure(names, repetitions)`, `missed_targets(rows)` and `print_rows(rows)`, imported when needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from fedarena.bench.table_format import Row
from fedarena.bench.workloads import WORKLOADS
from fedarena.config.errors import check_known

ROUNDS = "rounds"
SUITES = {
    ROUNDS: "fedarena.bench.rounds",
    "population": "fedarena.bench.population",
    "vertical": "fedarena.bench.vertical",
    "scale": "fedarena.bench.scale",
}


def measure(names: Sequence[str] | None = None, repetitions: int = 3) -> dict[str, list[Row]]:
    """Run suites or workloads by name, by default the suite of federated rounds; return the rows of each suite."""
    chosen: dict[str, list[str]] = {}
    known = (*WORKLOADS, *SUITES)
    for name in names or (ROUNDS,):
        check_known(name, known, f"no workload or suite is called '{name}'", f"they are: {', '.join(known)}")
        chosen.setdefault(ROUNDS if name in WORKLOADS else name, []).extend([name] if name in WORKLOADS else [])
        if name == ROUNDS:
            chosen[ROUNDS] = list(WORKLOADS)
    return {suite: _module(suite).measure(workloads, repetitions) for suite, workloads in chosen.items()}


def missed_targets(measured: dict[str, list[Row]]) -> list[str]:
    """Return a message for each target that was missed."""
    return [message for suite, rows in measured.items() for message in _module(suite).missed_targets(rows)]


def print_tables(measured: dict[str, list[Row]]) -> None:
    """Print the tables of all suites."""
    for suite, rows in measured.items():
        _module(suite).print_rows(rows)


def _module(suite: str) -> Any:
    return importlib.import_module(SUITES[suite])
