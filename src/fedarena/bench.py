"""How fast is a round, against plain PyTorch loops that do the same work, side by side in one run?

Every design lives in a process of its own, so that its memory can be read, and they take turns round by round, so that a
noisy machine is noisy for all of them. Data is made up; what counts is its shape.
"""

from __future__ import annotations

import copy
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.errors import UnknownName, suggest

FLOOR_DESIGN = "fedarena"


@dataclass(frozen=True)
class Work:
    """A federated round to be measured, and the least ratio to the DataLoader loop that we promise on two cores."""

    name: str
    model: dict[str, Any]
    shape: tuple[int, ...]
    rows: int  # of each client
    cohort: int
    clients: int
    local: dict[str, Any] = field(default_factory=dict)
    floor: float | None = None
    algorithm: str = "fedavg"  # the plain loops always average


MLP: dict[str, Any] = {"name": "mlp_2nn"}
MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
REPORT: dict[str, Any] = {"lr": 0.05, "epochs": 3, "batch": 64, "momentum": 0.9}  # as the CIFAR-10 report trains
WORKS = {
    w.name: w
    for w in (
        Work("W1", MLP, MNIST, 600, 10, 100, {"lr": 0.05, "epochs": 5, "batch": 10}, 8.0),
        Work("W1b", MLP, MNIST, 560, 10, 100, {"lr": 0.05, "epochs": 10, "batch": 20}, 7.0),
        Work("W1c", MLP, MNIST, 600, 10, 100, {"lr": 0.05, "epochs": 5, "batch": float("inf")}, 2.5),
        Work("W2", {"name": "cnn_mcmahan"}, MNIST, 600, 10, 100, {"lr": 0.05, "epochs": 1, "batch": 10}, 3.5),
        Work("W3", {"name": "cnnnet", "norm": "bn"}, CIFAR, 500, 25, 100, REPORT, 2.5),
        Work("W4", {"name": "lenet5_mod"}, CIFAR, 500, 5, 100, REPORT),
        Work("W5", {"name": "logreg"}, MNIST, 60, 1000, 1000, {"lr": 0.05, "epochs": 1, "batch": 10}),
        Work("W6", MLP, MNIST, 600, 10, 100, {"lr": 0.05, "epochs": 5, "batch": 10}, algorithm="scaffold"),
        Work("W7", MLP, MNIST, 560, 100, 100, {"lr": 0.05, "epochs": 1, "batch": 1}, algorithm="fsvrg"),
    )
}
DESIGNS = ("plain", "tensors", FLOOR_DESIGN)


