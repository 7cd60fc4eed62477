"""Everything a process needs to run clients: the rows, who owns them, the model, the algorithm, the settings.

A runtime holds one Site in each of its processes and lets jobs run on it. A job is data; what it does depends on nothing
but the job, the common message and the site, which is why any process may run any job, in any order, again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedarena.algorithms.base import Adjust, Algorithm, Outcome, Reply, Vector
from fedarena.data.dataset import Dataset, Partition, Rows
from fedarena.data.prepare import test_batch, training_batch
from fedarena.engine import solver
from fedarena.engine.tree import is_finite
from fedarena.models.task import Buffers, Scores, Task, as_tensor, build
from fedarena.seeds import stream, torch_seed
from fedarena.spec import Experiment

EVALUATION_ROWS = 500  # rows in a batch when nothing is learned; fixed, so that sums do not depend on who computes them


@dataclass(frozen=True)
class Memory:
    """What stays on a client between its rounds."""

    kept: Any = None  # the algorithm's own
    momentum: Vector | None = None  # where rounds do not reset it
    buffers: Buffers | None = None  # where BatchNorm's statistics are local
    steps: int = 0  # optimizer steps made so far


@dataclass(frozen=True)
class Common:
    """What all clients of an exchange hear."""

    message: Any
    buffers: Buffers


@dataclass(frozen=True)
class Answer:
    """What comes back from a client: its reply, what it keeps, and facts about its work."""

    client: int
    reply: Reply
    memory: Memory
    buffers: Buffers
    finite: bool
    steps: int
    samples: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class Skipped:
    """A client that cannot take part, and why."""

    client: int
    reason: str


class ClientCannotTrain(Exception):
    """A single row and BatchNorm over a single value: there is no variance to divide by."""


class Site:
    """The rows and the model of an experiment, in this process."""

    def __init__(self, experiment: Experiment, data: Dataset, owners: Partition) -> None:
        self.experiment, self.data, self.owners = experiment, data, owners
        self.algorithm: Algorithm = experiment.algorithm.made
        self.partition = owners.pooled() if self.algorithm.pooled else owners

    def __getstate__(self) -> dict[str, Any]:  # tensors are made anew in each process, over the same shared arrays
        return {key: getattr(self, key) for key in ("experiment", "data", "owners", "algorithm", "partition")}

    @cached_property
    def task(self) -> Task:
        """The model, with the initial weights that the seed gives."""
        exp = self.experiment
        return build(
            exp.model.made,
            self.data.shape,
            self.data.classes,
            torch_seed(exp.seed, "init"),
            init=exp.init,
            is_text=self.is_text,
            dtype=exp.dtype,
            device=exp.device,
            freeze=exp.freeze,
            fast=exp.fast,
        )

    @cached_property
    def initial(self) -> Vector:
        """w_0."""
        return self.task.vector()

    @property
    def buffer_policy(self) -> str:
        """What happens to BatchNorm's statistics; a client that trains alone keeps its own."""
        return "local" if self.algorithm.personal else self.experiment.bn_buffers

    @property
    def is_text(self) -> bool:
        """Rows are sequences of symbols."""
        return self.data.y.ndim == 2

    @cached_property
    def _x(self) -> Tensor:
        return as_tensor(np.asarray(self.data.x))

    @cached_property
    def _y(self) -> Tensor:
        return as_tensor(self.data.y)

    def training_rows(
        self, rows: Rows, noise: NDArray[np.float32] | None, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """These rows as a model sees them in training."""
        at = torch.from_numpy(rows)
        x = self._noisy(self._x[at], noise)
        x = training_batch(x, self.data.prepare, self.data.pixel_stats, rng, self.task.dtype)
        return self.task.batch_layout(x.to(self.task.device)), self._y[at].to(self.task.device)

    def test_rows(self, rows: Rows, noise: NDArray[np.float32] | None = None) -> tuple[Tensor, Tensor]:
        """These rows as a model sees them in evaluation."""
        at = torch.from_numpy(rows)
        x = test_batch(self._noisy(self._x[at], noise), self.data.prepare, self.data.pixel_stats, self.task.dtype)
        return self.task.batch_layout(x.to(self.task.device)), self._y[at].to(self.task.device)

    def _noisy(self, x: Tensor, noise: NDArray[np.float32] | None) -> Tensor:
        if noise is None:
            return x
        pixels = 255.0 if self.data.x.dtype == np.uint8 else 1.0  # noise is in units of the pixel range [0, 1]
        return x.float() + pixels * torch.from_numpy(noise)

    def noise(self, owner: int, count: int, *key: int) -> NDArray[np.float32] | None:
        """A client's own feature noise for `count` rows; None where it has none."""
        if self.owners.noise is None or self.owners.noise[owner] == 0:
            return None
        rng = stream(self.experiment.seed, "noise", owner, *key)
        draws = rng.standard_normal((count, *self.data.x.shape[1:]), dtype=np.float32)
        return draws * np.float32(self.owners.noise[owner])

    def training_noise(self, client: int, round: int) -> NDArray[np.float32] | None:
        """The noise of all rows a client trains on; rows in one place keep the noise of those who brought them."""
        if self.owners.noise is None:
            return None
        key = () if self.owners.frozen_noise else (round + 1,)
        if not self.algorithm.pooled:
            return self.noise(client, len(self.partition.clients[client]), *key)
        nothing = np.zeros((1, *self.data.x.shape[1:]), np.float32)
        sizes = self.owners.sizes
        parts = [self.noise(k, n, *key) if n else None for k, n in enumerate(sizes)]
        return np.concatenate(
            [np.repeat(nothing, n, 0) if part is None else part for part, n in zip(parts, sizes, strict=True)]
        )

    def evaluate(self, rows: Rows, noise: NDArray[np.float32] | None = None) -> Scores:
        """The loaded model on these rows."""
        parts = []
        for start in range(0, len(rows), EVALUATION_ROWS):
            piece = slice(start, start + EVALUATION_ROWS)
            parts.append(self.task.predict(*self.test_rows(rows[piece], None if noise is None else noise[piece])))
        return Scores(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("right", "count", "loss")))


