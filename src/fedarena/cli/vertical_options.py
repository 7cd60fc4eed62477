"""Options that the commands of `fedarena vertical` share, and which party may use which of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedarena.config.errors import BadValue

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
PartyOption = Annotated[
    Party | None, typer.Option("--party", help="Role of this process; by default it simulates all parties.")
]
TableName = Annotated[
    str | None,
    typer.Argument(help="A .csv, .parquet or .npz file, or a data set, e.g. breast_cancer.", show_default=False),
]
Peers = Annotated[
    list[str] | None, typer.Option(help="Guest: a host and its address, `bank=machine:port`. May be repeated.")
]
Listen = Annotated[str | None, typer.Option(help="Host: address to listen on, `machine:port`.")]
Keys = Annotated[Path | None, typer.Option(help="Folder with this party's certificate; `vertical keys` makes it.")]
GuestName = Annotated[str, typer.Option("--guest", help="Name in the guest's certificate.")]
Label = Annotated[str | None, typer.Option(help="Column to predict; only the guest has it.")]
Id = Annotated[
    str | None, typer.Option("--id", help="Column that identifies a row. Without it, rows are matched by their order.")
]
Drop = Annotated[list[str] | None, typer.Option(help="Column to leave out. May be repeated.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(help="Simulation: columns of a party, `bank=income,debt`; `bank=*` has all others. May be repeated."),
]
Hosts = Annotated[int | None, typer.Option(min=1, help="Simulation: number of hosts that share the columns.")]
Hashed = Annotated[
    bool,
    typer.Option("--insecure-hashed-ids", help="Align by plain hashes, which anyone can reverse by guessing ids."),
]
MinRows = Annotated[int, typer.Option(min=1, help="Smallest number of common rows for which a training starts.")]
MostIds = Annotated[
    int | None,
    typer.Option(
        min=1, help="Host: total number of ids that a guest may ask about.  [default: ten times the host's own]"
    ),
]
Deadline = Annotated[float, typer.Option(min=1, help="Guest: seconds that a host has to answer.")]
Patience = Annotated[float, typer.Option(min=0, help="Guest: seconds to keep trying to reach a host.")]


def given_options(ctx: typer.Context) -> dict[str, str]:
    """Return the parameters that were given on the command line, each with its flag."""
    written = {str(option.name): option.opts[0] for option in ctx.command.params}
    typed = {name for name in written if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"}
    return {name: flag for name, flag in written.items() if name in typed}


def check_options(ctx: typer.Context, party: Party | None) -> None:
    """Reject options that have no meaning for this party."""
    role = party or SIMULATION
    for name, flag in given_options(ctx).items():
        roles = ONLY.get(name, (role,))
        if role not in roles:
            remedy = (
                f"remove it, or name the role of this process: --party {roles[0]}" if party is None else "remove it"
            )
            raise BadValue(f"{flag} is not for a {role}: it is for a {' or a '.join(roles)}", remedy=remedy, where=flag)
