"""Differentially private training of one client: DP-SGD (Abadi et al. 2016, arXiv:1607.00133), as `local.privacy` says.

A step takes each sample of the client independently with probability q = batch / n_k (Poisson sampling), clips the gradient
of each of them, adds Gaussian noise to their sum and divides by the expected number of samples, q n_k. Everything after
that is post-processing: weight decay, the corrections of algorithms, momentum and the server. A training makes as many steps
as without privacy. Batches and noise have random streams of their own, from a secret in a real federation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedarena.algorithms.base import Adjust, Anchor, Outcome, Vector
from fedarena.algorithms.checks import PRIVATE_REMEDY, unprotected
from fedarena.config.errors import BadValue
from fedarena.engine import solver
from fedarena.privacy.accountant import need_accountant
from fedarena.privacy.uplink import CannotSend

if TYPE_CHECKING:
    from fedarena.engine.client import ClientWork
    from fedarena.engine.context import ExperimentContext


def train(
    work: ClientWork,
    w: Vector,
    counts: Sequence[int],
    rate: Callable[[int], float],
    adjust: Adjust,
    momentum: Tensor | None,
    gather: Callable[[NDArray[np.int64]], tuple[Tensor, Tensor]],
    frozen: NDArray[np.bool_] | None = None,
) -> Outcome:
    """Run DP-SGD from `w` over samples that `gather` returns.

    `counts` are the steps of each epoch.
    """
    if isinstance(adjust, Anchor):
        refuse(work, "gradients at two models")
    expected = min(work.local.batch, work.rows)
    batches, noise = work.private_streams
    work.context.private_task.begin(noise, expected)

    def epoch(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(steps):
            yield gather(np.flatnonzero(batches.random(work.rows) < expected / work.rows))

    epochs = map(epoch, counts)
    return solver.train(work.context.private_task, w, epochs, rate, work.local, adjust, momentum, frozen=frozen)


def refuse(work: ClientWork, what: str) -> None:
    """Raise `CannotSend` if training is private: an algorithm uses something that its noise does not hide."""
    if work.local.privacy is not None:
        raise CannotSend(
            unprotected(work.context.experiment.algorithm.name, what), remedy=PRIVATE_REMEDY, where="local.privacy"
        )


def check_private(context: ExperimentContext) -> None:
    """Refuse an experiment whose clients would reveal more of a sample than private steps do."""
    exp, privacy = context.experiment, context.experiment.local.privacy
    if privacy is None:
        return
    used = context.algorithm.beyond_steps
    problems: list[tuple[Any, str, str, str]] = [
        (used, unprotected(exp.algorithm.name, used), PRIVATE_REMEDY, "local.privacy"),
        (
            context.task.has_batchnorm,
            "BatchNorm mixes the samples of a batch, and local.privacy needs the gradient of each sample by itself",
            'use a model without it, such as norm = "gn"',
            "model",
        ),
        (
            context.data.task == "survival",
            "the Cox loss compares the samples of a batch, and local.privacy needs the loss of each sample by itself",
            "choose a task whose loss is a mean over samples, or leave out local.privacy",
            "local.privacy",
        ),
        (
            context.data.weight is not None,
            "weights of samples are divided by their sum in a batch, which local.privacy does not protect",
            "leave out data.weight",
            "data.weight",
        ),
        (
            exp.evaluate.on == "train",
            'evaluate.on = "train" shows how well the model fits training samples, which local.privacy does not protect',
            'set evaluate.on = "test"',
            "evaluate.on",
        ),
        (
            exp.compile,
            "torch.compile is for whole batches, and local.privacy needs the gradient of each sample by itself",
            "leave out compile",
            "compile",
        ),
    ]
    for wrong, what, remedy, where in problems:
        if wrong:
            raise BadValue(what, remedy=remedy, where=where)
    if privacy.noise:
        need_accountant("local.privacy.noise")
