"""`fedarena bench`: speed against plain PyTorch loops."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from fedarena.cli.options import Json, Quiet
from fedarena.cli.output import print_json

LOGGER = logging.getLogger(__name__)


def bench(
    name: Annotated[
        list[str] | None,
        typer.Argument(
            help="Workloads (W1 ... W8) or suites (rounds, population, vertical, scale); by default all workloads."
        ),
    ] = None,
    check: Annotated[bool, "Exit with code 1 if a promised speed is not reached."] = False,
    turns: Annotated[
        int, typer.Option("--turns", "--rounds", min=1, help="Timed repetitions of each variant; the median counts.")
    ] = 3,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the speed against plain PyTorch loops, side by side in one process, on synthetic data.

    `fedarena bench`

    `fedarena bench W1 W2 --check`

    `fedarena bench population`

    `fedarena bench scale --json`
    """
    from fedarena.bench import measure, missed_targets, print_tables

    measured = measure(name, turns)
    if json_:
        print_json([row for rows in measured.values() for row in rows])
    else:
        print_tables(measured)
    if check and (missed := missed_targets(measured)):
        for message in missed:
            LOGGER.error(message)
        raise typer.Exit(1)
