"""Compare personalised algorithms with FedAvg and local training on clients' own samples, for docs/personalise.md.

    python benchmarks/personalise.py                  # all studies: about half an hour on one core
    python benchmarks/personalise.py digits           # one study; the results of the others stay as they are

The study `cifar10` needs the data set (`fedarena data get cifar10`). Scores go to benchmarks/results/personalise.json, from
which `python benchmarks/personalise_page.py` writes the tables of the page. `--runs FOLDER` keeps the runs of each study; a
study that was interrupted continues there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedarena as fa
from fedarena.results.scoring import Scoring

RESULTS = Path(__file__).parent / "results" / "personalise.json"
ALGORITHMS = (
    "fedavg", "local", "finetune", "fedper", "fedrep", "ditto", "apfl", "pfedme", "perfedavg", "fedproto", "ifca", "moon",
)  # fmt: skip
SWEEP = ("fedavg", "local", "finetune", "ditto", "fedper")
SKEWS = (0.1, 0.3, 1.0, 10.0)  # of the sweep: from a few digits a client to nearly equal mixtures


def with_norm_layers(shape: tuple[int, ...], classes: int) -> Any:
    """Return a network of one hidden layer with BatchNorm, for FedBN on a table."""
    from torch import nn

    columns = int(np.prod(shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(columns, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, classes))


@dataclass(frozen=True)
class Study:
    """A federation, the algorithms that are compared on it, their splits and their trials of tuning."""

    data: Any
    algorithms: tuple[str, ...]
    settings: dict[str, Any]
    splits: dict[str, int]
    tune: int | None = None
    model: Callable[..., Any] | None = None

    def compare(self, folder: Path, workers: int | None = None) -> fa.Comparison:
        """Run the comparison in a folder, or what is missing of it there."""
        tuning = {} if self.tune is None else {"tune": self.tune, "tune_per": "once"}
        model = {} if self.model is None else {"model": self.model}
        resume = {"resume": folder} if (folder / "comparison.json").exists() else {"out": folder}
        how: dict[str, Any] = {"evaluate_on": "own", "baseline": False, "progress": True, "workers": workers}
        result: fa.Comparison = fa.compare(
            {"data": self.data, **self.settings, **model}, self.algorithms, **self.splits, **tuning, **how, **resume
        )
        return result


def digits(beta: float, clients: int = 10) -> dict[str, Any]:
    """Return clients whose digits are divided by a Dirichlet distribution."""
    partition = {"name": "label_dirichlet", "beta": beta, "min_size": 100 // clients}
    return {"partition": partition, "clients": clients, "rounds": 30, "model": "mlp_2nn", "evaluate": {"every": 5}}


HEART = {"partition": "natural", "rounds": 30, "model": "mlp_2nn", "evaluate": {"every": 5}}
IMAGES = ("fedavg", "local", "finetune", "fedper", "ditto", "fedproto", "ifca")  # the others take several times as long
CIFAR = {
    "partition": {"name": "label_dirichlet", "beta": 0.3},
    "clients": 10,
    "rounds": 50,
    "model": "simple_cnn",
    "local": {"lr": 0.02, "momentum": 0.9, "epochs": 1, "batch": 16},
    "evaluate": {"every": 50},
}
STUDIES = {
    "digits": Study("digits", ALGORITHMS, digits(0.1), {"seeds": 10}, tune=6),
    "heart_disease": Study("heart_disease", ALGORITHMS, HEART, {"folds": 5, "repeats": 3}, tune=6),
    "heart_disease_norm": Study(
        "heart_disease",
        ("fedavg", "local", "finetune", "fedbn"),
        {key: value for key, value in HEART.items() if key != "model"},
        {"folds": 5, "repeats": 3},
        tune=6,
        model=with_norm_layers,
    ),
    "cifar10": Study({"name": "cifar10", "one_in": 5}, IMAGES, CIFAR, {"seeds": 3}),
    **{f"digits_{beta:g}": Study("digits", SWEEP, digits(beta), {"seeds": 5}) for beta in SKEWS},
    "digits_few": Study("digits", (*SWEEP, "finetune:lr=0.01"), digits(0.3, clients=50), {"seeds": 5}),
}


def summary(result: fa.Comparison) -> dict[str, Any]:
    """Return what the page and its test need of a comparison, as plain values."""
    plan, runs = result.plan, result.runs
    common = Scoring("final", plan.metric, "common").value
    worst = {label: float(np.mean([np.nanmin(run.client_accuracy) for run in each])) for label, each in runs.items()}
    gains = result.client_gains()
    return {
        "experiment": {key: value for key, value in plan.experiment.items() if key != "model" or isinstance(value, dict)},
        "algorithms": list(runs),
        "rope": plan.rope,
        "threshold": plan.threshold,
        "rho": plan.rho,
        "splits": [split.name for split in plan.splits],
        "tuning": {key: plan.tuning[key] for key in ("trials", "method", "per", "spaces") if key in plan.tuning},
        "tuned": {label: found[plan.splits[0].name] for label, found in plan.tuned.items()},
        "scores": result.scores(),
        "common": {label: _mean([common(run) for run in each]) for label, each in runs.items()},
        "worst_client": worst,
        "bytes_per_client": {
            label: float(np.mean([run.bytes / (run.client_sizes > 0).sum() for run in each])) for label, each in runs.items()
        },
        "shares": {s.algorithm: [s.gain.mean, s.loss.mean] for s in gains.shares} if gains else {},
        "clients": {f"{g.client}, {g.algorithm}": [g.mean, g.p_gain, g.p_loss] for g in gains.clients} if gains else {},
        "samples_per_client": float(np.mean([run.client_sizes.mean() for run in next(iter(runs.values()))])),
    }


def _mean(values: list[float]) -> float | None:
    """Return the mean; None where there is no common model to test."""
    return None if np.isnan(values).any() else float(np.mean(values))


def processor_seconds(study: Study) -> dict[str, float]:
    """Return the processor time of one run of each algorithm with defaults, evaluated once, in one process."""
    settings = {**study.settings, "evaluate": {"every": study.settings["rounds"]}}
    fa.run(data=study.data, algorithm="fedavg", **{**settings, "rounds": 1}, out=False, runtime="serial")  # late imports
    found = {}
    for name in study.algorithms:
        began = time.process_time()
        fa.run(data=study.data, algorithm=name, **settings, out=False, runtime="serial")
        found[name] = time.process_time() - began
    return found


def main() -> None:
    """Run the requested studies and write their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", choices=[*STUDIES, []], help="by default all of them")
    parser.add_argument("--runs", type=Path, help="folder for the runs; by default a temporary one")
    parser.add_argument("--workers", type=int, help="worker processes; by default as many as there are cores")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for name in given.studies or STUDIES:
            result = STUDIES[name].compare((given.runs or Path(temporary)) / name, given.workers)
            found = summary(result)
            if name == "digits":
                found["processor_seconds"] = processor_seconds(STUDIES[name])
            known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
            known[name] = found
            RESULTS.write_text(json.dumps({n: known[n] for n in STUDIES if n in known}, indent=1) + "\n", encoding="utf-8")
            print(result)


if __name__ == "__main__":
    main()
