"""The folder of a run: its name, its experiment, and the files that are written before the first round.

experiment.toml    the complete experiment; reading it gives it back
rounds.parquet     one row per evaluation         clients.parquet   one row per client
partition.npz      the samples of every client    model.safetensors the final model, by parameter name
result.json        the main numbers               versions.json     the software it ran with
checkpoint/        everything needed to resume    preprocessing.json the encoding of a table's columns
federation.json    the clients of a real federation
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fedarena
from fedarena.common.files import atomic_write, free_folder, make_folder
from fedarena.config.components import Component, is_from_python
from fedarena.config.data_sources import with_recorded_form
from fedarena.config.errors import BadValue, CannotWrite, FedarenaError, ResumeMismatch
from fedarena.config.experiment import Experiment
from fedarena.config.settings_tables import FROM_PYTHON
from fedarena.data.dataset import Partition
from fedarena.data.published_files import reading
from fedarena.engine.context import ExperimentContext
from fedarena.engine.stopping import participants
from fedarena.models.compiled import SWITCH, library, processor
from fedarena.models.task import sha256
from fedarena.results.json_files import read_table, write_table, write_text

DAMAGED = "restore the file from a copy, or run the experiment again in a new folder"
PREPROCESSING = "preprocessing.json"
FEDERATION = "federation.json"  # of a run between organisations: its clients, or in a client's folder that client
SEAL = "# sha256 "  # the last line of experiment.toml, over the lines above it
MAY_GROW = ("rounds", "uploads")  # a finished run may be continued with a larger budget


def new_folder(experiment: Experiment, out: str | Path | None) -> Path:
    """Create the folder of a new run: the requested one, or the next free name under runs/."""
    if out is None:
        return free_folder(f"{experiment.data.name}-{experiment.algorithm.name}-seed{experiment.seed}")
    path = Path(out)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        holds_run = (path / "experiment.toml").exists()
        resume = f"resume it: --resume {path}, or " if holds_run else ""
        raise CannotWrite(
            f"{path} exists already" + (" and holds a run" if holds_run else ""),
            remedy=f"{resume}choose another folder",
            where="--out",
        )
    make_folder(path)
    return path


def room_for(context: ExperimentContext) -> int:
    """Return the bytes that a run may need on disk while it is under way."""
    moments = context.keeps_momentum * (2 if context.experiment.local.optimizer == "adam" else 1)
    leaves_out = getattr(context.experiment.uplink, "top_k", None) is not None
    vectors = (context.algorithm.remember(context.initial) is not None) + moments + leaves_out
    people = len(context.partition.population)
    models = 5 + vectors * (2 * people + participants(context.experiment, people))  # two rounds kept, one under way
    return models * context.initial.nbytes + (1 << 20)


def need_room(path: Path, needed: int, what: str) -> None:
    """Raise if the disk has fewer bytes free than are needed."""
    free = shutil.disk_usage(path).free
    if free < needed:
        raise CannotWrite(
            f"{path} has {free / 1e6:.0f} MB free, {what} needs about {needed / 1e6:.0f} MB",
            remedy="make room or choose another folder with --out",
        )


def read_experiment(path: Path, traits: Mapping[str, bool] | None = None, **own: Any) -> Experiment:
    """Return the experiment of a run; components that came from Python can be used if they are given again as `own`.

    `traits` are facts about an algorithm that is not given, as `algorithm_traits` returns them.
    """
    file = path / "experiment.toml"
    if not file.exists():
        raise BadValue(
            f"{path} is not a run folder: it has no experiment.toml", remedy="give the folder of a run", where=str(path)
        )
    table = _toml(file)
    for key, value in list(table.items()):
        if is_from_python(value):
            known = traits or {} if key == "algorithm" else {}
            table[key] = own[key] if key in own else Component.not_given(FROM_PYTHON[key], value, **known)
    return Experiment.make(table, where=str(file))


def in_recorded_form(path: Path, experiment: Experiment) -> Experiment:
    """Return the experiment with its table in the form that the run in this folder was made in."""
    file = path / "experiment.toml"
    form = _toml(file).get("data", {}).get("fitted_on") if file.exists() else None
    if form is None or experiment.data.own or experiment.data.settings.get("fitted_on") in (None, form):
        return experiment
    return experiment.with_(**{"data.fitted_on": form})


def check_same_experiment(path: Path, experiment: Experiment) -> None:
    """Raise if a folder to resume belongs to another experiment."""
    file = path / "experiment.toml"
    if not file.exists():
        raise ResumeMismatch(f"{path} holds no run", remedy="give the folder of an interrupted run", where="--resume")
    before = _completed(_toml(file), experiment)
    now = tomllib.loads(experiment.to_toml())
    changed = [k for k in {**before, **now} if k not in MAY_GROW and before.get(k) != now.get(k)]
    if changed:
        key, old, new = _first_difference(changed[0], before.get(changed[0]), now.get(changed[0]))
        raise ResumeMismatch(
            f"{path} belongs to another experiment: its {key} is {old}, not {new}",
            remedy="resume it without changes (only rounds or uploads may grow), or start a new run",
            where="--resume",
        )
    for key in MAY_GROW:
        if (key in before) != (key in now) or before.get(key, 0) > now.get(key, 0):
            raise ResumeMismatch(
                f"{path} had a budget of {key} = {before.get(key)}, not {now.get(key)}",
                remedy=f"give the same {key} or more",
                where="--resume",
            )


def _completed(table: dict[str, Any], experiment: Experiment) -> dict[str, Any]:
    """Return a table with the defaults of settings that did not exist yet when it was written."""
    own = {key: value for key, value in table.items() if is_from_python(value)}
    try:
        whole = Experiment.make({**table, **{key: getattr(experiment, key) for key in own}})
    except FedarenaError:  # it has a setting that no longer exists, and differs by it
        return table
    return {**tomllib.loads(whole.to_toml()), **own}


def _first_difference(key: str, old: Any, new: Any) -> tuple[str, Any, Any]:
    """Return the first setting that differs, with its old and its new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        inner = next(k for k in {**old, **new} if old.get(k) != new.get(k))
        return f"{key}.{inner}", old.get(inner), new.get(inner)
    return key, old, new


