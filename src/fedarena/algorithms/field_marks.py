"""Marks of the fields of messages and updates that are not sent or not averaged like others."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def collected() -> Any:
    """Mark a field of an update as needed from each client: the server gets a list, in the order of clients."""
    return field(metadata={"collect": True})


def known() -> Any:
    """Mark a field of a message as known to clients from an earlier exchange: it is not sent and not counted."""
    return field(metadata={"known": True})


def summed() -> Any:
    """Mark a field of an update as summed over clients, not averaged by weight."""
    return field(metadata={"sum": True})
