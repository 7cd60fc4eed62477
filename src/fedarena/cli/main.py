"""The command `fedarena`: its list of commands, and how each of them ends.

A mistake of the user is one message on stderr and exit code 2. An interrupted command says how to resume and ends with 130.
"""

from __future__ import annotations

import gc
import signal
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer

from fedarena.cli.bench import bench
from fedarena.cli.compare import compare
from fedarena.cli.components import check, list_
from fedarena.cli.data import app as data_app
from fedarena.cli.federation import app as federation_app
from fedarena.cli.federation import join, serve
from fedarena.cli.finetune import finetune
from fedarena.cli.options import SuggestingGroup, add_commands
from fedarena.cli.predict import predict
from fedarena.cli.report import report
from fedarena.cli.reproduce import reproduce
from fedarena.cli.run import run
from fedarena.cli.search import search
from fedarena.cli.ui import ui
from fedarena.cli.verify import verify
from fedarena.cli.vertical import app as vertical_app
from fedarena.config.errors import FedarenaError


class CommandGroup(SuggestingGroup):
    """The group of all commands, which turns errors and interruptions into messages and exit codes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; reject NUL bytes, which no shell can pass and no file name can contain."""
        if any("\0" in arg for arg in args):
            raise typer.BadParameter("an argument contains a NUL byte: remove it")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; end with 2 after a mistake of the user and with 130 after an interruption."""
        try:
            return super().invoke(ctx)
        except FedarenaError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt as stopped:
            print("\n".join(["\ninterrupted", *getattr(stopped, "__notes__", [])]), file=sys.stderr)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Compare federated-learning algorithms on data like yours. Start with `fedarena run digits`.",
)
app.add_typer(data_app, name="data")
app.add_typer(vertical_app, name="vertical")
app.add_typer(federation_app, name="federation")
COMMANDS = (run, compare, search, report, predict, list_, reproduce, verify, check, bench, ui, serve, join, finetune)
add_commands(app, *COMMANDS)


@app.callback(invoke_without_command=True)
def _print_version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        import fedarena

        print(fedarena.__version__)
        raise typer.Exit


def _interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line of fedarena."""
    gc.set_threshold(100_000, 50)  # imports make objects that stay: looking through them takes a sixth of the start
    signal.signal(signal.SIGTERM, _interrupt)  # `kill` saves the state and says how to resume, as Ctrl-C does
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"  # without the line of our source code
    app()
