"""Options and arguments that several commands share."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import typer.core

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


class SuggestingGroup(typer.core.TyperGroup):
    """A group of commands that suggests the nearest one, of inner groups too, in place of an unknown command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is named first."""
        if args and args[0] not in self.commands:
            inner = {name: getattr(command, "commands", {}) for name, command in self.commands.items()}
            paths = [*self.commands, *(f"{group} {name}" for group, names in inner.items() for name in names)]
            near = difflib.get_close_matches(args[0], {path.rpartition(" ")[2] for path in paths})
            found = [f"`{ctx.command_path} {path}`" for path in paths if path.rpartition(" ")[2] in near]
            more = f"Did you mean {' or '.join(found)}?" if found else f"`{ctx.command_path} --help` lists them all."
            ctx.fail(f"There is no command '{args[0]}'. {more}")
        return super().resolve_command(ctx, args)


def command_group(about: str) -> typer.Typer:
    """Return a group of commands, of which this is the help."""
    return typer.Typer(cls=SuggestingGroup, no_args_is_help=True, rich_markup_mode="markdown", help=about)


def add_commands(app: typer.Typer, *commands: Callable[..., None]) -> None:
    """Add commands under the names of their functions."""
    for command in commands:
        app.command(command.__name__.rstrip("_"))(_with_options(command))


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let Typer see the options of a command.

    A text in the annotation of a parameter is the help of the option of that name; `Ge` after it is the least value. A
    parameter that is a dataclass has an option for each field.
    """
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
    run.__signature__ = inspect.Signature(list(map(_with_help, shown)))  # type: ignore[attr-defined]
    return run


def _with_help(parameter: inspect.Parameter) -> inspect.Parameter:
    kind, about = parameter.annotation, getattr(parameter.annotation, "__metadata__", ())
    if about and isinstance(about[0], str):
        name, least = f"--{parameter.name.strip('_').replace('_', '-')}", next((one.ge for one in about[1:]), None)
        option = typer.Option(name, help=about[0], min=least, show_default=parameter.default != "")
        kind = Annotated[kind.__origin__, option]
    return parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY)


Json = Annotated[bool, "Print the result as JSON on stdout, and nothing else there."]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Show no progress and no notes on stderr.", callback=_configure_messages),
]
Set = Annotated[list[str] | None, "Change a setting: `--set local.lr=0.05`. May be repeated."]
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
Runtime = Annotated[Literal["serial", "processes", "ray"], "Where clients run."]
PoolRuntime = Annotated[Literal["processes", "ray"], "Where whole runs are executed."]
Workers = Annotated[
    int | None,
    "Number of worker processes, at most four per core.  [default: one per core]",
]
Address = Annotated[
    str | None,
    "Ray cluster: `auto`, HOST:PORT or ray://HOST:PORT; by default a local one is started. Needs `fedarena[ray]`.",
]
SearchMethod = Annotated[Literal["tpe", "random", "grid"] | None, "How trials are chosen.  [default: tpe]"]


SHORTCUTS = {"rounds": "rounds", "clients": "clients", "lr": "local.lr"}  # options that stand for a key of the experiment


@dataclass(frozen=True)
class ExperimentOptions:
    """The options of `run`, `compare`, `search` and `data show` that change the experiment; most are about a table."""

    set_: Set = None
    clients: Annotated[int | None, "Number of clients: short for `--set clients=20`."] = None
    label: Annotated[list[str] | None, "Column of a table to predict. May be repeated: several 0/1 labels."] = None
    client: Annotated[str | None, "Column of a table that names the client of a row."] = None
    drop: Annotated[list[str] | None, "Column that is not used. May be repeated."] = None
    categorical: Annotated[list[str] | None, "Column of categories. May be repeated."] = None
    numeric: Annotated[list[str] | None, "Column of numbers; texts in it are missing values. May be repeated."] = None
    missing: Annotated[
        Literal["median", "mean", "error"] | None, "What replaces missing numbers.  [default: median]"
    ] = None
    task: Annotated[
        Literal["classification", "regression", "multilabel", "survival"] | None,
        "What the label is.  [default: inferred]",
    ] = None

    @property
    def overrides(self) -> list[str]:
        """Return the assignments of `--set`, after those of the options that stand for keys."""
        given = ((key, getattr(self, option, None)) for option, key in SHORTCUTS.items())
        return [*(f"{key}={value}" for key, value in given if value is not None), *(self.set_ or [])]

    @property
    def table(self) -> dict[str, Any]:
        """Return the options about a table that were given, as keywords of an experiment."""
        given = {key: value for key, value in vars(self).items() if value and key not in ("set_", *SHORTCUTS)}
        if len(given.get("label", ())) == 1:
            given["label"] = given["label"][0]
        return given


@dataclass(frozen=True)
class TrainingOptions(ExperimentOptions):
    """The options of the commands that train: those of every experiment, and the settings that change most often."""

    rounds: Annotated[int | None, "Number of rounds: short for `--set rounds=50`."] = None
    lr: Annotated[float | None, "Learning rate of clients: short for `--set local.lr=0.05`."] = None
