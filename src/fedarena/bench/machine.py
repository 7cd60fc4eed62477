"""What the machine gives: the speed of large matrix products, and the memory that processes take of it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedarena.bench.workloads import Workload

PAUSE = 0.1  # seconds between two looks at memory


def gemm_gflops(size: int = 2048, tries: int = 40) -> float:
    """The roofline: large matrix products on all cores, the best of several."""
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


def flops(work: Workload) -> int:
    """Floating-point operations that one row needs: those of linear and convolutional layers.

    Two for each multiply-add forward, four more backward; but nobody needs the gradient of the pixels.
    """
    layers = macs(_module(work), work.shape)
    return 2 * sum(layers) if work.kind == "evaluation" else 6 * sum(layers) - 2 * layers[0]


def macs(module: Any, shape: tuple[int, ...]) -> list[int]:
    """Multiply-adds of each linear or convolutional layer in the forward pass of one row, in order."""
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


def parameters(work: Workload) -> int:
    """Numbers that a client of this work sends."""
    return sum(p.numel() for p in _module(work).parameters())


def _module(work: Workload) -> Any:
    from fedarena.config.registry import find

    settings = {key: value for key, value in work.model.items() if key != "name"}
    return find("model", work.model["name"]).build(settings)(work.shape, 10)


def proportional_megabytes(pid: int | str = "self") -> float | None:
    """Memory of a process and all below it, shared pages counted once; None where the system does not tell."""
    root = Path("/proc") / str(pid)
    try:
        lines = (root / "smaps_rollup").read_text().splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        children = [c for task in (root / "task").iterdir() for c in (task / "children").read_text().split()]
    except (OSError, StopIteration):
        return None
    return kilobytes / 1024 + sum(proportional_megabytes(child) or 0.0 for child in children)


class PeakMemory:
    """The most memory that a process and those below it were seen with."""

    def __init__(self, pid: int | None) -> None:
        self.pid, self.megabytes = pid, None if pid is None else proportional_megabytes(pid)

    def look(self) -> None:
        """Now."""
        now = None if self.pid is None else proportional_megabytes(self.pid)
        if now is not None:
            self.megabytes = max(self.megabytes or 0.0, now)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Again and again, in a thread; not while time is taken, for every look walks all pages."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(PAUSE):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.look()
