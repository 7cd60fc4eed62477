"""`fedarena data`: get data sets, and show how a partition divides them among clients."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from fedarena.cli.options import File, Json, Quiet, Set, load_components
from fedarena.cli.output import print_json, print_result
from fedarena.config.errors import CannotWrite

LOGGER = logging.getLogger(__name__)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Get data sets, and show how they are partitioned among clients.",
)


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A data set of `fedarena list datasets`.")],
    folder: Annotated[Path | None, typer.Option(help="Where to store it; by default the user's cache folder.")] = None,
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


@app.command()
def show(
    experiment: Annotated[str, typer.Argument(help="An experiment file or the name of a data set.")],
    plot: Annotated[Path | None, typer.Option(help="Also draw the partition to this PNG file.")] = None,
    set_: Set = None,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show which client has which samples: sizes, classes, and distances from the distribution of all samples.

    `fedarena data show digits --plot partition.png`

    `fedarena data show exp.toml --set partition.beta=0.1`
    """
    from fedarena.config.experiment import Experiment
    from fedarena.config.limits import check_paths
    from fedarena.data.partition_statistics import statistics
    from fedarena.engine.setup import partition_data
    from fedarena.reports.terminal_tables import show_partition

    load_components(file)
    check_paths(("--plot", plot))
    exp = Experiment.make(experiment, set_ or [])
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
        print_json({"partition": exp.partition.name, "sha256": partition.fingerprint(), **facts.as_dict()})
    else:
        show_partition(exp, facts)
