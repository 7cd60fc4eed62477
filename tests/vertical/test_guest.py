"""The guest: what it sends, when, and what it refuses before anything is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.vertical_tables import breast_cancer

from fedarena.config.errors import BadValue
from fedarena.transport.channel import LocalChannel
from fedarena.transport.frames import Fields, FrameKind
from fedarena.vertical import guest as module
from fedarena.vertical.crypto.plain import PlainKey
from fedarena.vertical.guest import Guest, TreeRecord
from fedarena.vertical.host import Host, HostPolicy
from fedarena.vertical.settings import BoostSettings

TABLES, Y = breast_cancer(hosts=2)
SETTINGS = BoostSettings(trees=2, depth=3)


class Seen(LocalChannel):
    """Records the kinds and sizes of all requests."""

    def __init__(self, host: Host, name: str) -> None:
        super().__init__(host, name)
        self.kinds: list[FrameKind] = []
        self.chunks: list[int] = []

    def ask(self, kind: FrameKind, fields: Fields | None = None, *, tree: int = 0, level: int = 0) -> dict[str, Any]:
        self.kinds.append(kind)
        if kind is FrameKind.ROWS:
            self.chunks.append(len(dict(fields or {})["data"]))
        return super().ask(kind, fields, tree=tree, level=level)


def lines() -> list[Seen]:
    return [Seen(Host(t, policy=HostPolicy(plain=True)), n) for t, n in zip(TABLES[1:], "ab", strict=True)]


@pytest.mark.slow
def test_rows_are_encrypted_and_sent_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows there are, no more than a chunk is encrypted at once, and each only once for all hosts."""
    encrypted: list[int] = []
    encrypt = PlainKey.encrypt

    def counting(self: PlainKey, plain: Any, *args: Any, **more: Any) -> Any:
        encrypted.append(len(plain))
        return encrypt(self, plain, *args, **more)

    monkeypatch.setattr(PlainKey, "encrypt", counting)
    monkeypatch.setattr(module, "CHUNK", 100 * 256)  # a hundred ciphertexts without encryption
    channels = lines()
    settings = BoostSettings(trees=2, depth=3, sparse=False)
    model = Guest(TABLES[0], Y, channels, settings, cipher="none").train()
    assert max(encrypted) == 100
    assert sum(encrypted) == 2 * len(Y)
    assert all(c.chunks == [25_600] * 5 + [69 * 256] + [25_600] * 5 + [69 * 256] for c in channels)
    monkeypatch.undo()
    assert Guest(TABLES[0], Y, lines(), settings, cipher="none").train() == model


def test_every_host_hears_every_tree_and_the_end() -> None:
    channels = lines()
    Guest(TABLES[0], Y, channels, BoostSettings(trees=3, depth=2, tree_mode="mix"), cipher="none").train()
    for channel in channels:
        assert channel.kinds[:3] == [FrameKind.HELLO, FrameKind.SETUP, FrameKind.PUBLIC_KEY]
        assert channel.kinds.count(FrameKind.TREE_START) == channel.kinds.count(FrameKind.TREE_END) == 3
        assert channel.kinds.count(FrameKind.ROWS) == 1  # the tree that is its own
        assert channel.kinds[-1] is FrameKind.DONE


def test_records_tell_gain_score_and_bytes() -> None:
    seen: list[TreeRecord] = []
    channels = lines()
    guest = Guest(TABLES[0], Y, channels, SETTINGS, cipher="none", on_tree=seen.append)
    model = guest.train()
    assert [(r.tree, r.trees, r.metric) for r in seen] == [(1, 2, "auc"), (2, 2, "auc")]
    assert [r.gain for r in seen] == [t.gain for t in model.trees]
    assert seen[0].gain > seen[1].gain > 0
    assert seen[1].loss < seen[0].loss
    recorded = sum(r.bytes_up for r in seen)
    assert 0 < recorded < sum(c.bytes_up for c in channels)  # HELLO and SETUP belong to no tree


@pytest.mark.parametrize(
    ("y", "more", "says"),
    [
        (Y[:5], {}, "5 labels for 569 rows"),
        (Y, {"training": np.zeros(len(Y), bool)}, "no rows to train on"),
        (Y, {"weights": -np.ones(len(Y))}, "weights are negative"),
        (np.ones(len(Y)), {}, "all training labels are 1"),
        (np.where(Y, np.nan, 0), {}, "labels are missing"),
    ],
    ids=str,
)
def test_refused_before_a_word_is_said(y: Any, more: dict[str, Any], says: str) -> None:
    channels = lines()
    with pytest.raises(BadValue, match=says):
        Guest(TABLES[0], y, channels, SETTINGS, cipher="none", **more)
    assert not any(c.kinds for c in channels)
