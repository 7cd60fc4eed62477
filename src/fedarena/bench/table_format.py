"""Print measurements as tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

Row = dict[str, Any]  # one measurement: what `--json` prints


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


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """Format a number with its unit; None is the empty text.

    >>> number(1234.5), number(0.125, 2, " s"), number(None)
    ('1,234', '0.12 s', '')
    """
    return "" if value is None else f"{value:,.{digits}f}{unit}"
