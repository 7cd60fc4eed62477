"""A whole training with everything that it leaves: the states of server and clients, BatchNorm statistics, records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.config.experiment import Experiment
from fedarena.engine.async_loop import open_loop
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.client import ClientState
from fedarena.engine.record import TIMES, RoundRecord
from fedarena.engine.setup import open_context
from fedarena.models.task import Buffers
from fedarena.runtimes.serial import SerialRuntime


@dataclass(frozen=True)
class Training:
    """The end of a training."""

    state: Any
    buffers: Buffers
    clients: list[ClientState]
    records: list[RoundRecord]
    own: list[np.ndarray]  # the weights with which each client predicts

    @property
    def kept(self) -> list[Any]:
        """Return the state of the algorithm that each client keeps."""
        return [state.kept for state in self.clients]


def trained(data: Any, algorithm: Any, folder: Path, **settings: Any) -> Training:
    """Run an experiment in this process, with all of its states at hand."""
    context = open_context(Experiment.make(data, algorithm=algorithm, **settings))
    number = len(list(folder.iterdir()))
    loop = open_loop(context, SerialRuntime(context), CheckpointStore(folder / str(number), context.algorithm))
    records = list(loop.rounds())
    states = [loop.store.client_state(k) or ClientState() for k in loop.clients.population]
    own = [model.message.w for _, model in loop.personal_models()]
    return Training(loop.state, loop.buffers, states, records, own)


def records(run: Any, *aside: str) -> str:
    """Return all numbers of all rounds but times, as text: there nan is nan."""
    return repr([{k: v for k, v in vars(r).items() if k not in (*TIMES, *aside)} for r in run.records])


def same_bits(a: Any, b: Any) -> bool:
    """Return whether two arrays, or two lists of arrays, are equal to the bit."""
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_bits, a, b))
    return a.dtype == b.dtype and bool(np.array_equal(a, b))
