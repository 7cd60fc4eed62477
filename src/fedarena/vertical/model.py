"""What training leaves at each party: its own half of the trees, as JSON that loads again.

The guest keeps the shape of the trees, its own splits and the leaves; of a host's split it knows the host and a record
number. A host keeps what its records mean. Neither half can predict alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.common.files import atomic_write, writing
from fedarena.config.errors import BadValue, DataBroken, DataMissing
from fedarena.vertical.bins import Bins, Candidates, threshold
from fedarena.vertical.settings import BoostSettings

FORMAT = 1
FILE = "model.json"
GUEST = 0  # owner number of the guest; hosts are 1, 2, ...


@dataclass(frozen=True)
class ColumnSplit:
    """One split of a party's own column: values at or below the threshold go left."""

    column: int
    bin: int
    threshold: float
    missing_left: bool

    def left(self, values: NDArray[np.floating]) -> NDArray[np.bool_]:
        """Which of these values of its column go left."""
        return np.where(np.isnan(values), self.missing_left, values <= self.threshold)


def split_of(bins: Bins, candidates: Candidates, number: int) -> ColumnSplit:
    """What the candidate with this number stands for."""
    column, last = int(candidates.column[number]), int(candidates.bin[number])
    return ColumnSplit(column, last, threshold(bins, column, last), bool(candidates.missing_left[number]))


@dataclass(frozen=True)
class TreeNode:
    """A leaf with a weight for each output, or a split by its owner, whose number there is `record`."""

    rows: int
    owner: int = -1  # -1: a leaf
    record: int = -1
    column: int = -1  # the guest's own column, or the opaque number of the host's
    gain: float = 0.0
    left: int = -1
    right: int = -1
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class Tree:
    """Nodes in order of levels, the root first, and the output it adds to (-1: all of them)."""

    nodes: tuple[TreeNode, ...]
    output: int = -1

    @property
    def gain(self) -> float:
        """Of all splits together."""
        return math.fsum(n.gain for n in self.nodes)


@dataclass(frozen=True)
class GuestModel:
    """The guest's half: settings, trees, its own splits by record number."""

    settings: BoostSettings
    start: float
    trees: tuple[Tree, ...] = ()
    splits: tuple[ColumnSplit, ...] = ()
    hosts: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    best_round: int | None = None  # of early stopping: later trees are not used
    history: tuple[dict[str, Any], ...] = field(default=(), compare=False)  # one entry per tree, as told to the user
    training_id: str = field(
        default="", compare=False
    )  # drawn for the training: its halves, and no others, belong together

    @property
    def finished(self) -> bool:
        """All trees are there, or none of the last ones was an improvement."""
        settings = self.settings
        if len(self.trees) >= settings.total_trees:
            return True
        if settings.early_stopping_rounds is None or self.best_round is None:
            return False
        return len(self.trees) // settings.trees_per_round - self.best_round >= settings.early_stopping_rounds

    @property
    def used_trees(self) -> tuple[Tree, ...]:
        """All, or those up to the best round."""
        if self.best_round is None:
            return self.trees
        return self.trees[: self.best_round * self.settings.trees_per_round]

    def importance(self) -> list[dict[str, Any]]:
        """Gain and number of splits of each column: the guest's by name, a host's by host and opaque number."""
        found: dict[tuple[int, int], list[float]] = {}
        for tree in self.used_trees:
            for node in tree.nodes:
                if node.owner >= 0:
                    found.setdefault((node.owner, node.column), []).append(node.gain)
        rows = [
            {
                "owner": "guest" if owner == GUEST else self.hosts[owner - 1],
                "column": self.columns[column] if owner == GUEST and self.columns else column,
                "gain": math.fsum(gains),
                "splits": len(gains),
            }
            for (owner, column), gains in found.items()
        ]
        return sorted(rows, key=lambda row: -float(str(row["gain"])))

    def save(self, folder: Path) -> None:
        """Into model.json, replaced as a whole."""
        content = {**asdict(self), "settings": self.settings.model_dump()}
        content["splits"] = [_split_json(s) for s in self.splits]
        write_json(folder / FILE, {"format": FORMAT, "party": "guest", **content})

    @classmethod
    def load(cls, folder: Path | str) -> GuestModel:
        """What `save` wrote."""
        content = _read(Path(folder) / FILE, "guest")
        try:
            trees = [Tree(tuple(_node(n) for n in t["nodes"]), int(t["output"])) for t in content["trees"]]
            model = cls(
                settings=BoostSettings(**content["settings"]),
                start=float(content["start"]),
                trees=tuple(trees),
                splits=tuple(_split(s) for s in content["splits"]),
                hosts=tuple(str(h) for h in content["hosts"]),
                columns=tuple(str(c) for c in content["columns"]),
                best_round=None if content["best_round"] is None else int(content["best_round"]),
                history=tuple(dict(h) for h in content["history"]),
                training_id=str(content["training_id"]),
            )
            _check(model)
        except (KeyError, TypeError, ValueError, BadValue) as error:
            raise _broken(Path(folder) / FILE, error) from None
        return model


