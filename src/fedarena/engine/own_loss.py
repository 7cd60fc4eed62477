"""A loss function from Python: that of an experiment (`loss = my_loss`), or of an algorithm (`work.train(w, loss=my_loss)`).

`my_loss(module, batch, context)` returns the mean loss of a batch as a tensor without dimensions. Gradients come from
autograd; optimizer, random streams, rates and corrections are those of every local training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from fedarena.algorithms.base import Vector
from fedarena.config.errors import BadValue, quoted
from fedarena.engine.client_module import copied_buffers, frozen_module
from fedarena.models.representation import represent
from fedarena.models.task import Task

if TYPE_CHECKING:
    from fedarena.engine.context import ExperimentContext


class Batch(NamedTuple):
    """The samples of one step: `x, y = batch`."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class LossContext:
    """The facts that a loss may use beside the module and the batch."""

    client: int
    round: int
    step: int  # of this training, from 0
    _start: Callable[[], nn.Module]
    _loss: Callable[[Tensor, Tensor], Tensor]

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of the task, such as cross-entropy, from the outputs of the model for a batch."""
        return self._loss(outputs, y)

    def represent(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the representation of a batch, which is the input of the last layer, and the outputs of the model."""
        return represent(module, x)

    @property
    def start(self) -> nn.Module:
        """The model that this training began with, frozen and in evaluation mode."""
        return self._start()


Loss = Callable[[nn.Module, Batch, LossContext], Tensor]


class OwnLoss:
    """The loss of one training, with the number of its steps and a copy of the model it began with."""

    def __init__(self, loss: Loss, task: Task, w: Vector, client: int, round: int) -> None:
        self.loss, self.task, self.w, self.client, self.round = loss, task, w, client, round
        self.steps = 0
        self._buffers = copied_buffers(task.module)
        self._start: nn.Module | None = None

    def start(self) -> nn.Module:
        """Return the frozen model that the training began with; it is copied when it is first used."""
        if self._start is None:
            self._start = frozen_module(self.task, self.w, self._buffers)
        return self._start

    def __call__(self, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a batch; variance reduction also asks for that of a second model in the same step."""
        self.steps += module is self.task.module
        context = LossContext(self.client, self.round, self.steps - 1, self.start, self.task.mean_loss)
        return _checked(self.loss(module, Batch(x, y), context))


def _checked(value: Any) -> Tensor:
    if isinstance(value, Tensor) and value.dim() == 0 and value.requires_grad:
        return value
    shown = quoted(value) if not isinstance(value, Tensor) else f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Tensor) and value.dim() == 0:
        shown = "a tensor that does not depend on the weights"
    raise BadValue(
        f"the loss returned {shown}",
        remedy="return the mean over the batch as a tensor without dimensions, computed from module(x)",
        where="loss",
    )


def check_own_loss(context: ExperimentContext) -> None:
    """Refuse settings that a loss of the experiment from Python cannot follow."""
    if context.own_loss is None:
        return
    exp = context.experiment
    problems: list[tuple[bool, str, str, str]] = [
        (
            context.task.has_own_loss,
            "the model has a method loss, and the experiment sets another loss",
            "leave out one of them",
            "loss",
        ),
        (
            exp.local.privacy is not None,
            "a loss of your own may mix the samples of a batch, and local.privacy needs the gradient of each by itself",
            "use a built-in loss, a model with a method loss(x, y), or leave out local.privacy",
            "local.privacy",
        ),
        (
            context.data.weight is not None,
            "the weights of samples do not reach a loss of your own",
            "leave out data.weight",
            "data.weight",
        ),
        (
            exp.compile,
            "torch.compile is for built-in losses, and the loss came from Python",
            "leave out compile",
            "compile",
        ),
    ]
    for wrong, what, remedy, where in problems:
        if wrong:
            raise BadValue(what, remedy=remedy, where=where)


@contextlib.contextmanager
def training_by(loss: OwnLoss | None, *tasks: Task | None, weighted: bool = False) -> Iterator[None]:
    """Let these models train by a loss inside the block; None for that of the model. `weighted`: samples have weights."""
    used = [task for task in tasks if task is not None]
    if loss is not None and (weighted or loss.task.class_weights is not None):
        raise BadValue(
            "the weights of classes or samples do not reach a loss of your own",
            remedy="leave out fedir and data.weight, or weigh the samples inside the loss",
            where="loss",
        )
    try:
        for task in used:
            task.own_loss = loss
        yield
    finally:
        for task in used:
            task.own_loss = None
