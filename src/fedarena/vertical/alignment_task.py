"""Run an alignment on its own: count the rows that all parties have in common."""

from __future__ import annotations

from typing import Any

from fedarena.transport.certificates import Identity
from fedarena.transport.channel import ask_all
from fedarena.transport.frames import FrameKind
from fedarena.vertical.align import Alignment, Matching
from fedarena.vertical.handshake import HostParty, align_guest
from fedarena.vertical.party_tables import TableSource
from fedarena.vertical.task_file import PartyConnection


def align_as_host(source: TableSource, connection: PartyConnection, matching: Matching) -> dict[str, Any]:
    """Serve one alignment, and refuse every other request."""
    identity = Identity.load(connection.keys)
    party = HostParty(source.load_ids(), None, matching, name=identity.name, purpose="align")
    connection.serve(party, identity)
    assert party.alignment is not None
    return _summarise(party.alignment)


def align_as_guest(source: TableSource, connection: PartyConnection, matching: Matching) -> dict[str, Any]:
    """Align with all hosts and count the common rows."""
    table = source.load_ids()
    with connection.channels() as channels:
        alignment = align_guest(channels, table, matching, purpose="align")
        ask_all(channels, FrameKind.DONE)
    return _summarise(alignment)


def _summarise(alignment: Alignment) -> dict[str, Any]:
    return {"common": len(alignment.rows), "counts": alignment.counts, "digest": alignment.digest}
