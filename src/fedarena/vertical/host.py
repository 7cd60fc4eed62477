"""A host: it owns columns and no labels, sums ciphertexts that it cannot read, and does not reveal its splits.

It answers one request after the other and has no thread, no clock and no connection: the same object serves a simulation
and a network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, ResumeMismatch
from fedarena.transport import fields as read
from fedarena.transport.channel import FrameHandler
from fedarena.transport.frames import Fields, refused
from fedarena.trees.bins import BinnedColumns, check_columns
from fedarena.trees.fixed_point import SLOT
from fedarena.vertical.crypto.keys import PublicKey
from fedarena.vertical.crypto.plain import PlainPublicKey
from fedarena.vertical.host_tree import HostTree
from fedarena.vertical.model import FILE, HostModel
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.slots import candidate_bits

SPARE_TREES = 20  # trees that may be started beyond those allowed: a tree whose host was lost is started again


@dataclass(frozen=True)
class HostPolicy:
    """The limits that a host sets to a guest; requests beyond them are refused before the training or when they come."""

    most_trees: int = 10_000  # over the life of a folder, with SPARE_TREES more that were discarded
    most_depth: int = 12
    most_bits: int = 2 * SLOT  # that a guest may read of each candidate: the slots of one g and one h
    min_leaf_rows: int = 1  # nodes with fewer rows of the tree are not summed, and no split makes them
    min_bin_count: int = 1  # bins with fewer training rows are not made
    plain: bool = False  # simulation without encryption

    def check(self, settings: BoostSettings) -> None:
        """Refuse settings that this host does not allow."""
        most = {"total_trees": self.most_trees, "depth": self.most_depth}
        least = {"min_leaf_rows": self.min_leaf_rows, "min_bin_count": self.min_bin_count}
        for name, limit in {**most, **least}.items():
            value = getattr(settings, name)
            if value > limit if name in most else value < limit:
                raise BadValue(
                    f"{name} = {value} is not allowed here",
                    remedy=f"choose {limit} or {'less' if name in most else 'more'}",
                    where=name,
                )
        bits = candidate_bits(settings, settings.key_bits - 1)
        if bits > self.most_bits:
            raise BadValue(
                f"these settings let a guest read {bits} bits of each candidate, this host allows {self.most_bits}",
                remedy=f"train with compression and without multi_output, or start this host with --most-bits {bits}",
            )


@dataclass(frozen=True)
class HostSession:
    """A training that a guest has set up: its settings, the training rows and this host's columns in bins."""

    settings: BoostSettings
    training: NDArray[np.bool_]
    columns: BinnedColumns


