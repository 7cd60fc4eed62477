"""Redact errors before they are sent: a message about a table may quote a cell of it, and must not leave the client."""

from __future__ import annotations

from fedarena.config.errors import BadValue, CannotWrite, FedarenaError
from fedarena.federation.wire_format import STRANGE, WireRefused

SEE_CLIENT = "see the messages of that client"


class ShareableError(BadValue):
    """A refusal whose message quotes no samples, so that the server may read it."""

    def __init__(self, what: str, *, remedy: str = STRANGE, where: str = "") -> None:
        super().__init__(what, remedy=remedy, where=where)


def redacted_message(error: BaseException) -> str:
    """Return an error message that reveals nothing about samples or about this machine."""
    if isinstance(error, ShareableError | WireRefused):
        return error.what
    if isinstance(error, CannotWrite):
        return "its disk is full" if "full" in error.what else "it cannot write to its folder"
    return f"{type(error).__name__}: {SEE_CLIENT}"


def full_message(error: BaseException) -> str:
    """Return the whole error message, with its remedy."""
    return str(error) if isinstance(error, FedarenaError) else f"{type(error).__name__}: {error}"