@dataclass(frozen=True)
class HostModel:
    """A host's half: what its record numbers mean. `trees` tells how many records there were after each tree."""

    name: str = "host"
    columns: tuple[str, ...] = ()
    records: tuple[ColumnSplit, ...] = ()
    trees: tuple[int, ...] = ()
    settings: str = ""  # those of the training, to recognise it again
    table: str = ""  # hash of the rows and columns it was trained on
    training_id: str = field(default="", compare=False)  # as the guest drew it
    begun: int = field(default=0, compare=False)  # trees that guests have begun here, also those that were given up
    finished: bool = field(default=False, compare=False)  # the guest has said so: nothing of it is given up any more

    def upto(self, trees: int) -> HostModel:
        """Without what came after so many trees."""
        kept = self.trees[:trees]
        return replace(self, trees=kept, records=self.records[: kept[-1] if kept else 0])

    def save(self, folder: Path) -> None:
        """Into model.json, replaced as a whole."""
        content = {**asdict(self), "records": [_split_json(s) for s in self.records]}
        write_json(folder / FILE, {"format": FORMAT, "party": "host", **content})

    @classmethod
    def load(cls, folder: Path | str) -> HostModel:
        """What `save` wrote."""
        content = _read(Path(folder) / FILE, "host")
        try:
            model = cls(
                name=str(content["name"]),
                columns=tuple(str(c) for c in content["columns"]),
                records=tuple(_split(s) for s in content["records"]),
                trees=tuple(int(t) for t in content["trees"]),
                settings=str(content["settings"]),
                table=str(content["table"]),
                training_id=str(content["training_id"]),
                begun=int(content["begun"]),
                finished=bool(content["finished"]),
            )
            if any(not 0 <= s.column < max(len(model.columns), 1) for s in model.records):
                raise ValueError("a record names a column that does not exist")
        except (KeyError, TypeError, ValueError) as error:
            raise _broken(Path(folder) / FILE, error) from None
        return model


def _split_json(split: ColumnSplit) -> dict[str, Any]:
    value = split.threshold if math.isfinite(split.threshold) else str(split.threshold)  # JSON knows no infinity
    return {**asdict(split), "threshold": value}


def _split(found: dict[str, Any]) -> ColumnSplit:
    value = float(found["threshold"])
    if math.isnan(value):
        raise ValueError("a threshold is not a number")
    return ColumnSplit(int(found["column"]), int(found["bin"]), value, bool(found["missing_left"]))


def _node(found: dict[str, Any]) -> TreeNode:
    whole = {name: int(found[name]) for name in ("rows", "owner", "record", "column", "left", "right")}
    return TreeNode(**whole, gain=float(found["gain"]), weights=tuple(float(w) for w in found["weights"]))


def _check(model: GuestModel) -> None:
    """What a damaged or forged file could break: children that are not there, or that go round in circles."""
    for tree in model.trees:
        wide = model.settings.outputs if tree.output < 0 else 1
        for i, node in enumerate(tree.nodes):
            if node.owner < 0:
                if len(node.weights) != wide:
                    raise ValueError("a leaf has a wrong number of weights")
                continue
            if not (i < node.left < len(tree.nodes) and i < node.right < len(tree.nodes)):
                raise ValueError("a node has children that are not there")
            if node.owner > len(model.hosts) or (node.owner == GUEST and not 0 <= node.record < len(model.splits)):
                raise ValueError("a node belongs to nobody")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically, and sync it to the disk."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, sync=True) as file:
        file.write(json.dumps(content, allow_nan=False).encode())


def _read(path: Path, party: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise DataMissing(f"there is no model in {path.parent}", remedy="train one first, or name its folder") from None
    except ValueError as error:
        raise _broken(path, error) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _broken(path, ValueError("it is of another format"))
    if content.get("party") != party:
        raise BadValue(
            f"{path} is the half of a {content.get('party')}, not of a {party}",
            remedy=f"name the folder that the {party} keeps",
        )
    return content


def _broken(path: Path, error: Exception) -> DataBroken:
    return DataBroken(f"{path} does not hold a model: {error}", remedy="train again, or take it from a copy")


def joined(guest: GuestModel, hosts: Sequence[HostModel]) -> list[list[tuple[int, ColumnSplit] | None]]:
    """For each tree and node: (owner, split), or None for a leaf. Only a simulation, which has all halves, can do that."""

    def split(node: TreeNode) -> tuple[int, ColumnSplit] | None:
        if node.owner < 0:
            return None
        known = guest.splits if node.owner == GUEST else hosts[node.owner - 1].records
        return node.owner, known[node.record]

    return [[split(node) for node in tree.nodes] for tree in guest.trees]
