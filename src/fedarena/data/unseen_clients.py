"""Hold clients out of training: their samples are used only to judge what a client gets that never took part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedarena.config.errors import BadValue
from fedarena.config.seeds import stream
from fedarena.data.dataset import Partition, Rows
from fedarena.data.exclusion import check_clients, client_names, without_clients

KEY = "evaluate.unseen"


def unseen_names(partition: Partition, wanted: float | Sequence[str], seed: int) -> list[str]:
    """Return the clients that are held out: the named ones, or a random share of those that have samples.

    A drawn client has training samples to adapt on and test samples of its own. Which ones are drawn depends on the seed
    and on the partition alone.
    """
    names, trained = client_names(partition), partition.population
    usable = [k for k in trained if len(partition.client_tests[k])]
    if not isinstance(wanted, float):
        check_clients(names, wanted, KEY)
        for name in wanted:
            if names.index(name) not in usable:
                raise BadValue(
                    f"client '{name}' has no training samples to adapt on, or no test samples of its own",
                    remedy=f"name clients that have both: {', '.join(names[k] for k in usable[:10])}",
                    where=KEY,
                )
        chosen = {names.index(name) for name in wanted}
    else:
        count = int(round(wanted * len(trained), 9))
        if count < 1:
            least = f"{1 / max(len(trained), 2):.2g}"
            raise BadValue(
                f"{wanted:g} of {len(trained)} clients with samples is less than one client",
                remedy=f'give at least {least}, use more clients, or name some: ["{names[trained[0]]}"]',
                where=KEY,
            )
        if len(usable) < count:
            raise BadValue(
                f"{count} clients are to be held out, and only {len(usable)} have test samples of their own",
                remedy="use fewer clients, so that each has 5 training samples or more, or hold fewer of them out",
                where=KEY,
            )
        order = stream(seed, "unseen").permutation(len(names))
        chosen = {*[int(k) for k in order if k in set(usable)][:count]}
    if len(chosen) == len(trained):
        raise BadValue(
            f"all {len(trained)} clients with samples are held out, and none is left to train",
            remedy="hold fewer clients out",
            where=KEY,
        )
    return [names[k] for k in sorted(chosen)]


def hold_out_clients(partition: Partition, held: Sequence[str], *, own_tests: bool) -> Partition:
    """Return the partition in which these clients never train: it is that without them, with their samples beside it."""
    names, nothing = client_names(partition), np.empty(0, np.int64)
    out = {names.index(name) for name in held}

    def of_held(lists: Sequence[Rows]) -> list[Rows]:
        return [rows if k in out else nothing for k, rows in enumerate(lists)]

    rest = without_clients(partition, held, own_tests=own_tests, where=KEY)
    samples, tests = of_held(partition.clients), of_held(partition.client_tests)
    return replace(rest, unseen_clients=samples, unseen_tests=tests)
