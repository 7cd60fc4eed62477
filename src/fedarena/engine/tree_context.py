"""The context of an experiment whose clients grow trees: raw columns in place of batches, a forest in place of a network."""

from __future__ import annotations

import zlib
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from fedarena.algorithms.tree_algorithm import TreeAlgorithm
from fedarena.config.errors import BadValue
from fedarena.config.settings_tables import Uplink
from fedarena.data.dataset import Rows
from fedarena.data.raw_columns import raw_columns
from fedarena.engine.context import EVALUATION_ROWS, ExperimentContext
from fedarena.models.losses import find_loss
from fedarena.models.task import Cut, Keep, Scores
from fedarena.models.tree_task import TreeTask
from fedarena.trees.boosted_rows import BoostedRows
from fedarena.trees.boosting import base_margin
from fedarena.trees.forest import HEADER, Forest, MarginCache

NO_LIMIT = 1 << 62  # bytes: every response of a client counts as one upload, however many sums it holds


class ClientRows(dict[int, BoostedRows]):
    """The rows of clients, read when they are first needed."""

    def __init__(self, context: TreeContext) -> None:
        super().__init__()
        self.context = context

    def __missing__(self, client: int) -> BoostedRows:
        self[client] = self.context.read_rows(self.context.partition.clients[client])
        return self[client]


class TreeContext(ExperimentContext):
    """The rows and the forest of an experiment, in this process."""

    algorithm: TreeAlgorithm

    @cached_property
    def columns(self) -> NDArray[np.float32]:
        """Return the raw columns of all rows."""
        return raw_columns(self.data)

    @cached_property
    def boosted_rows(self) -> dict[int, BoostedRows]:
        """Return the rows of each client."""
        return ClientRows(self)

    def read_rows(self, rows: Rows) -> BoostedRows:
        """Return these rows for growing trees."""
        return BoostedRows(self.columns[rows], self.data.y[rows].astype(np.float64))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the number of raw columns."""
        return (self.columns.shape[1],)

    @property
    def upload_bytes(self) -> int:
        """Return more than any response has: each counts as one upload."""
        return NO_LIMIT

    def _build(self) -> TreeTask:
        self._check()
        algorithm, data = self.algorithm, self.data
        loss = find_loss(data.task, None)
        if data.task == "regression":
            base = self.label_scale[0] if algorithm.base_score is None else algorithm.base_score
            base = float(np.float32(base))
            top = self._furthest_label(base) if algorithm.label_max is None else algorithm.label_max + abs(base)
            forest = Forest.empty("squared_error", 1, algorithm.depth, base, top * (1 + 1e-6))
        elif data.classes == 2:
            base = float(base_margin("logistic", 0.5 if algorithm.base_score is None else algorithm.base_score))
            forest = Forest.empty("logistic", 1, algorithm.depth, base)
        else:
            forest = Forest.empty("softmax", data.classes, algorithm.depth, algorithm.base_score or 0.0)
        return TreeTask(forest, loss, self.label_scale)

    def _furthest_label(self, base: float) -> float:
        """Return the largest distance of a training label from the first prediction."""
        labels = self.data.y[self.owners.train_rows].astype(np.float64)
        return float(np.abs(labels - base).max(initial=0.0))

    def _check(self) -> None:
        """Refuse, by name, settings that trees do not have."""
        exp, name, data = self.experiment, self.experiment.algorithm.name, self.data
        base, top = self.algorithm.base_score, self.algorithm.label_max
        labels = data.y[self.owners.train_rows]  # no numbers at the server of a real federation
        problems: dict[str, tuple[bool, str]] = {
            "data": (
                data.task not in ("classification", "regression"),
                f"{name} grows trees for classes and for numbers, not for the task '{data.task}'",
            ),
            "data.weight": (data.weight is not None, f"{name} does not weigh samples, and the data set has weights"),
            "data.name": (self.is_augmented, f"{name} grows trees on the columns, which augmentation would change"),
            "partition": (self.owners.noise is not None, f"{name} grows trees on raw columns, without feature noise"),
            "attack": (exp.attack is not None, f"{name} sends sums and trees, and attacks are made for updates"),
            "loss": (exp.loss is not None, f"{name} has the loss of its task, not '{exp.loss}'"),
            "algorithm.label_max": (
                top is not None and data.task == "regression" and bool((np.abs(labels) > top).any()),
                "a label is larger than label_max, which was agreed as the largest",
            ),
            "algorithm.base_score": (
                base is not None and data.task == "classification" and data.classes == 2 and not 0 < base < 1,
                f"base_score = {base} is no probability",
            ),
        }
        uplink = exp.uplink
        if isinstance(uplink, Uplink):
            for key in ("clip", "noise", "top_k", "quantise"):
                problems[f"uplink.{key}"] = (
                    bool(getattr(uplink, key)),
                    f"{name} sends exact sums of integers, which uplink.{key} would change",
                )
        for where, (is_wrong, what) in problems.items():
            if is_wrong:
                raise BadValue(
                    what, remedy=f"leave {where} out, or choose an algorithm for networks, such as fedavg", where=where
                )

    def evaluate(
        self,
        rows: Rows,
        noise: NDArray[np.float32] | None = None,
        keep: Keep = "",
        cut: Cut | None = None,
        triggered: bool = False,
    ) -> Scores:
        """Return the scores of the loaded forest on these rows; only trees that are new to them are computed."""
        task, parts = self.task, [Scores.of_nothing()]
        assert isinstance(task, TreeTask)
        forest, vector = task.forest, task.module.forest.detach().numpy()
        family = zlib.crc32(np.ascontiguousarray(vector[: HEADER + forest.trees.shape[1] * 4]).data)
        for start in range(0, len(rows), EVALUATION_ROWS):
            piece = rows[start : start + EVALUATION_ROWS]
            key = (family, piece.tobytes())
            if key not in self._margins:
                self._margins[key] = MarginCache(np.ascontiguousarray(self.columns[piece]))
            outputs = task.outputs(self._margins[key].margins(forest))
            parts.append(task.score(outputs, self._y[torch.from_numpy(piece.copy())], keep, cut))
        return Scores.joined(parts)

    @cached_property
    def _margins(self) -> dict[tuple[int, bytes], MarginCache]:
        """Return the margins of rows that were evaluated, by the first tree of the forest and the rows."""
        return {}
