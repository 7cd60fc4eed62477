"""Log runs to MLflow: the settings of the experiment, the metrics of every round, and the files of the result.

Logging does not slow a run down or make it fail: rounds are sent in batches, and a store that stops answering is not used
any more.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedarena.common.files import make_folder
from fedarena.common.formatting import as_json
from fedarena.common.optional_imports import import_optional
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.engine.record import RoundRecord, plain_record
from fedarena.results.comparison import Comparison
from fedarena.results.run import Run
from fedarena.results.run_folder import versions

if TYPE_CHECKING:
    from mlflow import MlflowClient

FILES = (
    "experiment.toml", "result.json", "versions.json", "rounds.parquet", "clients.parquet", "partition.npz",
    "model.safetensors",
)  # fmt: skip
SECONDS = 2.0  # between two batches of rounds
AT_ONCE = 900  # metrics per request, of which MLflow accepts 1000
LONGEST = 500  # characters of a parameter; older servers accept no more


@dataclass(frozen=True)
class MlflowStore:
    """A connected MLflow tracking store, and the MLflow experiment in it that contains the runs."""

    client: MlflowClient
    group: str

    @classmethod
    def open(cls, where: str | Path) -> MlflowStore:
        """Open a store: the address of a server or database, or a folder for an SQLite database and the files."""
        mlflow = _mlflow()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedarena")
        address, artifacts = _address(where)
        try:
            client = mlflow.MlflowClient(tracking_uri=address)
            known = client.get_experiment_by_name(name)
            group = known.experiment_id if known else client.create_experiment(name, artifact_location=artifacts)
        except Exception as error:  # a dozen libraries raise errors of their own
            raise BadValue(
                f"no MLflow store answers at {where}: {_first_line(error)}",
                remedy="give a folder, or the address of a running server, e.g. http://127.0.0.1:5000",
                where="--track",
            ) from error
        return cls(client, str(group))

    def begin(self, name: str, tags: dict[str, str], start: float | None = None) -> str:
        """Create an MLflow run and return its id."""
        milliseconds = None if start is None else int(1000 * start)
        tags = {"mlflow.runName": name, "mlflow.source.name": "fedarena", **tags}
        run = self.client.create_run(self.group, start_time=milliseconds, tags=tags, run_name=name)
        return str(run.info.run_id)

    def describe(self, id: str, experiment: Experiment) -> None:
        """Log the keys of the experiment as parameters, and its text as a file."""
        from mlflow.entities import Param

        flat = list(_flat(experiment.as_table()))
        for first in range(0, len(flat), 100):
            chosen = [Param(key, str(value)[:LONGEST]) for key, value in flat[first : first + 100]]
            self.client.log_batch(id, params=chosen)
        self.client.log_text(id, experiment.to_toml(), "experiment.toml")

    def rounds(self, id: str, records: list[RoundRecord], start: float) -> None:
        """Log every number of every round as a metric, except those that are unknown or not finite."""
        from mlflow.entities import Metric

        metrics = [
            Metric(key, float(value), int(1000 * (start + record.wall_seconds)), record.round)
            for record in records
            for key, value in plain_record(record).items()
            if key != "round" and value is not None and math.isfinite(value)
        ]
        for first in range(0, len(metrics), AT_ONCE):
            self.client.log_batch(id, metrics=metrics[first : first + AT_ONCE])

    def result(self, id: str, run: Run) -> None:
        """Log the main results, and the files of the run folder."""
        summary = run.summary()
        numbers = ("final_accuracy", "mean_accuracy", "best_round", "samples_per_second", "rounds_to_target")
        for key in numbers:
            if summary[key] is not None:
                self.client.log_metric(id, key, float(summary[key]), step=summary["rounds"])
        for key, value in run.fairness.items():
            self.client.log_metric(id, f"clients.{key}", float(value), step=summary["rounds"])
        for key in ("weights_sha256", "diverged", "run_dir"):
            self.client.set_tag(id, f"fedarena.{key}", str(summary[key]))
        for name in FILES if run.dir is not None else ():
            if (file := Path(str(run.dir), name)).exists():
                self.client.log_artifact(id, str(file))

    def end(self, id: str, status: str, at: float | None = None) -> None:
        """End the run with a status of MLflow: FINISHED, FAILED or KILLED."""
        self.client.set_terminated(id, status, end_time=None if at is None else int(1000 * at))


class MlflowTracker:
    """Logs one run to a store while it is running; without a store it does nothing."""

    def __init__(self, store: MlflowStore | None, experiment: Experiment) -> None:
        self._store, self._id = store, ""
        self._waiting: list[RoundRecord] = []
        self._sent = time.monotonic()
        self._send(lambda store: self._begin(store, experiment))

    def see(self, record: RoundRecord) -> None:
        """Log a finished round with the next batch."""
        self._waiting.append(record)
        if time.monotonic() - self._sent >= SECONDS:
            self._flush()

    def finish(self, run: Run) -> None:
        """Log the result of the finished run."""
        self._flush()
        self._send(lambda store: store.result(self._id, run))

    def end(self, status: str) -> None:
        """Send the remaining rounds, and end the run with a status."""
        self._flush()
        self._send(lambda store: store.end(self._id, status))

    def _begin(self, store: MlflowStore, experiment: Experiment) -> None:
        self._id = store.begin(_name(experiment), _tags())
        store.describe(self._id, experiment)

    def _flush(self) -> None:
        if records := self._waiting:
            start = time.time() - records[-1].wall_seconds  # for a resumed run, before this process started
            self._send(lambda store: store.rounds(self._id, records, start))
        self._waiting, self._sent = [], time.monotonic()

    def _send(self, action: Callable[[MlflowStore], None]) -> None:
        if self._store is None:
            return
        try:
            action(self._store)
        except Exception as error:  # a run must not fail because of its log
            self._store = None
            warnings.warn(f"MLflow does not answer, the run continues without it: {_first_line(error)}", stacklevel=1)


@contextlib.contextmanager
def tracked(store: MlflowStore | None, experiment: Experiment) -> Iterator[MlflowTracker]:
    """Log a run to a store for the duration of the block, and then its status."""
    tracker = MlflowTracker(store, experiment)
    try:
        yield tracker
    except BaseException as error:
        tracker.end("FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    tracker.end("FINISHED")


def track(result: Run | Comparison, where: str | Path) -> str:
    """Log a finished run or comparison to MLflow, and return its id there.

    A comparison becomes one MLflow run with its scores and its verdict, and a nested run for every cell.

    >>> import fedarena as fa
    >>> run = fa.run("digits", rounds=2, out=False)
    >>> len(fa.track(run, "mlruns")) > 0
    True
    """
    store = MlflowStore.open(where)
    return _track_run(store, result, {}) if isinstance(result, Run) else _track_comparison(store, result)


def _track_run(store: MlflowStore, run: Run, tags: dict[str, str]) -> str:
    last = run.records[-1].wall_seconds
    made = run.dir / "result.json" if run.dir is not None else None
    end = made.stat().st_mtime if made is not None and made.exists() else time.time()
    id = store.begin(_name(run.experiment), {**_tags(), **tags}, start=end - last)
    store.describe(id, run.experiment)
    store.rounds(id, run.records, end - last)
    store.result(id, run)
    store.end(id, "FINISHED", end)
    return id


def _track_comparison(store: MlflowStore, comparison: Comparison) -> str:
    name = comparison.dir.name if comparison.dir is not None else "comparison"
    id = store.begin(name, {**_tags(), "fedarena.test": comparison.plan.test})
    for label, runs in comparison.runs.items():
        for split, run in zip(comparison.plan.splits, runs, strict=True):
            _track_run(store, run, {"mlflow.parentRunId": id, "fedarena.label": label, "fedarena.split": split.name})
    for row in comparison.rows():
        for key in ("best", "best_sd", "final", "final_sd", "validated", "validated_sd"):
            if row[key] is not None:
                store.client.log_metric(id, f"{key}/{_allowed(row['algorithm'])}", row[key])
    store.client.set_tag(id, "mlflow.note.content", "\n".join(comparison.words))
    store.client.log_text(id, as_json(comparison.as_dict()), "comparison.json")
    store.end(id, "FINISHED")
    return id


def _mlflow() -> Any:
    """Return MLflow without telemetry and log messages, and with short timeouts for stores that do not answer."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    mlflow = import_optional("mlflow", needed_by="tracking", install="'fedarena[track]'", where="--track")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return mlflow


def _address(where: str | Path) -> tuple[str, str | None]:
    """Return the address of the store, and where files go; for a folder, an SQLite database in it."""
    if "://" in str(where) or str(where) == "databricks":
        return str(where), None
    folder = Path(where).expanduser().resolve()
    make_folder(folder)
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()


def _name(experiment: Experiment) -> str:
    return f"{experiment.algorithm.name} · {experiment.data.name} · seed {experiment.seed}"


def _tags() -> dict[str, str]:
    facts = versions()
    return {f"fedarena.versions.{key}": str(facts[key]) for key in ("fedarena", "python", "torch", "numpy")}


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield {"local": {"lr": 1}} as ("local.lr", 1); the name of a component stands for the component."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix.rstrip(".") if key == "name" else prefix + key, value


def _allowed(label: str) -> str:
    """Return a label as the name of a metric, in which MLflow accepts letters, digits and a few signs."""
    return "".join(c if c.isalnum() or c in "_-. /" else "-" for c in label)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]
