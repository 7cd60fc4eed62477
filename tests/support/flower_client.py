"""A client for the tests, as a process: it does what the messages ask for."""

from __future__ import annotations

import os
import signal
import sys
import time

from fedarena.common.logs import show_messages
from fedarena.config.errors import BadValue, FedarenaError
from fedarena.transport.certificates import ClientKeys
from fedarena.transport.flower_link import FederationEnded, join


def handle(content: bytes) -> bytes:
    """Obey a message of the form `word argument`; return any other as it is."""
    word, _, argument = content[:40].partition(b" ")
    if word == b"over":
        raise FederationEnded(b"farewell")
    if word == b"raise":
        raise ValueError("not today")
    if word == b"mistake":
        raise BadValue("the table has no rows", remedy="give it some")
    if word == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == b"sleep":
        time.sleep(float(argument))
    if word == b"long":
        return bytes(int(argument))
    return content


def main(server: str, keys: str, limit: str) -> None:
    """Join, and report mistakes as the command line does."""
    show_messages()
    try:
        join(server, ClientKeys.load(keys), handle, limit=int(limit), patience=30.0)
    except FedarenaError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main(*sys.argv[1:])
