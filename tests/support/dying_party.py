"""A party as a process of its own that stops at a chosen frame: `python -m tests.support.dying_party WHERE -- command ...`.

WHERE is `who kind tree when signal`; it sends the signal to itself right before or right after it worked on that frame,
so that nothing depends on timing. Without WHERE the command is run as it is.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from fedarena.cli.main import main
from fedarena.transport.channel import Channel
from fedarena.transport.frames import FrameKind
from fedarena.vertical.handshake import HostParty


def arrange(who: str, kind: str, tree: str, when: str, name: str) -> None:
    """Patch the party so that this process sends itself the signal."""
    owner, method = (HostParty, "answer") if who == "host" else (Channel, "ask")
    work = getattr(owner, method)
    met = 0

    def working(self: Any, asked: FrameKind, *args: Any, **fields: Any) -> Any:
        nonlocal met
        number = fields.get("tree", 0) if who == "guest" else args[1]
        here = asked is FrameKind[kind] and number == int(tree) and not met
        met += here
        if here and when == "before":
            os.kill(os.getpid(), getattr(signal, name))
        reply = work(self, asked, *args, **fields)
        if here and when == "after":
            os.kill(os.getpid(), getattr(signal, name))
        return reply

    setattr(owner, method, working)


if __name__ == "__main__":
    cut = sys.argv.index("--")
    if cut > 1:
        arrange(*sys.argv[1:cut])
    sys.argv = ["fedarena", *sys.argv[cut + 1 :]]
    main()
