"""A participant for the tests, as a process: it does what the messages say."""

from __future__ import annotations

import os
import signal
import sys
import time

from fedarena.config.errors import BadValue, FedarenaError
from fedarena.transport.certificates import ClientKeys
from fedarena.transport.flower_link import FederationEnded, join


def handle(content: bytes) -> bytes:
    """`word argument`; anything else is echoed."""
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
    """Join, and tell mistakes as the command line does."""
    say = lambda text: print(text, file=sys.stderr, flush=True)
    try:
        join(server, ClientKeys.load(keys), handle, limit=int(limit), patience=30.0, say=say)
    except FedarenaError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main(*sys.argv[1:])
