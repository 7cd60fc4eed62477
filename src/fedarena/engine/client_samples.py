"""The samples of one client in one round: their order, and the batches that the generic path and the kernels read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedarena.config.seeds import Purpose, stream
from fedarena.config.settings_tables import Local
from fedarena.data.dataset import Rows
from fedarena.engine import solver
from fedarena.engine.batch_plan import BatchPass
from fedarena.engine.batched_training import BatchedTraining
from fedarena.engine.context import EVALUATION_ROWS, ExperimentContext
from fedarena.models.compiled import KernelRows
from fedarena.models.task import Task


class ClientSamples:
    """Yields the batches of a client; `ClientWork` trains on them."""

    context: ExperimentContext
    task: Task
    local: Local
    client: int
    round: int
    rows: int
    _batched: BatchedTraining | None  # until this client's training differs from that of the batch
    _epochs_drawn: int  # epochs whose order the batch has already drawn

    @property
    def own_rows(self) -> Rows:
        """Return the client's training rows in the data set."""
        return self.context.partition.clients[self.client]

    @cached_property
    def index(self) -> Rows:
        """Return the rows of the data set that the client trains on."""
        return self.own_rows

    @cached_property
    def sizes(self) -> list[int]:
        """Return the number of rows of each step of an epoch."""
        return solver.batch_sizes(self.rows, self.local.batch, self.context.last_batch)

    @cached_property
    def _shuffle(self) -> np.random.Generator:
        rng = self.stream("shuffle")
        for _ in range(self._epochs_drawn):
            rng.permutation(self.rows)
        return rng

    @cached_property
    def _augment(self) -> np.random.Generator:
        return self.stream("augment")

    @cached_property
    def _noise(self) -> NDArray[np.float32] | None:
        return self.context.feature_noise.in_training(self.client, self.round)

    def stream(self, purpose: Purpose) -> np.random.Generator:
        """Return a random generator that belongs to this client and round."""
        return self.stream_of_pass(purpose, self.round)

    def stream_of_pass(self, purpose: Purpose, number: int) -> np.random.Generator:
        """Return a random generator that belongs to this client and to a round, or to a pass over its samples."""
        return stream(self.context.experiment.seed_for(purpose), purpose, number, self.client)

    def _order(self, part: BatchPass | None = None) -> NDArray[np.int64]:
        self._batched = None  # its order starts from the beginning of the stream
        if not self.local.shuffle:
            order = np.arange(self.rows)
        elif part is None or part.number is None:
            order = self._shuffle.permutation(self.rows)
        else:
            order = self.stream_of_pass("shuffle", part.number).permutation(self.rows)
        return order if part is None else order[part.skipped :]

    def epoch(self, part: BatchPass | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the client's batches of one epoch in a new random order, or those of a part of a pass."""
        order = self._order(part)
        numbers = int(np.prod(self.context.data.x.shape[1:]))
        for rows, block in solver.blocks(self.sizes if part is None else part.sizes, numbers):
            x, y = self._gather(order[rows])
            batches = zip(torch.split(x, block), torch.split(y, block), strict=True)
            if self.context.data.weight is None:
                yield from batches
                continue
            for batch, positions in zip(batches, np.split(order[rows], np.cumsum(block)[:-1]), strict=True):
                self._weigh(positions)
                yield batch

    def _stretches(self, part: BatchPass) -> Iterator[solver.Stretch]:
        """Yield the same batches for the kernels, which read the data set's own rows unless augmentation changes them."""
        order, sizes = self._order(part), part.sizes
        numbers = int(np.prod(self.context.data.x.shape[1:]))
        if self.context.source is not None:
            yield self.context.source, self.index[order], sizes
        elif not self.context.is_augmented and self.rows * numbers <= solver.BLOCK:
            yield self._all_rows, order, sizes
        else:
            for rows, block in solver.blocks(sizes, numbers):
                yield *self._to_read(order[rows]), block

    def _to_read(self, positions: NDArray[np.int64]) -> tuple[KernelRows, NDArray[np.int64]]:
        """Return a source of rows for the kernels, and the positions of these rows in it."""
        if self.context.source is not None:
            return self.context.source, self.index[positions]
        return self._as_read(positions), np.arange(len(positions))

    @cached_property
    def _all_rows(self) -> KernelRows:
        return self._as_read(np.arange(self.rows))

    def _as_read(self, positions: NDArray[np.int64]) -> KernelRows:
        x, y = self._gather(positions)
        weights = self.context.data.weight
        own = None if weights is None else weights[self.index[positions]]
        return KernelRows(np.ascontiguousarray(x.numpy(), np.float32), y.numpy(), weights=own)

    def _weigh(self, positions: NDArray[np.int64]) -> None:
        """Set the weights of the samples of the next batch, in both models of an anchored step."""
        weights = self.context.data.weight
        if weights is not None:
            own = torch.from_numpy(weights[self.index[positions]]).to(self.task.flat)
            for task in (self.task, *([self.context.anchor] if "anchor" in vars(self.context) else [])):
                task.sample_weights = own

    @cached_property
    def _inner(self) -> np.random.Generator:
        return self.stream("inner")

    def another_batch(self, count: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return `count` random samples and their weights, where samples have weights, beside the batches of the steps."""
        positions = self._inner.choice(self.rows, size=count, replace=False)
        noise, weights = None if self._noise is None else self._noise[positions], self.context.data.weight
        x, y = self.context.training_rows(self.index[positions], noise, self._inner)
        own = None if weights is None else torch.from_numpy(weights[self.index[positions]]).to(self.task.flat)
        return x, y, own

    def evaluation_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all rows in their order, without random augmentation: for measurements that are not steps."""
        for start in range(0, self.rows, EVALUATION_ROWS):
            piece = slice(start, start + EVALUATION_ROWS)
            yield self.context.test_rows(self.index[piece], None if self._noise is None else self._noise[piece])

    def _gather_weighted(self, positions: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        self._weigh(positions)
        return self._gather(positions)

    def _gather(self, positions: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        noise = None if self._noise is None else self._noise[positions]
        return self.context.training_rows(self.index[positions], noise, self._augment)
