"""A client in one round: the object with which `algorithm.client` trains, differentiates and evaluates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedarena.algorithms.base import Adjust, Anchor, Outcome, Vector
from fedarena.algorithms.step_batch import OwnGradient
from fedarena.config.errors import BadValue
from fedarena.config.seeds import stream
from fedarena.data.dataset import count_labels
from fedarena.engine import private_steps, solver
from fedarena.engine.adam import Adam
from fedarena.engine.batch_plan import BatchPass, continued_passes
from fedarena.engine.batched_training import BatchedTraining
from fedarena.engine.client_module import ClientModule
from fedarena.engine.client_samples import ClientSamples
from fedarena.engine.context import EVALUATION_ROWS, ExperimentContext
from fedarena.engine.general_step import own_gradient_step
from fedarena.engine.own_loss import Loss, OwnLoss, training_by
from fedarena.engine.own_model_work import OwnModelWork
from fedarena.engine.own_parts import OwnParts
from fedarena.models.linear_features import spread
from fedarena.models.task import Buffers, as_tensor
from fedarena.trees.boosted_rows import BoostedRows

GRADIENT_ROWS = 100  # rows in a piece of a gradient by the kernels, which store all activations of a piece


@dataclass(frozen=True)
class Broadcast:
    """What the server sends to clients: a message, and BatchNorm statistics."""

    message: Any
    buffers: Buffers


@dataclass(frozen=True)
class ClientState:
    """The state of a client between its rounds."""

    kept: Any = None  # the algorithm's own
    momentum: Vector | None = None  # where rounds do not reset it
    buffers: Buffers | None = None  # where BatchNorm's statistics are local
    steps: int = 0  # optimizer steps made so far
    start: Broadcast | None = None  # the model it trains from, where clients do not all get the same
    residual: dict[str, list[Any]] | None = None  # what compression left out of its updates (privacy/uplink.py)
    own: Vector | None = None  # its own weights, where the rest of the model is shared (engine/own_parts.py)
    own_model_buffers: Buffers | None = None  # BatchNorm's statistics of a whole model of its own, beside the shared one

    def own_weights(self, parts: OwnParts) -> Vector:
        """Return the client's own weights, before its first round the initial ones."""
        return parts.initial if self.own is None else self.own

    def complete_weights(self, parts: OwnParts | None, shared: Vector | None) -> Vector | None:
        """Return the server's weights joined with the client's own, where it has any."""
        return shared if parts is None or shared is None else parts.join(shared, self.own_weights(parts))

    def complete_buffers(self, parts: OwnParts | None, shared: Buffers) -> Buffers:
        """Return the buffers of the client: its own where it has any, else the server's."""
        return (self.buffers or shared) if parts is None else parts.join_buffers(shared, self.buffers)

    @property
    def holds_anything(self) -> bool:
        """Return whether the state holds anything that the next round needs."""
        parts = (self.kept, self.momentum, self.buffers, self.start, self.own, self.own_model_buffers, self.residual)
        return self.steps > 0 or any(part is not None for part in parts)


class ClientCannotTrain(Exception):
    """Raised for a client with a single row and BatchNorm over a single value: there is no variance to divide by."""


