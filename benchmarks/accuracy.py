"""Do the kernels learn as well as plain autograd? Final accuracy of both on real images, seed by seed.

    python benchmarks/accuracy.py                      # what is there of MNIST and CIFAR-10, five seeds, some minutes
    python benchmarks/accuracy.py mlp_2nn --seeds 2 --out accuracy.json

Both paths see the same partition, schedule and initial weights; they differ in the order of sums, so a seed's two results
differ too. What must be zero, but for its standard error, is the mean of the differences.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import fedarena as fa
from fedarena.engine.setup import open_context

MNIST = {"data": "mnist", "partition": "iid", "clients": 100, "per_round": 10}
CIFAR = {"data": "cifar10", "partition": "iid", "clients": 100, "per_round": 10}
WORKS: dict[str, dict[str, Any]] = {
    "mlp_2nn": {**MNIST, "model": "mlp_2nn", "rounds": 30, "local": {"lr": 0.05, "epochs": 1, "batch": 10}},
    "cnn_mcmahan": {**MNIST, "model": "cnn_mcmahan", "rounds": 8, "local": {"lr": 0.05, "epochs": 1, "batch": 10}},
    "cnnnet": {
        **CIFAR, "model": {"name": "cnnnet", "norm": "bn"}, "rounds": 12,
        "local": {"lr": 0.05, "epochs": 1, "batch": 64, "momentum": 0.9},
    },
}  # fmt: skip
PATHS = {"compiled": True, "generic": False}  # the value of `fast`


def final_accuracy(name: str, seed: int, fast: bool) -> float:
    """Of one run, looked at only once, at its end."""
    settings = WORKS[name]
    run = fa.run(**settings, seed=seed, fast=fast, evaluate={"every": settings["rounds"]}, out=False)
    assert run.final.accuracy is not None
    return float(run.final.accuracy)


def compared(name: str, seeds: int) -> dict[str, Any]:
    """Both paths over all seeds."""
    paths = {path: open_context(fa.Experiment.make(**WORKS[name], fast=fast)).task.path for path, fast in PATHS.items()}
    if not paths["compiled"].startswith("compiled"):
        sys.exit(f"{name} runs by '{paths['compiled']}' here, not by the kernels: there is nothing to compare")
    accuracy: dict[str, list[float]] = {path: [] for path in PATHS}
    for seed in range(seeds):
        for path, fast in PATHS.items():
            began = time.perf_counter()
            accuracy[path].append(final_accuracy(name, seed, fast))
            taken = time.perf_counter() - began
            print(f"{name} seed {seed} {paths[path]}: {accuracy[path][-1]:.4f} ({taken:.0f} s)", file=sys.stderr)
    differences = [c - g for c, g in zip(accuracy["compiled"], accuracy["generic"], strict=True)]
    return {
        "data": WORKS[name]["data"],
        "model": name,
        "rounds": WORKS[name]["rounds"],
        "paths": paths,
        **accuracy,
        "mean_difference": statistics.mean(differences),
        "standard_error": statistics.stdev(differences) / seeds**0.5,
        "seed_deviation": statistics.stdev(accuracy["generic"]),
    }


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    means = [f"{statistics.mean(row[path]):.4f}" for path in PATHS]
    difference = f"{row['mean_difference']:+.4f} ± {row['standard_error']:.4f}"
    cells = [row["data"], row["model"], str(row["rounds"]), *means, difference, f"{row['seed_deviation']:.4f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Compare, print the table, write the numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", help=f"any of {', '.join(WORKS)}; by default all whose data is there")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("accuracy.json"))
    asked = parser.parse_args()
    if unknown := set(asked.models) - set(WORKS):
        parser.error(f"no model here is called {', '.join(sorted(unknown))}; they are {', '.join(WORKS)}")
    if asked.seeds < 2:
        parser.error("a standard error needs two seeds at least")
    rows = []
    for name in asked.models or WORKS:
        try:
            rows.append(compared(name, asked.seeds))
        except fa.FedarenaError as error:
            if asked.models:
                sys.exit(str(error))
            print(f"{name} is left out: {error}", file=sys.stderr)
    asked.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print("| data | model | rounds | compiled | generic | difference ± standard error | deviation over seeds |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(line(row))


if __name__ == "__main__":
    main()
