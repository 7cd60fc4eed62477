"""The workloads of the benchmark, and their targets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedarena.data.dataset import Dataset

TEST_ROWS = 100  # of workloads that train; they are not used


@dataclass(frozen=True)
class SpeedTarget:
    """The targets on two cores; None where there is none."""

    ratio: float | None = None  # to the plain loop, in samples a second
    roofline: float | None = None  # percent of the speed of large matrix products
    times: float | None = None  # the largest multiple of the seconds of the workload in `beside`


@dataclass(frozen=True)
class Workload:
    """A federated round, or an evaluation, to be measured."""

    name: str
    model: dict[str, Any]
    shape: tuple[int, ...]
    rows: int  # of each client
    cohort: int
    clients: int
    local: dict[str, Any] = field(default_factory=dict)
    algorithm: str = "fedavg"  # the plain loops always average
    test_rows: int = TEST_ROWS
    beside: str | None = None  # another workload, which the engine runs alternately with this one
    target: SpeedTarget = SpeedTarget()

    @property
    def kind(self) -> Literal["training", "evaluation"]:
        """Whether a round of the workload trains or evaluates."""
        return "training" if self.cohort else "evaluation"

    @property
    def samples(self) -> int:
        """The number of samples that go through the model in a round, counted in every epoch."""
        return self.cohort * self.rows * self.local["epochs"] if self.cohort else self.test_rows

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the experiment; its data set is `SyntheticImages.of(workload)`."""
        return {
            "model": self.model, "clients": self.clients, "per_round": self.cohort or 1, "partition": "iid",
            "algorithm": self.algorithm, "local": self.local, "rounds": 10**6, "evaluate": {"every": 10**6},
        }  # fmt: skip

    def __str__(self) -> str:
        what = f"{self.name}: {self.model['name']}"
        if not self.cohort:
            return f"{what}, evaluation of {self.test_rows:,} rows"
        how = ", ".join(f"{key} {value:g}" for key, value in self.local.items())
        return f"{what}, {self.algorithm}, {self.cohort:,} clients x {self.rows} rows, {how}"


MLP: dict[str, Any] = {"name": "mlp_2nn"}
CNN: dict[str, Any] = {"name": "cnn_mcmahan"}
MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
MCMAHAN: dict[str, Any] = {"lr": 0.05, "epochs": 5, "batch": 10}
REPORT: dict[str, Any] = {"lr": 0.05, "epochs": 3, "batch": 64, "momentum": 0.9}  # as the CIFAR-10 report trains

# A sixth or so below what was measured on two cores with AVX-512 (docs/speed.md): timings drift by a quarter from hour to
# hour, ratios by a tenth.
FLOORS = {
    "W1": SpeedTarget(ratio=13.0, roofline=50),
    "W1b": SpeedTarget(ratio=9.0, roofline=55),
    "W1c": SpeedTarget(ratio=3.0, roofline=55),
    "W2": SpeedTarget(ratio=3.6, roofline=70),
    "W3": SpeedTarget(ratio=5.5, roofline=55),
    "W4": SpeedTarget(ratio=3.2, roofline=57),
    "W5": SpeedTarget(ratio=26.0),
    "W6": SpeedTarget(times=1.6),
    "W7": SpeedTarget(ratio=8.0),
    "W8": SpeedTarget(ratio=4.0, roofline=55),
}


def _workloads() -> list[Workload]:
    one_epoch = {"lr": 0.05, "epochs": 1, "batch": 10}
    return [
        Workload("W1", MLP, MNIST, 600, 10, 100, MCMAHAN),
        Workload("W1b", MLP, MNIST, 560, 10, 100, {"lr": 0.05, "epochs": 10, "batch": 20}),
        Workload("W1c", MLP, MNIST, 600, 10, 100, {"lr": 0.05, "epochs": 5, "batch": float("inf")}),
        Workload("W2", CNN, MNIST, 600, 10, 100, one_epoch),
        Workload("W3", {"name": "cnnnet", "norm": "bn"}, CIFAR, 500, 25, 100, REPORT),
        Workload("W4", {"name": "lenet5_mod"}, CIFAR, 500, 5, 100, REPORT),
        Workload("W5", {"name": "logreg"}, MNIST, 60, 1000, 1000, one_epoch),
        Workload("W6", MLP, MNIST, 600, 10, 100, MCMAHAN, algorithm="scaffold", beside="W1"),
        Workload("W7", MLP, MNIST, 560, 100, 100, {"lr": 0.05, "epochs": 1, "batch": 1}, algorithm="fsvrg"),
        Workload("W8", CNN, MNIST, 10, 0, 10, one_epoch, test_rows=10_000),
    ]


WORKLOADS = {each.name: replace(each, target=FLOORS.get(each.name, SpeedTarget())) for each in _workloads()}


@dataclass(frozen=True)
class SyntheticImages:
    """Noise with labels, the same in every process: only its shape matters."""

    shape: tuple[int, ...]
    train: int
    test: int = TEST_ROWS

    @classmethod
    def of(cls, workload: Workload) -> SyntheticImages:
        """Return the data set of a workload."""
        return cls(workload.shape, workload.clients * workload.rows, workload.test_rows)

    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return pixels and labels, training samples first."""
        rng, rows = np.random.default_rng(0), self.train + self.test
        return rng.integers(0, 256, (rows, *self.shape), dtype=np.uint8), rng.integers(0, 10, rows)

    def load(self, seed: int) -> Dataset:
        """Return the data set for an experiment."""
        return Dataset("made up", *self.arrays(), self.train, 10, prepare="scale")
