"""`fedarena finetune`: train the model of a run further on a table of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from annotated_types import Ge

from fedarena.cli.options import File, Json, Quiet
from fedarena.cli.output import print_result


def finetune(
    run: Annotated[
        Path, typer.Argument(help="A run folder with a model: of a federation, of a client, or of a table.")
    ],
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file with your samples. It stays on this machine.")],
    epochs: Annotated[int, "Passes over your training samples.", Ge(1)] = 2,
    lr: Annotated[float, "Learning rate."] = 0.01,
    batch: Annotated[int, "Samples of a step.", Ge(1)] = 16,
    test: Annotated[float, "Share of your samples that is held out, to compare."] = 0.2,
    seed: Annotated[int, "Seed of the split and of the order of samples.", Ge(0)] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the new model; by default the next free one under runs/."),
    ] = None,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train the model of a run further on your own samples, and compare it before and after on held-out samples.

    `fedarena finetune federation/clinic-a/RUN/model clinic-a.csv -o own-model`

    `fedarena finetune runs/csv-fedavg-seed0 mine.csv --epochs 5 --lr 0.001`

    Columns are encoded as in the run. The new folder is a run folder, which `fedarena predict` uses. On few samples a model
    soon fits them and predicts others worse: use the new one only if the held-out samples say so. A model that was
    trained with differential privacy loses its guarantee towards people who see the fine-tuned one.
    """
    from fedarena.experiments.finetune import finetune as finetune_model

    found = finetune_model(run, data, epochs=epochs, lr=lr, batch=batch, test=test, seed=seed, out=out)
    trained, held_out = found.samples
    table = {
        "run_dir": str(found.run.dir),
        "samples": trained,
        "held_out": held_out,
        "before": dict(found.before),
        "after": dict(found.after),
        "notes": list(found.run.notes),
    }
    print_result(found, table, json_)
