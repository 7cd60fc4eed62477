"""Fine-tune the model of a run on samples of one's own, with its encoding and its classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Model
from fedarena.config.errors import BadValue, located_at, quoted, quoted_list
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset, Partition, Rows, strata_of
from fedarena.data.published_files import ELSEWHERE
from fedarena.data.sources.class_codes import numbered, split_rows
from fedarena.data.sources.label_columns import read_labels
from fedarena.data.table_columns import as_arrow
from fedarena.data.table_encoding import TableEncoding
from fedarena.data.table_reader import read_column, read_table, require_columns
from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.evaluation import LocalEvaluator
from fedarena.engine.setup import build_model_and_algorithm
from fedarena.experiments.option_checks import check_numbers
from fedarena.experiments.run import Out, finish_run, opened_run
from fedarena.experiments.runtime_options import RuntimeOptions
from fedarena.results.built_model import trained_task
from fedarena.results.json_files import read_table as read_json
from fedarena.results.own_samples import known_division
from fedarena.results.run import Run
from fedarena.results.run_folder import DAMAGED
from fedarena.results.run_loading import load_run
from fedarena.results.samples_elsewhere import client_of, empty_dataset, read_encoding
from fedarena.runtimes.serial import SerialRuntime
from fedarena.runtimes.single_thread import one_thread

if TYPE_CHECKING:
    import pyarrow as pa

OVERFITS = "a model that is fine-tuned on few samples may fit them and predict others worse: compare before and after"


@dataclass(frozen=True)
class FineTuned:
    """A model after fine-tuning, and all metrics before and after it on the same held-out samples.

    >>> import fedarena as fa
    >>> import sklearn.datasets
    >>> table = sklearn.datasets.load_breast_cancer(as_frame=True).frame
    >>> table.to_csv("patients.csv", index=False)
    >>> run = fa.run("patients.csv", label="target", clients=3, rounds=2, out="first")
    >>> tuned = fa.finetune(run, "patients.csv", epochs=1, out="tuned")
    >>> tuned.before.keys() == tuned.after.keys()
    True
    """

    run: Run
    before: Mapping[str, float]
    samples: tuple[int, int]  # trained on, and held out

    @property
    def after(self) -> Mapping[str, float]:
        """The metrics after fine-tuning."""
        return self.run.metrics

    def __str__(self) -> str:
        trained, held_out = self.samples
        lines = [f"fine-tuned on {trained} samples; on {held_out} held-out samples, before and after:"]
        lines += [f"  {name:<18} {old:8.4f} {self.after[name]:8.4f}" for name, old in self.before.items()]
        return "\n".join([*lines, *([] if self.run.dir is None else [f"  {self.run.dir}"])])


def finetune(
    run: Run | str | Path,
    data: Any,
    *,
    epochs: int = 2,
    lr: float = 0.01,
    batch: int = 16,
    test: float = 0.2,
    seed: int = 0,
    out: Out = None,
) -> FineTuned:
    """Train the model of a run further on a table of one's own, and save it as a run that can predict.

    `data` is a file, a DataFrame or columns by name, with the columns of the training table. Columns are encoded as in the
    run. A share `test` of the samples is held out, and the metrics on them are compared; with the file with which a client
    took part in a federation, they are the test samples of the federation. Nothing leaves this machine.

    >>> import fedarena as fa
    >>> import sklearn.datasets
    >>> table = sklearn.datasets.load_breast_cancer(as_frame=True).frame
    >>> table.to_csv("patients.csv", index=False)
    >>> run = fa.run("patients.csv", label="target", clients=3, rounds=2, out="shared")
    >>> tuned = fa.finetune(run, "patients.csv", epochs=1, out="own")
    >>> tuned.run.dir.name
    'own'
    """
    check_numbers(epochs=(epochs, 1), batch=(batch, 1), seed=(seed, 0))
    for name, value, most in (("lr", lr, np.inf), ("test", test, 1.0)):
        if not 0 < value < most:
            raise BadValue(f"{name} = {value}", remedy=f"give a number between 0 and {most}", where=name)
    known = run if isinstance(run, Run) else load_run(run)
    if "forest" in known.state:
        raise BadValue(
            "a forest cannot be fine-tuned: training a model further takes gradients",
            remedy="fine-tune the run of a network, such as fedavg",
            where="finetune",
        )
    encoding = read_encoding(known.dir)
    scale = _label_scale(known.dir, encoding)
    start = trained_task(known)
    samples, train, held_out = _samples(known, encoding, data, test, seed)
    experiment = _experiment(known.experiment, encoding, epochs, lr, batch, seed)
    name = client_of(known.dir) or "own samples"
    notes = (*samples.notes, OVERFITS)
    context = ExperimentContext(
        experiment, samples, Partition([train], held_out, [held_out], names=(name,), notes=notes)
    )
    context.label_scale = scale
    with one_thread():
        build_model_and_algorithm(context)
        context.task.module.load_state_dict(start.state())
        context.task.initial = context.initial = context.task.vector()
        evaluator = LocalEvaluator(context, SerialRuntime(context))
        before = evaluator.evaluate_shared(
            Broadcast(Model(context.initial), context.task.buffers()), evaluator.metrics
        ).values
    with opened_run(context, out, None, False, RuntimeOptions("serial")) as (loop, folder):
        result = finish_run(loop, list(loop.rounds()), folder)
    return FineTuned(result, before, (len(train), len(held_out)))


def _label_scale(folder: Path | None, encoding: TableEncoding) -> tuple[float, float]:
    """Return mean and deviation by which the labels of a regression were standardised in training; else 0 and 1."""
    if encoding.task != "regression":
        return 0.0, 1.0
    facts = None if folder is None else folder / "model.json"
    if facts is None or not facts.is_file():
        raise BadValue(
            "the run has no model.json, which holds the scale of its labels",
            remedy="run the experiment again with this version",
        )
    mean, deviation = read_json(facts, DAMAGED)["label_scale"]
    return float(mean), float(deviation)


def _experiment(
    before: Experiment, encoding: TableEncoding, epochs: int, lr: float, batch: int, seed: int
) -> Experiment:
    """Return the experiment that continues to train a model, an epoch a round, on samples that only this machine has."""
    same = ("model", "loss", "init", "freeze", "dtype", "device", "fast")
    kept = {key: value for key in same if (value := getattr(before, key)) is not None}
    judged = {key: getattr(before.evaluate, key) for key in ("metric", "positive", "threshold")}
    label = encoding.label[0] if len(encoding.label) == 1 else list(encoding.label)
    return Experiment.make(
        {
            **kept,
            "data": {"name": "csv", "path": ELSEWHERE, "label": label, "client": "client", "task": encoding.task},
            "partition": "natural",
            "algorithm": "centralized",
            "rounds": epochs,
            "seed": seed,
            "local": {"lr": lr, "epochs": 1, "batch": batch},
            "evaluate": {"every": 1, **{key: value for key, value in judged.items() if value is not None}},
        }
    )


def _samples(run: Run, encoding: TableEncoding, data: Any, test: float, seed: int) -> tuple[Dataset, Rows, Rows]:
    """Return the encoded samples, and which of them are for training and which are held out."""
    is_file = isinstance(data, str | Path)
    title = str(data) if is_file else "the table"
    separator = run.experiment.data.settings.get("separator", ",")
    table = read_table(data, separator=separator, where="data") if is_file else as_arrow(data)
    require_columns(title, table, {"label": encoding.label})
    with located_at(title):
        y = _labels(table, encoding)
        x, notes = encoding.encode(table)
    division = known_division(run.dir, Path(data)) if is_file else None
    if division is None:
        train, held_out = split_rows(strata_of(encoding.task, y), None, test, seed)  # type: ignore[arg-type]
        if client_of(run.dir) is not None:
            notes += ("samples on which the federation trained may be among those that are held out",)
    else:
        train, held_out = division
    return (
        replace(empty_dataset(encoding), name=Path(title).stem, x=x, y=y, n_train=len(y), notes=notes),
        train,
        held_out,
    )


def _labels(table: pa.Table, encoding: TableEncoding) -> NDArray[Any]:
    """Return the labels of a table with the numbers of the classes that the model has."""
    columns = {name: read_column(table, name) for name in encoding.label}
    if encoding.task != "classification":
        named = {f"column '{quoted(name)}'": values for name, values in columns.items()}
        return read_labels(named, encoding.task).y  # type: ignore[arg-type]
    ((name, values),) = columns.items()
    codes, names = numbered(values, f"column '{quoted(name)}'", first_row=1)
    unknown = [one for one in names if one not in encoding.classes]
    if unknown:
        raise BadValue(
            f"column '{quoted(name)}' holds {quoted_list(unknown, 3)}, which the model does not know",
            remedy=f"its classes are: {quoted_list(encoding.classes)}",
            where="label",
        )
    numbers = np.array([encoding.classes.index(one) for one in names], np.int64)
    return numbers[codes]
