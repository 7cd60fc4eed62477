"""Compare the final accuracy of the compiled kernels and of plain autograd on real images, seed by seed.

    python benchmarks/accuracy.py                      # MNIST and CIFAR-10 if present, five seeds, some minutes
    python benchmarks/accuracy.py mlp_2nn --seeds 2 --out accuracy.json

Both paths see the same partition, schedule and initial weights; they differ in the order of sums, so a seed's two results
differ too. The mean of the differences must be zero up to its standard error.
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
WORKLOADS: dict[str, dict[str, Any]] = {
    "mlp_2nn": {**MNIST, "model": "mlp_2nn", "rounds": 30, "local": {"lr": 0.05, "epochs": 1, "batch": 10}},
    "cnn_mcmahan": {**MNIST, "model": "cnn_mcmahan", "rounds": 8, "local": {"lr": 0.05, "epochs": 1, "batch": 10}},
    "cnnnet": {
        **CIFAR, "model": {"name": "cnnnet", "norm": "bn"}, "rounds": 12,
        "local": {"lr": 0.05, "epochs": 1, "batch": 64, "momentum": 0.9},
    },
}  # fmt: skip
PATHS = {"compiled": True, "generic": False}  # the value of `fast`


def final_accuracy(name: str, seed: int, fast: bool) -> float:
    """Return the final accuracy of one run, evaluated only at its end."""
    settings = WORKLOADS[name]
    run = fa.run(**settings, seed=seed, fast=fast, evaluate={"every": settings["rounds"]}, out=False)
    assert run.final.accuracy is not None
    return float(run.final.accuracy)


def compare_paths(name: str, seeds: int) -> dict[str, Any]:
    """Return the accuracies of both paths over all seeds, and their differences."""
    paths = {path: open_context(fa.Experiment.make(**WORKLOADS[name], fast=fast)).task.path for path, fast in PATHS.items()}
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
        "data": WORKLOADS[name]["data"],
        "model": name,
        "rounds": WORKLOADS[name]["rounds"],
        "paths": paths,
        **accuracy,
        "mean_difference": statistics.mean(differences),
        "standard_error": statistics.stdev(differences) / seeds**0.5,
        "seed_deviation": statistics.stdev(accuracy["generic"]),
    }


def line(row: dict[str, Any]) -> str:
    """Return one row of the Markdown table."""
    means = [f"{statistics.mean(row[path]):.4f}" for path in PATHS]
    difference = f"{row['mean_difference']:+.4f} ± {row['standard_error']:.4f}"
    cells = [row["data"], row["model"], str(row["rounds"]), *means, difference, f"{row['seed_deviation']:.4f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Compare both paths, print the table, and write the numbers to a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", help=f"any of {', '.join(WORKLOADS)}; by default all whose data is present")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("accuracy.json"))
    options = parser.parse_args()
    if unknown := set(options.models) - set(WORKLOADS):
        parser.error(f"no model here is called {', '.join(sorted(unknown))}; they are {', '.join(WORKLOADS)}")
    if options.seeds < 2:
        parser.error("a standard error needs at least two seeds")
    rows = []
    for name in options.models or WORKLOADS:
        try:
            rows.append(compare_paths(name, options.seeds))
        except fa.FedarenaError as error:
            if options.models:
                sys.exit(str(error))
            print(f"{name} is left out: {error}", file=sys.stderr)
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print("| data | model | rounds | compiled | generic | difference ± standard error | deviation over seeds |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(line(row))


if __name__ == "__main__":
    main()
