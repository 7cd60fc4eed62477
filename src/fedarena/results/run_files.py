"""The result files of a run folder: rounds and clients as tables, the model, and the metrics of result.json."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.algorithms.base import Model
from fedarena.common.files import atomic_write, writing
from fedarena.config.components import Component
from fedarena.data.dataset import PADDING
from fedarena.data.published_files import reading
from fedarena.engine.checkpoint_files import load_tree, save_tree
from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.record import RoundRecord, plain_record
from fedarena.engine.task_metrics import FinalMetrics, UnseenMetrics
from fedarena.engine.validated_round import ValidatedRound
from fedarena.models.task import Buffers
from fedarena.results.json_files import file_sha256
from fedarena.results.model_file import MODEL_FACTS
from fedarena.results.run_folder import DAMAGED, FEDERATION, PREPROCESSING
from fedarena.statistics.metric_registry import RESERVED_PREFIX

PERSONAL_MODELS = "personal_models"  # a folder with a file for each client
TRAITS = ("communicates", "personal", "pooled")
HASHED = (
    "experiment.toml", "versions.json", "partition.npz", "rounds.parquet", "clients.parquet", "model.safetensors",
    "checkpoint/rounds.jsonl",
)  # fmt: skip


def hashed_files(path: Path) -> tuple[str, ...]:
    """Return the files of a run whose hashes are in result.json, with those that only tables and federations have."""
    return (*HASHED, *(name for name in (PREPROCESSING, MODEL_FACTS, FEDERATION) if (path / name).exists()))


def write_rounds(path: Path, records: list[RoundRecord]) -> None:
    """Write rounds.parquet with one row per evaluation."""
    _write_table(path / "rounds.parquet", [plain_record(r) for r in records if r.accuracy is not None])


def write_clients(
    path: Path, context: ExperimentContext, accuracy: np.ndarray[Any, Any], metrics: Mapping[str, np.ndarray[Any, Any]]
) -> None:
    """Write clients.parquet with one row per client."""
    _write_table(path / "clients.parquet", client_rows(context, accuracy, metrics))


def write_model(path: Path, state: dict[str, Any]) -> None:
    """Write model.safetensors with all parameters and buffers by name."""
    from safetensors.torch import save

    with atomic_write(path / "model.safetensors") as file:
        file.write(save(state))


def write_personal_models(path: Path, models: Iterable[tuple[int, Broadcast]]) -> None:
    """Write the model of each client to personal_models/, where clients have models of their own."""
    for client, model in models:
        with writing(path / PERSONAL_MODELS):
            (path / PERSONAL_MODELS).mkdir(exist_ok=True)
        save_tree(path / PERSONAL_MODELS / f"{client}.safetensors", model)


def read_personal_model(path: Path, client: int) -> Broadcast | None:
    """Return the model of one client; None where the folder has none of it."""
    file = path / PERSONAL_MODELS / f"{client}.safetensors"
    if not file.is_file():
        return None
    model: Broadcast = load_tree(file, {cls.__qualname__: cls for cls in (Broadcast, Model, Buffers)})
    return model


def result_table(
    path: Path,
    summary: Mapping[str, Any],
    measured: FinalMetrics,
    chosen: ValidatedRound | None = None,
    traits: Mapping[str, bool] | None = None,
) -> dict[str, Any]:
    """Return the content of result.json: the main numbers, the metrics for charts, and the hash of every other file.

    The hashes of client states are in the snapshots.
    """
    names = (*hashed_files(path), *sorted(f"checkpoint/{file.name}" for file in (path / "checkpoint").glob("server-*")))
    drawn = {"class_names": measured.class_names, **_pictures(measured)}
    if chosen is not None:
        drawn["validated"] = _pictures(chosen.measured)
    for of, one in (("", measured), ("validated_", None if chosen is None else chosen.measured)):
        if one is not None and one.unseen is not None:
            drawn[f"{of}unseen"] = _unseen_values(one.unseen)
    table = {**summary, "evaluation": drawn, "files": {name: file_sha256(path / name) for name in names}}
    return table | ({"algorithm_traits": dict(traits)} if traits else {})


def algorithm_traits(algorithm: Component) -> dict[str, bool]:
    """Return the traits that a result stores of an algorithm from Python; none for one that has a registered name."""
    return {name: getattr(algorithm.made, name) for name in TRAITS} if algorithm.own else {}


def _pictures(measured: FinalMetrics) -> dict[str, Any]:
    """Return the confusion matrix and the calibration curve as plain values."""
    confusion = None if measured.confusion is None else measured.confusion.tolist()
    return {"confusion": confusion, "calibration": measured.calibration}


def _unseen_values(unseen: UnseenMetrics) -> dict[str, Any]:
    """Return the metrics of each client that never trained as plain values."""
    values = {
        key: {name: each.tolist() for name, each in getattr(unseen, key).items()}
        for key in ("client_before", "client_after")
    }
    return {"clients": unseen.clients, "steps": unseen.steps, "samples": unseen.samples.tolist(), **values}


def _read_unseen(plain: Mapping[str, Any] | None) -> UnseenMetrics | None:
    """Return the metrics of clients that never trained; None for a run in which all clients did."""
    if plain is None:
        return None
    before, after = (
        {name: np.array([*map(_number, each)], np.float64) for name, each in plain[key].items()}
        for key in ("client_before", "client_after")
    )
    samples = np.array(plain["samples"], np.int64)
    return UnseenMetrics(tuple(map(str, plain["clients"])), int(plain["steps"]), samples, before, after)


def client_columns(
    measured: FinalMetrics, chosen: ValidatedRound | None, spent: np.ndarray[Any, Any] | None = None
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the metrics of each client after the last round and the validated round, and epsilon of its records."""
    validated = {} if chosen is None else chosen.measured.clients
    return {
        **measured.clients,
        **{f"{RESERVED_PREFIX}{name}": values for name, values in validated.items()},
        **({} if spent is None else {"record_epsilon": spent}),
    }


