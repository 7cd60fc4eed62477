"""Predict new samples with the model of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, quoted, suggest
from fedarena.data.table_reader import read_table
from fedarena.results.run import Run
from fedarena.results.run_loading import load_run
from fedarena.results.trained_model import trained_model


class Predicted(NamedTuple):
    """The columns of the predictions, and notes about the table."""

    columns: dict[str, NDArray[Any]]
    notes: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Return the number of samples."""
        return len(next(iter(self.columns.values())))

    def write(self, file: BinaryIO, parquet: bool = False) -> None:
        """Write the predictions as CSV or as Parquet."""
        import pyarrow as pa
        from pyarrow import csv
        from pyarrow import parquet as parquet_files

        table = pa.table({name: pa.array(values.tolist()) for name, values in self.columns.items()})
        parquet_files.write_table(table, file) if parquet else csv.write_csv(table, file)


def predict(
    run: Run | str | Path, table: Any, *, level: float = 0.9, client: str | int | None = None
) -> dict[str, NDArray[Any]]:
    """Return the predictions for a table (a file, a DataFrame or columns by name) as columns.

    `client` is one client by name or number, for its own model or its own scaling.

    >>> import fedarena as fa
    >>> run = fa.run("breast_cancer", rounds=1, out=False, runtime="serial")
    >>> fa.predict(run, np.zeros((2, 30), np.float32))["prediction"].shape
    (2,)
    """
    return predicted(run, table, level=level, client=client).columns


def predicted(run: Run | str | Path, table: Any, *, level: float = 0.9, client: str | int | None = None) -> Predicted:
    """Return the predictions for a table, with notes about it."""
    known = run if isinstance(run, Run) else load_run(Path(run))
    number = _number(known, client)
    model = trained_model(known, number)
    if isinstance(table, str | Path):
        separator = known.experiment.data.settings.get("separator", ",")
        table = read_table(table, separator=separator, where="predict")
    names = known.measured.client_names
    own = None if number is None or number >= len(names) else names[number]
    columns = model.predict(table, level, own)
    return Predicted(columns, model.notes)


def _number(run: Run, client: str | int | None) -> int | None:
    """Return the number of a client that is given by name or number."""
    names: Mapping[str, int] = {name: k for k, name in enumerate(run.measured.client_names)}
    if client is None or isinstance(client, int | np.integer):
        return client
    if client in names:
        return names[client]
    if client.isdigit():
        return int(client)
    raise BadValue(
        f"no client of this run is called '{quoted(client)}'",
        remedy=suggest(client, list(names), f"the clients are: {', '.join(names)}"),
        where="--client",
    )
