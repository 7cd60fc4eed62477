"""The guest: owns the labels and the key, and drives the training.

Every exchange is its question and a host's answer. After each tree both sides have written what they need to go on; a
tree that a lost host leaves unfinished is discarded and grown anew, with fresh masks and the same splits.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, CannotWrite, PartyLost, ResumeMismatch
from fedarena.config.seeds import stream
from fedarena.transport import fields as read
from fedarena.transport.channel import Channel
from fedarena.transport.frames import CHUNK, FrameKind
from fedarena.vertical import checkpoint
from fedarena.vertical.bins import checked_columns
from fedarena.vertical.crypto.ciphertexts import Plaintexts
from fedarena.vertical.crypto.keys import generate
from fedarena.vertical.crypto.plain import PlainKey, PlainPublicKey
from fedarena.vertical.fixed_point import ExactSums, fixed_point, split_slots
from fedarena.vertical.model import FILE, GuestModel
from fedarena.vertical.objective import checked_labels, checked_weights, objective_of, scores
from fedarena.vertical.party_columns import ColumnOwner, HostColumns, Key, OwnColumns, Rows, TreeSource
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.tree_growth import TreeGrowth, owners

Cipher = Literal["paillier", "none"]
MOST_LOSSES = 10  # of hosts, in one tree: then the line, not the luck, is bad
FAREWELL = 10.0  # seconds to wait for a host that may not have heard of the end


@dataclass(frozen=True)
class TreeRecord:
    """What a person wants to know of a tree; the value is of the validation rows, if there are any."""

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
    """The guest during training; rows that are not in `training` are routed through the trees and judged only."""

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
        self.x = checked_columns(x, names, "the guest")
        self.training = np.ones(len(self.x), bool) if training is None else np.asarray(training, bool)
        _check_rows(len(self.x), len(y), self.training, settings)
        self.y = checked_labels(y, settings, self.training)
        self.w = checked_weights(weights, len(self.x))
        self.folder = None if folder is None else Path(folder)
        self._own = OwnColumns(self.x, self.training, settings)
        self._objective = objective_of(settings)
        start = self._objective.start(self.y[self.training], self.w[self.training])
        hosts, columns = tuple(c.name for c in self.channels), tuple(names or ())
        drawn = secrets.token_hex(16)
        self.model = GuestModel(settings, start, hosts=hosts, columns=columns, training_id=drawn)
        self.margins = np.full((len(self.x), settings.outputs), start, np.float32)
        self._round = self.margins  # margins at the start of the round: all classes' trees begin from them
        self._table = hashlib.sha256(b"".join(a.tobytes() for a in (self.x, self.y, self.w, self.training))).hexdigest()
        if self.folder is not None:
            self._take_up(self.folder, resume)
        self._key: Key | None = None
        self._parties: list[ColumnOwner] = [self._own]

    def _take_up(self, folder: Path, resume: bool) -> None:
        """Go on from the last finished tree of this folder."""
        if not (folder / FILE).exists():
            return
        if not resume:
            raise CannotWrite(f"{folder} holds a model already", remedy="choose another folder, or resume it")
        found = GuestModel.load(folder)
        if found.settings != self.settings or found.hosts != self.model.hosts:
            raise ResumeMismatch(
                f"{folder} belongs to a training with other settings or hosts", remedy="resume with the same ones"
            )
        self.margins, self._round = checkpoint.load(folder, len(found.trees), self._table)
        self.model = found
        self._own.splits = list(found.splits)

    def train(self) -> GuestModel:
        """All trees that are left; the guest's half of the model."""
        if not self.model.trees:
            self._commit(self.model)  # a guest that is killed before its first tree is known to the hosts by its id
        greeted, losses = False, 0
        while not self.model.finished:
            try:
                if not greeted:
                    self._greet()
                greeted = True
                self._one_tree()
                losses = 0
            except PartyLost:
                greeted, losses = False, losses + 1
                if losses > MOST_LOSSES:
                    raise
        send_goodbye(self.channels)
        return self.model

    def _greet(self) -> None:
        """Open a session with every host, anew if one was lost: the settings, then the key."""
        if self._key is None and self.channels:
            bits = self.settings.key_bits
            plain = self.cipher == "none"
            self._key = PlainKey(PlainPublicKey(bits)) if plain else generate(bits, allow_1024=self.settings.allow_1024)
        question = {
            "settings": self.settings.to_json(),
            "rows": len(self.x),
            "training": read.as_bits(self.training),
            "trees": len(self.model.trees),
            "training_id": self.model.training_id,
        }
        self._parties = [self._own]
        for channel in self.channels:
            assert self._key is not None
            public = self._key.public
            channel.key = bytes.fromhex(public.fingerprint)[:8]
            channel.ask(FrameKind.HELLO, {"purpose": "train"})
            reply = channel.ask(FrameKind.SETUP, question)
            channel.ask(FrameKind.PUBLIC_KEY, {"cipher": self.cipher, "key": public.to_bytes()})
            candidates = read.whole(reply, "candidates")
            self._parties.append(HostColumns(channel, self._key, self.settings, len(self.x), candidates))

    def _one_tree(self) -> None:
        began = time.monotonic()
        up, down = self._bytes()
        tree, each = len(self.model.trees), self.settings.trees_per_round
        output = -1 if each == 1 else tree % each
        if tree % each == 0:
            self._round = self.margins.copy()
        self._own.splits = list(self.model.splits)
        source = self._source(tree, output)
        self._begin(tree, source)
        names = ["guest", *(c.name for c in self.channels)]
        grown = TreeGrowth(self.settings, self._parties, names, source, len(self.x)).grow(tree, output)
        for channel in self.channels:
            channel.ask(FrameKind.TREE_END, {}, tree=tree)
        columns = slice(None) if output < 0 else slice(output, output + 1)
        self.margins[:, columns] += grown.margins()
        now = self._bytes()
        record = self._record(tree, grown.tree.gain, now[0] - up, now[1] - down, time.monotonic() - began)
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

    def _source(self, tree: int, output: int) -> TreeSource:
        """g and h of the rows that this tree is grown from."""
        g, h = self._objective.gradients(self._round, self.y, self.w.astype(np.float32))
        if output >= 0:
            g, h = g[:, output : output + 1], h[:, output : output + 1]
        chosen = np.flatnonzero(self.training)
        g, h = g[chosen], h[chosen]
        if self.settings.goss:
            kept, factor = one_sided(self.settings, np.abs(g).sum(axis=1), tree)
            chosen, g, h = chosen[kept], g[kept] * factor[:, None], h[kept] * factor[:, None]
        point = fixed_point(g, h, self.settings.precision)
        whole = point.whole(g, h)
        return TreeSource(chosen, whole, point, ExactSums(whole))

    def _begin(self, tree: int, source: TreeSource) -> None:
        """Tell all parties; those that take part are sent the encrypted g and h."""
        takes_part = {
            o for level in range(self.settings.depth) for o in owners(self.settings, len(self._parties), tree, level)
        }
        nothing = TreeSource(source.chosen[:0], source.whole[:0], source.point, source.exact)
        for number, party in enumerate(self._parties):
            party.begin(tree, source if number in takes_part else nothing)
        hosts = [p for n, p in enumerate(self._parties) if n in takes_part and isinstance(p, HostColumns)]
        if hosts:
            self._send(tree, source, hosts)

    def _send(self, tree: int, source: TreeSource, hosts: list[HostColumns]) -> None:
        """Encrypt chunk after chunk while the one before is on its way: memory holds two chunks, whatever the rows."""
        key = hosts[0].key
        slots = split_slots(source.point.slots(source.whole), hosts[0].parts, hosts[0].slots)
        rows = max(CHUNK // (8 * key.public.width), 1)
        pending: list[Future[Any]] = []
        with ThreadPoolExecutor(len(hosts)) as pool:
            for start in range(0, len(slots), rows):
                for part in range(hosts[0].parts):
                    plain = Plaintexts(np.ascontiguousarray(slots[start : start + rows, part]))
                    data = key.encrypt(plain, exponents=self.settings.exponents).to_bytes()
                    question = {"part": part, "start": start, "data": data}
                    _settle(pending)
                    pending = [pool.submit(h.channel.ask, FrameKind.ROWS, question, tree=tree) for h in hosts]
            _settle(pending)

    def _record(self, tree: int, gain: float, up: int, down: int, seconds: float) -> TreeRecord:
        judged = self.training if self.training.all() else ~self.training
        found = scores(self.settings, self.margins[judged], self.y[judged], self.w[judged])
        metric = next(iter(found))
        total = self.settings.total_trees
        return TreeRecord(tree + 1, total, gain, metric, found[metric], found["loss"], up, down, seconds)

    def _commit(self, model: GuestModel) -> None:
        """The tree is finished: remembered, judged, and on disk."""
        self.model = replace(model, best_round=_best_round(model))
        if self.folder is not None:
            checkpoint.save(self.folder, len(self.model.trees), self._table, self.margins, self._round)
            self.model.save(self.folder)
            checkpoint.keep_only(self.folder, len(self.model.trees))

    def _bytes(self) -> tuple[int, int]:
        return sum(c.bytes_up for c in self.channels), sum(c.bytes_down for c in self.channels)


def _check_rows(rows: int, labels: int, training: NDArray[np.bool_], settings: BoostSettings) -> None:
    if not labels == rows == len(training):
        raise BadValue(f"{labels} labels for {rows} rows", remedy="give one label per row")
    if not training.any():
        raise BadValue("there are no rows to train on", remedy="leave some out of the validation")
    if settings.early_stopping_rounds is not None and training.all():
        raise BadValue(
            "early stopping has no rows to watch",
            remedy="hold rows out of the training",
            where="early_stopping_rounds",
        )


def send_goodbye(channels: Sequence[Channel]) -> None:
    """Tell every host that the training is over. The model is complete, whoever is still there to hear it."""
    for channel in channels:
        if channel.was_opened:
            try:
                channel.ask(FrameKind.DONE, {})
                continue
            except PartyLost:  # it has heard it and is gone, or was restarted meanwhile and waits
                pass
        channel.patience = min(channel.patience, FAREWELL)
        with contextlib.suppress(PartyLost):
            channel.ask(FrameKind.HELLO, {"purpose": "train"})
            channel.ask(FrameKind.DONE, {})


def one_sided(settings: BoostSettings, size: NDArray[np.floating], tree: int) -> tuple[Rows, NDArray[np.float32]]:
    """Gradient-based one-side sampling (Ke et al. 2017): the largest gradients, and some of the rest at more weight."""
    top, rest = (max(int(share * len(size)), 1) for share in (settings.goss_top, settings.goss_rest))
    order = np.argsort(-size, kind="stable")
    drawn = stream(settings.seed, "algorithm", tree).permutation(len(size) - top)[:rest]
    kept = np.sort(np.concatenate([order[:top], order[top:][drawn]]))
    factor = np.full(len(size), (1 - settings.goss_top) / settings.goss_rest, np.float32)
    factor[order[:top]] = 1
    return kept, factor[kept]


def _settle(pending: list[Future[Any]]) -> None:
    """Wait for all, then raise the first error."""
    wait(pending)
    for future in pending:
        future.result()


def _best_round(model: GuestModel) -> int | None:
    """The round with the smallest loss on the validation rows, if early stopping watches them."""
    if model.settings.early_stopping_rounds is None:
        return None
    each = model.settings.trees_per_round
    losses = [model.history[end - 1]["loss"] for end in range(each, len(model.trees) + 1, each)]
    return 1 + int(np.argmin(losses)) if losses else None
