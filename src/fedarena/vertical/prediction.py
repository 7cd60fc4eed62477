"""Predict: the guest walks all trees at once and asks the owners of splits for directions, at most `depth` times."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.transport import fields as read
from fedarena.transport.channel import Channel, FrameHandler, ask_all
from fedarena.transport.frames import Fields, FrameKind
from fedarena.trees.bins import ColumnSplit, check_columns
from fedarena.trees.objectives import make_objective
from fedarena.vertical.model import GUEST, GuestModel, HostModel

BATCH = 1 << 21  # (row, tree) pairs that are processed at once
Float32Array = NDArray[np.float32]


class PredictingHost(FrameHandler):
    """A host with its part of a model, and its columns of the rows to predict; it answers directions, and nothing else."""

    activity = "predicts"

    def __init__(self, model: HostModel, x: NDArray[np.floating]) -> None:
        self.model = model
        self.x = check_columns(x, model.columns, model.name)
        if self.x.shape[1] != len(model.columns):
            raise BadValue(
                f"{model.name} was trained on {len(model.columns)} columns, these rows have {self.x.shape[1]}",
                remedy="use the same columns in the same order",
            )

    def _on_hello(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        return {"name": self.model.name, "rows": len(self.x), "trees": len(self.model.trees)}

    def _on_predict_end(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        return {}

    _on_done = _on_predict_end

    def _on_predict_start(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        if read.whole(fields, "rows") != len(self.x):
            raise BadValue(
                f"this host has {len(self.x)} rows, the guest {fields['rows']}", remedy="align the rows first"
            )
        if read.whole(fields, "trees") > len(self.model.trees):
            raise BadValue(
                f"the guest's model has {fields['trees']} trees, this host's {len(self.model.trees)}",
                remedy="use the models of one training",
            )
        if read.text(fields, "training_id") != self.model.training_id:
            raise BadValue(
                "the guest's model is from another training than this host's",
                remedy="use the models of one training",
            )
        return {}

    def _on_predict_step(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        known = len(self.model.records)
        records = read.numbers(fields, "records", 0, known - 1, most=known)
        rows = read.numbers(fields, "rows", 0, len(self.x) - 1, most=max(BATCH, len(self.model.trees)))
        starts = read.starts(fields, "starts", len(records), len(rows))
        return {"left": read.as_bits(_directions(self.model.records, self.x, records, starts, rows))}


class _FlatTrees:
    """All used trees as flat arrays: node i of tree t has the index first[t] + i."""

    def __init__(self, model: GuestModel) -> None:
        trees = model.used_trees
        nodes = [n for t in trees for n in t.nodes]
        self.first = np.cumsum([0, *(len(t.nodes) for t in trees)])[:-1]
        offset = np.repeat(self.first, [len(t.nodes) for t in trees]) if trees else self.first
        self.owner = np.array([n.owner for n in nodes], np.int64)
        self.record = np.array([n.record for n in nodes], np.int64)
        self.left = np.array([n.left for n in nodes], np.int64) + offset
        self.right = np.array([n.right for n in nodes], np.int64) + offset
        self.weights = np.zeros((len(nodes), model.settings.outputs), np.float32)
        outputs = [t.output for t in trees for _ in t.nodes]
        for i, (node, output) in enumerate(zip(nodes, outputs, strict=True)):
            if node.owner < 0:
                self.weights[i, slice(None) if output < 0 else slice(output, output + 1)] = node.weights


def predict_margins(model: GuestModel, x: NDArray[np.floating], channels: Sequence[Channel] = ()) -> Float32Array:
    """Return the margins of these rows, [rows, outputs]; each host must have the same rows in the same order."""
    table = check_columns(x, model.columns or None, "the guest")
    if tuple(c.name for c in channels) != model.hosts:
        raise BadValue(
            f"the model was trained with hosts {', '.join(model.hosts) or 'none'}, connected are "
            f"{', '.join(c.name for c in channels) or 'none'}",
            remedy="connect the same hosts in the same order",
        )
    request = {"rows": len(table), "trees": len(model.trees), "training_id": model.training_id}
    ask_all(channels, FrameKind.PREDICT_START, request)
    trees = _FlatTrees(model)
    margins = np.full((len(table), model.settings.outputs), model.start, np.float32)
    step = max(BATCH // max(len(trees.first), 1), 1)
    for start in range(0, len(table) if len(trees.first) else 0, step):
        rows = np.arange(start, min(start + step, len(table)))
        leaves = _find_leaves(model, trees, table, rows, channels)
        for tree in range(leaves.shape[1]):  # one tree after the other, as in training: the same rounding
            margins[rows] += trees.weights[leaves[:, tree]]
    ask_all(channels, FrameKind.PREDICT_END)
    return margins


def predictions(model: GuestModel, margins: Float32Array) -> Float32Array:
    """Return probabilities of classes, or the values of a regression."""
    return make_objective(model.settings).predictions(margins)


def _find_leaves(
    model: GuestModel,
    trees: _FlatTrees,
    table: NDArray[np.float64],
    rows: NDArray[np.int64],
    channels: Sequence[Channel],
) -> NDArray[np.int64]:
    """Return the leaf of each row in each tree as an index of the flat trees, [rows, trees]."""
    node = np.tile(trees.first, (len(rows), 1)).reshape(-1)
    row = np.repeat(rows, len(trees.first))
    with ThreadPoolExecutor(max(len(channels), 1)) as pool:
        while len(going := np.flatnonzero(trees.owner[node] >= 0)):
            left = np.zeros(len(going), bool)
            requests = []
            for owner in np.unique(trees.owner[node[going]]).tolist():
                mine = np.flatnonzero(trees.owner[node[going]] == owner)
                record = trees.record[node[going[mine]]]
                order = np.argsort(record, kind="stable")
                mine, record = mine[order], record[order]
                records, starts = np.unique(record, return_index=True)
                ends = np.append(starts, len(record))
                where = row[going[mine]]
                if owner == GUEST:
                    left[mine] = _directions(model.splits, table, records, ends, where)
                else:
                    requests.append((mine, pool.submit(_request_directions, channels[owner - 1], records, ends, where)))
            for mine, request in requests:
                left[mine] = request.result()
            node[going] = np.where(left, trees.left[node[going]], trees.right[node[going]])
    return node.reshape(len(rows), -1)


def _directions(
    splits: Sequence[ColumnSplit],
    table: NDArray[np.float64],
    records: NDArray[np.int64],
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return which of these rows each split sends left; only the column of the split is read."""
    left = [np.zeros(0, bool)]
    for record, start, end in zip(records.tolist(), ends[:-1], ends[1:], strict=True):
        left.append(splits[record].left(table[rows[start:end], splits[record].column]))
    return np.concatenate(left)


def _request_directions(
    channel: Channel, records: NDArray[np.int64], ends: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.bool_]:
    request = {"records": records.astype(np.int32), "starts": ends.astype(np.int64), "rows": rows.astype(np.int32)}
    return read.bits(channel.ask(FrameKind.PREDICT_STEP, request), "left", len(rows))
