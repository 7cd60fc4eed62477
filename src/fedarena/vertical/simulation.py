"""All parties in one process: the same code, the same bytes, no line between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.transport.certificates import check_name
from fedarena.transport.channel import LocalChannel
from fedarena.transport.frames import FrameKind
from fedarena.vertical.guest import Cipher, Guest, TreeRecord
from fedarena.vertical.host import Host, HostPolicy
from fedarena.vertical.model import GuestModel, HostModel
from fedarena.vertical.prediction import PredictingHost, predict_margins
from fedarena.vertical.settings import BoostSettings

Tables = Sequence[NDArray[np.floating]]
EVERY_BIT = 2**31  # a simulation has nobody to hide anything from


@dataclass(frozen=True)
class Simulated:
    """All halves of a model, which in earnest nobody has together."""

    guest: GuestModel
    hosts: tuple[HostModel, ...]
    margins: NDArray[np.float32]  # of the rows of the training's tables

    @classmethod
    def load(cls, folder: Path | str) -> Simulated:
        """The halves that `simulate` has written into the folders of one folder; they predict, margins are not kept."""
        guest = GuestModel.load(Path(folder) / "guest")
        hosts = tuple(HostModel.load(Path(folder) / name) for name in guest.hosts)
        return cls(guest, hosts, np.zeros((0, guest.settings.outputs), np.float32))

    def predict_margins(self, tables: Tables) -> NDArray[np.float32]:
        """Of other rows: one table per party, the guest's first."""
        if len(tables) != 1 + len(self.hosts):
            raise BadValue(f"{len(tables)} tables for {1 + len(self.hosts)} parties", remedy="give one per party")
        hosts = [PredictingHost(m, x) for m, x in zip(self.hosts, tables[1:], strict=True)]
        channels = [LocalChannel(h, n) for h, n in zip(hosts, self.guest.hosts, strict=True)]
        for channel in channels:
            channel.ask(FrameKind.HELLO, {"purpose": "predict"})
        return predict_margins(self.guest, tables[0], channels)


def simulate(
    tables: Tables,
    y: NDArray[np.floating],
    settings: BoostSettings,
    *,
    names: Sequence[Sequence[str]] | None = None,
    hosts: Sequence[str] | None = None,
    weights: NDArray[np.floating] | None = None,
    training: NDArray[np.bool_] | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    cipher: Cipher = "paillier",
    on_tree: Callable[[TreeRecord], object] | None = None,
) -> Simulated:
    """Train with one table per party, the guest's first; halves are kept in `folder`/guest and `folder`/<host>."""
    if any(len(t) != len(tables[0]) for t in tables):
        raise BadValue("the parties' tables have unlike numbers of rows", remedy="align them first")
    called = list(hosts) if hosts else [f"host{i}" if len(tables) > 2 else "host" for i in range(1, len(tables))]
    place = None if folder is None else Path(folder)
    if place is not None:
        for name in called:  # they become folders
            check_name(name)
    policy = HostPolicy(plain=cipher == "none", most_bits=EVERY_BIT)
    parties = [
        Host(x, names[i] if names else None, name=n, folder=place / n if place else None, policy=policy)
        for i, (x, n) in enumerate(zip(tables[1:], called, strict=True), start=1)
    ]
    channels = [LocalChannel(h, n) for h, n in zip(parties, called, strict=True)]
    guest = Guest(
        tables[0],
        y,
        channels,
        settings,
        names=names[0] if names else None,
        weights=weights,
        training=training,
        folder=place / "guest" if place else None,
        resume=resume,
        cipher=cipher,
        on_tree=on_tree,
    )
    model = guest.train()
    return Simulated(model, tuple(h.model for h in parties), guest.margins)
