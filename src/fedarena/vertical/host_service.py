"""A host that listens, and an alignment by itself: who do all parties know?"""

from __future__ import annotations

from typing import Any

from fedarena.transport.certificates import Identity
from fedarena.transport.frames import FrameKind
from fedarena.transport.grpc_channel import HostServer
from fedarena.vertical.align import Alignment
from fedarena.vertical.handshake import HostParty, Matching, align_guest
from fedarena.vertical.task_file import PartyConnection, Say, TableSource


def common(found: Alignment) -> str:
    """An alignment in words."""
    counts = ", ".join(f"{name} {count}" for name, count in found.counts.items())
    return f"{len(found.rows)} people in common: {counts}"


def serve(party: HostParty, line: PartyConnection, identity: Identity, say: Say) -> None:
    """Listen until the guest is done."""
    with HostServer(party, line.listen, identity, line.guest) as server:
        machine = line.listen.rpartition(":")[0]
        say(f"host '{identity.name}' listens on {machine}:{server.port} for '{line.guest}'")
        try:
            while not party.finished.wait(1.0):  # in steps, so that Ctrl-C is heard
                pass
        except KeyboardInterrupt as stopped:
            stopped.add_note("start this host again with the same command, and the guest goes on")
            raise


def align_as_host(source: TableSource, line: PartyConnection, matching: Matching, say: Say) -> dict[str, Any]:
    """Answer an alignment, and nothing else."""
    identity = Identity.load(line.keys)
    party = HostParty(source.load_ids(), None, matching, name=identity.name, purpose="align", say=say)
    serve(party, line, identity, say)
    return _counted(party.alignment)


def align_as_guest(source: TableSource, line: PartyConnection, matching: Matching, say: Say) -> dict[str, Any]:
    """Count the people in common."""
    table = source.load_ids()
    with line.channels(say) as channels:
        found = align_guest(channels, table, matching, purpose="align", say=say)
        for channel in channels:
            channel.ask(FrameKind.DONE)
    return _counted(found)


def _counted(found: Alignment | None) -> dict[str, Any]:
    assert found is not None
    return {"common": len(found.rows), "counts": found.counts, "digest": found.digest}
