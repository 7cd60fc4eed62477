"""Show log messages of fedarena on the terminal.

Modules log with `logging.getLogger(__name__)`. A program that uses fedarena as a library configures logging as it likes;
the command line calls `show_messages`.
"""

from __future__ import annotations

import logging
import sys

LOGGER = logging.getLogger("fedarena")
LOGGER.addHandler(logging.NullHandler())


class _PrintToStderr(logging.Handler):
    """Print messages without level and logger, to the current sys.stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def show_messages(quiet: bool = False) -> None:
    """Print messages of level INFO and above as plain lines on stderr; with `quiet`, only warnings and errors.

    >>> show_messages(); show_messages(quiet=True)  # a second call replaces the first
    >>> [type(handler).__name__ for handler in LOGGER.handlers].count("_PrintToStderr")
    1
    """
    for handler in [h for h in LOGGER.handlers if isinstance(h, _PrintToStderr)]:
        LOGGER.removeHandler(handler)
    LOGGER.addHandler(_PrintToStderr())
    LOGGER.setLevel(logging.WARNING if quiet else logging.INFO)