class ClientWork(OwnModelWork, ClientModule, ClientSamples):
    """One client in one round (see algorithms.base.Work)."""

    def __init__(
        self,
        context: ExperimentContext,
        client: int,
        round: int,
        state: ClientState,
        decay_round: int | None = None,
        batched: BatchedTraining | None = None,
        exchange: int = 0,
        start: Vector | None = None,
        received: Buffers | None = None,
    ) -> None:
        super().__init__(context.task, context.initial if start is None else start)
        self.exchange = exchange  # of the round: each draws noise of its own
        self.context, self.client, self.round, self.state = context, client, round, state
        self._batched = batched  # until this client's training differs from that of the batch
        # Rates that decay by round use the federation's round.
        self.decay_round = round if decay_round is None else decay_round
        self.local = context.experiment.local
        self.rows = len(self.own_rows)
        self.steps = self.samples = 0
        self.last_loss = float("nan")
        self._momentum: Tensor | None = None
        self.received_buffers = received  # with the message
        self._epochs_drawn = 0  # epochs whose order the batch has already drawn

    @property
    def epochs(self) -> int:
        """Return E as the experiment says, or fewer epochs where this client is a straggler in this round."""
        if self.local.steps is not None:
            raise BadValue(
                f"{self.context.experiment.algorithm.name} counts epochs, and the experiment sets local.steps",
                remedy="set local.epochs in place of local.steps",
                where="local.steps",
            )
        return self._amount

    @cached_property
    def _amount(self) -> int:
        """Return the epochs of this round, or its steps where the experiment sets `local.steps`; fewer for a straggler."""
        stragglers, usual = self.context.stragglers, self._usual_amount
        return stragglers.amount(usual, self.stream("straggler")) if stragglers.fraction else usual

    @property
    def _usual_amount(self) -> int:
        return self.local.epochs if self.local.steps is None else self.local.steps

    @cached_property
    def private_streams(self) -> tuple[np.random.Generator, np.random.Generator]:
        """Return the streams of batches and of noise of private training; they follow from a secret where there is one."""
        secret = self.context.noise_seed
        seed = self.context.experiment.seed_for("record_privacy") if secret is None else secret
        key = (self.round, self.client, self.exchange)
        return stream(seed, "record_privacy", *key, 0), stream(seed, "record_privacy", *key, 1)

    @property
    def lr(self) -> float:
        """Return the learning rate at the first step of this round."""
        return self._rate(0)

    def _rate(self, step: int, lr: float | None = None) -> float:
        """Return eta / (1 + lambda i) or eta (1 - lambda)^i, see docs/reference/algorithms.md#learning-rate-decay."""
        counter, made = self.local.decay_counter, self.steps + step
        if counter == "global":
            own = self.context.algorithm.steps_a_round or self.local.steps
            made += self.decay_round * (own or self.local.epochs * len(self.sizes))
        elif counter == "per_client":
            made += self.state.steps
        elif counter == "round":
            made = self.decay_round
        first, decay = self.local.lr if lr is None else lr, self.local.decay
        return first / (1.0 + decay * made) if self.local.decay_form == "inverse" else first * (1.0 - decay) ** made

    @property
    def own_class_counts(self) -> NDArray[np.int64]:
        """Return the number of this client's rows of each class."""
        private_steps.refuse(self, "the class counts of each client")
        return self.context.class_counts(self.own_rows)

    @property
    def class_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of each class: this client's, and those of all clients together."""
        return self.own_class_counts, self.context.all_class_counts

    def weigh_classes(self, weights: NDArray[np.float64], normalise: bool) -> None:
        """Weight the loss of each row by its class, for the rest of this client's round."""
        self._batched = None
        self.task.class_weights = torch.from_numpy(weights).to(self.task.flat)
        self.task.normalise_weights = normalise

    @property
    def feature_counts(self) -> NDArray[np.int64]:
        """Return in how many of this client's rows each input feature is not 0, without random augmentation."""
        private_steps.refuse(self, "the feature counts of each client")
        counts = np.zeros(int(np.prod(self.context.data.shape)), np.int64)
        for x, _ in self.evaluation_batches():
            counts += (x.flatten(1) != 0).sum(dim=0).cpu().numpy()
        return counts

    def spread(self, numbers: Vector) -> Vector:
        """Repeat one number per input feature over the weights of a linear model that multiply it; 1 for the others."""
        return spread(self.task, numbers)

    def draw(self, count: int, split: bool = False) -> None:
        """Use `count` of the rows for the rest of the round: a new sample, with replacement only if there are fewer rows.

        With `split`, a client with enough rows has fixed disjoint blocks of that size and uses one of them.
        """
        private_steps.refuse(self, "a share of each client's samples, drawn before its training")
        self._batched = None
        rng = self.stream("vc")
        blocks = self.rows // count
        if split and blocks > 1:
            seed = self.context.experiment.seed_for("vc")
            order = stream(seed, "vc", self.client, 0, 1).permutation(self.rows)  # no round's key
            chosen = order[: blocks * count].reshape(blocks, count)[rng.integers(blocks)]
        else:
            chosen = rng.choice(self.rows, size=count, replace=count > self.rows)
        chosen = np.sort(chosen)
        self.index, self.rows = self.index[chosen], count
        self.__dict__.pop("_all_rows", None)
        self._noise = None if self._noise is None else self._noise[chosen]
        self.__dict__.pop("sizes", None)

    def for_own_model(self) -> ClientWork:
        """Return the work on a model of the client's own, beside the shared one, whose training must be over."""
        own = ClientWork(self.context, self.client, self.round, replace(self.state, momentum=None), self.decay_round)
        self.set_shared_model_aside(own, self.state.own_model_buffers)
        return own

    def train(
        self,
        w: Vector,
        *,
        adjust: Adjust = None,
        epochs: float | None = None,
        steps: int | None = None,
        lr: float | None = None,
        batch: float | None = None,
        pace: Callable[[int, float], float] | None = None,
        only: Literal["own", "shared"] | None = None,
        loss: Loss | None = None,
        gradient: OwnGradient | None = None,
    ) -> Outcome:
        """Run local SGD from `w`; a second call in a round continues with the same streams and counters."""
        is_whole = epochs is None and steps is None and self._amount == self._usual_amount  # no straggler
        by_model = loss is None and gradient is None
        as_usual = is_whole and lr is None and batch is None and pace is None and by_model and only is None
        if self._batched is not None and as_usual and (out := self._from_batched(w, adjust)):
            return out
        self._check_single_row()
        sizes = self.sizes if batch is None else solver.batch_sizes(self.rows, batch, self.context.last_batch)
        plan = self._plan(sizes, epochs, steps)
        batches = [size for passes in plan for part in passes for size in part.sizes]
        total = len(batches)

        def rate(step: int) -> float:
            scale = 1.0 if pace is None else pace(step // max(len(sizes), 1), step / max(total, 1))
            return self._rate(step, lr) * scale

        def rates(first: int, count: int) -> NDArray[np.float64]:
            if pace is None and not self.local.decay:
                return np.full(count, self.local.lr if lr is None else lr)
            return np.array([rate(first + j) for j in range(count)])

        parts = None if only is None else self.context.parts
        frozen = None if parts is None else parts.weights ^ (only == "own")
        before = None if parts is None else self.task.buffers()
        if self.local.privacy is not None:
            if batch is not None or not by_model:
                private_steps.refuse(self, "a batch size, a loss or gradients of its own")
            counts = [sum(len(part.sizes) for part in passes) for passes in plan]
            out = private_steps.train(self, w, counts, rate, adjust, self._start_momentum(), self._gather, frozen)
        elif by_model and frozen is None and solver.can_be_compiled(self.task, self.local, adjust):
            stretches = (chain.from_iterable(map(self._stretches, passes)) for passes in plan)
            out = solver.train_compiled(self.task, w, stretches, rates, self.local, adjust, self._start_momentum())
        else:
            anchor = self.context.anchor if isinstance(adjust, Anchor) else None
            tensors = (chain.from_iterable(map(self.epoch, passes)) for passes in plan)
            start, made = self._start_momentum(), self.steps + (self.state.steps if self.context.keeps_momentum else 0)
            step = gradient and own_gradient_step(self.task, self.local, gradient, start, made, self)
            with training_by(self._own_loss(loss, w), self.task, anchor, weighted=self.context.data.weight is not None):
                out = solver.train(self.task, w, tensors, rate, self.local, adjust, start, anchor, made, frozen, step)
        if parts is not None and before is not None:
            self.task.load_buffers(parts.changed_buffers(before, self.task.buffers(), only))
        return self._count(out, sum(batches))

    def _plan(self, sizes: list[int], epochs: float | None, steps: int | None) -> list[list[BatchPass]]:
        """Return the batches of a training: each list has one mean loss, which is an epoch's or that of all `local.steps`.

        With `local.steps` a client continues where its last round ended: pass p over its samples has an order of its own.
        """
        if steps is not None:
            whole, rest = divmod(steps, len(sizes)) if sizes else (0, 0)
            return [[BatchPass(None, 0, part)] for part in [*[sizes] * whole, sizes[:rest]] if part]
        if self.local.steps is not None and epochs is None:
            return [continued_passes(sizes, self.state.steps + self.steps, self._amount)]
        full, broken = divmod(self._amount if epochs is None else epochs, 1)
        parts = [sizes] * int(full) + ([sizes[: round(broken * len(sizes))]] if broken else [])
        return [[BatchPass(None, 0, part)] for part in parts]

    def _own_loss(self, loss: Loss | None, w: Vector) -> OwnLoss | None:
        """Return the loss that an algorithm or the experiment brings, for a training from `w`; None for a built-in one."""
        if loss is not None and self.context.own_loss is not None:
            raise BadValue(
                f"{self.context.experiment.algorithm.name} trains by a loss of its own, and the experiment sets another",
                remedy="leave out loss, or choose an algorithm that trains by the loss of the experiment",
                where="loss",
            )
        chosen = self.context.own_loss if loss is None else loss
        return None if chosen is None else OwnLoss(chosen, self.task, w, self.client, self.round)

    def _from_batched(self, w: Vector, adjust: Adjust) -> Outcome | None:
        """Return the first training's result if the whole batch was trained at once; later ones are computed here."""
        assert self._batched is not None
        out = self._batched.result(self.client, w, adjust)
        self._batched = None
        if out is None:
            return None
        self._epochs_drawn = self.local.epochs
        return self._count(*out)

    def _count(self, out: Outcome, samples: int) -> Outcome:
        self._module_weights = out.w
        self.steps += out.steps
        self.samples += samples
        self.last_loss = out.losses[-1] if out.losses else float("nan")
        return out

    def gradient(self, w: Vector, rows: NDArray[np.int64] | None = None) -> Vector:
        """Return the gradient of the mean loss over all rows (or these), in pieces unless BatchNorm needs them together."""
        private_steps.refuse(self, "gradients outside of local SGD")
        self._set_weights_aside()
        self._check_single_row()
        rows = np.arange(self.rows) if rows is None else rows
        weighted = self.task.class_weights is not None or self.context.data.weight is not None
        together = self.task.has_batchnorm or weighted  # a mean of parts is another mean
        step = len(rows) if together else EVALUATION_ROWS if self.task.network is None else GRADIENT_ROWS
        pieces = [rows[start : start + step] for start in range(0, len(rows), step)]
        before = self.task.buffers()
        if self.task.network is not None:
            g, loss = solver.gradient_compiled(self.task, w, map(self._to_read, pieces), len(rows))
        else:
            labels = count_labels(self.context.data.y[self.index[rows]])
            with training_by(self._own_loss(None, w), self.task):
                g, loss = solver.gradient(self.task, w, map(self._gather_weighted, pieces), labels)
        if self.local.weight_decay:
            g += g.dtype.type(self.local.weight_decay) * w
        self.samples += len(rows)
        if self.context.algorithm.steps_a_round is not None:  # the gradient is the training
            self.steps += self.context.algorithm.steps_a_round
            self.last_loss = loss
        else:  # a measurement, which leaves no trace in BatchNorm statistics
            self.task.load_buffers(before)
        return g

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the client's batches of one epoch, in a new random order; each counts as a step on its samples."""
        private_steps.refuse(self, "batches of samples in a training loop of its own")
        for x, y in self.epoch():
            try:
                yield x, y
            finally:  # also where the caller stops after this batch
                self.steps += 1
                self.samples += len(y)

    def batch_rows(self, count: int) -> list[NDArray[np.int64]]:
        """Return `count` batches of local rows, from as many shuffled epochs as that takes."""
        found: list[NDArray[np.int64]] = []
        while len(found) < count:
            found.extend(np.split(self._order(), np.cumsum(self.sizes)[:-1]))
        return found[:count]

    @property
    def boosted_rows(self) -> BoostedRows:
        """Return the client's raw columns and labels for growing trees; each access counts as a pass over the rows."""
        self.samples += self.rows
        return self.context.boosted_rows[self.client]

    def evaluate(self, w: Vector) -> tuple[float, float]:
        """Return accuracy and mean loss of `w` on all local training rows, in evaluation mode."""
        private_steps.refuse(self, "scores on the training samples of each client")
        self._set_weights_aside()
        self.task.load(w)
        scores = self.context.evaluate(self.index, self._noise)
        return float(scores.right.sum() / scores.count.sum()), float(scores.loss.sum() / scores.count.sum())

    @property
    def final_momentum(self) -> Vector | None:
        """Return the momentum buffer, where it outlives the round."""
        return None if self._momentum is None or not self.context.keeps_momentum else self._momentum.cpu().numpy()

    def _start_momentum(self) -> Tensor | None:
        if not self.local.has_momentum:
            return None
        if self._momentum is None:
            kept, w = self.state.momentum, self.task.flat
            zeros = Adam.zero_moments if self.local.optimizer == "adam" else torch.zeros_like
            self._momentum = zeros(w) if kept is None else as_tensor(kept.copy()).to(w)
        return self._momentum

    def _check_single_row(self) -> None:
        """Raise `ClientCannotTrain` where BatchNorm would see a single value; one row of images is fine."""
        if self.task.has_batchnorm and self.rows == 1:
            before = self.task.buffers()
            try:
                with torch.no_grad():
                    self.task.module.train()
                    self.task.module(self._gather(np.arange(1))[0])
            except ValueError as error:
                raise ClientCannotTrain(f"one row, and BatchNorm over one value: {error}") from None
            self.task.load_buffers(before)
