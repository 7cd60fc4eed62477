"""A small federation: a table of all samples, the file of each client cut from it, and a run over both."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import fedarena as fa
from fedarena.config.experiment import Experiment
from fedarena.config.registry import register
from fedarena.engine.record import TIMES
from fedarena.federation.client import FederationClient
from fedarena.federation.client_data import ClientFile
from fedarena.federation.consent import federated_experiment
from fedarena.federation.requests import ResponseRule
from fedarena.federation.server import ServerOptions, serve
from tests.support.log_messages import MessageRecorder
from tests.support.memory_link import MemoryLink

SIZES = {"alfa": 41, "bravo": 55, "charlie": 33, "delta": 24}
HEAD = ["site", "a", "b", "c", "d", "label"]
LABELS = "cab"
LOSS = 1e-6  # pooled from sums over batches of each client: the last digits of single precision differ
RULE = ResponseRule(deadline=60.0, minimum=None, attempts=2)


@register("model", "normed")
def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small network for tables, with BatchNorm and dropout."""
    return nn.Sequential(nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, classes))


def write(path: Path, rows: Sequence[Sequence[Any]], head: Sequence[str] = HEAD) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def rows_of(sizes: dict[str, int], seed: int = 0) -> dict[str, list[list[str]]]:
    """Return samples near one of three points, of clients that have most samples of one class."""
    rng = np.random.default_rng(seed)
    found = {}
    for k, (name, size) in enumerate(sizes.items()):
        chances = np.ones(3) + 3 * (np.arange(3) == k % 3)
        y = rng.choice(3, size, p=chances / chances.sum())
        x = rng.standard_normal((size, 4)) + y[:, None]
        found[name] = [[name, *map(repr, row), LABELS[label]] for row, label in zip(x.tolist(), y, strict=True)]
    return found


class SeededClient(FederationClient):
    """A client whose noise follows from a known seed, as in a simulation."""

    def _noise_seed(self, path: Path) -> int:
        return 0


class Federation:
    """Clients with a file each, the link to their server, and the messages that all of them log while it runs."""

    def __init__(self, folder: Path, sizes: dict[str, int] | None = None) -> None:
        self.folder, self.link = folder, MemoryLink()
        self.rows = rows_of(sizes or SIZES)
        self.pooled = write(folder / "all.csv", [row for rows in self.rows.values() for row in rows])
        self.files = {name: write(folder / f"{name}.csv", rows) for name, rows in self.rows.items()}
        self.server_messages: list[str] = []
        self.on_message: Callable[[str], None] = lambda text: None  # called with each message of the server
        self.client_messages: dict[str, list[str]] = {name: [] for name in self.rows}
        self.clients: dict[str, FederationClient] = {}

    def _record(self, logger: str, text: str) -> None:
        prefix = "fedarena.federation.client."
        if logger.startswith(prefix):
            self.client_messages[logger.removeprefix(prefix)].append(text)
        else:
            self.server_messages.append(text)
            self.on_message(text)

    def experiment(self, **settings: Any) -> Experiment:
        data = {"name": "csv", "path": str(self.pooled), "label": "label", "client": "site", "standardise": False}
        budget = {} if "uploads" in settings else {"rounds": 3}
        table = {"model": "logreg", **budget, "local": {"lr": 0.1, "batch": 8}, **settings}
        return federated_experiment({**table, "data": {**data, **table.get("data", {})}}, [])

    def start(self, *names: str, kind: type[FederationClient] = SeededClient, **settings: Any) -> None:
        """Start these clients, or all."""
        for name in names or self.rows:
            file = settings.get("file") or ClientFile(self.files[name])
            own = {k: v for k, v in settings.items() if k != "file"}
            client = kind(file, self.folder / "clients" / name, name=name, **own)
            self.clients[name] = client
            self.link.connect(name, client.handle)

    def serve(self, experiment: Experiment, name: str = "run", rule: ResponseRule = RULE, **settings: Any) -> fa.Run:
        terms = {"wait": 20.0, "secret": experiment.seed, **settings.pop("terms", {})}
        where = {} if "resume" in settings else {"out": self.folder / name}
        wanted = ServerOptions(len(self.rows), rule, **terms)
        recorder = MessageRecorder("fedarena.federation", self._record)
        recorder.start()
        try:
            return serve(experiment, self.link.open, wanted, **where, **settings)
        finally:
            recorder.stop()

    def both(self, **settings: Any) -> tuple[fa.Run, fa.Run]:
        """Run the same experiment in the federation and on the pooled table."""
        experiment = self.experiment(**settings)
        self.start()
        return self.serve(experiment), fa.run(experiment, out=self.folder / "serial", runtime="serial")


def differences(run: fa.Run, other: fa.Run, but: Sequence[str] = ()) -> list[str]:
    """Return everything in which two runs differ, except times, and losses within the tolerance."""
    found = []
    if run.weights_sha256 != other.weights_sha256:
        found.append("weights")
    if not np.array_equal(run.client_accuracy, other.client_accuracy, equal_nan=True):
        found.append("accuracies of clients")
    if len(run.records) != len(other.records):
        found.append("rounds")
    for a, b in zip(run.records, other.records, strict=False):
        for key, value in vars(a).items():
            theirs = getattr(b, key)
            if key in TIMES or key in but or value == theirs:
                continue
            if key == "loss" and value is not None and np.isclose(value, theirs, rtol=LOSS, atol=0, equal_nan=True):
                continue
            if value != value and theirs != theirs:  # both are no number
                continue
            found.append(f"round {a.round}, {key}: {value}, {theirs}")
    return found
