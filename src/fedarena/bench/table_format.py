"""Print measurements as tables."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

Row = dict[str, Any]  # one measurement: what `--json` prints
Columns = dict[str, Callable[[Row], str]]
EXTREMES: dict[str, Callable[[list[float]], float]] = {"min": min, "max": max}


def read_tables(suite: str, **names: float) -> dict[str, tuple[str, Columns]]:
    """Return title and columns of the tables of a suite in tables.toml, whose texts may use these names."""
    tables = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))[suite]
    return {
        part: (
            table["title"].format(**names),
            {header.format(**names): partial(_cell, column) for header, column in table["columns"].items()},
        )
        for part, table in tables.items()
    }


def _cell(column: Any, row: Row) -> str:
    if isinstance(column, str):
        return str(row[column])
    key, factor, digits, unit, *whole_from = column
    name, *inner = key.split(".")
    value = row[name]
    if inner:
        value = EXTREMES[inner[1]]([one[inner[0]] for one in value if one[inner[0]] is not None])
    if value is None:
        return ""
    scaled = value * factor if factor >= 1 else value / round(1 / factor)
    shown = 0 if whole_from and scaled >= whole_from[0] else digits
    return f"{scaled:,.{shown}f}{unit}"


def print_table(
    title: str, columns: Mapping[str, Callable[[Row], str]], rows: Sequence[Row], left: Collection[str]
) -> None:
    """Print a table without its empty columns; columns not in `left` are aligned to the right, and none is truncated."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=0)
    cells = {name: [cell(row) for row in rows] for name, cell in columns.items()}
    shown = {name: column for name, column in cells.items() if any(column)}
    widest = {name: max(map(len, [*column, *name.split()])) for name, column in shown.items()}
    for name, width in widest.items():
        table.add_column(name, justify="left" if name in left else "right", min_width=width)
    for line in zip(*shown.values(), strict=True):
        table.add_row(*line)
    console = Console()
    # On a narrow terminal lines wrap, so that no column is truncated.
    console.width = max(console.width, sum(widest.values()) + len(widest) + 1)
    console.print(f" {title}", style="bold", markup=False, highlight=False)
    console.print(table)