def write_start(path: Path, context: ExperimentContext) -> None:
    """Write the files that are known before the first round."""
    partition = context.owners
    facts = {**versions(), **fingerprints(context), "path": context.training_path}
    write_table(path / "versions.json", facts)
    if context.data.encoding is not None:
        write_table(path / PREPROCESSING, context.data.encoding.to_json())
    _write_partition(path, partition)
    _write_experiment(path, context.experiment)  # last: a folder that has it is a run


def check_same_start(path: Path, context: ExperimentContext) -> None:
    """Raise if data, partition or model are not those that the run began with."""
    before = read_facts(path)
    for key, now in fingerprints(context).items():
        if before.get(key) != now:
            raise ResumeMismatch(
                f"the {key.partition('_')[0]} is not the one this run began with",
                remedy="restore what it used, or start a new run",
                where=str(path),
            )


def reopen(path: Path, context: ExperimentContext) -> None:
    """Mark a run as unfinished and write its current budget; the partition is the same and is written again."""
    (path / "result.json").unlink(missing_ok=True)
    _write_partition(path, context.owners)
    _write_experiment(path, context.experiment)


def fingerprints(context: ExperimentContext) -> dict[str, str]:
    """Return the hashes of the data, the partition and the initial model, with layers that are clients' own."""
    initial = context.initial if context.parts is None else context.task.initial
    return {
        "data_sha256": context.data.fingerprint(),
        "partition_sha256": context.owners.fingerprint(),
        "model_sha256": sha256(initial),
    }


def read_facts(path: Path) -> dict[str, Any]:
    """Return the content of versions.json."""
    return read_table(path / "versions.json", DAMAGED)


def _write_experiment(path: Path, experiment: Experiment) -> None:
    text = experiment.to_toml()
    write_text(path / "experiment.toml", f"{text}{SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n")


def _write_partition(path: Path, partition: Partition) -> None:
    with atomic_write(path / "partition.npz") as file:
        np.savez_compressed(file, **partition_arrays(partition))


def _toml(file: Path) -> dict[str, Any]:
    """Read the experiment of a run and check its hash; one that an earlier version of fedarena wrote has none."""
    with reading(file, remedy=DAMAGED):
        text = file.read_bytes().decode()
        above, seal, stored = text.rpartition(SEAL)
        if seal and hashlib.sha256(above.encode()).hexdigest() != stored.strip():
            raise ValueError("it was changed after the run began; to run longer, resume with --set rounds=...")
        return with_recorded_form(tomllib.loads(text))


def partition_arrays(partition: Partition) -> dict[str, Any]:
    """Return a partition as plain arrays: the samples of all clients in one array, and the number of each client."""
    tests, beside = partition.client_tests, {
        "validation": partition.validation,
        "unseen": partition.unseen_clients,
        "unseen_test": partition.unseen_tests,
    }
    return {
        "rows": np.concatenate(partition.clients),
        "sizes": partition.sizes,
        "test": partition.test,
        "client_test_rows": np.concatenate(tests) if tests else np.empty(0, np.int64),
        "client_test_sizes": np.array([len(rows) for rows in tests], np.int64),
        **({} if partition.noise is None else {"noise": partition.noise}),
        **{f"{name}_rows": np.concatenate(lists) for name, lists in beside.items() if len(lists)},
        **{f"{name}_sizes": np.array([len(r) for r in lists], np.int64) for name, lists in beside.items() if len(lists)},
    }


def versions() -> dict[str, Any]:
    """Return the versions of the software and the machine that a run is made with."""
    import scipy
    import torch

    return {
        "fedarena": fedarena.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "platform": platform.platform(),
        "processor": processor(),
        "kernels": built[0] if (built := library(os.environ.get(SWITCH, ""))) else "none",
        "cores": os.cpu_count(),
        "argv": sys.argv[1:],
    }
