"""The process of the SuperLink: Flower's application behind our door. Started by child.py, told what to do on stdin.

It says one line of JSON on stdout when it listens, and for each thing that the organiser should hear of. It ends when
stdin ends, which also happens when the organiser is killed.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
import threading
import time
from typing import Any


def main() -> None:
    """Listen until told otherwise."""
    organiser = os.getppid()
    orders = json.loads(sys.stdin.readline())
    say = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Flower prints goes to the log

    def tell(kind: str, **what: Any) -> None:
        print(json.dumps({"kind": kind, **what}), file=say)

    try:
        listener = _listen(orders["host"], orders["port"])
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trust.load_cert_chain(orders["cert"], orders["key"])
    except (OSError, ssl.SSLError) as error:
        tell("failed", why=str(error), port_taken=not isinstance(error, ssl.SSLError))
        return
    server = _server(orders, lambda text: tell("refused", text=text))
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    threading.Thread(target=_end_with, args=(organiser,), daemon=True).start()
    tell("listening", port=listener.getsockname()[1])
    server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(kind, socket.SOCK_STREAM)
    if os.name == "posix":  # elsewhere it would let two listen at once
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(256)
    return listener


def _server(orders: dict[str, Any], refused: Any) -> Any:
    import uvicorn

    from fedarena.transport.flower_link.access_control import AccessControl, AccessRules
    from fedarena.transport.flower_link.flower_internals import superlink_app

    app, state = superlink_app()

    def put_out(key: bytes) -> None:
        node = state.get_node_id_by_public_key(key)
        if node is not None:
            state.deactivate_node(node)

    names = {key.encode(): name for name, key in orders["names"].items()}
    rules = AccessRules(orders["secret"], names, orders["limit"], orders["longest_call"])
    config = uvicorn.Config(
        AccessControl(app, rules, refused, put_out),
        lifespan="on",
        log_level="warning",
        access_log=False,
        ssl_certfile=orders["cert"],
        ssl_keyfile=orders["key"],
        timeout_keep_alive=90,
        ws="none",
        proxy_headers=False,  # where a call comes from is not for the caller to say
    )
    return uvicorn.Server(config)


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)  # there is nothing to save, and some call is always waiting


def _end_with(organiser: int) -> None:
    """Workers that the organiser forked would keep our stdin open after its death."""
    while os.getppid() == organiser:
        time.sleep(1.0)
    os._exit(0)


if __name__ == "__main__":
    main()
