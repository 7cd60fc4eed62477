"""Run all parties in one process: the same code and the same bytes as between organisations, without a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.transport.certificates import check_name
from fedarena.transport.channel import LocalChannel, ask_all
from fedarena.transport.frames import FrameKind
from fedarena.vertical.guest import Cipher, Guest, TreeRecord
from fedarena.vertical.host import Host, HostPolicy
from fedarena.vertical.model import GuestModel, HostModel
from fedarena.vertical.prediction import PredictingHost, predict_margins
from fedarena.vertical.settings import BoostSettings

Tables = Sequence[NDArray[np.floating]]
ANY_BITS = 2**31  # a simulation has no secrets


@dataclass(frozen=True)
class SimulatedModel:
    """The models of all parties together, which only a simulation has."""

    guest: GuestModel
    hosts: tuple[HostModel, ...]
    margins: NDArray[np.float32]  # of the rows of the training tables

    @classmethod
    def load(cls, folder: Path | str) -> SimulatedModel:
        """Load the models that `simulate` wrote to subfolders of this folder, without the margins of the training rows."""
        guest = GuestModel.load(Path(folder) / "guest")
        hosts = tuple(HostModel.load(Path(folder) / name) for name in guest.hosts)
        return cls(guest, hosts, np.zeros((0, guest.settings.outputs), np.float32))

    def predict_margins(self, tables: Tables) -> NDArray[np.float32]:
        """Return the margins of other rows: one table per party, the guest's first."""
        if len(tables) != 1 + len(self.hosts):
            raise BadValue(f"{len(tables)} tables for {1 + len(self.hosts)} parties", remedy="use one table per party")
        hosts = [PredictingHost(m, x) for m, x in zip(self.hosts, tables[1:], strict=True)]
        channels = [LocalChannel(h, n) for h, n in zip(hosts, self.guest.hosts, strict=True)]
        ask_all(channels, FrameKind.HELLO, {"purpose": "predict"})
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
) -> SimulatedModel:
    """Train with one table per party, the guest's first; models are stored in `folder`/guest and `folder`/<host>."""
    if any(len(t) != len(tables[0]) for t in tables):
        raise BadValue("the parties' tables have different numbers of rows", remedy="align them first")
    host_names = list(hosts) if hosts else [f"host{i}" if len(tables) > 2 else "host" for i in range(1, len(tables))]
    root = None if folder is None else Path(folder)
    if root is not None:
        for name in host_names:  # they become folders
            check_name(name)
    policy = HostPolicy(plain=cipher == "none", most_bits=ANY_BITS)
    parties = [
        Host(x, names[i] if names else None, name=n, folder=root / n if root else None, policy=policy)
        for i, (x, n) in enumerate(zip(tables[1:], host_names, strict=True), start=1)
    ]
    channels = [LocalChannel(h, n) for h, n in zip(parties, host_names, strict=True)]
    guest = Guest(
        tables[0],
        y,
        channels,
        settings,
        names=names[0] if names else None,
        weights=weights,
        training=training,
        folder=root / "guest" if root else None,
        resume=resume,
        cipher=cipher,
        on_tree=on_tree,
    )
    model = guest.train()
    return SimulatedModel(model, tuple(h.model for h in parties), guest.margins)
