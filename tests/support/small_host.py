"""A small host for tests of the channel: it sums the numbers of requests, and stores finished trees in a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedarena.config.errors import BadValue
from fedarena.transport.certificates import Identity
from fedarena.transport.frames import Fields, FrameKind
from fedarena.transport.grpc_channel import HostServer, NetworkChannel


class SmallHost:
    """Adds the numbers of ROWS frames; LEVEL gives the sum; a finished tree is stored on disk."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "finished"
        self.total = 0

    def answer(self, kind: FrameKind, fields: dict[str, Any], tree: int, level: int) -> Fields:
        """Return the response to one request."""
        if kind is FrameKind.HELLO:
            return {"finished": int(self.file.read_text()) if self.file.exists() else 0}
        if kind is FrameKind.TREE_START:
            self.total = 0
        elif kind is FrameKind.ROWS:
            if (fields["x"] < 0).any():
                raise BadValue("a number is negative", remedy="send none")
            self.total += int(fields["x"].sum())
        elif kind is FrameKind.LEVEL:
            return {"sum": self.total}
        elif kind is FrameKind.TREE_END:
            self.file.write_text(str(tree))
        elif kind is FrameKind.PUBLIC_KEY:
            return {"fingerprint": fields["key"].hex()}
        elif kind is FrameKind.SETUP:
            time.sleep(float(fields.get("seconds", 0)))
        elif kind is FrameKind.SPLIT:
            raise ZeroDivisionError("a mistake of ours")
        return {}


def channel(name: str, port: int, keys: Path, **settings: Any) -> NetworkChannel:
    """Open a channel from the guest with these keys."""
    return NetworkChannel(name, f"127.0.0.1:{port}", Identity.load(keys), **settings)


def wait_for(truth: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until a condition holds, or fail."""
    end = time.monotonic() + seconds
    while not truth():
        assert time.monotonic() < end, "the condition did not hold in time"
        time.sleep(0.01)


if __name__ == "__main__":  # a host as a process of its own: folder, keys, port
    folder, keys, port = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    with HostServer(SmallHost(folder), f"127.0.0.1:{port}", Identity.load(keys)) as server:
        (folder / "port.new").write_text(str(server.port))
        (folder / "port.new").rename(folder / "port")
        time.sleep(120)
