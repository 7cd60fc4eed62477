"""Open a session between parties and align their rows; the alignment is stored for a restart."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedarena.common.files import atomic_write, make_folder
from fedarena.config.errors import BadValue, FedarenaError, FrameRefused, PartyLost
from fedarena.transport import fields as read
from fedarena.transport.channel import Channel, HostProtocol, ask_all
from fedarena.transport.frames import Fields, FrameKind
from fedarena.vertical.align import (
    BY_PSI,
    Alignment,
    HostAlignment,
    Matching,
    SameRows,
    align,
    align_same,
    order_digest,
    same_rows,
)
from fedarena.vertical.party_tables import PartyTable

ALIGNMENT = "alignment.npz"
ATTEMPTS = 3  # of an alignment during which a host is lost
ALIGN_KINDS = {kind for kind in FrameKind if kind.name.startswith("ALIGN")}
Purpose = Literal["train", "predict", "align"]

log = logging.getLogger(__name__)


class HostParty:
    """A host as one state machine: align its table, then pass requests to the host that `make` builds from its rows."""

    def __init__(
        self,
        table: PartyTable,
        make: Callable[[PartyTable], HostProtocol] | None,
        matching: Matching = BY_PSI,
        *,
        name: str = "host",
        purpose: Purpose = "train",
        folder: Path | None = None,
    ) -> None:
        self.table, self.folder, self.purpose = table, folder, purpose
        self.finished = threading.Event()
        self.alignment: Alignment | None = None
        self._make = make
        self._hello: dict[str, Any] = {}  # fields of the last HELLO
        self.host: HostProtocol | None = None
        self._aligner: HostAlignment | SameRows = (
            SameRows(len(table), name) if table.ids is None else HostAlignment(table.ids, name, matching)
        )
        stored = load_alignment(folder, table)
        if stored is not None:
            self._begin(stored)

    def answer(self, kind: FrameKind, fields: dict[str, Any], tree: int, level: int) -> Fields:
        """Return the response to one request of the guest."""
        if kind is FrameKind.HELLO:
            return self._open_session(fields, tree, level)
        if kind in ALIGN_KINDS:
            return self._align(kind, fields)
        if kind is FrameKind.DONE and self._make is None:
            self.finished.set()
            return {}
        if self.host is None:
            raise FrameRefused(
                f"a {kind.name} frame came before the rows were aligned", remedy="the guest must align first"
            )
        response = self.host.answer(kind, fields, tree, level)
        if kind is FrameKind.TREE_END:
            log.info("tree %d finished", tree + 1)
        elif kind is FrameKind.DONE:
            self.finished.set()
        return response

    def _open_session(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        """Keep the alignment in a new session, and return its digest to the guest."""
        wanted = read.text(fields, "purpose") if "purpose" in fields else self.purpose
        if wanted != self.purpose:
            raise BadValue(
                f"this host was started to {self.purpose}, the guest wants to {wanted[:20]}",
                remedy=f"start the host with `vertical {wanted[:20]}`, or the guest with `vertical {self.purpose}`",
            )
        self._hello = fields
        inner = {} if self.host is None else self.host.answer(FrameKind.HELLO, fields, tree, level)
        return {**inner, "aligned": "" if self.alignment is None else self.alignment.digest}

    def _align(self, kind: FrameKind, fields: dict[str, Any]) -> Fields:
        try:
            response = self._aligner.answer(kind, fields)
        except FedarenaError as error:
            log.info("the alignment failed: %s", error.what)
            raise
        if self._aligner.result is not None:
            save_alignment(self.folder, self._aligner.result)
            self._begin(self._aligner.result)
        return response

    def _begin(self, alignment: Alignment) -> None:
        self.alignment = alignment
        if self._make is not None:
            self.host = self._make(self.table.take(alignment.rows))
            self.host.answer(FrameKind.HELLO, self._hello, 0, 0)


def align_guest(
    channels: Sequence[Channel],
    table: PartyTable,
    matching: Matching = BY_PSI,
    *,
    purpose: Purpose = "train",
    folder: Path | None = None,
) -> Alignment:
    """Open a session with all hosts and align with them, unless all still have the alignment that is stored here."""
    stored = load_alignment(folder, table)
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            theirs = {
                str(reply.get("aligned", "")) for reply in ask_all(channels, FrameKind.HELLO, {"purpose": purpose})
            }
            if stored is not None and theirs == {stored.digest}:
                return stored
            found = align_same(channels, len(table)) if table.ids is None else align(channels, table.ids, matching)
            break
        except PartyLost:  # during the alignment: the next HELLO waits until the host is back
            if not attempts_left:
                raise
    save_alignment(folder, found)
    return found


def save_alignment(folder: Path | None, alignment: Alignment) -> None:
    """Store an alignment for a restart, because it takes longer than a tree."""
    if folder is None:
        return
    make_folder(folder)
    with atomic_write(folder / ALIGNMENT) as file:
        np.savez(
            file,
            rows=alignment.rows,
            digest=np.array(alignment.digest),
            parties=np.array(list(alignment.counts)),
            counts=np.array(list(alignment.counts.values())),
        )


def load_alignment(folder: Path | None, table: PartyTable) -> Alignment | None:
    """Return the alignment stored in a folder, if it was made from this table."""
    if folder is None or not (folder / ALIGNMENT).is_file():
        return None
    try:
        with np.load(folder / ALIGNMENT, allow_pickle=False) as stored:
            rows, digest = stored["rows"], str(stored["digest"])
            counts = dict(zip(map(str, stored["parties"]), map(int, stored["counts"]), strict=True))
    except (OSError, ValueError, KeyError):
        return None
    if rows.ndim != 1 or rows.dtype.kind != "i" or (len(rows) and (rows.min() < 0 or rows.max() >= len(table))):
        return None
    if table.ids is None:
        expected = same_rows(len(table), counts).digest
    else:
        expected = order_digest([table.ids[i] for i in rows])
    return Alignment(rows.astype(np.int64), digest, counts) if expected == digest else None
