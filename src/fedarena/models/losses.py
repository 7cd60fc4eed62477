"""The losses of the tasks, each with its value per sample, its mean over a batch and, where it is simple, its gradient.

A gradient by hand lets the tape and the compiled kernels train without autograd. The number `kernel` is that of the loss
in native/network.cpp.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedarena.config.errors import BadValue, check_known
from fedarena.data.dataset import PADDING
from fedarena.statistics.metric_registry import TaskName

aten: Any = torch.ops.aten


class Loss:
    """A loss of a model's outputs and the labels; the loss of a batch is the mean over its samples."""

    kernel: int | None = None  # None: the kernels do not know it

    def values(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each sample."""
        raise NotImplementedError

    def slopes(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the derivative of each sample's loss by its outputs."""
        raise NotImplementedError

    def mean(self, outputs: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        """Return the loss of a batch; `weights` are the parts of the samples in it, where they differ."""
        values = self.values(outputs, y)
        return values.mean() if weights is None else (weights * values).sum()

    def value_and_gradient(self, outputs: Tensor, y: Tensor, weights: Tensor | None) -> tuple[float, Tensor]:
        """Return the loss of a batch and its derivative by the outputs, which may be overwritten."""
        parts = torch.full_like(outputs[:, 0], 1.0 / len(y)) if weights is None else weights
        loss = float(self.values(outputs, y) @ parts)
        return loss, self.slopes(outputs, y).mul_(parts.unsqueeze(1))


class CrossEntropy(Loss):
    """Softmax cross-entropy of classes, at every position of a sequence that has a label."""

    kernel = 0

    def values(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of each position; 0 where it has no label."""
        return F.cross_entropy(outputs, y, reduction="none", ignore_index=PADDING)

    def mean(self, outputs: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        """Return the mean over all positions that have a label."""
        return (
            F.cross_entropy(outputs, y, ignore_index=PADDING) if weights is None else super().mean(outputs, y, weights)
        )

    def value_and_gradient(self, outputs: Tensor, y: Tensor, weights: Tensor | None) -> tuple[float, Tensor]:
        """Return the loss of a batch, and the softmax less the label, each times its part."""
        rows, labels = len(y), y.unsqueeze(1)
        log_p = aten._log_softmax(outputs, 1, False)
        right = log_p.gather(1, labels)
        loss = -float(right.sum()) / rows if weights is None else -float(right.squeeze(1) @ weights)
        d = log_p.exp_()
        d.scatter_add_(1, labels, torch.full_like(labels, -1, dtype=d.dtype))
        d.mul_(1.0 / rows if weights is None else weights.unsqueeze(1))
        return loss, d


class Squared(Loss):
    """The squared error of a number."""

    kernel = 1

    def values(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return (output - label)^2."""
        return (outputs.squeeze(1) - y).square()

    def slopes(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return 2 (output - label)."""
        return (outputs - y.unsqueeze(1)).mul_(2)


class Absolute(Loss):
    """The absolute error of a number, whose minimum is the median."""

    kernel = 2

    def values(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return |output - label|."""
        return (outputs.squeeze(1) - y).abs()

    def slopes(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the sign of the error."""
        return (outputs - y.unsqueeze(1)).sign_()


class Huber(Loss):
    """Half the squared error up to 1, and linear beyond (Huber 1964); labels are standardised, so 1 is their deviation."""

    kernel = 3

    def values(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return Huber's loss of the error."""
        return F.huber_loss(outputs.squeeze(1), y, reduction="none")

    def slopes(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the error, limited to -1 and 1."""
        return (outputs - y.unsqueeze(1)).clamp_(-1, 1)


class BinaryCrossEntropy(Loss):
    """Logistic cross-entropy of several labels that are 0 or 1; the mean over the labels of a sample."""

    kernel = 4

    def values(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy over the labels of each sample."""
        return F.binary_cross_entropy_with_logits(outputs, y, reduction="none").mean(dim=1)

    def slopes(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the probability less the label, divided by the number of labels."""
        return outputs.sigmoid().sub_(y).div_(y.shape[1])


class Cox(Loss):
    """The negative partial log-likelihood of Cox's proportional hazards within a batch, divided by its samples.

    Each observed event is compared with the samples at risk at its time. "breslow" counts all samples that are not before
    it, ties included (Breslow 1974). "order" sorts by descending time and counts the samples up to its own place, so that
    tied samples are in the order of the batch, as FLamby does (arXiv:2210.04620).
    """

    def __init__(self, ties: str = "breslow") -> None:
        self.ties = ties

    def values(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return log(sum of exp(risk) of those at risk) - risk at each observed event; 0 for censored samples."""
        risk, (time, event) = outputs.squeeze(1), y.unbind(dim=1)
        order = torch.argsort(time, descending=True, stable=True)
        at_risk = torch.logcumsumexp(risk[order], dim=0)
        if self.ties == "breslow":
            later = time[order]
            last = torch.searchsorted(-later, -later, right=True) - 1  # the last sample with the same time
            at_risk = at_risk[last]
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return event * (at_risk[place] - risk)


LOSSES: dict[TaskName, dict[str, Loss]] = {
    "classification": {"cross_entropy": CrossEntropy()},
    "next_symbol": {"cross_entropy": CrossEntropy()},
    "regression": {"squared": Squared(), "absolute": Absolute(), "huber": Huber()},
    "multilabel": {"binary_cross_entropy": BinaryCrossEntropy()},
    "survival": {"cox": Cox(), "cox_order": Cox("order")},
}


def find_loss(task: TaskName, name: str | None = None) -> Loss:
    """Return the loss of that name, or the usual one of the task; raise if the task has none of that name."""
    known = LOSSES[task]
    if name is None:
        return next(iter(known.values()))
    every = {other: kind for kind, names in LOSSES.items() for other in names}
    check_known(name, every, f"no loss is called '{name}'", f"losses of the task '{task}': {', '.join(known)}", "loss")
    if name not in known:
        raise BadValue(
            f"the loss '{name}' is for the task '{every[name]}', not for '{task}'",
            remedy=f"use one of: {', '.join(known)}",
            where="loss",
        )
    return known[name]
