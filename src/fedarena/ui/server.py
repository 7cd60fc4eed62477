"""The web server of `fedarena ui`: local and read-only, with the standard library only.

A page in another tab must not be able to read runs through a name that it points at 127.0.0.1: the Host header is
checked. Folders are asked for by id, never by path. Nothing on a page may load or send anything elsewhere.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import traceback
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import fedarena
from fedarena.config.errors import BadValue, FedarenaError
from fedarena.reports.charts import read_asset, style_sheet
from fedarena.ui import comparison_page, overview, run_page
from fedarena.ui.cache import FileCache
from fedarena.ui.catalogue import Catalogue
from fedarena.ui.rendering import ICON, render_problem

PORT = 8765
TRIES = 50  # ports looked at if that one is taken
NAMES = ("127.0.0.1", "localhost")
OURS = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"
# A report is a page of its own, with its style and script inside: it may use those, and load nothing else.
REPORT = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)
NOWHERE = "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

FILES: dict[str, tuple[str, Callable[[], str]]] = {
    "page.css": ("text/css", lambda: read_asset("fedarena.ui", "page.css")),
    "page.js": ("text/javascript", lambda: read_asset("fedarena.ui", "page.js")),
    "charts.css": ("text/css", style_sheet),
    "icon.svg": ("image/svg+xml", lambda: ICON),
}
PAGES = {"run": run_page.page, "comparison": comparison_page.page}
Found = tuple[str, str, str]  # media type, body, what it may load


class UiServer(ThreadingHTTPServer):
    """Serve the runs and comparisons of one folder."""

    daemon_threads = True
    request_queue_size = 1024  # connections that may wait: a browser with many tabs asks for all of them at once
    allow_reuse_address = os.name != "nt"  # on Windows it would let two servers share a port

    def __init__(self, folder: Path, port: int) -> None:
        self.catalogue = Catalogue(folder)
        self.pages: FileCache[Found | None] = FileCache(0)  # none is cached, but concurrent requests share one
        super().__init__((NAMES[0], port), RequestHandler)

    @property
    def address(self) -> str:
        """Return the address to open in a browser."""
        return f"http://{NAMES[0]}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that close the connection, and report other errors."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def open_server(folder: Path, port: int | None) -> UiServer:
    """Open a server for the folder: on this port, or on the first free one from `PORT` on."""
    if not folder.is_dir():
        raise BadValue(
            f"there is no folder {folder}" if not folder.exists() else f"{folder} is not a folder",
            remedy="name a folder with runs, or start one: fedarena run digits",
            where="FOLDER",
        )
    for candidate in [port] if port is not None else range(PORT, PORT + TRIES):
        try:
            return UiServer(folder, candidate)
        except OSError as error:
            if port is not None or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                taken = f"port {candidate} cannot be used: {os.strerror(error.errno or 0)}"
                raise BadValue(
                    taken, remedy="choose another one, or leave it out for the next free one", where="--port"
                ) from None
    raise BadValue(f"ports {PORT} to {PORT + TRIES - 1} are taken", remedy="choose one yourself", where="--port")


def serve(server: UiServer, show: bool | None) -> None:
    """Serve until Ctrl-C; open a browser if asked, or if there is a display."""
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    screen = sys.stdout.isatty() and (os.name == "nt" or sys.platform == "darwin" or bool(has_display))
    if screen if show is None else show:
        import webbrowser

        webbrowser.open(server.address)
    with server:
        server.serve_forever()


class RequestHandler(BaseHTTPRequestHandler):
    """One request and its response."""

    server: UiServer
    protocol_version = "HTTP/1.1"
    server_version = f"fedarena/{fedarena.__version__}"
    sys_version = ""
    timeout = 20  # seconds for a request to arrive

    def do_GET(self) -> None:
        """Send the page at the address of the request."""
        host = self.headers.get("Host", "")
        if host.rpartition(":")[0] not in NAMES and host not in NAMES:
            self._send(HTTPStatus.FORBIDDEN, _problem("This page is for this machine", "Open it as 127.0.0.1."))
            return
        path, _, query = self.path.partition("?")
        page = self._find(path)
        try:
            found = self.server.pages.get(self.path, None, lambda _: page(_values(query))) if page else None
        except FedarenaError as error:  # e.g. the report of a run that has not finished
            self._send(HTTPStatus.CONFLICT, _problem(error.what, error.remedy))
            return
        except Exception as error:  # a bug; the other pages still work
            traceback.print_exc()
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, _problem("This page cannot be made", repr(error)))
            return
        if found is None:
            self._send(HTTPStatus.NOT_FOUND, _problem("There is no such page", "A run may have been moved or removed."))
        else:
            self._send(HTTPStatus.OK, found)

    do_HEAD = do_GET

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Refuse every other method: nothing can be changed from here."""
        if not name.startswith("do_"):
            raise AttributeError(name)
        return self._only_reading

    def _only_reading(self) -> None:
        self.close_connection = True  # the body of the request is not read
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, _problem("Only reading", "Nothing can be changed from here."))

    def _find(self, path: str) -> Callable[[dict[str, str]], Found | None] | None:
        """Return the maker of what is at an address: a file of this package, or a page about an id."""
        catalogue = self.server.catalogue
        kind, slash, id = path.removeprefix("/").partition("/")
        if path in ("", "/"):
            return lambda _: _html(overview.page(catalogue))
        if kind in FILES and not slash:
            media, read = FILES[kind]
            return lambda _: (media, read(), OURS)
        if kind in PAGES:
            return lambda query: _html(PAGES[kind](catalogue, id, query))
        return (lambda _: _html(comparison_page.report(catalogue, id), REPORT)) if kind == "report" else None

    def _send(self, status: HTTPStatus, found: Found) -> None:
        kind, text, may_load = found
        body = text.encode(errors="replace")  # names of folders may be invalid text
        mark = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
        if status == HTTPStatus.OK and self.headers.get("If-None-Match") == mark:
            status, body = HTTPStatus.NOT_MODIFIED, b""
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("ETag", mark)
        self.send_header("Content-Security-Policy", may_load + NOWHERE)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests, which a page repeats all the time."""


def _values(query: str) -> dict[str, str]:
    return {key: values[-1] for key, values in parse_qs(query).items()}


def _html(text: str | None, may_load: str = OURS) -> Found | None:
    return None if text is None else ("text/html", text, may_load)


def _problem(what: str, remedy: str) -> Found:
    return "text/html", render_problem(what, remedy), OURS
