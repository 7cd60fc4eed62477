"""What a user asks for: which table, which line to the other parties, which settings; kept so that it can go on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedarena.config.errors import BadValue, DataBroken, DataMissing
from fedarena.transport.certificates import Identity
from fedarena.transport.channel import Channel
from fedarena.transport.grpc_channel import DEADLINE, PATIENCE, NetworkChannel
from fedarena.vertical.handshake import Matching
from fedarena.vertical.model import write_json
from fedarena.vertical.party_tables import GUEST, PartyTable, load_ids, load_table

FILE = "task.json"
DONE = "finished.json"  # the training is over, and nobody waits any more
METRICS = ("auc", "accuracy", "rmse")
Say = Callable[[str], None]


@dataclass(frozen=True)
class TableSource:
    """Where a party's rows come from, or those of all parties."""

    table: str
    label: str | None = None
    ids: str | None = None
    drop: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    hosts: int | None = None
    quantity: bool = False
    classes: tuple[str, ...] = ()  # of the training, for a prediction

    def load(self, only: Sequence[str] | None = None) -> PartyTable:
        """The table, or only these columns of it, beside label and ids."""
        how: dict[str, Any] = {"label": self.label, "ids": self.ids, "drop": self.drop, "only": only}
        return load_table(self.table, quantity=self.quantity, classes=self.classes, **how)

    def load_ids(self) -> PartyTable:
        """The table's ids alone."""
        assert self.ids is not None
        return load_ids(self.table, self.ids)

    @property
    def name(self) -> str:
        """Of the data set, without folders."""
        return Path(self.table).stem


@dataclass(frozen=True)
class PartyConnection:
    """How a party reaches the others."""

    keys: str
    peers: tuple[str, ...] = ()  # guest: name=machine:port
    listen: str = ""  # host: machine:port
    guest: str = GUEST
    deadline: float = DEADLINE
    patience: float = PATIENCE

    @contextmanager
    def channels(self, say: Say) -> Iterator[list[Channel]]:
        """The guest's lines to all hosts, closed at the end."""
        identity = Identity.load(self.keys)
        if identity.name != self.guest:
            raise BadValue(
                f"the certificate in {self.keys} bears the name '{identity.name}', the guest's is '{self.guest}'",
                remedy="name the guest's folder, or say its name with --guest",
                where="--keys",
            )
        pairs = [peer.partition("=") for peer in self.peers]
        names = [name for name, _, _ in pairs]
        if not pairs or not all(sign for _, sign, _ in pairs) or len(set(names)) < len(names):
            raise BadValue(
                "each host is named once, with its address", remedy="e.g. --peers bank=bank.example.org:7001"
            )
        waits: dict[str, Any] = {"deadline": self.deadline, "patience": self.patience}
        with ExitStack() as stack:
            yield [stack.enter_context(NetworkChannel(name, at, identity, **waits)) for name, _, at in pairs]


@dataclass(frozen=True)
class TrainingTask:
    """A training, complete: kept beside the model, so that it can go on."""

    source: TableSource
    settings: dict[str, Any]
    line: PartyConnection | None = None  # None: simulation
    matching: Matching = Matching()
    test_share: float = 0.2
    check_pooled: bool = False

    def save(self, folder: Path) -> None:
        """As task.json."""
        write_json(folder / FILE, dataclasses.asdict(self))

    @classmethod
    def load(cls, folder: Path) -> TrainingTask:
        """What `save` wrote."""
        try:
            found = json.loads((folder / FILE).read_text(encoding="utf-8"))
            source, matching = TableSource(**_tuples(found.pop("source"))), Matching(**found.pop("matching"))
            line = found.pop("line")
            return cls(source=source, matching=matching, line=line and PartyConnection(**_tuples(line)), **found)
        except OSError:
            raise DataMissing(f"there is no training in {folder}", remedy="name the folder of one") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataBroken(f"{folder / FILE} is damaged: {error}", remedy="start anew") from None


def _tuples(found: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
