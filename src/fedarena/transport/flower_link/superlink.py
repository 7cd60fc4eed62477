"""The process of the SuperLink: Flower's application behind access control, started by superlink_process.py.

It reads its settings from stdin, and writes a line of JSON to stdout when it listens and for each refused call. It ends
when stdin ends, which also happens when the server is killed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from fedarena.transport.flower_link import access_control


class _ReportRefusals(logging.Handler):
    """Passes refused calls on to the server."""

    def __init__(self, report: Callable[..., None]) -> None:
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report("refused", text=record.getMessage())


def main() -> None:
    """Run the SuperLink until standard input ends."""
    server_process = os.getppid()
    settings = json.loads(sys.stdin.readline())
    stdout = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Flower prints goes to the log

    def report(kind: str, **what: Any) -> None:
        print(json.dumps({"kind": kind, **what}), file=stdout)

    try:
        listener = _listen(settings["host"], settings["port"])
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trust.load_cert_chain(settings["cert"], settings["key"])
    except (OSError, ssl.SSLError) as error:
        report("failed", why=str(error), port_taken=not isinstance(error, ssl.SSLError))
        return
    server = _server(settings)
    access_control.LOGGER.addHandler(_ReportRefusals(report))
    access_control.LOGGER.setLevel(logging.INFO)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    threading.Thread(target=_end_with, args=(server_process,), daemon=True).start()
    report("listening", port=listener.getsockname()[1])
    server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(kind, socket.SOCK_STREAM)
    if os.name == "posix":  # elsewhere it would let two processes listen at once
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(256)
    return listener


def _server(settings: dict[str, Any]) -> Any:
    import uvicorn

    from fedarena.transport.flower_link.flower_internals import superlink_app
    from fedarena.transport.flower_link.payload import LONGEST_CALL

    app, state = superlink_app()

    def deactivate(key: bytes) -> None:
        node = state.get_node_id_by_public_key(key)
        if node is not None:
            state.deactivate_node(node)

    names = {key.encode(): name for name, key in settings["names"].items()}
    rules = access_control.AccessRules(settings["secret"], names, settings["limit"], LONGEST_CALL)
    config = uvicorn.Config(
        access_control.AccessControl(app, rules, deactivate),
        lifespan="on",
        log_level="warning",
        access_log=False,
        ssl_certfile=settings["cert"],
        ssl_keyfile=settings["key"],
        timeout_keep_alive=90,
        ws="none",
        proxy_headers=False,  # headers of the caller must not change its address
    )
    return uvicorn.Server(config)


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)  # there is nothing to save, and some call is always waiting


def _end_with(process: int) -> None:
    """End when the process has ended: workers that it forked may keep stdin open after its death."""
    while os.getppid() == process:
        time.sleep(1.0)
    os._exit(0)


if __name__ == "__main__":
    main()
