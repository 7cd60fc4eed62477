"""`fedarena ui`: runs and comparisons on a local web page."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedarena.cli.options import File, Json, Quiet
from fedarena.cli.output import print_result

LOGGER = logging.getLogger(__name__)


def ui(
    folder: Annotated[
        Path, typer.Argument(help="Folder with runs and comparisons, which may lie in subfolders.")
    ] = Path("runs"),
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; by default the first free one from 8765.")
    ] = None,
    open_: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open the page in a browser; by default if there is a display."),
    ] = None,
    file: File = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show runs and comparisons on a web page that updates itself and that only this machine can open. Stop it with Ctrl-C.

    `fedarena ui`

    `fedarena ui runs/digits-compare --port 9000 --no-open`
    """
    from fedarena.config.limits import check_path
    from fedarena.ui.server import open_server, serve

    server = open_server(check_path(folder, "FOLDER"), port)
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how this command normally ends
        print_result(server.address, {"url": server.address, "folder": str(folder), "port": server.server_port}, json_)
        sys.stdout.flush()
        LOGGER.info("showing %s; press Ctrl-C to stop", folder)
        serve(server, open_)
    LOGGER.info("\nstopped")
