"""What may be said of an error. A message about a table may quote a cell of it: such messages stay at home."""

from __future__ import annotations

from fedarena.config.errors import BadValue, CannotWrite, FedarenaError
from fedarena.federation.wire_format import WireRefused

AT_HOME = "it says more on its own side"


class ShareableError(BadValue):
    """A refusal whose words quote nothing of a participant's rows: the organiser may read them."""


def redacted_message(error: BaseException) -> str:
    """An error in words that tell nothing of rows, nor of this machine."""
    if isinstance(error, ShareableError | WireRefused):
        return error.what
    if isinstance(error, CannotWrite):
        return "its disk is full" if "full" in error.what else "it cannot write to its folder"
    return f"{type(error).__name__}: {AT_HOME}"


def full_message(error: BaseException) -> str:
    """The same with everything, and what to do."""
    return str(error) if isinstance(error, FedarenaError) else f"{type(error).__name__}: {error}"
