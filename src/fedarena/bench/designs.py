"""The designs that run a workload: our engine, Flower, and the loops that a careful PyTorch user writes.

A design is opened in a process of its own and yields a function that runs one round, or, if that takes too long, a part of
one; the function returns the share of the round that was done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fedarena.bench.flower_simulation import simulation
from fedarena.bench.reference_loops import PLAIN, Round, evaluation_loop, training_loop
from fedarena.bench.workloads import WORKLOADS, SyntheticImages, Workload

OURS, FLOWER = "fedarena", "flower"


def designs_of(workload: Workload) -> list[str]:
    """Return the designs that are timed alternately on a workload; ratios are to the first, the plain loop."""
    return [PLAIN, "tensors", OURS, *([f"{OURS} {workload.beside}"] if workload.beside else [])]


def opened(workload: Workload, design: str) -> contextlib.AbstractContextManager[Round]:
    """Return a context that gives the function that runs a round of a workload in this design."""
    if design == FLOWER:
        return simulation(workload)
    if design.startswith(OURS):
        workload = workload if design == OURS else WORKLOADS[design.split()[1]]
        return _our_training(workload) if workload.kind == "training" else _our_evaluation(workload)
    return contextlib.nullcontext((training_loop if workload.kind == "training" else evaluation_loop)(workload, design))


@contextlib.contextmanager
def _our_training(workload: Workload) -> Iterator[Round]:
    """Run rounds of the real engine: selection, workers, local training, aggregation, checkpoint."""
    import fedarena as fa

    with contextlib.closing(fa.rounds(SyntheticImages.of(workload), **workload.settings)) as rounds:  # type: ignore[type-var]

        def do_round(_: float) -> float:
            next(rounds)
            return 1.0

        yield do_round


@contextlib.contextmanager
def _our_evaluation(workload: Workload) -> Iterator[Round]:
    """Evaluate as the engine does after a round: workers predict parts of the test samples."""
    import fedarena as fa
    from fedarena.algorithms.base import Model
    from fedarena.engine.client import Broadcast
    from fedarena.engine.evaluation import LocalEvaluator
    from fedarena.engine.setup import open_context
    from fedarena.runtimes.client_runtime import ProcessRuntime

    site = open_context(fa.Experiment.make(SyntheticImages.of(workload), **workload.settings))
    common = Broadcast(Model(site.initial), site.task.buffers())
    with contextlib.closing(ProcessRuntime(site)) as pool:
        evaluation = LocalEvaluator(site, pool)

        def do_round(_: float) -> float:
            evaluation.evaluate_shared(common)
            return 1.0

        yield do_round
