"""The speed of the machine at large matrix products, and the memory of processes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedarena.bench.workloads import Workload

PAUSE = 0.1  # seconds between two measurements of memory


def gemm_gflops(size: int = 2048, tries: int = 40) -> float:
    """Return the roofline: the best speed of several large matrix products on all cores."""
    import torch

    from fedarena.runtimes.worker_count import usable_cores

    before = torch.get_num_threads()
    torch.set_num_threads(usable_cores())
    a, b = torch.rand(size, size), torch.rand(size, size)
    best = float("inf")
    for _ in range(tries):
        began = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - began)
    torch.set_num_threads(before)
    return 2 * size**3 / best / 1e9


def flops(workload: Workload) -> int:
    """Return the floating-point operations of linear and convolutional layers for one sample.

    Two for each multiply-add forward, four more backward, except for the gradient of the pixels, which is not computed.
    """
    layers = macs(_module(workload), workload.shape)
    return 2 * sum(layers) if workload.kind == "evaluation" else 6 * sum(layers) - 2 * layers[0]


def macs(module: Any, shape: tuple[int, ...]) -> list[int]:
    """Return the multiply-adds of each linear or convolutional layer in the forward pass of one sample, in order."""
    import torch
    from torch import nn

    found: list[int] = []

    def count(layer: Any, _: Any, out: Any) -> None:
        found.append(layer.weight.numel() * (out[0].numel() // layer.weight.shape[0]))

    hooks = [m.register_forward_hook(count) for m in module.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        module.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return found


def parameters(workload: Workload) -> int:
    """Return the number of parameters that a client of this workload sends."""
    return sum(p.numel() for p in _module(workload).parameters())


def _module(workload: Workload) -> Any:
    from fedarena.config.registry import find

    settings = {key: value for key, value in workload.model.items() if key != "name"}
    return find("model", workload.model["name"]).build(settings)(workload.shape, 10)


def proportional_megabytes(pid: int | str = "self") -> float | None:
    """Return the memory of a process and its descendants, shared pages counted once; None if the system does not say."""
    root = Path("/proc") / str(pid)
    try:
        lines = (root / "smaps_rollup").read_text().splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        children = [c for task in (root / "task").iterdir() for c in (task / "children").read_text().split()]
    except (OSError, StopIteration):
        return None
    return kilobytes / 1024 + sum(proportional_megabytes(child) or 0.0 for child in children)


class PeakMemory:
    """The largest measured memory of a process and its descendants."""

    def __init__(self, pid: int | None) -> None:
        self.pid, self.megabytes = pid, None if pid is None else proportional_megabytes(pid)

    def update(self) -> None:
        """Measure the memory, and record it if it is the largest so far."""
        now = None if self.pid is None else proportional_megabytes(self.pid)
        if now is not None:
            self.megabytes = max(self.megabytes or 0.0, now)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Measure repeatedly in a thread within the block; not while something is timed, since it walks all pages."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(PAUSE):
                self.update()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.update()
