"""The model that training leaves at each party, stored as JSON: the guest's part and the part of each host.

The guest stores the shape of the trees, its own splits and the leaves; of a host's split it knows the host and a record
number. A host stores the splits of its record numbers. No party can predict alone.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import TypeAdapter

from fedarena.common.files import atomic_write, writing
from fedarena.config.errors import BadValue, DataBroken, DataMissing
from fedarena.trees.bins import ColumnSplit
from fedarena.vertical.settings import BoostSettings

FORMAT = 1
FILE = "model.json"
GUEST = 0  # owner number of the guest; hosts are 1, 2, ...


@dataclass(frozen=True)
class TreeNode:
    """A leaf with a weight for each output, or a split by its owner, which knows it by the number `record`."""

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
    """Nodes in order of levels, the root first, and the output that the tree adds to (-1: all outputs)."""

    nodes: tuple[TreeNode, ...]
    output: int = -1

    @property
    def gain(self) -> float:
        """The sum of the gains of all splits."""
        return math.fsum(n.gain for n in self.nodes)


@dataclass(frozen=True)
class PartyModel(ABC):
    """The part of a model that one party stores in model.json."""

    party: ClassVar[str]

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError if a file with this content is damaged or forged."""

    def save(self, folder: Path) -> None:
        """Write the model to model.json atomically."""
        content = TypeAdapter(type(self)).dump_python(self)
        write_json(folder / FILE, {"format": FORMAT, "party": self.party, **content})

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read the model that `save` wrote to this folder."""
        path = Path(folder) / FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(content, dict) or content.get("format") != FORMAT:
                raise ValueError("its format is unknown")
            found = content.get("party")
            if found == cls.party:
                model = TypeAdapter(cls).validate_python({f.name: content[f.name] for f in fields(cls)})
                model.check()
                return model
        except OSError:
            remedy = "train one first, or name its folder"
            raise DataMissing(f"there is no model in {path.parent}", remedy=remedy) from None
        except (KeyError, TypeError, ValueError, BadValue) as error:
            remedy = "train again, or restore it from a copy"
            raise DataBroken(f"{path} does not hold a model: {error}", remedy=remedy) from None
        what = f"{path} is the model of a {found}, not of a {cls.party}"
        raise BadValue(what, remedy=f"name the folder of the {cls.party}")


@dataclass(frozen=True)
class GuestModel(PartyModel):
    """The guest's part of a model: settings, trees and its own splits by record number."""

    party = "guest"

    settings: BoostSettings
    start: float
    trees: tuple[Tree, ...] = ()
    splits: tuple[ColumnSplit, ...] = ()
    hosts: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    best_round: int | None = None  # of early stopping: later trees are not used
    history: tuple[dict[str, Any], ...] = field(default=(), compare=False)  # one `TreeRecord` per tree
    training_id: str = field(default="", compare=False)  # random: only models with the same id belong together

    @property
    def finished(self) -> bool:
        """Whether all trees are there, or early stopping has ended the training."""
        settings = self.settings
        if len(self.trees) >= settings.total_trees:
            return True
        if settings.early_stopping_rounds is None or self.best_round is None:
            return False
        return len(self.trees) // settings.trees_per_round - self.best_round >= settings.early_stopping_rounds

    @property
    def used_trees(self) -> tuple[Tree, ...]:
        """The trees that predict: all, or those up to the best round."""
        if self.best_round is None:
            return self.trees
        return self.trees[: self.best_round * self.settings.trees_per_round]

    def importance(self) -> list[dict[str, Any]]:
        """Return gain and number of splits per column: the guest's by name, a host's by host and opaque number."""
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

    def check(self) -> None:
        """Refuse trees of a damaged or forged file: children that do not exist, or cycles."""
        _check_thresholds(self.splits)
        for tree in self.trees:
            outputs = self.settings.outputs if tree.output < 0 else 1
            for i, node in enumerate(tree.nodes):
                if node.owner < 0:
                    if len(node.weights) != outputs:
                        raise ValueError("a leaf has a wrong number of weights")
                    continue
                if not (i < node.left < len(tree.nodes) and i < node.right < len(tree.nodes)):
                    raise ValueError("a node has children that do not exist")
                if node.owner > len(self.hosts) or (node.owner == GUEST and not 0 <= node.record < len(self.splits)):
                    raise ValueError("a node belongs to no party")


@dataclass(frozen=True)
class HostModel(PartyModel):
    """A host's part of a model: the splits of its record numbers, and the number of records after each tree."""

    party = "host"

    name: str = "host"
    columns: tuple[str, ...] = ()
    records: tuple[ColumnSplit, ...] = ()
    trees: tuple[int, ...] = ()
    settings: str = ""  # of the training, as JSON, to recognise it after a restart
    table: str = ""  # hash of the rows and columns of the training
    training_id: str = field(default="", compare=False)  # chosen by the guest
    begun: int = field(default=0, compare=False)  # trees that guests have started here, also discarded ones
    finished: bool = field(default=False, compare=False)  # the guest has ended the training: no tree is discarded

    def first_trees(self, trees: int) -> HostModel:
        """Return the model without the trees after this number and their records."""
        ends = self.trees[:trees]
        return replace(self, trees=ends, records=self.records[: ends[-1] if ends else 0])

    def check(self) -> None:
        """Refuse records of a damaged or forged file."""
        _check_thresholds(self.records)
        if any(not 0 <= s.column < max(len(self.columns), 1) for s in self.records):
            raise ValueError("a record names a column that does not exist")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically, and sync it to the disk."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, sync=True) as file:
        file.write(json.dumps(content, allow_nan=False).encode())


def _check_thresholds(splits: Sequence[ColumnSplit]) -> None:
    if any(math.isnan(split.threshold) for split in splits):
        raise ValueError("a threshold is not a number")


def join_models(guest: GuestModel, hosts: Sequence[HostModel]) -> list[list[tuple[int, ColumnSplit] | None]]:
    """Return (owner, split) for each tree and node, None for a leaf; only a simulation has the models of all parties."""

    def split(node: TreeNode) -> tuple[int, ColumnSplit] | None:
        if node.owner < 0:
            return None
        known = guest.splits if node.owner == GUEST else hosts[node.owner - 1].records
        return node.owner, known[node.record]

    return [[split(node) for node in tree.nodes] for tree in guest.trees]
