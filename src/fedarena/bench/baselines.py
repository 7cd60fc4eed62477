"""Who does a work: our engine, and the loops that a careful PyTorch user writes.

A design is opened in a process of its own and gives a function that does one round, or, if that takes longer than it may,
a part of one; it returns the share of a round that was done.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedarena.bench.workloads import WORKLOADS, SyntheticImages, Workload

Round = Callable[[float], float]  # seconds it may take -> share of a round that was done

PLAIN, OURS, FLOWER = "plain", "fedarena", "flower"
EVALUATION_BATCH = 500  # rows at once in the plain loop; ours takes as many


def designs_of(work: Workload) -> list[str]:
    """Who takes turns at a work: the plain loop first, the other ratios are to it."""
    return [PLAIN, "tensors", OURS, *([f"{OURS} {work.beside}"] if work.beside else [])]


@contextlib.contextmanager
def opened(work: Workload, design: str) -> Iterator[Round]:
    """The round of a work in this design, ready to be done, until it is over."""
    if design == FLOWER:
        from fedarena.bench.flower_simulation import simulation

        how: Any = simulation(work)
    elif design.startswith(OURS):
        work = work if design == OURS else WORKLOADS[design.split()[1]]
        how = _our_training(work) if work.kind == "training" else _our_evaluation(work)
    else:
        how = contextlib.nullcontext((_training_loop if work.kind == "training" else _evaluation_loop)(work, design))
    with how as do_round:
        yield do_round


@contextlib.contextmanager
def _our_training(work: Workload) -> Iterator[Round]:
    """Rounds of the real engine: selection, workers, local training, mean, checkpoint."""
    import fedarena as fa

    with contextlib.closing(fa.rounds(SyntheticImages.of(work), **work.settings)) as rounds:  # type: ignore[type-var]

        def do_round(_: float) -> float:
            next(rounds)
            return 1.0

        yield do_round


@contextlib.contextmanager
def _our_evaluation(work: Workload) -> Iterator[Round]:
    """What the engine does after a round: the test rows in pieces over the workers, each of them predicted once."""
    import fedarena as fa
    from fedarena.algorithms.base import Model
    from fedarena.engine.client import Broadcast
    from fedarena.engine.evaluation import LocalEvaluator
    from fedarena.engine.setup import open_context
    from fedarena.runtimes.client_runtime import ProcessRuntime

    site = open_context(fa.Experiment.make(SyntheticImages.of(work), **work.settings))
    common = Broadcast(Model(site.initial), site.task.buffers())
    with contextlib.closing(ProcessRuntime(site)) as pool:
        evaluation = LocalEvaluator(site, pool)

        def do_round(_: float) -> float:
            evaluation.shared(common)
            return 1.0

        yield do_round


class ReferenceLoop:
    """What both loops have: the model, the rows as tensors, and a client's training with torch.optim."""

    def __init__(self, work: Workload, design: str) -> None:
        import torch
        from torch.utils.data import TensorDataset

        from fedarena.config.registry import find

        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        self.work, self.design = work, design
        settings = {key: value for key, value in work.model.items() if key != "name"}
        self.model: Any = find("model", work.model["name"]).build(settings)(work.shape, 10)
        raw, labels = SyntheticImages.of(work).arrays()
        self.x, self.y = torch.from_numpy(raw).float() / 255, torch.from_numpy(labels)
        self.everything = TensorDataset(self.x, self.y)

    def batches(self, first: int, rows: int, batch: int, shuffle: bool) -> Iterator[tuple[Any, Any]]:
        """Rows first, first + 1, ... in batches."""
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
        """A client's training from the common model; the common model stays as it is."""
        import torch
        from torch.nn.functional import cross_entropy

        work, local = self.work, self.work.local
        mine = copy.deepcopy(self.model).train()
        optimizer = torch.optim.SGD(mine.parameters(), lr=local["lr"], momentum=local.get("momentum", 0.0))
        for _ in range(local["epochs"]):
            for x, y in self.batches(client * work.rows, work.rows, int(min(local["batch"], work.rows)), shuffle=True):
                optimizer.zero_grad()
                loss: Any = cross_entropy(mine(x), y)
                loss.backward()
                optimizer.step()
        state: dict[str, Any] = mine.state_dict()
        return state


def _training_loop(work: Workload, design: str) -> Round:
    """Copy the model, train, average the state dictionaries."""
    loop = ReferenceLoop(work, design)

    def do_round(seconds: float) -> float:
        chosen = np.random.default_rng().choice(work.clients, work.cohort, replace=False)
        began, states = time.perf_counter(), []
        for client in chosen:
            states.append(loop.train(int(client)))
            if time.perf_counter() - began > seconds:
                break
        loop.model.load_state_dict({k: sum(s[k] for s in states) / len(states) for k in states[0]})
        return len(states) / work.cohort

    return do_round


def _evaluation_loop(work: Workload, design: str) -> Round:
    """Accuracy and loss on the test rows, in batches."""
    import torch
    from torch.nn.functional import cross_entropy

    loop = ReferenceLoop(work, design)

    def do_round(_: float) -> float:
        loop.model.eval()
        right, total = 0, 0.0
        with torch.no_grad():
            for x, y in loop.batches(work.clients * work.rows, work.test_rows, EVALUATION_BATCH, shuffle=False):
                logits = loop.model(x)
                right += int((logits.argmax(1) == y).sum())
                total += float(cross_entropy(logits, y, reduction="sum"))
        return 1.0

    return do_round
