"""The run record names the code that trains: kernels wherever an algorithm's step is affine, else the tape or autograd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import small_net
from tests.support.federations import blobs
from tests.support.trainings import same_bits, trained

import fedarena as fa
from fedarena.algorithms import Ditto, FedNova, FedPer, FedProx, FineTune, Scaffold
from fedarena.config.registry import components
from fedarena.engine import solver
from fedarena.models.compiled import kernels

pytestmark = pytest.mark.skipif(kernels() is None, reason="the kernels are not built")

TREES = ("histboost", "treebag", "treecyclic", "centralized_trees", "local_trees")
COMPOSED = [FedPer(base=FedProx(mu=0.1)), FedPer(base=FedProx(mu=0.0)), FedPer(base=FedNova()), FedPer(base=Scaffold()),
            FedPer(base=FedProx(mu=0.1), own=()), FineTune(base=FedProx(mu=0.1))]  # fmt: skip


@pytest.mark.parametrize(
    "algorithm", [*(n for n in sorted(components("algorithm")) if n not in TREES), *COMPOSED], ids=str
)
def test_the_record_names_the_path_that_was_taken(
    algorithm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, train = set(), solver.train

    def watched(task: Any, *given: Any, **settings: Any) -> Any:
        taken.add("autograd" if task.own_loss is not None else "tape")
        return train(task, *given, **settings)

    monkeypatch.setattr(solver, "train", watched)
    fa.run(blobs(), algorithm=algorithm, model=small_net, clients=4, partition="iid", rounds=2, out=tmp_path / "run",
           runtime="serial", local={"lr": 0.05, "batch": 8})  # fmt: skip
    recorded = json.loads((tmp_path / "run" / "versions.json").read_text())["path"].split()[0]
    assert taken == ({recorded} - {"compiled"})


def test_both_trainings_of_ditto_are_in_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proximal step of the own model too, and its result is that of the tape up to rounding."""
    pulls, compiled = [], solver.train_compiled

    def watched(task: Any, w: Any, epochs: Any, rates: Any, local: Any, adjust: Any, *rest: Any) -> Any:
        pulls.append(adjust)
        return compiled(task, w, epochs, rates, local, adjust, *rest)

    monkeypatch.setattr(solver, "train_compiled", watched)
    settings: dict[str, Any] = {"model": small_net, "clients": 4, "partition": "iid", "rounds": 2}
    kernels, slow = (trained(blobs(), Ditto(lam=0.5), tmp_path, fast=fast, **settings) for fast in (True, False))
    assert [pull.mu for pull in pulls if pull is not None] == [0.5] * 8  # four clients, two rounds
    assert not same_bits(kernels.own, slow.own)
    np.testing.assert_allclose(np.stack(kernels.own), np.stack(slow.own), atol=1e-5)
