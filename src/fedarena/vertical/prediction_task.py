"""A prediction as a user asks for it: with all halves of a model in one place, or as the guest or a host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import CannotWrite, UnknownName
from fedarena.transport.certificates import Identity
from fedarena.transport.frames import FrameKind
from fedarena.vertical.handshake import HostParty, Matching, align_guest
from fedarena.vertical.host_service import common, serve
from fedarena.vertical.model import GuestModel, HostModel
from fedarena.vertical.party_tables import PartyTable
from fedarena.vertical.task_file import METRICS, PartyConnection, Say, TableSource, TrainingTask


def serve_prediction(
    source: TableSource, line: PartyConnection, folder: Path, matching: Matching, say: Say
) -> dict[str, Any]:
    """Give directions until the guest is done."""
    from fedarena.vertical.prediction import PredictingHost

    identity = Identity.load(line.keys)
    model = HostModel.load(folder)
    table = _same_columns(source.load(model.columns), model.columns)
    how: dict[str, Any] = {"name": identity.name, "purpose": "predict", "say": say}
    party = HostParty(table, lambda rows: PredictingHost(model, rows.x), matching, **how)
    serve(party, line, identity, say)
    return {"party": identity.name, "rows": 0 if party.alignment is None else len(party.alignment.rows)}


def predict(
    source: TableSource, line: PartyConnection | None, folder: Path, matching: Matching, say: Say
) -> tuple[dict[str, Any], str]:
    """Predictions with what can be said of them, and as lines of CSV."""
    from fedarena.vertical.prediction import predict_margins

    trained = TrainingTask.load(folder).source
    if line is None:
        ids = source.ids or trained.ids
        return _predict_simulated(dataclasses.replace(trained, table=source.table, label=source.label, ids=ids), folder)
    model = GuestModel.load(folder)
    table = dataclasses.replace(source, quantity=trained.quantity, classes=trained.classes).load(model.columns)
    with line.channels(say) as channels:
        found = align_guest(channels, table, matching, purpose="predict", say=say)
        say(common(found))
        rows = _same_columns(table.rows(found.rows), model.columns)
        margins = predict_margins(model, rows.x, channels)
        for channel in channels:
            channel.ask(FrameKind.DONE)
    return _predicted(model, margins, rows, trained.classes)


def _predict_simulated(source: TableSource, folder: Path) -> tuple[dict[str, Any], str]:
    """All halves are in one folder, as `train` left them."""
    from fedarena.vertical.simulation import Simulated

    model = Simulated.load(folder)
    halves = [model.guest.columns, *(host.columns for host in model.hosts)]
    table = source.load([name for half in halves for name in half])
    margins = model.predict_margins([_same_columns(table, half).x for half in halves])
    return _predicted(model.guest, margins, table, source.classes)


def _same_columns(table: PartyTable, names: Sequence[str]) -> PartyTable:
    """The columns of the training, by name; others that a table may have are left out."""
    missing = [name for name in names if name not in table.names]
    if missing:
        raise UnknownName(
            f"{table.name} has no column '{missing[0]}', which the model was trained on",
            remedy="give the columns of the training, under the same names",
        )
    return dataclasses.replace(
        table, x=table.x[:, [table.names.index(n) for n in names]], names=tuple(names), parties=()
    )


def _predicted(
    model: GuestModel, margins: NDArray[np.float32], table: PartyTable, classes: Sequence[str]
) -> tuple[dict[str, Any], str]:
    """A line for each row: its id, the prediction and, of classes, their probabilities."""
    from fedarena.vertical.objective import scores
    from fedarena.vertical.prediction import predictions

    values = predictions(model, margins).reshape(len(table), -1)
    ids = table.ids or tuple(map(str, range(len(table))))
    lines = [["id", "prediction", *classes]]
    for name, row in zip(ids, values.tolist(), strict=True):
        numbers = [f"{v:.9g}" for v in row]
        lines.append([name, classes[int(np.argmax(row))], *numbers] if classes else [name, *numbers])
    found: dict[str, Any] = {"rows": len(table), "trees": len(model.used_trees)}
    if table.y is not None:
        judged = scores(model.settings, margins, table.y, np.ones(len(table)))
        found |= {name: judged[name] for name in METRICS if name in judged}
    return found, "".join(",".join(map(_quoted, line)) + "\n" for line in lines)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"\n\r') else name


def write_text(path: Path, text: str) -> None:
    """A result file."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error}", remedy="name a file in a folder that is there") from None
