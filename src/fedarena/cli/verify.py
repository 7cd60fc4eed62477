"""`fedarena verify`: repeat a run, or one run of a result file, and compare it bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from annotated_types import Ge

from fedarena.cli.options import Address, File, Json, Quiet, Runtime, Workers
from fedarena.cli.output import print_json

MOST_DIFFERENCES = 10  # printed as text; `--json` has them all


def verify(
    run: Annotated[Path, typer.Argument(help="A run folder, or a result file of `fedarena reproduce`.")],
    row: Annotated[int | None, "Which run of a result file to repeat; by default the quickest.", Ge(1)] = None,
    runtime: Runtime = "processes",
    workers: Workers = None,
    address: Address = None,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Repeat a run, compare it bit by bit, and check every file of its folder. Exit code 1 if anything differs.

    Of a run between organisations, whose samples are not here, the files are checked.

    `fedarena verify runs/digits-fedavg-seed0`

    `fedarena verify papers/results/N-T3-small.json --row 2`
    """
    from fedarena.experiments.run import verify as verify_run

    if run.suffix == ".json":
        _verify_result_file(run, row, json_)
        return
    verdict = verify_run(run, runtime=runtime, workers=workers, address=address, progress=not quiet)
    sha256, rounds = (verdict.again or verdict.run).weights_sha256, len(verdict.run.records)
    if json_:
        print_json(
            {
                "same": verdict.same,
                "differences": verdict.differences,
                "weights_sha256": sha256,
                "unchecked": list(verdict.unchecked),
            }
        )
    elif verdict.same:
        said = "the files are as they were written" if verdict.again is None else "the same bits"
        print(f"{said}: {rounds} round{'s' * (rounds != 1)}, weights sha256 {sha256[:16]}")
        print("".join(f"not checked: {text}\n" for text in verdict.unchecked), end="")
    else:
        print("\n".join(["not the same:", *verdict.differences[:MOST_DIFFERENCES]]))
    if not verdict.same:
        raise typer.Exit(1)


def _verify_result_file(file: Path, row: int | None, json_: bool) -> None:
    from fedarena.reproduction.reproduce import verify_row

    found = verify_row(file, row)
    if json_:
        print_json(
            {
                "same": not found.differences,
                "run": found.name,
                "differences": found.differences,
                "rounded": found.rounded,
                "other_versions": found.other_versions,
            }
        )
    elif found.differences:
        shown = found.differences[:MOST_DIFFERENCES]
        print("\n".join([f"not the same: {found.name}", *shown, *found.other_versions]))
    elif found.rounded:
        print("\n".join([f"the same bits of all weights: {found.name}", *found.rounded, *found.other_versions]))
    else:
        print(f"the same bits: {found.name}")
    if found.differences:
        raise typer.Exit(1)
