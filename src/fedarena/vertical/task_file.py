"""The task of a party: its table, its connection to the other parties and the settings, stored for a restart."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedarena.config.errors import BadValue, DataBroken, DataMissing
from fedarena.transport.certificates import Identity
from fedarena.transport.channel import Channel
from fedarena.transport.grpc_channel import DEADLINE, PATIENCE, HostServer, NetworkChannel
from fedarena.vertical.align import Matching
from fedarena.vertical.handshake import HostParty
from fedarena.vertical.model import write_json
from fedarena.vertical.party_tables import GUEST, TableSource

FILE = "task.json"
DONE = "finished.json"  # the training is over, and no host waits for the guest
METRICS = ("auc", "accuracy", "rmse")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartyConnection:
    """How a party reaches the other parties."""

    keys: str
    peers: tuple[str, ...] = ()  # guest: name=machine:port
    listen: str = ""  # host: machine:port
    guest: str = GUEST
    deadline: float = DEADLINE
    patience: float = PATIENCE

    @contextmanager
    def channels(self) -> Iterator[list[Channel]]:
        """Open the guest's channels to all hosts, and close them at the end."""
        identity = Identity.load(self.keys)
        if identity.name != self.guest:
            raise BadValue(
                f"the certificate in {self.keys} has the name '{identity.name}', the guest's name is '{self.guest}'",
                remedy="name the guest's folder, or set the guest's name with --guest",
                where="--keys",
            )
        pairs = [peer.partition("=") for peer in self.peers]
        names = [name for name, _, _ in pairs]
        if not pairs or not all(sign for _, sign, _ in pairs) or len(set(names)) < len(names):
            raise BadValue("list each host once, with its address", remedy="e.g. --peers bank=bank.example.org:7001")
        options: dict[str, Any] = {"deadline": self.deadline, "patience": self.patience}
        with ExitStack() as stack:
            yield [stack.enter_context(NetworkChannel(name, at, identity, **options)) for name, _, at in pairs]

    def serve(self, party: HostParty, identity: Identity) -> None:
        """Answer the guest's requests as a host until the guest is done."""
        with HostServer(party, self.listen, identity, self.guest) as server:
            machine = self.listen.rpartition(":")[0]
            log.info("host '%s' listens on %s:%d for '%s'", identity.name, machine, server.port, self.guest)
            try:
                while not party.finished.wait(1.0):  # in steps, so that Ctrl-C interrupts
                    pass
            except KeyboardInterrupt as stopped:
                stopped.add_note("start this host again with the same command, and the guest continues")
                raise


@dataclass(frozen=True)
class TrainingTask:
    """A complete description of a training, stored beside the model so that it can be resumed."""

    source: TableSource
    settings: dict[str, Any]
    line: PartyConnection | None = None  # None: simulation
    matching: Matching = Matching()
    test_share: float = 0.2
    check_pooled: bool = False

    def save(self, folder: Path) -> None:
        """Write the task to task.json in this folder."""
        write_json(folder / FILE, dataclasses.asdict(self))

    @classmethod
    def load(cls, folder: Path) -> TrainingTask:
        """Read the task that `save` wrote to this folder."""
        try:
            return TypeAdapter(cls).validate_json((folder / FILE).read_bytes())
        except OSError:
            raise DataMissing(f"there is no training in {folder}", remedy="name the folder of a training") from None
        except ValueError as error:
            raise DataBroken(f"{folder / FILE} is damaged: {error}", remedy="start a new training") from None
