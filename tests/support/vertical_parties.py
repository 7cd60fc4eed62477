"""Parties as real processes, for tests: tables on disk, keys, and the command of each party."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedarena.transport.certificates import make_vertical_keys
from fedarena.vertical.model import GuestModel, HostModel
from fedarena.vertical.party_tables import load_table
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.simulation import simulate
from fedarena.vertical.training_task import training_rows
from tests.support import forked_processes

ROOT = Path(__file__).parents[2]
TREES = 3


def write_csv(path: Path, columns: dict[str, object]) -> None:
    names, values = list(columns), [np.asarray(c).tolist() for c in columns.values()]
    lines = [",".join(map(str, row)) for row in zip(*values, strict=True)]
    path.write_text("\n".join([",".join(names), *lines]) + "\n", encoding="utf-8")


def write_tables(folder: Path) -> None:
    """Write tables of a guest and two hosts with mostly the same people, in different orders; all columns matter."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(240, 6)).round(3)
    y = (x @ [1.0, -1, 1, 1, -1, 0.5] + rng.normal(size=240) > 0).astype(int)
    ids = np.array([f"p{i}" for i in range(240)])
    for name, rows, own in (
        ("guest", rng.permutation(220), {"age": 0, "orders": 1}),
        ("bank", rng.permutation(240), {"income": 2, "debt": 3}),
        ("shop", 20 + rng.permutation(220), {"spent": 4, "visits": 5}),
    ):
        columns = {"id": ids[rows], **{column: x[rows, i] for column, i in own.items()}}
        write_csv(folder / f"{name}.csv", columns | ({"paid": y[rows]} if name == "guest" else {}))


@dataclass
class Site:
    """A folder with the tables and keys of all parties, and a free port for each host."""

    folder: Path
    hosts: tuple[str, ...] = ("bank",)

    def __post_init__(self) -> None:
        write_tables(self.folder)
        make_vertical_keys(self.folder / "keys", ["guest", *self.hosts])
        self.ports = {name: free_port() for name in self.hosts}
        self.running: list[forked_processes.Popen] = []

    def command(self, name: str, *more: str, verb: str = "train", out: bool = True) -> list[str]:
        """Return the command of this party, without --out if `out` is false."""
        common = [f"{name}.csv", "--id", "id", "--keys", f"keys/{name}"]
        if name != "guest":
            common += ["--party", "host", "--listen", f"127.0.0.1:{self.ports[name]}"]
        else:
            common += ["--party", "guest", "--patience", "60"]
            common += [word for host, port in self.ports.items() for word in ("--peers", f"{host}=127.0.0.1:{port}")]
        if verb == "train" and out:
            common += ["--out", f"{name}-model"]
        return ["vertical", verb, *common, *more]

    def guest_training(self, *more: str) -> list[str]:
        return self.command("guest", "--label", "paid", "--trees", str(TREES), "--depth", "3", *more)

    def start(self, command: list[str], where: str = "") -> forked_processes.Popen:
        words = [sys.executable, "-m", "tests.support.dying_party", *where.split(), "--", *command]
        process = forked_processes.Popen(words, cwd=self.folder, env=_environment(), capture=True)
        self.running.append(process)
        return process

    def stop(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def simulated(self) -> tuple[GuestModel, list[HostModel]]:
        """Run the same training in one process, on tables that were sorted by hand."""
        tables = {name: load_table(str(self.folder / f"{name}.csv"), ids="id", label="paid" if name == "guest" else None)
                  for name in ("guest", *self.hosts)}  # fmt: skip
        every = [set(table.ids or ()) for table in tables.values()]
        order = sorted(set.intersection(*every))
        places = [np.array([(table.ids or ()).index(i) for i in order]) for table in tables.values()]
        rows = [table.take(place) for table, place in zip(tables.values(), places, strict=True)]
        assert rows[0].y is not None
        found = simulate(
            [table.x for table in rows],
            rows[0].y,
            BoostSettings(trees=TREES, depth=3),
            names=[table.names for table in rows],
            hosts=self.hosts,
            training=training_rows(len(order), 0.2, 0),
        )
        return found.guest, list(found.hosts)

    def models(self, host_folder: str = "{}-model") -> tuple[GuestModel, list[HostModel]]:
        return GuestModel.load(self.folder / "guest-model"), [
            HostModel.load(self.folder / host_folder.format(name)) for name in self.hosts
        ]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "COLUMNS": "200"}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ended(process: forked_processes.Popen, code: int = 0, seconds: float = 60) -> tuple[str, str]:
    """Wait until the process ends with this code, and return its output."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
    return out, err
