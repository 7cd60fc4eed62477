"""Four hospitals and a server, each a process of its own, with keys made on the spot.  `make federation` runs this.

Every hospital has a file that does not leave it. Eight times, with other patients held out each time, they train one model
together over Flower, with TLS and node authentication. The verdict compares it with what each hospital can do alone, and
with what is not allowed: to put all files in one place.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedarena as fa
from fedarena.config.errors import DataMissing
from fedarena.data import published_files
from fedarena.statistics.bayes import posterior, verdict

HERE = Path("demo-federation")
EXPERIMENT = {
    "model": "logreg",
    "partition": "natural",
    "algorithm": "scaffold",
    "rounds": 15,
    "local": {"lr": 0.05, "epochs": 2, "batch": 16},
}
HEART = "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal".split()
SIGNS = {"+": "better", "=": "the same, for practical purposes", "-": "worse", "?": "undecided"}

Rows = tuple[list[str], NDArray[Any], NDArray[Any], list[str]]  # columns, rows, labels, and whose each row is


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--times", type=int, default=8, help="how often, with other patients held out each time")
    options.add_argument("--address", default=f"127.0.0.1:{free_port()}", help="where the server listens")
    arguments = options.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # in order with what the server says
    shutil.rmtree(HERE, ignore_errors=True)
    (HERE / "files").mkdir(parents=True)
    names = write_files(*patients())
    print("\nKeys: a certificate for the server, a key pair for each hospital")
    fedarena("federation", "keys", *names, "--out", str(HERE / "keys"), "--quiet")
    scores: dict[str, list[float]] = {"together": [], "alone": [], "pooled": []}
    for time in range(arguments.times):
        print(f"\nFederation {time + 1} of {arguments.times}" + ("" if time else ": what the server sees"))
        together = federate(names, time, arguments.address)
        pooled = experiment(HERE / "files" / "all.csv", time, client="hospital")
        here = {name: fa.run(pooled, algorithm=name, out=False) for name in ("scaffold", "local", "centralized")}
        same = together["weights_sha256"] == here["scaffold"].weights_sha256
        print(f"  {'the same bits' if same else 'NOT the same bits'} as the same experiment in one process")
        scores["together"].append(together["weighted_accuracy"])
        scores["alone"].append(here["local"].final.weighted_accuracy or 0.0)
        scores["pooled"].append(here["centralized"].final.weighted_accuracy or 0.0)
        print("  accuracy of each on its own patients: " + ", ".join(f"{k} {v[-1]:.3f}" for k, v in scores.items()))
    print_scores(scores)


def patients() -> Rows:
    """Heart disease in four hospitals, where the data folder has it; else breast cancer, dealt unevenly to four sites."""
    try:
        found = published_files.load_published("heart_disease")
        return HEART, found["X"], found["y"], [published_files.HEART_SITES[int(k)] for k in found["site"]]
    except DataMissing:
        from sklearn.datasets import load_breast_cancer

        bunch = load_breast_cancer()
        site = np.random.default_rng(0).choice(4, size=len(bunch.data), p=[0.5, 0.25, 0.15, 0.1])
        return [*map(str, bunch.feature_names)], bunch.data, bunch.target, [f"site-{'abcd'[k]}" for k in site]


def write_files(columns: list[str], x: NDArray[Any], y: NDArray[Any], owners: Sequence[str]) -> list[str]:
    """A file for each hospital; and one of all, which only this demonstration has, to compare with."""
    names = sorted(set(owners))
    filled = [["" if np.isnan(value) else float(value) for value in row] for row in x]  # an empty field: not measured
    rows = [(owner, [*row, int(label)]) for owner, row, label in zip(owners, filled, y, strict=True)]
    rows.sort(key=lambda row: row[0])
    for name in names:
        own = [row for owner, row in rows if owner == name]
        save(HERE / "files" / f"{name}.csv", [*columns, "ill"], own)
        print(f"{name}: {len(own)} patients, {np.mean([row[-1] for row in own]):.0%} of class 1")
    save(HERE / "files" / "all.csv", [*columns, "ill", "hospital"], [[*row, owner] for owner, row in rows])
    return names


def save(path: Path, columns: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def experiment(path: Path, time: int, **data: Any) -> dict[str, Any]:
    table = {"name": "csv", "path": str(path), "label": "ill", "missing": "mean", "split_seed": time}
    return {**EXPERIMENT, "data": {**table, **data}}


def federate(names: list[str], time: int, address: str) -> dict[str, Any]:
    """The server and the hospitals, each in a process; what the server prints at the end."""
    plan, keys, out = HERE / f"experiment{time}.toml", str(HERE / "keys"), str(HERE / "runs" / str(time))
    plan.write_text(fa.Experiment.make(experiment(Path("mine.csv"), time)).to_toml())
    serve = ["serve", str(plan), "--address", address, "--keys", keys, "--out", out]
    server = start(*serve, "--json", show=time == 0)
    hospitals = []
    for name in names:
        join = ["join", "--data", str(HERE / "files" / f"{name}.csv"), "--server", address, "--keys", f"{keys}/{name}"]
        # Other patients are held out each time, so each hospital must allow a new release. Hospitals with real patients
        # would not: what two releases have not in common can be computed from their difference (docs/threats.md).
        hospitals.append(start(*join, "--folder", str(HERE / "state" / name), "--yes", "--new-release", "--quiet"))
    output, _ = server.communicate()
    if server.returncode:
        for hospital in hospitals:
            hospital.terminate()  # they would wait for the server to come back
        sys.exit(f"the federation ended with exit code {server.returncode}")
    for hospital in hospitals:
        hospital.wait()
    found: dict[str, Any] = json.loads(output)
    return found


def free_port() -> int:
    with socket.socket() as any_one:
        any_one.bind(("127.0.0.1", 0))
        return int(any_one.getsockname()[1])


def start(*arguments: str, show: bool = False) -> subprocess.Popen[str]:
    err = None if show else subprocess.DEVNULL
    return subprocess.Popen([sys.executable, "-m", "fedarena", *arguments], stdout=subprocess.PIPE, stderr=err, text=True)


def fedarena(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "fedarena", *arguments], check=True, stdout=subprocess.DEVNULL)


def print_scores(scores: dict[str, list[float]]) -> None:
    """The verdict, by the correlated Bayesian t-test: a fifth of the patients is held out each time."""
    print("\nThe verdict, with differences below one point in a hundred taken as none:\n")
    for other, name in (("alone", "each hospital alone"), ("pooled", "all files in one place")):
        found = posterior(scores[other], scores["together"], rho=0.2)
        worse, equal, better = found.regions(0.01)
        sign = verdict(better, equal, worse)
        low, high = found.interval()
        print(f"  together, against {name}: {SIGNS[sign]}")
        print(f"    P(better) {better:.3f}, P(same) {equal:.3f}, P(worse) {worse:.3f}")
        print(
            f"    difference {100 * found.mean:+.1f} points, 90 % of belief from {100 * low:+.1f} to {100 * high:+.1f}\n"
        )
    print(f"Files, keys and runs are in {HERE}/. What to type next:")
    print(f"  {sys.executable} -m fedarena report {HERE}/runs/0 -o federation.html\n")


if __name__ == "__main__":
    main()
