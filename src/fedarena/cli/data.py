"""`fedarena data`: get data sets, and show how a partition divides them among clients."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from fedarena.cli.options import (
    ExperimentOptions,
    File,
    Json,
    Quiet,
    add_commands,
    command_group,
    one_source,
)
from fedarena.cli.output import print_json, print_result
from fedarena.config.errors import CannotWrite

LOGGER = logging.getLogger(__name__)

app = command_group("Get data sets, and show how they are partitioned among clients.")


def get(
    name: Annotated[str, typer.Argument(help="A data set of `fedarena list datasets`.")],
    folder: Annotated[Path | None, "Where to store it; by default the user's cache folder."] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Download a data set, check its hash and store it for later runs.

    `fedarena data get mnist`
    """
    from fedarena.common.progress import DownloadProgress
    from fedarena.data.download import download_dataset

    with DownloadProgress(name, silent=quiet) as progress:
        path = download_dataset(name, folder=folder, progress=progress)
    print_result(path, {"name": name, "path": str(path)}, json_)


def show(
    *,
    experiment: Annotated[
        list[str], typer.Argument(help="An experiment file, the name of a data set, or CSV or Parquet files.")
    ],
    plot: Annotated[Path | None, "Also draw the partition to this PNG file."] = None,
    changes: ExperimentOptions,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show the columns of a table, and which client has which samples: sizes, classes, and distances from the whole.

    `fedarena data show north.csv south.csv --label ill --drop id`

    `fedarena data show digits --plot partition.png`

    `fedarena data show exp.toml --set partition.beta=0.1`
    """
    from fedarena.config.experiment import Experiment
    from fedarena.config.limits import check_paths
    from fedarena.data.partition_statistics import statistics
    from fedarena.data.sources.table_files import TableFile
    from fedarena.data.table_summary import summarise_table
    from fedarena.engine.setup import partition_data
    from fedarena.reports.terminal_tables import show_partition, show_table

    check_paths(("--plot", plot))
    exp = Experiment.make(one_source(experiment), changes.overrides, **changes.table)
    table = summarise_table(exp.data.made) if isinstance(exp.data.made, TableFile) else None
    if table is not None and not exp.data.made.label_names:  # the columns are all that is known
        print_result(table, table.as_dict() if json_ else None, json_)
        LOGGER.info("note: name the column to predict: --label NAME")
        return
    data, partition = partition_data(exp)
    facts = statistics(data, partition)
    if plot is not None:
        from fedarena.reports.partition_plots import plot_partition

        try:
            plot_partition(data, partition, plot)
        except (OSError, ValueError) as error:
            raise CannotWrite(
                f"cannot draw {plot}: {error}", remedy="name a PNG file in an existing folder", where="--plot"
            ) from None
        LOGGER.info("drawn: %s", plot)
    for note in partition.notes:
        LOGGER.info("note: %s", note)
    if json_:
        columns = {} if table is None else {"table": table.as_dict(data)}
        print_json({"partition": exp.partition.name, "sha256": partition.fingerprint(), **facts.as_dict(), **columns})
    else:
        if table is not None:
            show_table(table, data)
        show_partition(exp, facts)


add_commands(app, get, show)
