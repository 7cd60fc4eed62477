"""The loops that a careful PyTorch user writes, to which our engine is compared: DataLoaders, or tensors in memory."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedarena.bench.workloads import SyntheticImages, Workload

Round = Callable[[float], float]  # seconds it may take -> share of a round that was done

PLAIN = "plain"
EVALUATION_BATCH = 500  # samples at once, in the plain loop and in ours


class ReferenceLoop:
    """The common part of both loops: the model, the samples as tensors, and local training with torch.optim."""

    def __init__(self, workload: Workload, design: str) -> None:
        import torch
        from torch.utils.data import TensorDataset

        from fedarena.config.registry import find

        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        self.workload, self.design = workload, design
        settings = {key: value for key, value in workload.model.items() if key != "name"}
        self.model: Any = find("model", workload.model["name"]).build(settings)(workload.shape, 10)
        raw, labels = SyntheticImages.of(workload).arrays()
        self.x, self.y = torch.from_numpy(raw).float() / 255, torch.from_numpy(labels)
        self.everything = TensorDataset(self.x, self.y)

    def batches(self, first: int, rows: int, batch: int, shuffle: bool) -> Iterator[tuple[Any, Any]]:
        """Yield `rows` samples, beginning with sample `first`, in batches."""
        import torch
        from torch.utils.data import DataLoader, Subset

        if self.design == PLAIN:
            yield from DataLoader(
                Subset(self.everything, range(first, first + rows)), batch_size=batch, shuffle=shuffle
            )
        else:
            order = torch.randperm(rows) if shuffle else torch.arange(rows)
            for at in torch.split(first + order, batch):
                yield self.x[at], self.y[at]

    def train(self, client: int) -> dict[str, Any]:
        """Train a copy of the common model on a client's samples, and return its state."""
        import torch
        from torch.nn.functional import cross_entropy

        rows, local = self.workload.rows, self.workload.local
        mine = copy.deepcopy(self.model).train()
        optimizer = torch.optim.SGD(mine.parameters(), lr=local["lr"], momentum=local.get("momentum", 0.0))
        for _ in range(local["epochs"]):
            for x, y in self.batches(client * rows, rows, int(min(local["batch"], rows)), shuffle=True):
                optimizer.zero_grad()
                loss: Any = cross_entropy(mine(x), y)
                loss.backward()
                optimizer.step()
        state: dict[str, Any] = mine.state_dict()
        return state


def training_loop(workload: Workload, design: str) -> Round:
    """Return a round that copies the model, trains, and averages the state dictionaries."""
    loop = ReferenceLoop(workload, design)

    def do_round(seconds: float) -> float:
        chosen = np.random.default_rng().choice(workload.clients, workload.cohort, replace=False)
        began, states = time.perf_counter(), []
        for client in chosen:
            states.append(loop.train(int(client)))
            if time.perf_counter() - began > seconds:
                break
        loop.model.load_state_dict({k: sum(s[k] for s in states) / len(states) for k in states[0]})
        return len(states) / workload.cohort

    return do_round


def evaluation_loop(workload: Workload, design: str) -> Round:
    """Return a round that computes accuracy and loss on the test samples, in batches."""
    import torch
    from torch.nn.functional import cross_entropy

    loop = ReferenceLoop(workload, design)

    def do_round(_: float) -> float:
        loop.model.eval()
        right, total = 0, 0.0
        with torch.no_grad():
            for x, y in loop.batches(
                workload.clients * workload.rows, workload.test_rows, EVALUATION_BATCH, shuffle=False
            ):
                logits = loop.model(x)
                right += int((logits.argmax(1) == y).sum())
                total += float(cross_entropy(logits, y, reduction="sum"))
        return 1.0

    return do_round
