"""What a participant remembers between rounds, in its own folder. Only a ticket goes to the organiser.

A memory is a file named by round and exchange. The organiser says by its ticket which one to begin from: the one that it
has accepted. So an answer that came too late, or was lost with an organiser that was killed, is as if it never was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedarena.common.files import writing
from fedarena.engine.checkpoint import load_tree, save_tree
from fedarena.engine.client import Broadcast, ClientState
from fedarena.federation.redaction import ShareableError
from fedarena.models.pytree import types_in, types_near
from fedarena.models.task import Buffers

TICKET = re.compile(r"\d{1,9}\.\d{1,9}")


def ticket(round: int, exchange: int) -> str:
    """Names a memory: that of an exchange of a round."""
    return f"{round}.{exchange}"


class ClientStateStore:
    """The memories of one run."""

    def __init__(self, folder: Path, algorithm: Any) -> None:
        self.folder = folder
        self._types: dict[str, type] = {
            **types_near(algorithm),
            **{t.__qualname__: t for t in (Buffers, ClientState, Broadcast)},
        }
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def _path(self, ticket: str) -> Path:
        if not TICKET.fullmatch(ticket):
            raise ShareableError(f"'{ticket[:40]}' names no memory", remedy="is it fedarena on the other side?")
        return self.folder / f"memory-{ticket}.safetensors"

    def load(self, ticket: str) -> ClientState | None:
        """The memory of this ticket; None for one that is new."""
        if not ticket:
            return None
        path = self._path(ticket)
        if not path.exists():
            raise ShareableError(
                f"the memory of round {int(ticket.partition('.')[0]) + 1} is not in its folder",
                remedy=f"start it with the folder it had, not {self.folder}: what was remembered cannot be made anew",
                where="--folder",
            )
        memory: ClientState = load_tree(path, self._types)
        return memory

    def save(self, ticket: str, memory: ClientState) -> None:
        """Keep it, whole or not at all."""
        self._types |= types_in(memory)
        save_tree(self._path(ticket), memory)

    def reveal_once(self, ticket: str, answered: Collection[int]) -> None:
        """Shares are revealed for one sum of an exchange: the difference of two sums would be an answer by itself."""
        path = self._path(ticket).with_name(f"revealed-{ticket}.json")
        now = json.dumps(sorted({*answered}))
        if not path.exists():
            with writing(path):
                path.write_text(now, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != now:
            raise ShareableError(
                "shares were revealed for another sum of this exchange", remedy="the round must go on without this sum"
            )

    def forget_before(self, round: int, ticket: str) -> None:
        """The organiser begins a round from this ticket, so that is what it has saved: no older one will be asked for.
        What was revealed is not forgotten: a round that is asked for again must not be opened for another sum."""
        kept = self._path(ticket).name if ticket else ""
        for path in self.folder.glob("memory-*"):
            if path.name != kept and int(path.name.partition("-")[2].partition(".")[0]) < round:
                path.unlink(missing_ok=True)
