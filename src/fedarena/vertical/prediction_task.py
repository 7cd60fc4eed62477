"""Run a prediction task: with the models of all parties in one folder, or as the guest or a host."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.common.files import writing
from fedarena.config.errors import UnknownName
from fedarena.transport.certificates import Identity
from fedarena.transport.channel import ask_all
from fedarena.transport.frames import FrameKind
from fedarena.vertical.align import Matching
from fedarena.vertical.handshake import HostParty, align_guest
from fedarena.vertical.model import GuestModel, HostModel
from fedarena.vertical.party_tables import PartyTable, TableSource
from fedarena.vertical.task_file import METRICS, PartyConnection, TrainingTask

log = logging.getLogger(__name__)


def serve_prediction(
    source: TableSource, connection: PartyConnection, folder: Path, matching: Matching
) -> dict[str, Any]:
    """Answer the guest's prediction requests as a host until the guest is done."""
    from fedarena.vertical.prediction import PredictingHost

    identity = Identity.load(connection.keys)
    model = HostModel.load(folder)
    table = _select_columns(source.load(model.columns), model.columns)
    make = lambda rows: PredictingHost(model, rows.x)
    party = HostParty(table, make, matching, name=identity.name, purpose="predict")
    connection.serve(party, identity)
    return {"party": identity.name, "rows": 0 if party.alignment is None else len(party.alignment.rows)}


def predict(
    source: TableSource, connection: PartyConnection | None, folder: Path, matching: Matching
) -> tuple[dict[str, Any], str]:
    """Return a summary of the predictions with metrics if there are labels, and the predictions as CSV text."""
    from fedarena.vertical.prediction import predict_margins

    trained = TrainingTask.load(folder).source
    if connection is None:
        ids = source.ids or trained.ids
        return _predict_simulated(dataclasses.replace(trained, table=source.table, label=source.label, ids=ids), folder)
    model = GuestModel.load(folder)
    table = dataclasses.replace(source, quantity=trained.quantity, classes=trained.classes).load(model.columns)
    with connection.channels() as channels:
        alignment = align_guest(channels, table, matching, purpose="predict")
        log.info(alignment.summary())
        rows = _select_columns(table.take(alignment.rows), model.columns)
        margins = predict_margins(model, rows.x, channels)
        ask_all(channels, FrameKind.DONE)
    return _format_predictions(model, margins, rows, trained.classes)


def _predict_simulated(source: TableSource, folder: Path) -> tuple[dict[str, Any], str]:
    """Predict with the models of all parties, which a simulated training wrote to one folder."""
    from fedarena.vertical.simulation import SimulatedModel

    model = SimulatedModel.load(folder)
    columns = [model.guest.columns, *(host.columns for host in model.hosts)]
    table = source.load([name for own in columns for name in own])
    margins = model.predict_margins([_select_columns(table, own).x for own in columns])
    return _format_predictions(model.guest, margins, table, source.classes)


def _select_columns(table: PartyTable, names: Sequence[str]) -> PartyTable:
    """Return the columns of the training by name; other columns of the table are left out."""
    missing = [name for name in names if name not in table.names]
    if missing:
        raise UnknownName(
            f"{table.name} has no column '{missing[0]}', which the model was trained on",
            remedy="use a table with the columns of the training, under the same names",
        )
    return dataclasses.replace(
        table, x=table.x[:, [table.names.index(n) for n in names]], names=tuple(names), parties=()
    )


def _format_predictions(
    model: GuestModel, margins: NDArray[np.float32], table: PartyTable, classes: Sequence[str]
) -> tuple[dict[str, Any], str]:
    """Return the summary, and a line for each row: its id, the prediction and the probabilities of classes."""
    from fedarena.trees.objectives import scores
    from fedarena.vertical.prediction import predictions

    values = predictions(model, margins).reshape(len(table), -1)
    ids = table.ids or tuple(map(str, range(len(table))))
    lines = [["id", "prediction", *classes]]
    for name, row in zip(ids, values.tolist(), strict=True):
        numbers = [f"{v:.9g}" for v in row]
        lines.append([name, classes[int(np.argmax(row))], *numbers] if classes else [name, *numbers])
    summary: dict[str, Any] = {"rows": len(table), "trees": len(model.used_trees)}
    if table.y is not None:
        metrics = scores(model.settings, margins, table.y, np.ones(len(table)))
        summary |= {name: metrics[name] for name in METRICS if name in metrics}
    return summary, "".join(",".join(map(_quote, line)) + "\n" for line in lines)


def _quote(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if set(field) & set(',"\n\r') else field


def write_text(path: Path, text: str) -> None:
    """Write a result file, or raise an error that names it."""
    with writing(path, remedy="name a file in a folder that exists"):
        path.write_text(text, encoding="utf-8")
