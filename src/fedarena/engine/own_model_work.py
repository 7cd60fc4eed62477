"""A client that trains a whole model of its own beside the shared one, and measures representations of its samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedarena.algorithms.base import Vector
from fedarena.config.seeds import quick_seed
from fedarena.engine import private_steps
from fedarena.engine.client_module import ClientModule
from fedarena.engine.client_samples import ClientSamples
from fedarena.models.representation import represent
from fedarena.models.task import Buffers, seed_torch


class OwnModelWork(ClientModule, ClientSamples):
    """The part of a client's work that knows of a second model; `own` is the work on it, once it is asked for."""

    state: Any
    steps: int
    samples: int
    received_buffers: Buffers | None
    own: OwnModelWork | None = None
    _shared_buffers: Buffers | None = None  # while the task holds those of the own model

    def set_shared_model_aside(self, own: OwnModelWork, buffers: Buffers | None) -> None:
        """Begin with the own model: its BatchNorm statistics, and the random numbers of the round from the beginning."""
        self.own, self._shared_buffers = own, self.task.buffers()
        self.task.load_buffers(buffers or self.received_buffers or self._shared_buffers)
        seed_torch(quick_seed(self.context.experiment.seed_for("dropout"), "dropout", self.round, self.client))

    @property
    def buffers(self) -> tuple[Buffers, Buffers | None]:
        """Return the statistics of the model that the client trained, and of its own beside it where it has one."""
        now = self.task.buffers()
        return (now, self.state.own_model_buffers) if self._shared_buffers is None else (self._shared_buffers, now)

    @property
    def work_done(self) -> tuple[int, int]:
        """Return the steps and samples of all trainings of this round."""
        more = (0, 0) if self.own is None else self.own.work_done
        return self.steps + more[0], self.samples + more[1]

    def represent(self, w: Vector) -> tuple[Vector, NDArray[np.int64]]:
        """Return the input of the last layer for each local row by the model `w`, in evaluation mode, and the classes."""
        private_steps.refuse(self, "representations of the training samples")  # type: ignore[arg-type]
        module, found = self.frozen(w), []
        with torch.no_grad():
            for x, y in self.evaluation_batches():
                found.append((represent(module, x)[0].cpu().numpy(), y.cpu().numpy()))
        z, classes = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return z, classes
