"""The clients that a comparison leaves out in turn: all of them (`--leave-one-out`), or those that `--leave-out` names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fedarena.config.comparison_plan import Plan
from fedarena.config.errors import BadValue, check_known, located_at, quoted
from fedarena.data.exclusion import client_names
from fedarena.engine.setup import open_context, partition_data

LEAST_CLIENTS = 3  # of a federation that one client can leave
MOST_CLIENTS = 50  # that are left out in turn unless they are named: each of them repeats the comparison
LeaveOneOut = bool | str | Iterable[str]  # all clients, or those of these names


def with_left_out(plan: Plan, clients_to_leave: LeaveOneOut) -> Plan:
    """Return the plan that also repeats the comparison without each of these clients; raise if that is impossible."""
    given = [clients_to_leave] if isinstance(clients_to_leave, str) else clients_to_leave
    wanted = [] if isinstance(given, bool) else [str(name) for name in given]
    if not wanted and given is not True:
        return plan
    option = "--leave-out" if wanted else "--leave-one-out"
    if not plan.keeps_clients:
        raise BadValue(
            "every split draws its own clients, so no client can be left out of all splits",
            remedy="use a natural partition, or add --fixed partition",
            where=option,
        )
    if not plan.federated:
        raise BadValue(
            "no algorithm communicates, so no client depends on another one",
            remedy="name one that does: -a fedavg",
            where=option,
        )
    clients = _clients(plan)
    if len(clients) < LEAST_CLIENTS:
        raise BadValue(
            f"{len(clients)} clients have samples, and without one of them there is no federation",
            remedy=f"use data of at least {LEAST_CLIENTS} clients",
            where=option,
        )
    if not wanted and len(clients) > MOST_CLIENTS:
        raise BadValue(
            f"leaving each of {len(clients)} clients out in turn repeats the comparison {len(clients)} times",
            remedy=f"name the clients that matter, at most {MOST_CLIENTS} go without names: --leave-out {clients[0]}",
            where=option,
        )
    for name in wanted:
        more = f"the clients are: {', '.join(clients[:10])}"
        check_known(name, clients, f"there is no client '{quoted(name)}' with samples", more, option)
    chosen = {*(wanted or clients), *plan.leave_one_out}
    return replace(plan, leave_one_out=tuple(name for name in clients if name in chosen))


def _clients(plan: Plan) -> list[str]:
    """Return the clients that have samples; the folds of a repeat hold all samples of a client between them."""
    _, partition = partition_data(plan.cell(plan.federated[0], plan.splits[0]))
    pairs = zip(client_names(partition), partition.clients, partition.client_tests, strict=True)
    unseen = partition.unseen  # in this split
    return [name for k, (name, train, test) in enumerate(pairs) if len(train) or len(test) or k in unseen]


def check_left_out(plan: Plan) -> None:
    """Raise if the other clients cannot train without each client that is left out, in the first split."""
    for client in plan.leave_one_out:
        with located_at(f"without {client}"):
            open_context(plan.cell(plan.federated[0], plan.splits[0], client))