class Host(FrameHandler):
    """One host during training; `x` are its columns, in the common order of rows."""

    def __init__(
        self,
        x: NDArray[np.floating],
        names: Sequence[str] | None = None,
        *,
        name: str = "host",
        folder: Path | str | None = None,
        policy: HostPolicy | None = None,
    ) -> None:
        self.x = check_columns(x, names, name)
        if not self.x.shape[1]:
            raise BadValue(f"{name} has no columns", remedy="leave this party out of the training")
        self.folder = None if folder is None else Path(folder)
        self.policy = policy or HostPolicy()
        self._columns = tuple(names) if names else tuple(f"x{i}" for i in range(self.x.shape[1]))
        self.model = HostModel(name=name, columns=self._columns)
        if self.folder is not None and (self.folder / FILE).exists():
            self.model = HostModel.load(self.folder)
        self._session: HostSession | None = None
        self._public: PublicKey | PlainPublicKey | None = None
        self._tree: HostTree | None = None

    def _on_rows(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        return self._current_tree(tree).add_rows(fields)

    def _on_level(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        return self._current_tree(tree).sum_candidates(fields, level)

    def _on_split(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        return self._current_tree(tree).split(fields, level, self.model.records)

    def _reset(self) -> None:
        self._tree = self._public = self._session = None

    def _update_model(self, **changes: Any) -> None:
        self.model = replace(self.model, **changes)
        if self.folder is not None:
            self.model.save(self.folder)

    def _on_hello(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        self._reset()
        return {"name": self.model.name, "rows": len(self.x), "trees": len(self.model.trees)}

    def _on_setup(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        settings = BoostSettings.from_json(read.text(fields, "settings"))
        self.policy.check(settings)
        if read.whole(fields, "rows") != len(self.x):
            raise BadValue(
                f"this host has {len(self.x)} rows, the guest {fields['rows']}", remedy="align the rows first"
            )
        training = read.bits(fields, "training", len(self.x))
        self._reset()
        self._resume(settings, training, read.whole(fields, "trees"), read.text(fields, "training_id"))
        columns = BinnedColumns.of(self.x, training, settings.bins, settings.min_bin_count)
        self._session = HostSession(settings, training, columns)
        return {"candidates": len(columns.candidates)}

    def _resume(self, settings: BoostSettings, training: NDArray[np.bool_], trees: int, training_id: str) -> None:
        """Start a training, or continue it after the guest's trees; at most one tree that it could not write is lost."""
        table = hashlib.sha256(self.x.tobytes() + training.tobytes()).hexdigest()
        have = len(self.model.trees)
        if trees > have:
            raise ResumeMismatch(
                f"this host has finished {have} trees, the guest {trees}",
                remedy="start this host with the folder of that training, or start a new training",
            )
        if have and training_id != self.model.training_id:
            raise ResumeMismatch(
                f"this host's folder holds {have} trees of another training",
                remedy="start this host with another --out, or resume that training",
            )
        if have and (
            BoostSettings.from_json(self.model.settings) != settings
            or (self.model.table, self.model.columns) != (table, self._columns)
        ):
            raise ResumeMismatch(
                "this host's folder belongs to a training with other settings or other rows",
                remedy="resume with the same settings and tables, or start a new training in another folder",
            )
        if trees < have - (0 if self.model.finished else 1):
            raise ResumeMismatch(
                f"the guest has {trees} trees, this host {have}: an interruption loses at most one",
                remedy="resume with the guest's last model, or start a new training in another folder",
            )
        self.model = replace(
            self.model.first_trees(trees),
            columns=self._columns,
            settings=settings.to_json(),
            table=table,
            training_id=training_id,
        )

    def _on_public_key(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        settings = self._current_session().settings
        self._tree = self._public = None
        cipher = read.text(fields, "cipher")
        public: PublicKey | PlainPublicKey
        if cipher == "paillier":
            public = PublicKey.from_bytes(read.raw(fields, "key"), allow_1024=settings.allow_1024)
        elif cipher == "none" and self.policy.plain:
            public = PlainPublicKey.from_bytes(read.raw(fields, "key"))
        else:
            raise BadValue(f"the cipher '{cipher}' is not allowed here", remedy="use paillier", where="cipher")
        if public.bits != settings.key_bits:
            raise BadValue(
                f"the key has {public.bits} bits, the settings say {settings.key_bits}",
                remedy="the guest must send a key of the size in the settings",
            )
        self._public = public
        return {"fingerprint": public.fingerprint}

    def _current_session(self) -> HostSession:
        if self._session is None:
            raise refused("a training request came before SETUP")
        return self._session

    def _current_tree(self, tree: int) -> HostTree:
        if self._tree is None or self._tree.tree != tree:
            raise refused(f"tree {tree} was not started")
        return self._tree

    def _on_tree_start(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        session = self._current_session()
        if self._public is None:
            raise refused("a training request came before PUBLIC_KEY")
        if tree != len(self.model.trees) or tree >= session.settings.total_trees:
            raise refused(f"tree {tree} was started, {len(self.model.trees)} are finished")
        rows = np.flatnonzero(read.bits(fields, "rows", len(self.x)))
        if not session.training[rows].all():
            raise refused("a tree was started with rows that are not training rows")
        if len(rows) and not session.settings.goss and len(rows) < np.count_nonzero(session.training):
            raise refused("a tree was started with some of the training rows, and goss is off")
        if self.model.begun >= self.policy.most_trees + SPARE_TREES:
            raise BadValue(
                f"{self.model.begun} trees were started here, this host allows {self.policy.most_trees}",
                remedy="only its owner can allow more: --most-trees, or another folder",
            )
        # Saved before the response: a new session or a restart must not reset the count.
        self._update_model(begun=self.model.begun + 1)
        self._tree = HostTree(tree, rows, session.columns, session.settings, self._public, self.policy.min_leaf_rows)
        return {}

    def _on_tree_end(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        records = self.model.records + tuple(self._current_tree(tree).splits)
        self._tree = None
        self._update_model(records=records, trees=(*self.model.trees, len(records)))
        return {}

    def _on_done(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        self._reset()
        if self.model.trees and not self.model.finished:
            self._update_model(finished=True)
        return {}