class Job(Protocol):
    """A piece of work for any process."""

    def run(self, site: Site, common: Common) -> Any:
        """Do it; depends on nothing but the arguments."""
        ...


@dataclass(frozen=True)
class ClientJob:
    """One client's part in one exchange of a round."""

    round: int
    client: int
    do: str
    memory: Memory | None

    def run(self, site: Site, common: Common) -> Answer | Skipped:
        """Load the client's buffers, let the algorithm's client half work, bring back the answer."""
        started = time.perf_counter()
        memory = self.memory or Memory(kept=site.algorithm.remember(site.initial))
        buffers = memory.buffers or common.buffers
        site.task.load_buffers(buffers)
        work = ClientWork(site, self.client, self.round, memory)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(site.experiment.seed, "dropout", self.round, self.client))
            try:
                reply = getattr(site.algorithm, self.do)(common.message, memory.kept, work)
            except ClientCannotTrain as error:
                return Skipped(self.client, str(error))
        policy = site.buffer_policy
        after = site.task.buffers() if policy != "server" else common.buffers
        memory = replace(
            memory,
            kept=reply.keep,
            momentum=work.momentum_to_keep,
            steps=memory.steps + work.steps,
            buffers=after if policy == "local" else None,
        )
        return Answer(
            self.client, replace(reply, keep=None), memory, after, is_finite(reply.send) and is_finite(after),
            work.steps, work.samples, work.last_loss, time.perf_counter() - started,
        )  # fmt: skip


