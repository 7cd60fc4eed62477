"""Which suites there are, and which one a name belongs to.

A suite is a module with `measure(names, turns, say)`, `broken(rows)` and `print_rows(rows)`; it is imported when asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from fedarena.bench.table_format import Row
from fedarena.bench.workloads import WORKLOADS
from fedarena.config.errors import UnknownName, suggest

ROUNDS = "rounds"
SUITES = {
    ROUNDS: "fedarena.bench.rounds",
    "population": "fedarena.bench.population",
    "vertical": "fedarena.bench.vertical",
    "scale": "fedarena.bench.scale",
}


def measure(
    names: Sequence[str] | None = None, turns: int = 3, say: Callable[[str], None] = lambda text: None
) -> dict[str, list[Row]]:
    """What each suite measured, by its name: that of federated rounds unless others, or works of it, are named."""
    chosen: dict[str, list[str]] = {}
    for name in names or (ROUNDS,):
        if name not in SUITES and name not in WORKLOADS:
            known = (*WORKLOADS, *SUITES)
            raise UnknownName(
                f"no work or suite is called '{name}'", remedy=suggest(name, known, f"they are: {', '.join(known)}")
            )
        chosen.setdefault(ROUNDS if name in WORKLOADS else name, []).extend([name] if name in WORKLOADS else [])
        if name == ROUNDS:
            chosen[ROUNDS] = list(WORKLOADS)
    return {suite: _module(suite).measure(works, turns, say) for suite, works in chosen.items()}


def broken(measured: dict[str, list[Row]]) -> list[str]:
    """Promises that were not kept, in words."""
    return [told for suite, rows in measured.items() for told in _module(suite).broken(rows)]


def print_tables(measured: dict[str, list[Row]]) -> None:
    """For people."""
    for suite, rows in measured.items():
        _module(suite).print_rows(rows)


def _module(suite: str) -> Any:
    return importlib.import_module(SUITES[suite])
