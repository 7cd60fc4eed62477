"""Every algorithm, killed four times and resumed, gives the bits of an uninterrupted run, states included.

A killed run is a process of its own that sends itself SIGKILL at a chosen point, so that nothing depends on timing. Some
clients each round, dropouts among them; the last stretch is run by two workers.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.test_fedavg import small_net
from tests.support.federations import blobs

import fedarena as fa
from fedarena.config.experiment import Experiment
from fedarena.config.registry import components
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.record import TIMES
from fedarena.engine.setup import open_context
from fedarena.models.private_task import PrivateTask
from fedarena.models.pytree import leaves
from fedarena.models.task import Task
from fedarena.trees.boosted_rows import BoostedRows

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that begin as copies of this one")

def noisy_loss(module: Any, batch: Any, context: Any) -> Any:
    """Cross-entropy of samples with random noise."""
    x = batch.x + 0.1 * torch.randn_like(batch.x)
    return torch.nn.functional.cross_entropy(module(x), batch.y)


HEAVY = {"lr": 0.02, "epochs": 2, "batch": 8, "momentum": 0.9}
KEPT = {**HEAVY, "reset_momentum": False, "decay": 0.01, "decay_counter": "per_client"}
MORE: dict[str, dict[str, Any]] = {
    "fedavg, momentum and counters kept": {"algorithm": "fedavg", "local": KEPT},
    "fedavg, steps that continue": {"algorithm": "fedavg", "local": {"lr": 0.05, "steps": 5, "batch": 8}},
    "cyclic, Adam that is kept": {
        "algorithm": "cyclic",
        "local": {"lr": 0.01, "steps": 5, "batch": 8, "optimizer": "adam", "reset_momentum": False},
    },
    "scaffold, momentum": {"algorithm": "scaffold", "local": HEAVY},
    "fedprox, adaptive": {"algorithm": {"name": "fedprox", "schedule": "adaptive"}},
    "fsvrg, scaled": {"algorithm": {"name": "fsvrg", "scaling": "diagonal"}, "model": "logreg"},
    "fedvc, split": {"algorithm": {"name": "fedvc", "n_vc": 8, "with_split": True}},
    "scaffold, private records": {
        "algorithm": "scaffold",
        "local": {"lr": 0.05, "batch": 8, "momentum": 0.5, "privacy": {"clip": 0.5, "noise": 1.1}},
    },
    "fedavg, a loss from Python": {"algorithm": "fedavg", "loss": noisy_loss},
    "fedavg, power of choice": {"algorithm": "fedavg", "select": {"name": "power_of_choice", "d": 5}},
    "fedavg, attacked by noise": {"algorithm": "fedavg", "attack": {"name": "gaussian", "share": 0.34, "sd": 0.1}},
    "median, a backdoor": {"algorithm": "median", "attack": {"name": "backdoor", "share": 0.34}},
    "scaffold, Oort": {"algorithm": "scaffold", "select": {"name": "oort", "window": 1, "epsilon": 0.3}},
    "fedavgm, fedir, fedvc": {"algorithm": {"name": "fedavgm", "with": ["fedir", {"name": "fedvc", "n_vc": 16}]}},
}
# Each takes gradients in its own way.
GRADIENTS: tuple[tuple[Any, str], ...] = ((Task, "accumulate"), (PrivateTask, "accumulate"), (BoostedRows, "sums"))
EACH = {**{name: {"algorithm": name} for name in sorted(components("algorithm"))}, **MORE}


def experiment(name: str) -> Experiment:
    common = {"model": small_net, "clients": 6, "share": 0.5, "rounds": 6, "dropouts": 0.2, "seed": 2,
              "partition": {"name": "label_dirichlet", "beta": 1.0, "min_size": 8},
              "local": {"lr": 0.05, "epochs": 1, "batch": 8}}  # fmt: skip
    return Experiment.make(blobs(), **{**common, **EACH[name]})


# Where a run dies


def die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def at_gradient(number: int) -> None:
    """Die in the middle of a client's training, at the gradient with this number."""
    taken = iter(range(1, number))
    for kind, method in GRADIENTS:
        usual = getattr(kind, method)
        setattr(kind, method, lambda *a, usual=usual: usual(*a) if next(taken, None) else die())


