"""The step of local training that computes the gradient as a vector: for Adam, clipping, and corrections or gradients that
are Python functions of an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from fedarena.algorithms.base import Pull, Vector
from fedarena.algorithms.step_batch import OwnGradient, StepBatch
from fedarena.config.settings_tables import Local
from fedarena.engine.adam import Adam
from fedarena.models.task import Task, as_tensor, torch_untouched

Change = Callable[[Vector, Vector], Vector]
Step = Callable[[Tensor, Tensor, float], float]  # of (x, y, lr); returns the loss


class Samples(Protocol):
    """A source of samples beside the batches of the steps."""

    def another_batch(self, count: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return `count` random samples of the client and their weights, where samples have weights."""
        ...


class GradientBatch:
    """The batch of one step, whose gradient an algorithm may take at any weights (see algorithms.step_batch)."""

    def __init__(self, task: Task, local: Local, samples: Samples, x: Tensor, y: Tensor, lr: float) -> None:
        self.task, self.local, self.samples, self.x, self.y, self.lr = task, local, samples, x, y, lr
        self.weights = task.sample_weights
        self.loss: float | None = None  # of the first gradient
        self.is_other = False
        self.random = torch.default_generator.get_state()

    def gradient(self, w: Vector) -> Vector:
        """Return the gradient of the mean loss over the batch at `w`, clipped and with weight decay as in every step.

        All gradients of a step drop out alike. BatchNorm statistics and random numbers move on once, as in a usual step.
        """
        if self.loss is None and not self.is_other:
            return self._gradient(w)
        before = self.task.buffers() if self.task.has_batchnorm else None
        with torch_untouched():
            torch.default_generator.set_state(self.random)
            g = self._gradient(w)
        if before is not None:
            self.task.load_buffers(before)
        return g

    def _gradient(self, w: Vector) -> Vector:
        self.task.load(w)
        self.task.sample_weights = self.weights
        g = torch.zeros_like(self.task.flat)
        loss = add_gradient(self.task, self.local, self.x, self.y, g, self.task.views(g))
        self.loss = loss if self.loss is None else self.loss
        return g.cpu().numpy()

    def another(self) -> StepBatch:
        """Return a batch of the same size, from a random stream of its own."""
        x, y, weights = self.samples.another_batch(len(self.y))
        batch = GradientBatch(self.task, self.local, self.samples, x, y, self.lr)
        batch.weights, batch.is_other = weights, True
        return batch

    def step(self, w: Vector, gradient: Vector) -> Vector:
        """Return w - lr gradient, rounded as the steps of training are."""
        return as_tensor(w).add(as_tensor(gradient), alpha=-self.lr).numpy()


def add_gradient(
    task: Task, local: Local, x: Tensor, y: Tensor, g: Tensor, views: list[Tensor], frozen: Tensor | None = None
) -> float:
    """Add the gradient of a batch to zeros, 0 where `frozen`, clipped and then with weight decay; return the loss."""
    loss = task.accumulate(x, y, views, 1.0)
    if frozen is not None:
        g.masked_fill_(frozen, 0.0)
    if local.clip is not None:
        norm = float(torch.sqrt(g @ g))
        if norm > local.clip:
            g.mul_(local.clip / norm)
    if local.weight_decay:
        g.add_(task.flat, alpha=local.weight_decay)
    return loss


def general_step(
    task: Task,
    local: Local,
    adjust: Pull | Change | None,
    momentum: Tensor | None,
    made: int,
    frozen: Tensor | None = None,
) -> Step:
    """Return one optimizer step as a function of (x, y, lr), with a gradient that is corrected by `adjust`."""
    w, g = task.flat, torch.zeros_like(task.flat)
    views = task.views(g)
    beside: Tensor | None = None
    change: Change = lambda y, g: g
    if isinstance(adjust, Pull):
        outside = adjust.outside and momentum is not None
        change = as_function(adjust, with_b=not outside)
        beside = as_tensor(adjust.b).to(w) if outside and adjust.b is not None else None
    elif adjust is not None:
        change = adjust
    update = _update(task, local, momentum, made)

    def step(x: Tensor, y: Tensor, lr: float) -> float:
        g.zero_()
        loss = add_gradient(task, local, x, y, g, views, frozen)
        update(as_tensor(change(w.cpu().numpy(), g.cpu().numpy())).to(w), lr)
        if beside is not None and local.optimizer == "sgd":
            w.add_(beside, alpha=-lr)
        return loss

    return step


def own_gradient_step(
    task: Task, local: Local, gradient: OwnGradient, momentum: Tensor | None, made: int, samples: Samples
) -> Step:
    """Return one optimizer step with a gradient that the algorithm computes, at any weights and on other batches."""
    update = _update(task, local, momentum, made)

    def step(x: Tensor, y: Tensor, lr: float) -> float:
        before, batch = task.vector(), GradientBatch(task, local, samples, x, y, lr)
        found = gradient(before, batch)
        task.load(before)
        update(as_tensor(found).to(task.flat), lr)
        return float("nan") if batch.loss is None else batch.loss

    return step


def _update(task: Task, local: Local, momentum: Tensor | None, made: int) -> Callable[[Tensor, float], None]:
    """Return the optimizer: a function that changes the weights by a gradient and a learning rate."""
    w = task.flat
    adam = Adam(w, momentum, local, made) if local.optimizer == "adam" and momentum is not None else None

    def update(g: Tensor, lr: float) -> None:
        if adam is not None:
            adam.step(g, lr)
        elif momentum is None:
            w.add_(g, alpha=-lr)
        else:
            momentum.mul_(local.momentum).add_(g)
            w.add_(momentum, alpha=-lr)

    return update


def as_function(pull: Pull, with_b: bool = True) -> Change:
    """Return the function g + mu (y - centre) + b."""

    def change(y: Vector, g: Vector) -> Vector:
        if pull.mu and pull.centre is not None:
            g = g + pull.mu * (y - pull.centre)
        return g + pull.b if with_b and pull.b is not None else g

    return change
