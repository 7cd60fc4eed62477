"""The state of a client between rounds, in its own folder. Only a ticket goes to the server.

A state is a file named by round and exchange. The server names by its ticket the state to start from: the one of the
answer that it accepted. So an answer that came too late, or was lost with a server that was killed, has no effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedarena.common.files import make_folder, writing
from fedarena.engine.checkpoint_files import load_tree, save_tree
from fedarena.engine.client import Broadcast, ClientState
from fedarena.federation.redaction import ShareableError
from fedarena.models.pytree import types_in, types_near
from fedarena.models.task import Buffers

TICKET = re.compile(r"\d{1,9}\.\d{1,9}")


def ticket(round: int, exchange: int) -> str:
    """Return the name of the state after an exchange of a round."""
    return f"{round}.{exchange}"


def is_unchanged(path: Path, now: str) -> bool:
    """Write a value to a file at first; later return whether it is still the same."""
    if path.exists():
        return path.read_text(encoding="utf-8") == now
    with writing(path):
        path.write_text(now, encoding="utf-8")
    return True


class ClientStateStore:
    """The saved states of a client in one run."""

    def __init__(self, folder: Path, algorithm: Any) -> None:
        self.folder = folder
        self._types = types_near(algorithm, Buffers, ClientState, Broadcast)
        make_folder(folder)

    def _path(self, ticket: str) -> Path:
        if not TICKET.fullmatch(ticket):
            raise ShareableError(f"'{ticket[:40]}' is not a ticket of a client state")
        return self.folder / f"memory-{ticket}.safetensors"

    def load(self, ticket: str) -> ClientState | None:
        """Return the state of this ticket; None for an empty ticket."""
        if not ticket:
            return None
        path = self._path(ticket)
        if not path.exists():
            raise ShareableError(
                f"the client state of round {int(ticket.partition('.')[0]) + 1} is not in its folder",
                remedy=f"start it with the folder it had, not {self.folder}: the state cannot be computed again",
                where="--folder",
            )
        memory: ClientState = load_tree(path, self._types)
        return memory

    def save(self, ticket: str, memory: ClientState) -> None:
        """Save a state atomically under a ticket."""
        self._types |= types_in(memory)
        save_tree(self._path(ticket), memory)

    def reveal_once(self, ticket: str, answered: Collection[int]) -> None:
        """Refuse to reveal shares for a second sum of an exchange: the difference of two sums would be a single update."""
        path = self._path(ticket).with_name(f"revealed-{ticket}.json")
        if not is_unchanged(path, json.dumps(sorted({*answered}))):
            raise ShareableError(
                "shares were revealed for another sum of this exchange",
                remedy="the round must continue without this sum",
            )

    def forget_before(self, round: int, ticket: str) -> None:
        """Remove states older than this ticket: the server starts a round from it, so its checkpoint needs no older one.

        The record of revealed shares stays: a round that is repeated must not be unmasked for another sum."""
        kept = self._path(ticket).name if ticket else ""
        for path in self.folder.glob("memory-*"):
            if path.name != kept and int(path.name.partition("-")[2].partition(".")[0]) < round:
                path.unlink(missing_ok=True)