class ClientWork:
    """A client at work in one round: what `algorithm.client` is given (see algorithms.base.Work)."""

    def __init__(self, site: Site, client: int, round: int, memory: Memory) -> None:
        self.site, self.client, self.round, self.memory = site, client, round, memory
        self.local, self.task = site.experiment.local, site.task
        self.index = site.partition.clients[client]
        self.rows = len(self.index)
        self.steps = self.samples = 0
        self.last_loss = float("nan")
        rule = self.local.last_batch
        if rule == "auto":
            rule = "merge_one" if self.task.has_batchnorm else "keep"
        self.sizes = solver.batch_sizes(self.rows, self.local.batch, rule)
        self._momentum: Tensor | None = None

    @cached_property
    def _shuffle(self) -> np.random.Generator:
        return stream(self.site.experiment.seed, "shuffle", self.round, self.client)

    @cached_property
    def _augment(self) -> np.random.Generator:
        return stream(self.site.experiment.seed, "augment", self.round, self.client)

    @cached_property
    def _noise(self) -> NDArray[np.float32] | None:
        return self.site.training_noise(self.client, self.round)

    @property
    def lr(self) -> float:
        """The rate at the first step of this round."""
        return self._rate(0)

    def _rate(self, step: int) -> float:
        """eta / (1 + lambda i), i counted as the experiment says (algorithms 0.5)."""
        counter, made = self.local.decay_counter, self.steps + step
        if counter == "global":
            made += self.round * self.local.epochs * len(self.sizes)
        elif counter == "per_client":
            made += self.memory.steps
        elif counter == "round":
            made = self.round
        return self.local.lr / (1.0 + self.local.decay * made)

    def train(self, w: Vector, *, adjust: Adjust = None, epochs: int | None = None) -> Outcome:
        """Local SGD from `w`; a second call in a round goes on with the same streams and counters."""
        self._check_single_row()
        epochs = self.local.epochs if epochs is None else epochs
        out = solver.train(
            self.task, w, (self._epoch() for _ in range(epochs)), self._rate, self.local, adjust, self._start_momentum()
        )
        self.steps += out.steps
        self.samples += epochs * sum(self.sizes)
        self.last_loss = out.losses[-1] if out.losses else float("nan")
        return out

    def gradient(self, w: Vector) -> Vector:
        """Gradient of the mean loss over all rows, in pieces unless BatchNorm needs them together."""
        self._check_single_row()
        self.task.load(w)
        self.task.module.train()
        g = torch.zeros_like(self.task.flat)
        views = self.task.views(g)
        piece = self.rows if self.task.has_batchnorm else EVALUATION_ROWS
        total = 0.0
        for start in range(0, self.rows, piece):
            x, y = self._gather(np.arange(start, min(start + piece, self.rows)))
            total += self.task.accumulate(x, y, views, len(y) / self.rows) * len(y)
        if self.local.weight_decay:
            g.add_(self.task.flat, alpha=self.local.weight_decay)
        self.samples += self.rows
        self.last_loss = total / self.rows
        return g.cpu().numpy()

    @property
    def momentum_to_keep(self) -> Vector | None:
        """The momentum buffer, where it outlives the round."""
        return None if self._momentum is None or not self._keeps_momentum else self._momentum.cpu().numpy()

    @property
    def _keeps_momentum(self) -> bool:
        return self.site.algorithm.keeps_momentum or not self.local.reset_momentum

    def _start_momentum(self) -> Tensor | None:
        if not self.local.momentum:
            return None
        if self._momentum is None:
            kept = self.memory.momentum
            self._momentum = (
                torch.zeros_like(self.task.flat) if kept is None else as_tensor(kept.copy()).to(self.task.flat)
            )
        return self._momentum

    def _epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = self._shuffle.permutation(self.rows) if self.local.shuffle else np.arange(self.rows)
        start = 0
        for sizes in solver.blocks(self.sizes, int(np.prod(self.site.data.x.shape[1:]))):
            stop = start + sum(sizes)
            x, y = self._gather(order[start:stop])
            yield from zip(torch.split(x, sizes), torch.split(y, sizes), strict=True)
            start = stop

    def _gather(self, positions: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        noise = None if self._noise is None else self._noise[positions]
        return self.site.training_rows(self.index[positions], noise, self._augment)

    def _check_single_row(self) -> None:
        """A batch of one row is legal for BatchNorm over images, and senseless over single values."""
        if self.task.has_batchnorm and self.rows == 1:
            before = self.task.buffers()
            try:
                with torch.no_grad():
                    self.task.module.train()
                    self.task.module(self._gather(np.arange(1))[0])
            except ValueError as error:
                raise ClientCannotTrain(f"one row, and BatchNorm over one value: {error}") from None
            self.task.load_buffers(before)


@dataclass(frozen=True)
class EvaluateJob:
    """The model of the common message on some rows."""

    rows: Rows
    client: int | None = None  # whose feature noise the rows have

    def run(self, site: Site, common: Common) -> Scores:
        """Load and predict."""
        site.task.load(common.message.w)
        site.task.load_buffers(common.buffers)
        noise = None if self.client is None else site.noise(self.client, len(self.rows), 0, 1)
        return site.evaluate(self.rows, noise)


@dataclass(frozen=True)
class PersonalJob:
    """A client's own model on some rows."""

    rows: Rows
    w: Vector
    buffers: Buffers | None

    def run(self, site: Site, common: Common) -> Scores:
        """Load and predict."""
        site.task.load(self.w)
        site.task.load_buffers(self.buffers or common.buffers)
        return site.evaluate(self.rows)


@dataclass(frozen=True)
class StatisticsJob:
    """BatchNorm's statistics of the common model on one client's rows, as a plain mean over its batches."""

    round: int
    client: int

    def run(self, site: Site, common: Common) -> Buffers:
        """One pass in training mode, nothing learned."""
        task = site.task
        task.load(common.message.w)
        task.load_buffers(common.buffers)
        work = ClientWork(site, self.client, self.round, Memory())
        norms = [m for m in task.module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
        momenta = [m.momentum for m in norms]
        task.module.train()
        try:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # torch's word for a cumulative mean
            with torch.no_grad():
                for x, _ in work._epoch():
                    task.module(x)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
        return task.buffers()
