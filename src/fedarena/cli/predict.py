"""`fedarena predict`: predictions of a trained model for new samples."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedarena.cli.options import File, Json, Quiet
from fedarena.cli.output import print_json
from fedarena.common.files import atomic_write


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    table: Annotated[Path, typer.Argument(help="A CSV or Parquet file with the columns of the training table.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write the predictions, as CSV or Parquet.")
    ] = None,
    level: Annotated[float, "Probability of the intervals of a regression."] = 0.9,
    client: Annotated[str | None, "A client by name or number, for its own model or its own scaling."] = None,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict new samples with the model of a run, encoded as in training.

    `fedarena predict runs/hospitals-fedavg-seed0 new.csv -o scores.csv`

    `fedarena predict runs/stay-fedavg-seed0 new.csv --level 0.95 -o stay.csv`

    Classification gives the class and the probability of each class. A regression gives the value and an interval that
    holds the label of a new sample with the given probability, if new samples are like the test samples (split-conformal
    prediction). Missing columns and values are filled as in training, levels that training did not see are zeros, and other
    columns are ignored; a note says so.
    """
    from fedarena.experiments.predict import predicted

    found = predicted(run, table, level=level, client=client)
    if not quiet:
        for note in found.notes:
            print(f"note: {note}", file=sys.stderr)
    if out is not None:
        with atomic_write(out) as target:
            found.write(target, parquet=out.suffix == ".parquet")
    if json_:
        print_json(
            {
                "rows": found.rows,
                "columns": list(found.columns),
                "out": None if out is None else str(out),
                "notes": list(found.notes),
                **({} if out else {"predictions": {name: values.tolist() for name, values in found.columns.items()}}),
            }
        )
    elif out is not None:
        print(f"{found.rows} predictions: {out}")
    else:
        found.write(sys.stdout.buffer)
