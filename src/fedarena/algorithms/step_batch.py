"""The batch of one local step, for algorithms whose step needs gradients at other weights than the current ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import NDArray


class StepBatch(Protocol):
    """The samples of one local step, as a function from weights to gradients."""

    lr: float  # of this step

    def gradient(self, w: NDArray[Any]) -> NDArray[Any]:
        """Return the gradient of the mean loss over the batch at `w`, clipped and with weight decay as in every step."""
        ...

    def another(self) -> StepBatch:
        """Return a batch of the same size, drawn at random from a stream that the order of the steps does not use."""
        ...

    def step(self, w: NDArray[Any], gradient: NDArray[Any]) -> NDArray[Any]:
        """Return w - lr gradient, rounded as the steps of training are."""
        ...


OwnGradient = Callable[[NDArray[Any], StepBatch], NDArray[Any]]  # (w, batch) -> the gradient of the step from w