def measure(
    names: Sequence[str] | None = None, rounds: int = 3, say: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """One row for each work and design; ratios are to the plain DataLoader loop of the same run."""
    works = [_find(name) for name in names or WORKS]
    peak = gemm_gflops()
    rows = []
    for work in works:
        how = ", ".join(f"{k} {v:g}" for k, v in work.local.items())
        say(f"{work.name}: {work.algorithm}, {work.model['name']}, {work.cohort} clients x {work.rows} rows, {how}")
        rows.extend(_measure_one(work, rounds))
        peak = max(peak, gemm_gflops())  # a roof is what the machine can do at its best hour
    say(f"matrix products on this machine: {peak:.0f} GFLOP/s")
    for row in rows:
        row["roofline_percent"] = 100 * row.pop("gflops") / peak
    return rows


def _find(name: str) -> Work:
    if name not in WORKS:
        raise UnknownName(f"no work is called '{name}'", remedy=suggest(name, WORKS, f"they are: {', '.join(WORKS)}"))
    return WORKS[name]


def _measure_one(work: Work, rounds: int) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    runners = {}
    for design in DESIGNS:
        near, far = context.Pipe()
        process = context.Process(target=_serve, args=(far, work, design))
        process.start()
        runners[design] = (near, process)
    seconds: dict[str, list[float]] = {design: [] for design in DESIGNS}
    for turn in range(rounds + 1):
        for design, (pipe, _) in runners.items():
            pipe.send("round")
            taken = pipe.recv()
            if turn:  # the first one warms up
                seconds[design].append(taken)
    memory, flops = {}, 0.0
    for design, (pipe, process) in runners.items():
        pipe.send("end")
        memory[design], flops = pipe.recv()
        process.join()
    samples = work.cohort * work.rows * work.local["epochs"]
    plain = statistics.median(seconds["plain"])
    return [
        {
            "work": work.name,
            "design": design,
            "samples_per_second": samples / statistics.median(taken),
            "ratio_to_plain": plain / statistics.median(taken),
            "gflops": flops * samples / statistics.median(taken) / 1e9,
            "memory_mb": memory[design],
            "floor": work.floor if design == FLOOR_DESIGN else None,
        }
        for design, taken in seconds.items()
    ]


def _serve(pipe: Any, work: Work, design: str) -> None:
    """One design in its own process: a round at each word, then its memory."""
    import torch

    torch.set_flush_denormal(True)
    do_round, module = (_ours if design == FLOOR_DESIGN else _loop)(work, design)
    while pipe.recv() == "round":
        began = time.perf_counter()
        do_round()
        pipe.send(time.perf_counter() - began)
    pipe.send((proportional_megabytes(), 6.0 * macs(module, work.shape)))


def _ours(work: Work, design: str) -> tuple[Callable[[], Any], Any]:
    """Rounds of the real engine: selection, workers, local training, mean, checkpoint."""
    import fedarena as fa
    from fedarena.engine.federation import open_site

    rows = work.clients * work.rows
    x, y = made_up_rows(work, rows)
    settings: dict[str, Any] = {
        "model": work.model, "clients": work.clients, "per_round": work.cohort, "partition": "iid",
        "algorithm": work.algorithm,
        "local": work.local, "rounds": 10**6, "evaluate": {"every": 10**6},
    }  # fmt: skip
    data = fa.arrays(x, y, x_test=x[:100], y_test=y[:100])
    experiment = fa.Experiment.make(data, **settings)
    generator = fa.rounds(experiment)
    return (lambda: next(generator)), open_site(experiment).task.module


def _loop(work: Work, design: str) -> tuple[Callable[[], Any], Any]:
    """What a careful PyTorch user writes: copy the model, train with torch.optim, average the state dictionaries."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Subset, TensorDataset

    from fedarena.registry import find

    torch.set_num_threads(1)
    settings = {k: v for k, v in work.model.items() if k != "name"}
    model: nn.Module = find("model", work.model["name"]).build(settings)(work.shape, 10)
    local = work.local
    raw, labels = made_up_rows(work, work.clients * work.rows)
    x, y = torch.from_numpy(raw).float() / 255, torch.from_numpy(labels)
    everything = TensorDataset(x, y)
    batch = int(min(local["batch"], work.rows))

    def batches(client: int) -> Any:
        first = client * work.rows
        if design == "plain":
            yield from DataLoader(Subset(everything, range(first, first + work.rows)), batch_size=batch, shuffle=True)
        else:
            for at in torch.split(first + torch.randperm(work.rows), batch):
                yield x[at], y[at]

    def train(client: int) -> dict[str, Any]:
        mine = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(mine.parameters(), lr=local["lr"], momentum=local.get("momentum", 0.0))
        for _ in range(local["epochs"]):
            for xb, yb in batches(client):
                optimizer.zero_grad()
                loss: Any = nn.functional.cross_entropy(mine(xb), yb)
                loss.backward()
                optimizer.step()
        return mine.state_dict()

    def do_round() -> None:
        chosen = np.random.default_rng().choice(work.clients, work.cohort, replace=False)
        states = [train(int(k)) for k in chosen]
        model.load_state_dict({k: sum(s[k] for s in states) / len(states) for k in states[0]})

    return do_round, model


def made_up_rows(work: Work, rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Noise with labels, the same for every design."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (rows, *work.shape), dtype=np.uint8), rng.integers(0, 10, rows)


def macs(module: Any, shape: tuple[int, ...]) -> int:
    """Multiply-adds of one forward pass of one row: those of linear and convolutional layers."""
    import torch
    from torch import nn

    total = 0

    def count(layer: Any, _: Any, out: Any) -> None:
        nonlocal total
        total += layer.weight.numel() * (out[0].numel() // layer.weight.shape[0])

    hooks = [m.register_forward_hook(count) for m in module.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        module.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return total


def gemm_gflops(size: int = 2048, tries: int = 40) -> float:
    """The roofline: large matrix products on all cores, the best of several."""
    import torch

    from fedarena.runtime.processes import usable_cores

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


def print_table(rows: list[dict[str, Any]]) -> None:
    """For people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="One round, side by side")
    for column in ("work", "design", "samples/s", "ratio to plain", "promised", "of the roofline", "memory"):
        table.add_column(column, justify="left" if column in ("work", "design") else "right")
    for row in rows:
        table.add_row(
            row["work"],
            row["design"],
            f"{row['samples_per_second']:,.0f}",
            f"{row['ratio_to_plain']:.2f}",
            "" if row["floor"] is None else f"{row['floor']:g}",
            f"{row['roofline_percent']:.0f} %",
            "?" if row["memory_mb"] is None else f"{row['memory_mb']:.0f} MB",
        )
    Console().print(table)