def client_rows(
    context: ExperimentContext,
    accuracy: np.ndarray[Any, Any],
    metrics: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Return one row per client with its samples and its metrics."""
    owners = context.owners
    columns = {"accuracy": accuracy, **(metrics or {})}
    names = owners.names or tuple(str(k) for k in range(len(owners.clients)))
    unseen = {*owners.unseen}
    return [
        {
            "client": k,
            "name": names[k],
            "rows": len(index),
            "test_rows": len(owners.client_tests[k]),
            "classes": _classes(context.data.y[index]),
            **({} if context.attack is None else {"attacker": k in context.attackers}),
            **({"unseen": k in unseen} if unseen else {}),
            **{name: None if np.isnan(values[k]) else float(values[k]) for name, values in columns.items()},
        }
        for k, index in enumerate(owners.clients)
    ]


def read_clients(path: Path) -> list[dict[str, Any]]:
    """Return the rows of clients.parquet."""
    import pyarrow.parquet as pq

    with reading(path / "clients.parquet", remedy=DAMAGED):
        rows: list[dict[str, Any]] = pq.read_table(path / "clients.parquet").to_pylist()
    return rows


def _classes(labels: np.ndarray[Any, Any]) -> int | None:
    """Return the number of classes; None where a sample has many labels, or where labels are not known here."""
    return None if labels.ndim > 1 or PADDING in labels else len(np.unique(labels))


def read_metrics(result: Mapping[str, Any], clients: Mapping[str, list[Any]]) -> FinalMetrics:
    """Return the metrics of a run folder; empty for one that was made before there were metrics."""
    if "metrics" not in result:
        return FinalMetrics()
    return _read_metrics(result, clients, result.get("evaluation", {}), "")


def read_validated(result: Mapping[str, Any], clients: Mapping[str, list[Any]]) -> ValidatedRound | None:
    """Return the validated round of a run folder; None for a run without validation samples."""
    if "validated_round" not in result:
        return None
    measured = _read_metrics(result, clients, result["evaluation"]["validated"], RESERVED_PREFIX)
    value = result["validation_metric"]
    return ValidatedRound(int(result["validated_round"]), math.nan if value is None else float(value), measured)


def _read_metrics(
    result: Mapping[str, Any], clients: Mapping[str, list[Any]], drawn: Mapping[str, Any], prefix: str
) -> FinalMetrics:
    """Return the metrics whose names in a run folder begin with `prefix`."""
    confusion, bins = drawn.get("confusion"), drawn.get("calibration")
    own = result[f"{prefix}own_metrics"]
    return FinalMetrics(
        result["task"] or "",
        result["metric"],
        result["direction"],
        _numbers(result[f"{prefix}metrics"]),
        _numbers(own),
        dict(result[f"{prefix}own_undefined"]),
        {
            name: np.array([math.nan if value is None else value for value in clients[f"{prefix}{name}"]], np.float64)
            for name in own
            if f"{prefix}{name}" in clients
        },
        None if confusion is None else np.array(confusion, np.int64),
        None if bins is None else tuple(bins),
        tuple(result.get("evaluation", {}).get("class_names", ())),
        {} if prefix else {name: _bounds(pair) for name, pair in result.get("metric_bounds", {}).items()},
        tuple(map(str, clients.get("name", ()))),
        np.array(clients.get("test_rows", ()), np.int64),
        _read_unseen(result.get("evaluation", {}).get(f"{prefix}unseen")),
    )


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return numbers of a JSON table, in which null stands for NaN."""
    return {name: _number(value) for name, value in values.items()}


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _bounds(pair: Sequence[float | None]) -> tuple[float, float]:
    """Return an interval of a JSON table, in which null stands for NaN."""
    low, high = map(_number, pair)
    return low, high


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_write(path) as file:
        pq.write_table(pa.Table.from_pylist(rows), file)
