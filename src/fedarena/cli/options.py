"""Options and arguments that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedarena.common.logs import show_messages


def _configure_messages(quiet: bool) -> bool:
    show_messages(quiet)
    return quiet


def passed_on(parameters: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """Return the parameters of a command that a function takes under the same name: all but common ones and `others`."""
    aside = ("experiment", "changes", "file", "json_", "quiet", *others)
    return {key: value for key, value in parameters.items() if key not in aside}


def one_source(experiment: list[str] | None) -> Any:
    """Return the only source, or the list of several; None where there is none."""
    return experiment[0] if experiment and len(experiment) == 1 else experiment or None


def _load_components(file: Path | None) -> Path | None:
    if file is not None:
        from fedarena.config.registry import load_file

        load_file(file)
    return file


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let Typer see the fields of each parameter that is a dataclass of options as options of the command."""
    own = inspect.signature(command, eval_str=True).parameters
    kinds: dict[str, Any] = {
        name: one.annotation for name, one in own.items() if dataclasses.is_dataclass(one.annotation)
    }
    groups = {name: inspect.signature(kind, eval_str=True).parameters for name, kind in kinds.items()}

    @functools.wraps(command)
    def run(**values: Any) -> None:
        made = {name: kind(**{field: values.pop(field) for field in groups[name]}) for name, kind in kinds.items()}
        command(**values, **made)

    shown = [one for name, parameter in own.items() for one in groups.get(name, {name: parameter}).values()]
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in shown]
    )
    return run


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, and nothing else there.")]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Show no progress and no notes on stderr.", callback=_configure_messages),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting: `--set local.lr=0.05`. May be repeated.")
]
File = Annotated[
    Path | None,
    typer.Option("--file", help="Python file that registers components of your own.", callback=_load_components),
]
ExperimentSource = Annotated[
    list[str] | None,
    typer.Argument(
        help="An experiment file, the name of a data set, or CSV or Parquet files: of several, each is a client.",
        show_default=False,
    ),
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


@dataclass(frozen=True)
class ExperimentOptions:
    """The options of `run`, `compare`, `search` and `data show` that change the experiment; most are about a table."""

    set_: Set = None
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label", help="Column of a table to predict. May be repeated: several 0/1 labels.", show_default=False
        ),
    ] = None
    client: Annotated[
        str | None,
        typer.Option("--client", help="Column of a table that names the client of a row.", show_default=False),
    ] = None
    drop: Annotated[
        list[str] | None, typer.Option("--drop", help="Column that is not used. May be repeated.", show_default=False)
    ] = None
    categorical: Annotated[
        list[str] | None,
        typer.Option("--categorical", help="Column of categories. May be repeated.", show_default=False),
    ] = None
    numeric: Annotated[
        list[str] | None,
        typer.Option(
            "--numeric", help="Column of numbers; texts in it are missing values. May be repeated.", show_default=False
        ),
    ] = None
    missing: Annotated[
        Literal["median", "mean", "error"] | None,
        typer.Option("--missing", help="What replaces missing numbers.  [default: median]", show_default=False),
    ] = None
    task: Annotated[
        Literal["classification", "regression", "multilabel", "survival"] | None,
        typer.Option("--task", help="What the label is.  [default: inferred]", show_default=False),
    ] = None

    @property
    def overrides(self) -> list[str]:
        """Return the assignments of `--set`."""
        return self.set_ or []

    @property
    def table(self) -> dict[str, Any]:
        """Return the options about a table that were given, as keywords of an experiment."""
        given = {key: value for key, value in vars(self).items() if value and key != "set_"}
        if len(given.get("label", ())) == 1:
            given["label"] = given["label"][0]
        return given
