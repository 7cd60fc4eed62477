"""How parties come together: the greeting, the alignment of rows, and what is kept of it for a restart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from fedarena.common.files import atomic_write, writing
from fedarena.config.errors import BadValue, FedarenaError, FrameRefused, PartyLost
from fedarena.transport import fields as read
from fedarena.transport.channel import Channel, HostProtocol
from fedarena.transport.frames import Fields, FrameKind
from fedarena.vertical.align import (
    SMALLEST,
    Alignment,
    HostAlignment,
    SameRows,
    align,
    align_same,
    order_digest,
    same_rows,
)
from fedarena.vertical.party_tables import PartyTable

ALIGNMENT = "alignment.npz"
TRIES = 3  # of an alignment, if a host is lost meanwhile
ALIGNING = {kind for kind in FrameKind if kind.name.startswith("ALIGN")}
Purpose = Literal["train", "predict", "align"]


@dataclass(frozen=True)
class Matching:
    """How rows of several parties are matched."""

    insecure_hashed_ids: bool = False
    smallest: int = SMALLEST
    most_ids: int | None = None  # host: that a guest may ask about


BY_PSI = Matching()


class HostProgress(Protocol):
    """What a host's command shows of its work."""

    def __call__(self, kind: FrameKind, tree: int, level: int) -> None:
        """A question came in."""


class HostParty:
    """A host as one state machine: aligns its table, then hands over to the part that `make` builds from its rows."""

    def __init__(
        self,
        table: PartyTable,
        make: Callable[[PartyTable], HostProtocol] | None,
        matching: Matching = BY_PSI,
        *,
        name: str = "host",
        purpose: Purpose = "train",
        folder: Path | None = None,
        watch: HostProgress = lambda kind, tree, level: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.table, self.folder, self.purpose = table, folder, purpose
        self.finished = threading.Event()
        self.alignment: Alignment | None = None
        self._make, self._watch, self._say = make, watch, say
        self._greeting: dict[str, Any] = {}
        self._inner: HostProtocol | None = None
        if table.ids is None:
            self._aligner: HostAlignment | SameRows = SameRows(len(table), name)
        else:
            self._aligner = HostAlignment(
                table.ids,
                name,
                insecure_hashed_ids=matching.insecure_hashed_ids,
                smallest=matching.smallest,
                most_ids=matching.most_ids,
            )
        kept = kept_alignment(folder, table)
        if kept is not None:
            self._begin(kept)

    def answer(self, kind: FrameKind, fields: dict[str, Any], tree: int, level: int) -> Fields:
        """What this host has to say."""
        self._watch(kind, tree, level)
        if kind is FrameKind.HELLO:
            return self._hello(fields, tree, level)
        if kind in ALIGNING:
            return self._align(kind, fields)
        if kind is FrameKind.DONE and self._make is None:
            self.finished.set()
            return {}
        if self._inner is None:
            raise FrameRefused(
                f"a {kind.name} frame came before the rows were aligned", remedy="let the guest align first"
            )
        reply = self._inner.answer(kind, fields, tree, level)
        if kind is FrameKind.DONE:
            self.finished.set()
        return reply

    def _hello(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        """A greeting keeps the alignment, and says which one it is."""
        wanted = read.text(fields, "purpose") if "purpose" in fields else self.purpose
        if wanted != self.purpose:
            raise BadValue(
                f"this host was started to {self.purpose}, the guest wants to {wanted[:20]}",
                remedy=f"start the host with `vertical {wanted[:20]}`, or the guest with `vertical {self.purpose}`",
            )
        self._greeting = fields
        inner = {} if self._inner is None else self._inner.answer(FrameKind.HELLO, fields, tree, level)
        return {**inner, "aligned": "" if self.alignment is None else self.alignment.digest}

    def _align(self, kind: FrameKind, fields: dict[str, Any]) -> Fields:
        try:
            reply = self._aligner.answer(kind, fields)
        except FedarenaError as error:
            self._say(f"the alignment failed: {error.what}")
            raise
        if self._aligner.result is not None:
            keep_alignment(self.folder, self._aligner.result)
            self._begin(self._aligner.result)
        return reply

    def _begin(self, alignment: Alignment) -> None:
        self.alignment = alignment
        if self._make is not None:
            self._inner = self._make(self.table.rows(alignment.rows))
            self._inner.answer(FrameKind.HELLO, self._greeting, 0, 0)


def align_guest(
    channels: Sequence[Channel],
    table: PartyTable,
    matching: Matching = BY_PSI,
    *,
    purpose: Purpose = "train",
    folder: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Alignment:
    """Greet all hosts and align with them; an alignment that all still have from before is used again."""
    how: dict[str, Any] = {
        "insecure_hashed_ids": matching.insecure_hashed_ids,
        "smallest": matching.smallest,
        "say": say,
    }
    kept = kept_alignment(folder, table)
    for tries_left in reversed(range(TRIES)):
        try:
            theirs = {
                str(channel.ask(FrameKind.HELLO, {"purpose": purpose}).get("aligned", "")) for channel in channels
            }
            if kept is not None and theirs == {kept.digest}:
                return kept
            found = align_same(channels, len(table)) if table.ids is None else align(channels, table.ids, **how)
            break
        except PartyLost:  # in the middle of it: the greeting waits until the host is back
            if not tries_left:
                raise
    keep_alignment(folder, found)
    return found


def keep_alignment(folder: Path | None, found: Alignment) -> None:
    """For a restart: alignment takes longer than a tree."""
    if folder is None:
        return
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / ALIGNMENT) as file:
        np.savez(file, rows=found.rows, digest=np.array(found.digest), **_counts(found))


def _counts(found: Alignment) -> dict[str, Any]:
    return {"parties": np.array(list(found.counts)), "counts": np.array(list(found.counts.values()))}


def kept_alignment(folder: Path | None, table: PartyTable) -> Alignment | None:
    """The alignment in a folder, if it is one of this very table."""
    if folder is None or not (folder / ALIGNMENT).is_file():
        return None
    try:
        with np.load(folder / ALIGNMENT, allow_pickle=False) as kept:
            rows, digest = kept["rows"], str(kept["digest"])
            counts = dict(zip(map(str, kept["parties"]), map(int, kept["counts"]), strict=True))
    except (OSError, ValueError, KeyError):
        return None
    if rows.ndim != 1 or rows.dtype.kind != "i" or (len(rows) and (rows.min() < 0 or rows.max() >= len(table))):
        return None
    if table.ids is None:
        again = same_rows(len(table), counts).digest
    else:
        again = order_digest([table.ids[i] for i in rows])
    return Alignment(rows.astype(np.int64), digest, counts) if again == digest else None