def at_the_end_of(round: int) -> None:
    """Die when the client states of the round are written, and the server's state is not."""
    save = CheckpointStore.save
    CheckpointStore.save = lambda k, s, r: die() if s.round == round else save(k, s, r)  # type: ignore[method-assign]


def before_the_state_of(round: int) -> None:
    """Die when the round is in the log, and its state in a temporary file."""
    replace = os.replace
    os.replace = lambda a, b: die() if Path(b).name == f"server-{round}.safetensors" else replace(a, b)


def in_a_process_that_dies(prepare: Callable[[], None], **arguments: Any) -> None:
    """Run in a forked process that must die where `prepare` says, and nowhere else."""
    child = os.fork()
    if not child:
        try:
            prepare()
            fa.run(runtime="serial", **arguments)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def undisturbed(exp: Experiment, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[fa.Run, list[int]]:
    """Return a whole run, and the number of gradients at the end of each round."""
    taken, counts = [], []
    with monkeypatch.context() as patch:
        for kind, method in GRADIENTS:
            usual = getattr(kind, method)
            patch.setattr(kind, method, lambda *a, usual=usual: (taken.append(1), usual(*a))[1])
        run = fa.run(exp, out=folder, runtime="serial", on_round=lambda r: counts.append(len(taken)))
    return run, counts


# What must be the same


def everything(run: fa.Run, folder: Path) -> str:
    """Return everything but times, with the checkpoints of server and clients, as text: there NaN equals NaN."""
    records = [{k: v for k, v in vars(r).items() if k not in TIMES} for r in run.records]
    algorithm = open_context(run.experiment).algorithm
    store = CheckpointStore(folder / "checkpoint", algorithm)
    snapshot, _ = store.load()
    store.close()
    assert snapshot is not None
    memories = [CheckpointStore.read_client_state(folder / "checkpoint", algorithm, k) for k in range(6)]
    totals = {name: total for name, total in snapshot.totals.items() if name not in TIMES}
    state = [bits(tree) for tree in (snapshot.state, snapshot.buffers, snapshot.queue, snapshot.selection, memories)]
    return repr((run.weights_sha256, records, run.client_accuracy.tolist(), run.notes, totals, state))


def bits(tree: Any) -> list[Any]:
    return [leaf.tolist() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves(tree)]


def rounds_logged(folder: Path) -> int:
    return len((folder / "checkpoint" / "rounds.jsonl").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_killed_and_resumed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A kernel takes many gradients in one call: nowhere to die in between.
    monkeypatch.setenv("FEDARENA_KERNELS", "off")
    exp, folder = experiment(name), tmp_path / "killed"
    whole, gradients = undisturbed(exp, tmp_path / "whole", monkeypatch)

    in_a_process_that_dies(lambda: at_gradient((gradients[0] + gradients[1]) // 2 + 1), source=exp, out=folder)
    assert rounds_logged(folder) == 1
    in_a_process_that_dies(lambda: at_the_end_of(3), source=exp, resume=folder)
    assert rounds_logged(folder) == 2
    remembers = any((tmp_path / "whole" / "checkpoint" / "clients").iterdir())
    assert remembers == any((folder / "checkpoint" / "clients").glob("*-3.safetensors"))
    in_a_process_that_dies(lambda: before_the_state_of(4), source=exp, resume=folder)
    assert rounds_logged(folder) == 4
    assert not (folder / "checkpoint" / "server-4.safetensors").exists()
    in_a_process_that_dies(lambda: None, source=exp, resume=folder, on_round=lambda r: r.round == 5 and die())
    assert rounds_logged(folder) == 5
    resumed = fa.run(exp, resume=folder, runtime="processes", workers=2)
    assert everything(resumed, folder) == everything(whole, tmp_path / "whole")
