"""Record the messages that fedarena logs, for tests that read them while the work goes on, also from other threads."""

from __future__ import annotations

import logging
from collections.abc import Callable


class MessageRecorder(logging.Handler):
    """Calls `on_message` with the name of the logger and the text of each message, between `start` and `stop`."""

    def __init__(self, logger: str, on_message: Callable[[str, str], None]) -> None:
        super().__init__()
        self._logger, self._on_message = logging.getLogger(logger), on_message

    def emit(self, record: logging.LogRecord) -> None:
        self._on_message(record.name, record.getMessage())

    def start(self) -> None:
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)

    def stop(self) -> None:
        self._logger.removeHandler(self)
