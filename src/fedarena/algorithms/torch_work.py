"""The part of a client's work that is torch: for algorithms that train the module by their own code (docs/own-loss.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor, nn


class TorchWork(Protocol):
    """The model of one client as a torch module, and the client's batches as tensors."""

    @property
    def module(self) -> nn.Module:
        """Return the model with the weights of the server's message, or of the latest `load` or `train`, in training mode."""
        ...

    def load(self, w: NDArray[Any]) -> nn.Module:
        """Set the weights of `module` and return it."""
        ...

    @property
    def weights(self) -> NDArray[Any]:
        """Return a copy of the weights of `module` as a flat vector."""
        ...

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this client's batches of one epoch, in a new random order; each counts as a step on its samples."""
        ...

    def frozen(self, w: NDArray[Any]) -> nn.Module:
        """Return a copy of the model with these weights, frozen and in evaluation mode."""
        ...

    def mask(self, *patterns: str) -> NDArray[np.bool_]:
        """Return which weights of a flat vector belong to parameters whose name fits one of the patterns."""
        ...

    def represent(self, w: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the input of the last layer for each of this client's samples by the model `w`, and their classes."""
        ...

    def with_last_layer(self, w: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any]) -> NDArray[Any]:
        """Return `w` with other weights of the last layer, which is linear."""
        ...
