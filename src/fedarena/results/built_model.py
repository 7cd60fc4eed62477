"""The trained model of a run folder, built without the data it was trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedarena.algorithms.base import Algorithm
from fedarena.common.formatting import as_json
from fedarena.config.errors import BadValue
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.own_parts import find_own_parts
from fedarena.models.building import build
from fedarena.models.losses import find_loss
from fedarena.models.task import Task, sha256
from fedarena.models.tree_task import TreeTask
from fedarena.results.json_files import read_table
from fedarena.results.model_file import MODEL_FACTS, ModelFacts, read_model_facts
from fedarena.results.run_files import read_personal_model
from fedarena.results.run_folder import DAMAGED, PREPROCESSING
from fedarena.results.run_integrity import changed_checkpoint, changed_files, changed_rounds
from fedarena.results.samples_elsewhere import client_of, has_samples_elsewhere, outputs_of, read_encoding
from fedarena.statistics.metric_registry import TaskName
from fedarena.trees.forest import Forest

if TYPE_CHECKING:
    from fedarena.results.run import Run


def has_facts(run: Run) -> bool:
    """Return whether the folder of a run says what its model is."""
    return run.dir is not None and (run.dir / MODEL_FACTS).exists()


def known_facts(run: Run) -> ModelFacts:
    """Return the facts about the model of a run; of an earlier version those that follow from its preprocessing."""
    if run.dir is not None and has_facts(run):
        return read_model_facts(run.dir)
    encoding = read_encoding(run.dir)
    return ModelFacts(encoding.task, (len(encoding.column_names),), outputs_of(encoding), encoding.classes)


def load_own_model(folder: Path | None, task: Task, algorithm: Algorithm, client: int | None) -> None:
    """Load into a model what is one client's own, from the checkpoint of a run folder."""
    if client is None or folder is None:
        raise BadValue(
            "there is no common model, each client has its own",
            remedy="name a client: --client NAME, in Python run.model(client=0), of a run that is saved in a folder",
        )
    if (model := read_personal_model(folder, client)) is not None:
        task.load(model.message.w)
        task.load_buffers(model.buffers)
        return
    memory = CheckpointStore.read_client_state(folder / "checkpoint", algorithm, client)  # of an earlier version
    if memory is not None:
        if algorithm.personal:
            task.load(memory.kept)
        task.load_buffers(memory.buffers or task.buffers())


def trained_task(run: Run, client: int | None = None) -> Task:
    """Return the trained model of a run, built without its data; that of one client where each has its own."""
    exp, algorithm, task = run.experiment, run.experiment.algorithm.made, saved_task(run)
    local_buffers = exp.bn_buffers == "local" and task.buffers().values.size > 0
    if (algorithm.personal or local_buffers) and not algorithm.pooled and client_of(run.dir) is None:
        if has_samples_elsewhere(run.dir, exp):
            raise BadValue(
                "there is no common model: each client of this federation has its own, in its own folder",
                remedy="use the folder of a client, where `fedarena join` stored its model",
            )
        load_own_model(run.dir, task, algorithm, client)
    return task


def saved_task(run: Run) -> Task:
    """Return the model with the weights that the folder of a run holds, which are the server's."""
    exp, facts = run.experiment, known_facts(run)
    if "forest" in run.state:
        forest = Forest.of(run.state["forest"].numpy())
        return TreeTask(forest, find_loss(cast(TaskName, facts.task)), facts.label_scale)
    options: dict[str, Any] = {"init": exp.init, "dtype": exp.dtype, "freeze": exp.freeze, "fast": False}
    task = build(exp.model.made, facts.shape, facts.outputs, 0, is_text=facts.task == "next_symbol", **options)
    task.module.load_state_dict(run.state)
    return task


def contradictions(run: Run) -> list[str]:
    """Return what in the folder of a run contradicts its records, as far as that follows without samples."""
    assert run.dir is not None
    found = changed_files(run.dir) + changed_checkpoint(run.dir, run.experiment.algorithm.made)
    found += changed_rounds(run.dir, run.records)
    stored = read_table(run.dir / "result.json", DAMAGED)
    found += [
        f"result.json, {name}: {stored[name]}, and the records give {value}"
        for name, value in json.loads(as_json(run.summary())).items()
        if name != "run_dir" and name in stored and stored[name] != value
    ]
    has_preprocessing = (run.dir / PREPROCESSING).is_file()  # runs of earlier versions have none
    if has_preprocessing:
        read_encoding(run.dir)  # a damaged file is an error that names it
    if has_preprocessing and _saved_sha256(run) != run.weights_sha256:
        found.append("model.safetensors: not the weights that result.json names")
    return found


def _saved_sha256(run: Run) -> str:
    """Return the hash of the saved weights; at the server without those of layers that are clients' own."""
    task, algorithm = saved_task(run), run.experiment.algorithm.made
    w, buffers = task.vector(), task.buffers()
    if algorithm.own_layers is not None and client_of(run.dir) is None:
        parts = find_own_parts(task, algorithm.own_layers, run.experiment.bn_buffers == "local")
        if parts is not None:
            w, buffers = parts.shared(w), parts.shared_buffers(buffers)
    return sha256(w, buffers.values)
