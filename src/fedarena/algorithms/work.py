"""The work of one client in one round, as an algorithm sees it: local training, gradients and scores on its own rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.step_batch import OwnGradient
from fedarena.algorithms.torch_work import TorchWork
from fedarena.config.seeds import Purpose
from fedarena.trees.boosted_rows import BoostedRows

Vector = NDArray[Any]  # of floats; float32 unless the experiment says float64


@dataclass(frozen=True)
class Pull:
    """A correction of every step's gradient, g + mu (y - centre) + b, described as data so that it can be fused.

    >>> import numpy as np
    >>> import fedarena as fa
    >>> w = np.zeros(3)
    >>> pull = fa.Pull(mu=0.1, centre=w)  # the proximal term of FedProx: work.train(w, adjust=pull)
    >>> pull.mu, pull.b is None
    (0.1, True)
    """

    mu: float = 0.0
    centre: Vector | None = None
    b: Vector | None = None
    outside: bool = False  # b corrects the step itself, beside the momentum, not the gradient that enters it


@dataclass(frozen=True)
class Anchor:
    """Variance reduction: every step's gradient minus that of the same batch at `w`, plus the full `gradient` there."""

    w: Vector
    gradient: Vector
    scale: Vector | None = None  # multiplies the difference of the two, weight by weight


Adjust = Pull | Anchor | Callable[[Vector, Vector], Vector] | None


@dataclass(frozen=True)
class Outcome:
    """The result of local training, with its steps as they were measured, not derived.

    >>> from dataclasses import dataclass
    >>> import fedarena as fa
    >>> @dataclass(frozen=True)
    ... class ByTheStep(fa.FedAvg):
    ...     def client(self, message, client_state, work):
    ...         out: fa.Outcome = work.train(message.w)
    ...         return fa.Reply(fa.Step((message.w - out.w) / max(out.steps, 1)), weight=work.rows)
    >>> fa.run("digits", algorithm=ByTheStep(), rounds=2, out=False).final.round
    2
    """

    w: Vector
    steps: int  # tau_k: optimizer steps actually made
    lr_sum: float  # sum of the learning rates of those steps
    unit_displacement: float  # how far the same solver goes under a unit gradient: lr_sum without momentum, as for Adam
    effective_steps: float  # ||a_k||_1: the same, over the first rate
    losses: tuple[float, ...]  # mean training loss of each epoch


class Work(TorchWork, Protocol):
    """One client in one round: it trains, differentiates and evaluates on its own rows.

    >>> from dataclasses import dataclass
    >>> import fedarena as fa
    >>> @dataclass(frozen=True)
    ... class LessOften(fa.FedAvg):
    ...     def client(self, message, client_state, work: fa.Work):
    ...         out = work.train(message.w, steps=3, lr=work.lr / 2)
    ...         return fa.Reply(fa.Step(message.w - out.w), weight=work.rows)
    >>> run = fa.run("digits", algorithm=LessOften(), rounds=2, out=False)
    >>> run.final.round
    2
    """

    client: int
    round: int
    rows: int  # n_k

    @property
    def lr(self) -> float:
        """Return the learning rate at the first step of this round."""
        ...

    @property
    def epochs(self) -> int:
        """Return E as the experiment says, or fewer epochs where this client is a straggler in this round.

        An experiment with `local.steps` has no E: then this raises an error.
        """
        ...

    def stream(self, purpose: Purpose) -> np.random.Generator:
        """Return a random generator that belongs to this client and round."""
        ...

    @property
    def own_class_counts(self) -> NDArray[np.int64]:
        """Return the number of this client's rows of each class."""
        ...

    @property
    def class_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of each class: this client's, and those of all clients together; see `counts_classes`."""
        ...

    def weigh_classes(self, weights: NDArray[np.float64], normalise: bool) -> None:
        """Weight the loss of each row by its class, for the rest of this client's round."""
        ...

    @property
    def feature_counts(self) -> NDArray[np.int64]:
        """Return the number of this client's rows in which each input feature of the model is not 0."""
        ...

    def spread(self, numbers: Vector) -> Vector:
        """Repeat one number per input feature over the weights of a linear model that multiply it; 1 for the others."""
        ...

    def draw(self, count: int, split: bool = False) -> None:
        """Use `count` of the rows for the rest of the round: a new random sample, or one of the fixed disjoint blocks."""
        ...

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
        loss: Callable[[Any, Any, Any], Any] | None = None,
        gradient: OwnGradient | None = None,
    ) -> Outcome:
        """Run local SGD (or `local.optimizer`) from `w`, each step's gradient changed by `adjust`.

        Epochs (or `local.steps`), rate and batch are the experiment's unless given; a fractional epoch is a share of its
        batches, and `steps` takes the place of epochs. `pace` scales the rate by (epoch, share of all steps done).
        `only` trains one part of a model with `own_layers`; the other and its BatchNorm statistics do not move by a bit.
        `loss(module, batch, context)` replaces the loss of the model: it returns the mean over a batch as a torch tensor;
        `engine/own_loss.py` has the types of its arguments. `gradient(w, batch)` returns the gradient of a step from `w`,
        in place of the batch's gradient there with `adjust`.
        """
        ...

    def for_own_model(self) -> Work:
        """Return the work on a model of the client's own, beside the shared one, whose training must be over.

        It begins with the random streams, counters and momentum of the round, as if it trained alone, and has BatchNorm
        statistics that stay with the client.
        """
        ...

    def gradient(self, w: Vector, rows: NDArray[np.int64] | None = None) -> Vector:
        """Return the exact gradient of the mean loss over all local rows (or the given ones) at `w`, with weight decay."""
        ...

    @property
    def boosted_rows(self) -> BoostedRows:
        """Return the client's rows for growing trees: the raw columns of its table, with missing values, and the labels.

        Its margins and sums are kept in this process to save time; each access counts as a pass over the rows.
        """
        ...

    def batch_rows(self, count: int) -> list[NDArray[np.int64]]:
        """Return `count` batches of local rows, from as many shuffled epochs as that takes."""
        ...

    def evaluate(self, w: Vector) -> tuple[float, float]:
        """Return accuracy and mean loss of `w` on all local training rows, in evaluation mode."""
        ...
