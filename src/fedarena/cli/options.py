"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedarena.common.logs import show_messages


def _configure_messages(quiet: bool) -> bool:
    show_messages(quiet)
    return quiet


def passed_on(parameters: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """Return the parameters of a command that a function takes under the same name: all but common ones and `others`."""
    aside = ("experiment", "set_", "file", "json_", "quiet", *TABLE_OPTIONS, *others)
    return {key: value for key, value in parameters.items() if key not in aside}


def table_options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options about a table that were given, as keywords of an experiment."""
    given = {key: parameters[key] for key in TABLE_OPTIONS if parameters[key]}
    if len(given.get("label", ())) == 1:
        given["label"] = given["label"][0]
    return given


def one_source(experiment: list[str] | None) -> Any:
    """Return the only source, or the list of several; None where there is none."""
    return experiment[0] if experiment and len(experiment) == 1 else experiment or None


def load_components(file: Path | None) -> None:
    """Register the components of the Python file that was given with `--file`, if any."""
    if file is not None:
        from fedarena.config.registry import load_file

        load_file(file)


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, and nothing else there.")]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Show no progress and no notes on stderr.", callback=_configure_messages),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting: `--set local.lr=0.05`. May be repeated.")
]
File = Annotated[Path | None, typer.Option("--file", help="Python file that registers components of your own.")]
ExperimentSource = Annotated[
    list[str] | None,
    typer.Argument(
        help="An experiment file, the name of a data set, or CSV or Parquet files: of several, each is a client.",
        show_default=False,
    ),
]
Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label", help="Column of a table to predict. May be repeated: several 0/1 labels.", show_default=False
    ),
]
ClientColumn = Annotated[
    str | None, typer.Option("--client", help="Column of a table that names the client of a row.", show_default=False)
]
Categorical = Annotated[
    list[str] | None, typer.Option("--categorical", help="Column of categories. May be repeated.", show_default=False)
]
Numeric = Annotated[
    list[str] | None,
    typer.Option(
        "--numeric", help="Column of numbers; texts in it are missing values. May be repeated.", show_default=False
    ),
]
Drop = Annotated[
    list[str] | None, typer.Option("--drop", help="Column that is not used. May be repeated.", show_default=False)
]
MissingValues = Annotated[
    Literal["median", "mean", "error"] | None,
    typer.Option("--missing", help="What replaces missing numbers.  [default: median]", show_default=False),
]
TaskOption = Annotated[
    Literal["classification", "regression", "multilabel", "survival"] | None,
    typer.Option("--task", help="What the label is.  [default: inferred]", show_default=False),
]
TABLE_OPTIONS = ("label", "client", "categorical", "numeric", "drop", "missing", "task")
Runtime = Annotated[Literal["serial", "processes", "ray"], typer.Option(help="Where clients run.")]
PoolRuntime = Annotated[Literal["processes", "ray"], typer.Option(help="Where whole runs are executed.")]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Number of worker processes, at most four per core.  [default: one per core]", show_default=False
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Ray cluster: `auto`, HOST:PORT or ray://HOST:PORT; by default a local one is started. "
        "Needs `fedarena[ray]`."
    ),
]
SearchMethod = Annotated[
    Literal["tpe", "random", "grid"] | None, typer.Option(help="How trials are chosen.  [default: tpe]")
]
