"""Prediction: the guest walks all trees at once and asks the owners for directions, at most `depth` times a batch."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.transport import fields as read
from fedarena.transport.channel import Channel
from fedarena.transport.frames import Fields, FrameKind, refused
from fedarena.vertical.bins import checked_columns
from fedarena.vertical.model import GUEST, ColumnSplit, GuestModel, HostModel
from fedarena.vertical.objective import objective_of

BATCH = 1 << 21  # (row, tree) pairs that are walked at once
Single = NDArray[np.float32]


class PredictingHost:
    """A host that has its half of a model, and columns of rows to predict."""

    def __init__(self, model: HostModel, x: NDArray[np.floating]) -> None:
        self.model = model
        self.x = checked_columns(x, model.columns, model.name)
        if self.x.shape[1] != len(model.columns):
            raise BadValue(
                f"{model.name} was trained on {len(model.columns)} columns, these rows have {self.x.shape[1]}",
                remedy="give the same columns in the same order",
            )

    def answer(self, kind: FrameKind, fields: dict[str, Any], tree: int, level: int) -> Fields:
        """Directions, and nothing else."""
        if kind is FrameKind.HELLO:
            return {"name": self.model.name, "rows": len(self.x), "trees": len(self.model.trees)}
        if kind is FrameKind.PREDICT_START:
            return self._start(fields)
        if kind is FrameKind.PREDICT_STEP:
            return self._step(fields)
        if kind in (FrameKind.PREDICT_END, FrameKind.DONE):
            return {}
        raise refused(f"a host that predicts does not answer {kind.name}")

    def _start(self, fields: dict[str, Any]) -> Fields:
        if read.whole(fields, "rows") != len(self.x):
            raise BadValue(
                f"this host has {len(self.x)} rows, the guest {fields['rows']}", remedy="align the rows first"
            )
        if read.whole(fields, "trees") > len(self.model.trees):
            raise BadValue(
                f"the guest's model has {fields['trees']} trees, this host's {len(self.model.trees)}",
                remedy="use the halves of one training",
            )
        if read.text(fields, "training_id") != self.model.training_id:
            raise BadValue(
                "the guest's half of the model is of another training than this host's",
                remedy="use the halves of one training",
            )
        return {}

    def _step(self, fields: dict[str, Any]) -> Fields:
        known = len(self.model.records)
        records = read.numbers(fields, "records", 0, known - 1, most=known)
        rows = read.numbers(fields, "rows", 0, len(self.x) - 1, most=max(BATCH, len(self.model.trees)))
        starts = read.starts(fields, "starts", len(records), len(rows))
        return {"left": read.as_bits(_directions(self.model.records, self.x, records, starts, rows))}


class _Walk:
    """All used trees as flat arrays: node i of tree t is at first[t] + i."""

    def __init__(self, model: GuestModel) -> None:
        trees = model.used_trees
        nodes = [n for t in trees for n in t.nodes]
        self.first = np.cumsum([0, *(len(t.nodes) for t in trees)])[:-1]
        offset = np.repeat(self.first, [len(t.nodes) for t in trees]) if trees else self.first
        self.owner = np.array([n.owner for n in nodes], np.int64)
        self.record = np.array([n.record for n in nodes], np.int64)
        self.left = np.array([n.left for n in nodes], np.int64) + offset
        self.right = np.array([n.right for n in nodes], np.int64) + offset
        wide = model.settings.outputs
        self.weights = np.zeros((len(nodes), wide), np.float32)
        outputs = [t.output for t in trees for _ in t.nodes]
        for i, (node, output) in enumerate(zip(nodes, outputs, strict=True)):
            if node.owner < 0:
                self.weights[i, slice(None) if output < 0 else slice(output, output + 1)] = node.weights


def predict_margins(model: GuestModel, x: NDArray[np.floating], channels: Sequence[Channel] = ()) -> Single:
    """The margins of these rows, [rows, outputs]; each host answers for the same rows in the same order."""
    table = checked_columns(x, model.columns or None, "the guest")
    if tuple(c.name for c in channels) != model.hosts:
        raise BadValue(
            f"the model was trained with hosts {', '.join(model.hosts) or 'none'}, asked are "
            f"{', '.join(c.name for c in channels) or 'none'}",
            remedy="connect the same hosts in the same order",
        )
    for channel in channels:
        question = {"rows": len(table), "trees": len(model.trees), "training_id": model.training_id}
        channel.ask(FrameKind.PREDICT_START, question)
    walk = _Walk(model)
    margins = np.full((len(table), model.settings.outputs), model.start, np.float32)
    step = max(BATCH // max(len(walk.first), 1), 1)
    for start in range(0, len(table) if len(walk.first) else 0, step):
        rows = np.arange(start, min(start + step, len(table)))
        leaves = _leaves(model, walk, table, rows, channels)
        for tree in range(leaves.shape[1]):  # one tree after the other, as in training: the same rounding
            margins[rows] += walk.weights[leaves[:, tree]]
    for channel in channels:
        channel.ask(FrameKind.PREDICT_END, {})
    return margins


def predictions(model: GuestModel, margins: Single) -> Single:
    """Probabilities, or values."""
    return objective_of(model.settings).predictions(margins)


def _leaves(
    model: GuestModel, walk: _Walk, table: NDArray[np.float64], rows: NDArray[np.int64], channels: Sequence[Channel]
) -> NDArray[np.int64]:
    """[rows, trees]: the leaf of each, as a place in `walk`."""
    at = np.tile(walk.first, (len(rows), 1)).reshape(-1)
    row = np.repeat(rows, len(walk.first))
    with ThreadPoolExecutor(max(len(channels), 1)) as pool:
        while len(going := np.flatnonzero(walk.owner[at] >= 0)):
            left = np.zeros(len(going), bool)
            asked = []
            for owner in np.unique(walk.owner[at[going]]).tolist():
                mine = np.flatnonzero(walk.owner[at[going]] == owner)
                record = walk.record[at[going[mine]]]
                order = np.argsort(record, kind="stable")
                mine, record = mine[order], record[order]
                records, starts = np.unique(record, return_index=True)
                ends = np.append(starts, len(record))
                where = row[going[mine]]
                if owner == GUEST:
                    left[mine] = _directions(model.splits, table, records, ends, where)
                else:
                    asked.append((mine, pool.submit(_ask, channels[owner - 1], records, ends, where)))
            for mine, answer in asked:
                left[mine] = answer.result()
            at[going] = np.where(left, walk.left[at[going]], walk.right[at[going]])
    return at.reshape(len(rows), -1)


def _directions(
    splits: Sequence[ColumnSplit],
    table: NDArray[np.float64],
    records: NDArray[np.int64],
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Which of these rows each split sends left; of a row only the one column is read."""
    left = [np.zeros(0, bool)]
    for record, start, end in zip(records.tolist(), ends[:-1], ends[1:], strict=True):
        left.append(splits[record].left(table[rows[start:end], splits[record].column]))
    return np.concatenate(left)


def _ask(
    channel: Channel, records: NDArray[np.int64], ends: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.bool_]:
    question = {"records": records.astype(np.int32), "starts": ends.astype(np.int64), "rows": rows.astype(np.int32)}
    return read.bits(channel.ask(FrameKind.PREDICT_STEP, question), "left", len(rows))
