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
    aside = ("experiment", "set_", "file", "json_", "quiet", *others)
    return {key: value for key, value in parameters.items() if key not in aside}


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
    str | None,
    typer.Argument(help="An experiment file, the name of a data set, or a CSV or Parquet file.", show_default=False),
]
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
