"""Runs whose samples are not with their folder: those of a federation, at the server and at a client.

Their model is built from the preprocessing, which has the columns and the classes, and their files can be verified.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset, unknown_labels
from fedarena.data.published_files import ELSEWHERE, reading
from fedarena.data.table_encoding import TableEncoding
from fedarena.results.json_files import read_table
from fedarena.results.run_folder import DAMAGED, FEDERATION, PREPROCESSING
from fedarena.statistics.metric_registry import TaskName

if TYPE_CHECKING:
    from fedarena.results.run import Run


def has_samples_elsewhere(folder: Path | None, experiment: Experiment) -> bool:
    """Return whether the samples of a run cannot be loaded where its folder is."""
    is_federation = folder is not None and (folder / FEDERATION).is_file()
    return is_federation or (not experiment.data.own and experiment.data.settings.get("path") == ELSEWHERE)


def client_of(folder: Path | None) -> str | None:
    """Return the name of the client whose folder this is; None for any other run."""
    if folder is None or not (folder / FEDERATION).is_file():
        return None
    with reading(folder / FEDERATION, remedy=DAMAGED):
        name = json.loads((folder / FEDERATION).read_text(encoding="utf-8")).get("client")
        return None if name is None else str(name)


def read_encoding(folder: Path | None) -> TableEncoding:
    """Return the preprocessing that is saved with a run."""
    if folder is None or not (folder / PREPROCESSING).is_file():
        raise BadValue(
            f"{folder or 'this run'} has no {PREPROCESSING}: its data set is not a table",
            remedy="give the folder of a run on a table",
        )
    return TableEncoding.from_json(read_table(folder / PREPROCESSING, DAMAGED))


def outputs_of(encoding: TableEncoding) -> int:
    """Return the number of outputs of a model: classes, labels, or one number."""
    if encoding.task in ("regression", "survival"):
        return 1
    return len(encoding.label) if encoding.task == "multilabel" else len(encoding.classes)


def empty_dataset(encoding: TableEncoding, raw: bool = False) -> Dataset:
    """Return a data set without samples that has the columns and classes of a table; `raw` columns, as trees take them."""
    width, task = len(encoding.columns if raw else encoding.column_names), encoding.task
    x = np.empty((0, width), np.float32)
    y = unknown_labels(cast(TaskName, task), 0, outputs_of(encoding))
    names = encoding.classes
    return Dataset("", x, y, 0, outputs_of(encoding), class_names=names, task=task, encoding=encoding)  # type: ignore[arg-type]


def unchecked_parts(run: Run) -> tuple[str, ...]:
    """Return what cannot be verified in the folder of a run, one sentence each."""
    again = "the rounds were not run again: the samples are not here"
    if client_of(run.dir) is not None:
        return again, "the model is the one that the server sent, and metrics are over this client's own test samples"
    if run.dir is not None and (run.dir / FEDERATION).is_file():
        return again, "updates and evaluations are recorded as the clients sent them"
    return (again,)
