"""The guest: owns the labels and the key, and drives the training.

Every exchange is a request of the guest and the response of a host. After each tree both sides have stored what they
need to resume; a tree that a lost host leaves unfinished is discarded and grown again, with fresh masks and the same
splits.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, CannotWrite, PartyLost, ResumeMismatch
from fedarena.config.seeds import stream
from fedarena.transport import fields as read
from fedarena.transport.channel import Channel, ask_all
from fedarena.transport.frames import CHUNK, FrameKind
from fedarena.trees.bins import check_columns
from fedarena.trees.fixed_point import ExactSums, fixed_point
from fedarena.trees.objectives import check_labels, check_weights, make_objective, scores
from fedarena.vertical import checkpoint
from fedarena.vertical.crypto.ciphertexts import Plaintexts
from fedarena.vertical.crypto.keys import generate
from fedarena.vertical.crypto.plain import PlainKey, PlainPublicKey
from fedarena.vertical.model import FILE, GuestModel
from fedarena.vertical.party_columns import ColumnOwner, HostColumns, Key, OwnColumns, Rows, TreeGradients
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.slots import split_slots
from fedarena.vertical.tree_growth import TreeGrowth, splitting_parties

Cipher = Literal["paillier", "none"]
MOST_LOSSES = 10  # of hosts in one tree, after which the training stops
END_PATIENCE = 10.0  # seconds to wait for a host that may not know that the training has ended


@dataclass(frozen=True)
class TreeRecord:
    """The result of one tree; metric and loss are those of the validation rows, if there are any."""

    tree: int
    trees: int
    gain: float
    metric: str
    value: float
    loss: float
    bytes_up: int
    bytes_down: int
    seconds: float


class Guest:
    """The guest during training; rows that are not in `training` are only used for validation."""

    def __init__(
        self,
        x: NDArray[np.floating],
        y: NDArray[np.floating],
        channels: Sequence[Channel],
        settings: BoostSettings,
        *,
        names: Sequence[str] | None = None,
        weights: NDArray[np.floating] | None = None,
        training: NDArray[np.bool_] | None = None,
        folder: Path | str | None = None,
        resume: bool = False,
        cipher: Cipher = "paillier",
        on_tree: Callable[[TreeRecord], object] | None = None,
    ) -> None:
        self.settings, self.channels, self.cipher, self.on_tree = settings, list(channels), cipher, on_tree
        self.x = check_columns(x, names, "the guest")
        self.training = np.ones(len(self.x), bool) if training is None else np.asarray(training, bool)
        _check_rows(len(self.x), len(y), self.training, settings)
        self.y = check_labels(y, settings, self.training)
        self.w = check_weights(weights, len(self.x))
        self.folder = None if folder is None else Path(folder)
        self._own = OwnColumns(self.x, self.training, settings)
        self._objective = make_objective(settings)
        start = self._objective.start(self.y[self.training], self.w[self.training])
        hosts, columns = tuple(c.name for c in self.channels), tuple(names or ())
        self.model = GuestModel(settings, start, hosts=hosts, columns=columns, training_id=secrets.token_hex(16))
        self.margins = np.full((len(self.x), settings.outputs), start, np.float32)
        self._round_margins = self.margins  # at the start of the round: the trees of all classes begin from them
        self._table = hashlib.sha256(b"".join(a.tobytes() for a in (self.x, self.y, self.w, self.training))).hexdigest()
        if self.folder is not None:
            self._resume(self.folder, resume)
        self._parties: list[ColumnOwner] = [self._own]

    def _resume(self, folder: Path, resume: bool) -> None:
        """Load the last finished tree of this folder, if it holds a training."""
        if not (folder / FILE).exists():
            return
        if not resume:
            raise CannotWrite(f"{folder} already holds a model", remedy="choose another folder, or resume it")
        found = GuestModel.load(folder)
        if found.settings != self.settings or found.hosts != self.model.hosts:
            raise ResumeMismatch(
                f"{folder} belongs to a training with other settings or hosts", remedy="resume with the same ones"
            )
        self.margins, self._round_margins = checkpoint.load(folder, len(found.trees), self._table)
        self.model = found
        self._own.splits = list(found.splits)

    def train(self) -> GuestModel:
        """Grow all remaining trees and return the guest's part of the model."""
        if not self.model.trees:
            self._commit(self.model)  # so that a guest killed in its first tree still has the id that the hosts know
        connected, losses = False, 0
        while not self.model.finished:
            try:
                if not connected:
                    self._open_sessions()
                connected = True
                self._grow_tree()
                losses = 0
            except PartyLost:
                connected, losses = False, losses + 1
                if losses > MOST_LOSSES:
                    raise
        end_training(self.channels)
        return self.model

    @cached_property
    def _key(self) -> Key:
        bits = self.settings.key_bits
        if self.cipher == "none":
            return PlainKey(PlainPublicKey(bits))
        return generate(bits, allow_1024=self.settings.allow_1024)

    def _open_sessions(self) -> None:
        """Open a session with every host, also after one was lost: send the settings, then the key."""
        setup = {
            "settings": self.settings.to_json(),
            "rows": len(self.x),
            "training": read.as_bits(self.training),
            "trees": len(self.model.trees),
            "training_id": self.model.training_id,
        }
        self._parties = [self._own]
        for channel in self.channels:
            public = self._key.public
            channel.key = bytes.fromhex(public.fingerprint)[:8]
            channel.ask(FrameKind.HELLO, {"purpose": "train"})
            response = channel.ask(FrameKind.SETUP, setup)
            channel.ask(FrameKind.PUBLIC_KEY, {"cipher": self.cipher, "key": public.to_bytes()})
            candidates = read.whole(response, "candidates")
            self._parties.append(HostColumns(channel, self._key, self.settings, len(self.x), candidates))

    def _grow_tree(self) -> None:
        start = time.monotonic()
        up, down = self._traffic()
        tree, each = len(self.model.trees), self.settings.trees_per_round
        output = -1 if each == 1 else tree % each
        if tree % each == 0:
            self._round_margins = self.margins.copy()
        self._own.splits = list(self.model.splits)
        gradients = self._compute_gradients(tree, output)
        self._start_tree(tree, gradients)
        grown = TreeGrowth(self.settings, self._parties, gradients, len(self.x)).grow(tree, output)
        ask_all(self.channels, FrameKind.TREE_END, tree=tree)
        columns = slice(None) if output < 0 else slice(output, output + 1)
        self.margins[:, columns] += grown.margins()
        now = self._traffic()
        record = self._record(tree, grown.tree.gain, now[0] - up, now[1] - down, time.monotonic() - start)
        self._commit(
            replace(
                self.model,
                trees=(*self.model.trees, grown.tree),
                splits=tuple(self._own.splits),
                history=(*self.model.history, asdict(record)),
            )
        )
        if self.on_tree is not None:
            self.on_tree(record)

    def _compute_gradients(self, tree: int, output: int) -> TreeGradients:
        """Return g and h of the rows that this tree is grown from."""
        g, h = self._objective.gradients(self._round_margins, self.y, self.w.astype(np.float32))
        if output >= 0:
            g, h = g[:, output : output + 1], h[:, output : output + 1]
        chosen = np.flatnonzero(self.training)
        g, h = g[chosen], h[chosen]
        if self.settings.goss:
            sample, factor = sample_goss(self.settings, np.abs(g).sum(axis=1), tree)
            chosen, g, h = chosen[sample], g[sample] * factor[:, None], h[sample] * factor[:, None]
        point = fixed_point(g, h, self.settings.precision)
        integers = point.encode(g, h)
        return TreeGradients(chosen, integers, point, ExactSums(integers))

    def _start_tree(self, tree: int, gradients: TreeGradients) -> None:
        """Start the tree at all parties, and send the encrypted g and h to the hosts that may split in it."""
        levels = range(self.settings.depth)
        splitting = {o for level in levels for o in splitting_parties(self.settings, len(self._parties), tree, level)}
        empty = replace(gradients, chosen=gradients.chosen[:0], integers=gradients.integers[:0])
        for number, party in enumerate(self._parties):
            party.start_tree(tree, gradients if number in splitting else empty)
        hosts = [p for n, p in enumerate(self._parties) if n in splitting and isinstance(p, HostColumns)]
        if hosts:
            self._send_gradients(tree, gradients, hosts)

    def _send_gradients(self, tree: int, gradients: TreeGradients, hosts: list[HostColumns]) -> None:
        """Encrypt one chunk while the previous one is sent: memory holds two chunks for any number of rows."""
        key = hosts[0].key
        slots = split_slots(gradients.point.to_slots(gradients.integers), hosts[0].parts, hosts[0].slots)
        rows = max(CHUNK // (8 * key.public.width), 1)
        pending: list[Future[Any]] = []
        with ThreadPoolExecutor(len(hosts)) as pool:
            for start in range(0, len(slots), rows):
                for part in range(hosts[0].parts):
                    plain = Plaintexts(np.ascontiguousarray(slots[start : start + rows, part]))
                    data = key.encrypt(plain, exponents=self.settings.exponents).to_bytes()
                    request = {"part": part, "start": start, "data": data}
                    _wait_all(pending)
                    pending = [pool.submit(h.channel.ask, FrameKind.ROWS, request, tree=tree) for h in hosts]
            _wait_all(pending)

    def _record(self, tree: int, gain: float, up: int, down: int, seconds: float) -> TreeRecord:
        rows = self.training if self.training.all() else ~self.training
        found = scores(self.settings, self.margins[rows], self.y[rows], self.w[rows])
        metric = next(iter(found))
        total = self.settings.total_trees
        return TreeRecord(tree + 1, total, gain, metric, found[metric], found["loss"], up, down, seconds)

    def _commit(self, model: GuestModel) -> None:
        """Set the model after a finished tree, and write it with its checkpoint to the folder."""
        self.model = replace(model, best_round=_best_round(model))
        if self.folder is not None:
            checkpoint.save(self.folder, len(self.model.trees), self._table, self.margins, self._round_margins)
            self.model.save(self.folder)
            checkpoint.remove_older(self.folder, len(self.model.trees))

    def _traffic(self) -> tuple[int, int]:
        return sum(c.bytes_up for c in self.channels), sum(c.bytes_down for c in self.channels)


def _check_rows(rows: int, labels: int, training: NDArray[np.bool_], settings: BoostSettings) -> None:
    if not labels == rows == len(training):
        raise BadValue(f"{labels} labels for {rows} rows", remedy="use one label per row")
    if not training.any():
        raise BadValue("there are no rows to train on", remedy="use fewer validation rows")
    if settings.early_stopping_rounds is not None and training.all():
        raise BadValue(
            "early stopping has no validation rows",
            remedy="hold out rows of the training",
            where="early_stopping_rounds",
        )


def end_training(channels: Sequence[Channel]) -> None:
    """End the training at every host that can be reached; the model is complete in any case."""
    for channel in channels:
        if channel.was_opened:
            try:
                channel.ask(FrameKind.DONE, {})
                continue
            except PartyLost:  # it received DONE and stopped, or was restarted and waits
                pass
        channel.patience = min(channel.patience, END_PATIENCE)
        with contextlib.suppress(PartyLost):
            channel.ask(FrameKind.HELLO, {"purpose": "train"})
            channel.ask(FrameKind.DONE, {})


def sample_goss(settings: BoostSettings, size: NDArray[np.floating], tree: int) -> tuple[Rows, NDArray[np.float32]]:
    """Return rows and weights of gradient-based one-side sampling (Ke et al. 2017).

    The rows with the largest gradients are all used, and a sample of the rest with a larger weight.
    """
    top, rest = (max(int(share * len(size)), 1) for share in (settings.goss_top, settings.goss_rest))
    order = np.argsort(-size, kind="stable")
    sampled = stream(settings.seed, "algorithm", tree).permutation(len(size) - top)[:rest]
    rows = np.sort(np.concatenate([order[:top], order[top:][sampled]]))
    factor = np.full(len(size), (1 - settings.goss_top) / settings.goss_rest, np.float32)
    factor[order[:top]] = 1
    return rows, factor[rows]


def _wait_all(pending: list[Future[Any]]) -> None:
    """Wait for all requests, then raise the first error."""
    wait(pending)
    for future in pending:
        future.result()


def _best_round(model: GuestModel) -> int | None:
    """Return the round with the smallest loss on the validation rows, with early stopping only."""
    if model.settings.early_stopping_rounds is None:
        return None
    each = model.settings.trees_per_round
    losses = [model.history[end - 1]["loss"] for end in range(each, len(model.trees) + 1, each)]
    return 1 + int(np.argmin(losses)) if losses else None
