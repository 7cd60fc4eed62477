"""Options that the commands of `fedarena vertical` share, and which party may use which of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from annotated_types import Ge

from fedarena.cli.options import Json, Quiet
from fedarena.config.errors import BadValue

if TYPE_CHECKING:
    from fedarena.vertical.align import Matching
    from fedarena.vertical.party_tables import TableSource
    from fedarena.vertical.task_file import PartyConnection

SIMULATION = "simulation"
GUEST, HOST = ("guest",), ("host",)
ALONE = (SIMULATION,)
ONLY = {  # options that apply to some parties only
    **dict.fromkeys(("columns", "hosts", "check_pooled"), ALONE),
    **dict.fromkeys(("label", "resume", "to", "test_share", "set_"), ALONE + GUEST),
    **dict.fromkeys(("algorithm", "trees", "depth", "objective", "key_bits", "exponents"), ALONE + GUEST),
    **dict.fromkeys(("peers", "deadline", "patience"), GUEST),
    **dict.fromkeys(("keys", "guest", "insecure_hashed_ids", "min_rows"), GUEST + HOST),
    **dict.fromkeys(("listen", "most_trees", "most_bits", "most_ids"), HOST),
}
MAY_CHANGE = ("peers", "keys", "deadline", "patience")  # when a training is resumed

Party = Literal["guest", "host"]
Label = Annotated[str | None, "Column to predict; only the guest has it."]
MinRows = Annotated[int, "Smallest number of common rows for which a training starts.", Ge(1)]


@dataclass(frozen=True)
class PartyOptions:
    """The options that `train`, `predict` and `align` share."""

    ctx: typer.Context
    table: Annotated[
        str | None,
        typer.Argument(help="A .csv, .parquet or .npz file, or a data set, e.g. breast_cancer.", show_default=False),
    ] = None
    party: Annotated[Party | None, "Role of this process; by default it simulates all parties."] = None
    peers: Annotated[list[str] | None, "Guest: a host and its address, `bank=machine:port`. May be repeated."] = None
    listen: Annotated[str | None, "Host: address to listen on, `machine:port`."] = None
    keys: Annotated[Path | None, "Folder with this party's certificate; `vertical keys` makes it."] = None
    guest: Annotated[str, "Name in the guest's certificate."] = "guest"
    id_: Annotated[str | None, "Column that identifies a row. Without it, rows are matched by their order."] = None
    most_ids: Annotated[
        int | None, "Host: total number of ids that a guest may ask about.  [default: ten times the host's own]", Ge(1)
    ] = None
    insecure_hashed_ids: Annotated[bool, "Align by plain hashes, which anyone can reverse by guessing ids."] = False
    deadline: Annotated[float, "Guest: seconds that a host has to answer.", Ge(1)] = 600.0
    patience: Annotated[float, "Guest: seconds to keep trying to reach a host.", Ge(0)] = 120.0
    json_: Json = False
    quiet: Quiet = False

    @property
    def given(self) -> dict[str, str]:
        """The parameters that were given on the command line, each with its flag."""
        flags = {str(option.name): option.opts[0] for option in self.ctx.command.params}
        source = self.ctx.get_parameter_source
        return {name: flag for name, flag in flags.items() if getattr(source(name), "name", "") == "COMMANDLINE"}

    def check(self) -> None:
        """Reject options that have no meaning for this party."""
        role = self.party or SIMULATION
        for name, flag in self.given.items():
            roles = ONLY.get(name, (role,))
            if role not in roles:
                other = f", or name the role of this process: --party {roles[0]}" if self.party is None else ""
                what = f"{flag} is not for a {role}: it is for a {' or a '.join(roles)}"
                raise BadValue(what, remedy=f"remove it{other}", where=flag)

    def source(self, **more: Any) -> TableSource:
        """Return the table of this party, or of all parties of a simulation."""
        from fedarena.vertical.party_tables import TableSource

        if self.table is None:
            raise typer.BadParameter("name a table, e.g. `fedarena vertical train breast_cancer`")
        return TableSource(self.table, ids=self.id_, **more)

    def matching(self, min_rows: int) -> Matching:
        """Return how the rows of the parties are matched."""
        from fedarena.vertical.align import Matching

        return Matching(self.insecure_hashed_ids, min_rows, self.most_ids)

    def connection(self) -> PartyConnection:
        """Return the connection to the other parties, and refuse options that do not describe one."""
        from fedarena.vertical.task_file import PartyConnection

        needs = {"keys": ("a certificate", "name its folder: --keys keys/NAME")}
        if self.party == "host":
            needs["listen"] = ("an address to listen on", "name it: --listen 0.0.0.0:7001")
        else:
            needs["peers"] = ("a host", "name one: --peers bank=machine:7001")
        for name, (what, remedy) in needs.items():
            if not getattr(self, name):
                raise BadValue(f"a {self.party} needs {what}", remedy=remedy, where=f"--{name}")
        peers = split_peers(self.peers or ())
        return PartyConnection(str(self.keys), peers, self.listen or "", self.guest, self.deadline, self.patience)


def split_peers(peers: Sequence[str]) -> tuple[str, ...]:
    """Return the hosts of all `--peers` options, each of which may list several."""
    return tuple(peer for text in peers for peer in text.split(","))
