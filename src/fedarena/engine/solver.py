"""The local solver: the one place where a client trains (docs/reference/algorithms.md#local-training)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedarena.algorithms.base import Adjust, Anchor, Outcome, Pull, Vector
from fedarena.config.errors import BadValue
from fedarena.config.settings_tables import Local
from fedarena.data.dataset import count_labels
from fedarena.engine.general_step import Step, general_step
from fedarena.models.compiled import KernelRows
from fedarena.models.task import Task, as_tensor

BLOCK = 1 << 23  # numbers gathered at once (32 MB): a client's epoch in one piece, a pooled one in several


def batch_sizes(rows: int, batch: float, rule: str) -> list[int]:
    """Return the rows of each step of an epoch; a short last batch is kept, dropped or, if a single row, merged.

    The only batch of a client is kept by every rule: otherwise the client would not train at all.
    """
    if rows == 0:
        return []
    if batch >= rows:
        return [rows]
    full, rest = divmod(rows, int(batch))
    sizes = [int(batch)] * full
    if rest == 1 and rule == "merge_one":
        sizes[-1] += 1
    elif rest and rule != "drop":
        sizes.append(rest)
    return sizes


def blocks(sizes: list[int], row_numbers: int) -> Iterator[tuple[slice, list[int]]]:
    """Yield consecutive batches that are gathered together: the place of their rows, and the sizes of the batches."""
    limit = max(BLOCK // max(row_numbers, 1), 1)
    block: list[int] = []
    start = stop = 0
    for size in sizes:
        if block and stop - start + size > limit:
            yield slice(start, stop), block
            start, block = stop, []
        block.append(size)
        stop += size
    if block:
        yield slice(start, stop), block


class UnitSolver:
    """The same optimizer on a scalar whose loss gradient is always 1: its displacement is ||a_k||_1 (FedNova's rule)."""

    def __init__(self, momentum: float, mu: float) -> None:
        self.momentum, self.mu = momentum, mu
        self.x = self.u = self.first_lr = 0.0

    def step(self, lr: float) -> None:
        """Make one step with this learning rate."""
        self.first_lr = self.first_lr or lr
        self.u = self.momentum * self.u + 1.0 + self.mu * self.x
        self.x -= lr * self.u

    def steps(self, rates: NDArray[np.float64]) -> None:
        """Make many steps; without momentum and proximal term they add up."""
        if self.momentum or self.mu:
            for lr in rates.tolist():
                self.step(lr)
        elif len(rates):
            self.first_lr = self.first_lr or float(rates[0])
            self.x -= float(rates.sum())

    @property
    def effective_steps(self) -> float:
        """Return the displacement divided by the first learning rate."""
        return -self.x / self.first_lr if self.first_lr else 0.0


def make_step(
    task: Task,
    local: Local,
    adjust: Adjust,
    momentum: Tensor | None,
    anchor: Task | None = None,
    made: int = 0,
    frozen: Tensor | None = None,
) -> Step:
    """Return one optimizer step as a function of (x, y, lr), with only the operations that the settings need.

    g = gradient + weight_decay w, corrected; u = momentum u + g; w -= lr u. Adam has made `made` steps before.
    """
    w, weights = task.flat, task.weights
    if isinstance(adjust, Anchor):
        if local.optimizer != "sgd":
            raise BadValue(
                f"variance reduction by an anchor is a correction of SGD, not of {local.optimizer}",
                remedy='set local.optimizer = "sgd"',
                where="local.optimizer",
            )
        assert anchor is not None, "an anchor needs a second model"
        return _anchored_step(task, local, adjust, momentum, anchor)
    if callable(adjust) or local.clip is not None or local.optimizer != "sgd" or frozen is not None:
        return general_step(task, local, adjust, momentum, made, frozen)
    pull = adjust or Pull()
    centre = None if pull.mu == 0.0 or pull.centre is None else as_tensor(pull.centre).to(w)
    b = None if pull.b is None else as_tensor(pull.b).to(w)
    decay = local.weight_decay
    beside = b if pull.outside and momentum is not None else None  # without momentum inside and outside are the same
    b = None if beside is not None else b
    corrected = centre is not None or b is not None or decay > 0
    c = torch.zeros_like(w) if corrected else w

    def correct() -> None:
        """Compute c = mu (w - centre) + b + weight_decay w for the weights before the step."""
        if centre is not None:
            torch.sub(w, centre, out=c).mul_(pull.mu)
        else:
            c.zero_()
        if b is not None:
            c.add_(b)
        if decay:
            c.add_(w, alpha=decay)

    def plain(x: Tensor, y: Tensor, lr: float) -> float:
        if not corrected:
            return task.accumulate(x, y, weights, -lr)
        correct()
        loss = task.accumulate(x, y, weights, -lr)
        w.add_(c, alpha=-lr)
        return loss

    if momentum is None:
        return plain
    u, u_views = momentum, task.views(momentum)

    def with_momentum(x: Tensor, y: Tensor, lr: float) -> float:
        u.mul_(local.momentum)
        if corrected:
            correct()
            u.add_(c)
        loss = task.accumulate(x, y, u_views, 1.0)
        w.add_(u, alpha=-lr)
        if beside is not None:
            w.add_(beside, alpha=-lr)
        return loss

    return with_momentum


def _anchored_step(task: Task, local: Local, adjust: Anchor, momentum: Tensor | None, anchor: Task) -> Step:
    """Return the step with g(w) - g(anchor) + full gradient, each added into the weights; a second model is the anchor.

    Weight decay is part of both gradients: lambda (w - anchor) is left of it, the rest is in the full gradient. A scale
    is for the sparse part, the loss, and leaves the decay alone; where all of it is 1 it costs and changes nothing.
    """
    anchor.module.train()
    anchor.load(adjust.w)
    full = as_tensor(adjust.gradient).to(task.flat)
    w, decay = task.flat, local.weight_decay
    into, views = (task.flat, task.weights) if momentum is None else (momentum, task.views(momentum))
    s = as_tensor(adjust.scale).to(w) if adjust.scale is not None and _scales(adjust) else None
    difference = w if s is None else torch.zeros_like(w)
    parts = task.views(difference)

    def step(x: Tensor, y: Tensor, lr: float) -> float:
        scale = -lr if momentum is None else 1.0
        drift = (w - anchor.flat) if decay else None
        if momentum is not None:
            momentum.mul_(local.momentum)
        if s is None:
            loss = task.accumulate(x, y, views, scale)
            anchor.accumulate(x, y, views, -scale)
        else:
            difference.zero_()
            loss = task.accumulate(x, y, parts, 1.0)
            anchor.accumulate(x, y, parts, -1.0)
            into.addcmul_(difference, s, value=scale)
        into.add_(full, alpha=scale)
        if drift is not None:
            into.add_(drift, alpha=scale * decay)
        if momentum is not None:
            w.add_(momentum, alpha=-lr)
        return loss

    return step


def can_be_compiled(task: Task, local: Local, adjust: Adjust = None) -> bool:
    """Return whether the kernels know the model and the correction, which must be data and not a Python function."""
    if task.network is None or local.clip is not None or local.privacy is not None or local.optimizer != "sgd":
        return False
    if isinstance(adjust, Anchor):
        return task.network.can_anchor and not _scales(adjust)
    return adjust is None or isinstance(adjust, Pull)


def _scales(anchor: Anchor) -> bool:
    return anchor.scale is not None and not bool((anchor.scale == 1).all())


Stretch = tuple[KernelRows, NDArray[np.int64], list[int]]  # rows, the order they come in, sizes of batches


def train_compiled(
    task: Task,
    w: Vector,
    epochs: Iterator[Iterator[Stretch]],
    rates: Callable[[int, int], NDArray[np.float64]],
    local: Local,
    adjust: Adjust,
    momentum: Tensor | None,
) -> Outcome:
    """Do the same as `train`, many steps per call; `rates(j, n)` are the learning rates of steps j to j + n."""
    assert task.network is not None
    network, velocity = task.network, None if momentum is None else momentum.numpy()
    load(task, w, local, adjust, velocity)
    buffers = task.buffers()
    if task.has_batchnorm:
        network.load_buffers(buffers.values)
    unit = UnitSolver(local.momentum, adjust.mu if isinstance(adjust, Pull) else 0.0)
    weights = None if task.class_weights is None else task.class_weights.numpy()
    steps, lr_sum, losses = 0, 0.0, []
    for stretches in epochs:
        total, seen = 0.0, 0
        for source, order, sizes in stretches:
            pace = rates(steps, len(sizes))
            each = network.train(source, order, sizes, pace, weights, task.normalise_weights)
            total += float(np.add.reduce(sizes * each))  # not a dot product, whose rounding depends on the processor
            seen += sum(sizes)
            unit.steps(pace)
            lr_sum += float(pace.sum())
            steps += len(sizes)
        losses.append(total / seen if seen else math.nan)
    after = np.empty(task.size, np.float32)
    network.save(after, velocity)
    if task.has_batchnorm:
        network.save_buffers(buffers.values)
        task.load_buffers(replace(buffers, counters=buffers.counters + steps))
    return Outcome(after, steps, lr_sum, -unit.x, unit.effective_steps, tuple(losses))


def gradient_compiled(
    task: Task, w: Vector, parts: Iterator[tuple[KernelRows, NDArray[np.int64]]], whole: int
) -> tuple[Vector, float]:
    """Return gradient and value of the mean loss of all parts, which have `whole` rows together."""
    assert task.network is not None
    network, buffers = task.network, task.buffers()
    if task.has_batchnorm:
        network.load_buffers(buffers.values)
    weights = None if task.class_weights is None else task.class_weights.numpy()
    g, total = np.zeros(task.size, np.float32), 0.0
    for source, order in parts:
        part, loss = network.gradient(w, source, order, weights, task.normalise_weights)
        g += np.float32(len(order) / whole) * part
        total += loss * len(order)
    if task.has_batchnorm:
        network.save_buffers(buffers.values)
        task.load_buffers(replace(buffers, counters=buffers.counters + 1))
    return g, total / whole


def gradient(task: Task, w: Vector, batches: Iterator[tuple[Tensor, Tensor]], labels: int) -> tuple[Vector, float]:
    """Return gradient and value of the mean loss of any model; all rows together have `labels` labels."""
    task.load(w)
    task.module.train()
    g = torch.zeros_like(task.flat)
    views, total = task.views(g), 0.0
    for x, y in batches:
        known = count_labels(y)
        total += task.accumulate(x, y, views, known / labels) * known
    return g.cpu().numpy(), total / labels


def load(task: Task, w: Vector, local: Local, adjust: Adjust, velocity: Vector | None) -> None:
    """Load weights and correction into the kernels: each correction is affine, g + decay w + mu (w - centre) + shift."""
    assert task.network is not None
    decay, mu = local.weight_decay, 0.0
    centre = shift = beside = anchor = None
    if isinstance(adjust, Anchor):
        anchor = adjust.w
        shift = adjust.gradient - np.float32(decay) * adjust.w if decay else adjust.gradient
    elif isinstance(adjust, Pull):
        outside = adjust.outside and velocity is not None  # without momentum inside and outside are the same
        beside, shift = (adjust.b, None) if outside else (None, adjust.b)
        centre, mu = (adjust.centre, float(adjust.mu)) if adjust.mu else (None, 0.0)
    task.network.load(
        w, velocity=velocity, centre=centre, shift=shift, beside=beside, anchor=anchor,
        momentum=local.momentum, decay=decay, mu=mu,
    )  # fmt: skip


def train(
    task: Task,
    w: Vector,
    epochs: Iterator[Iterator[tuple[Tensor, Tensor]]],
    rate: Callable[[int], float],
    local: Local,
    adjust: Adjust,
    momentum: Tensor | None,
    anchor: Task | None = None,
    made: int = 0,
    frozen: NDArray[np.bool_] | None = None,
    step: Step | None = None,
) -> Outcome:
    """Run the local optimizer from `w` over epochs of batches; `rate(j)` is the learning rate of step j.

    Entries that are `frozen` keep every bit, in the weights and in the momentum. `step` replaces the usual step.
    """
    task.module.train()
    task.load(w)
    held = None if frozen is None else as_tensor(frozen).to(task.flat.device)
    step = step or make_step(task, local, adjust, momentum, anchor, made, held)
    still = (
        [] if held is None else [(part, part[..., held].clone()) for part in (task.flat, momentum) if part is not None]
    )
    unit = UnitSolver(local.momentum, adjust.mu if isinstance(adjust, Pull) else 0.0)
    steps, lr_sum, losses = 0, 0.0, []
    for batches in epochs:
        total, seen = 0.0, 0
        for x, y in batches:
            lr = rate(steps)
            total += step(x, y, lr) * len(y)
            for part, values in still:
                part[..., held] = values
            seen += len(y)
            unit.step(lr)
            lr_sum += lr
            steps += 1
        losses.append(total / seen if seen else math.nan)
    return Outcome(task.vector(), steps, lr_sum, -unit.x, unit.effective_steps, tuple(losses))
