"""A host refuses what it does not allow or understand, and a guest a host whose answers cannot be true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.support.vertical_tables import breast_cancer

from fedarena.config.errors import BadValue, FedarenaError, FrameRefused, PartyFailed
from fedarena.transport.channel import LocalChannel
from fedarena.transport.fields import as_bits
from fedarena.transport.frames import Fields, FrameKind
from fedarena.vertical.guest import Guest
from fedarena.vertical.host import Host, HostPolicy
from fedarena.vertical.host_tree import is_refinement
from fedarena.vertical.settings import BoostSettings

TABLES, Y = breast_cancer()
PLAIN = HostPolicy(plain=True)


def guest(channel: LocalChannel, **values: Any) -> Guest:
    return Guest(TABLES[0], Y, [channel], BoostSettings(**{"trees": 1, "depth": 3, **values}), cipher="none")


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (HostPolicy(plain=True, most_trees=0), "total_trees = 1 is not allowed"),
        (HostPolicy(plain=True, most_depth=2), "depth = 3 is not allowed"),
        (HostPolicy(plain=True, most_bits=127), "these settings let a guest read 128 bits of each candidate"),
        (HostPolicy(plain=True, min_leaf_rows=5), "min_leaf_rows = 1 is not allowed"),
        (HostPolicy(plain=True, min_bin_count=9), "min_bin_count = 1 is not allowed"),
        (HostPolicy(), "the cipher 'none' is not allowed"),
    ],
    ids=str,
)
def test_policy_is_kept_before_anything_is_sent(policy: HostPolicy, says: str) -> None:
    with pytest.raises(BadValue, match=f"host 'bank': {says}"):
        guest(LocalChannel(Host(TABLES[1], policy=policy), "bank")).train()


def test_unlike_numbers_of_rows_are_refused() -> None:
    with pytest.raises(BadValue, match="this host has 100 rows, the guest 569"):
        guest(LocalChannel(Host(TABLES[1][:100], policy=PLAIN))).train()


def test_a_host_without_columns_or_with_infinity_is_refused() -> None:
    with pytest.raises(BadValue, match="no columns"):
        Host(TABLES[1][:, :0])
    with pytest.raises(BadValue, match="infinity"):
        Host(np.where(TABLES[1] > 1, np.inf, TABLES[1]))


def test_columns_that_offer_nothing_do_no_harm() -> None:
    """Constant and all missing: no candidate, no error, and the guest's columns do the work."""
    host = Host(np.column_stack([np.full(len(Y), 3.0), np.full(len(Y), np.nan)]), policy=PLAIN)
    model = guest(LocalChannel(host)).train()
    assert {n.owner for n in model.trees[0].nodes} == {-1, 0}


class Recorded(LocalChannel):
    """Stops before a request of some kind and records it."""

    def __init__(self, host: Host, stop: FrameKind) -> None:
        super().__init__(host, "host")
        self.stop = stop

    def ask(self, kind: FrameKind, fields: Fields | None = None, *, tree: int = 0, level: int = 0) -> dict[str, Any]:
        if kind is self.stop:
            self.fields = dict(fields or {})
            raise PartyFailed("stopped", remedy="none")
        return super().ask(kind, fields, tree=tree, level=level)


def before(kind: FrameKind) -> tuple[Host, dict[str, Any]]:
    """Return a host during training, and the honest request that comes next."""
    host = Host(TABLES[1], policy=PLAIN)
    channel = Recorded(host, kind)
    with pytest.raises(PartyFailed, match="stopped"):
        guest(channel).train()
    return host, channel.fields


ROWS = len(Y)
BAD: list[tuple[FrameKind, dict[str, Any]]] = [
    (FrameKind.SETUP, {"settings": 3}),
    (FrameKind.SETUP, {"training": b""}),
    (FrameKind.SETUP, {"trees": -1}),
    (FrameKind.SETUP, {"training_id": 7}),
    (FrameKind.PUBLIC_KEY, {"key": b"\x00" * 8}),
    (FrameKind.PUBLIC_KEY, {"cipher": "affine"}),
    (FrameKind.TREE_START, {"rows": b""}),
    (FrameKind.ROWS, {"start": 1}),
    (FrameKind.ROWS, {"part": 1}),
    (FrameKind.ROWS, {"data": b"\x00" * 7}),
    (FrameKind.ROWS, {"data": b"\x00" * 256 * (ROWS + 1)}),
    (FrameKind.LEVEL, {"node": np.zeros(5, np.uint8)}),
    (FrameKind.LEVEL, {"node": np.full(ROWS, 9, np.uint8)}),
    (FrameKind.LEVEL, {"node": np.zeros(ROWS)}),
    (FrameKind.LEVEL, {"nodes": 4}),
    (FrameKind.LEVEL, {"build": np.array([1], np.int32)}),
    (FrameKind.LEVEL, {"totals": b""}),
    (FrameKind.SPLIT, {"candidates": np.array([-1], np.int32)}),
    (FrameKind.SPLIT, {"candidates": np.array([10**6], np.int32)}),
    (FrameKind.SPLIT, {"starts": np.array([0, 0], np.int32)}),
    (FrameKind.SPLIT, {"nodes": np.array([3], np.int32)}),
]


@pytest.mark.parametrize(("kind", "wrong"), BAD, ids=str)
def test_an_invalid_request_is_refused(kind: FrameKind, wrong: dict[str, Any]) -> None:
    host, honest = before(kind)
    with pytest.raises(FedarenaError):
        host.answer(kind, {**honest, **wrong}, 0, 0)
    for name in honest:
        with pytest.raises(FedarenaError):
            host.answer(kind, {n: v for n, v in honest.items() if n != name}, 0, 0)


@pytest.mark.parametrize(
    "kind",
    [FrameKind.SETUP, FrameKind.PUBLIC_KEY, FrameKind.TREE_START, FrameKind.ROWS, FrameKind.LEVEL, FrameKind.SPLIT],
)
def test_requests_have_an_order(kind: FrameKind) -> None:
    _, honest = before(kind)
    fresh = Host(TABLES[1], policy=PLAIN)
    if kind is not FrameKind.SETUP:
        with pytest.raises(FrameRefused):
            fresh.answer(kind, honest, 0, 0)
    with pytest.raises(FrameRefused):
        fresh.answer(FrameKind.PREDICT_START, {}, 0, 0)


def test_a_tree_is_grown_from_training_rows_only() -> None:
    host, honest = before(FrameKind.SETUP)
    host.answer(FrameKind.SETUP, {**honest, "training": as_bits(np.arange(ROWS) > 3)}, 0, 0)
    _, key = before(FrameKind.PUBLIC_KEY)
    host.answer(FrameKind.PUBLIC_KEY, key, 0, 0)
    with pytest.raises(FrameRefused, match="not training rows"):
        host.answer(FrameKind.TREE_START, {"rows": as_bits(np.ones(ROWS, bool)), "more": 1}, 0, 0)
    with pytest.raises(FrameRefused, match="some of the training rows, and goss is off"):
        host.answer(FrameKind.TREE_START, {"rows": as_bits(np.arange(ROWS) > 4)}, 0, 0)
    host.answer(FrameKind.TREE_START, {"rows": as_bits(np.arange(ROWS) > 3)}, 0, 0)


def test_a_node_is_shown_once_and_split_once() -> None:
    """Else a guest could try every candidate on every row, and know the host's columns in the end."""
    host, honest = before(FrameKind.SPLIT)
    host.answer(FrameKind.SPLIT, honest, 0, 0)
    with pytest.raises(FrameRefused, match="split twice"):
        host.answer(FrameKind.SPLIT, {**honest, "candidates": honest["candidates"] * 0 + 1}, 0, 0)
    host, honest = before(FrameKind.LEVEL)
    host.answer(FrameKind.LEVEL, honest, 0, 0)
    with pytest.raises(FrameRefused, match="requested twice"):
        host.answer(FrameKind.LEVEL, honest, 0, 0)


def nodes_of(*rows: int) -> np.ndarray:
    """So many rows in node 0, then in node 1, and so on; the last number is of rows that are nowhere."""
    return np.repeat(np.arange(len(rows)), rows).astype(np.uint8)


THIRD = ROWS // 3
ABOVE = [0, 0, 0, 1, 1, 1, 2]  # two nodes, and a row that had left the tree


@pytest.mark.parametrize(
    ("nodes", "node", "allowed"),
    [
        (4, [0, 0, 1, 2, 3, 3, 4], True),
        (2, [1, 0, 0, 2, 2, 2, 2], True),  # the second has become a leaf
        (4, [0, 0, 1, 2, 3, 3, 3], False),  # a row comes back
        (4, [0, 1, 4, 2, 3, 3, 4], False),  # a row is left out
        (1, [0, 0, 0, 1, 1, 1, 1], False),  # one child: all rows once more
        (3, [0, 1, 2, 3, 3, 3, 3], False),  # three children
        (4, [0, 1, 2, 2, 3, 3, 4], False),  # a child of two
        (3, [0, 0, 1, 3, 3, 3, 3], False),  # a child without a parent
        (4, [0, 0, 1, 4, 4, 4, 3], False),  # two children of those that had left
    ],
    ids=str,
)
def test_a_node_becomes_a_leaf_or_two_nodes(nodes: int, node: list[int], allowed: bool) -> None:
    """Two levels that differ by one row would reveal that row."""
    assert is_refinement(np.array(node), nodes, np.array(ABOVE), 2) is allowed


def test_nodes_are_parts_of_those_above_and_not_too_small() -> None:
    host, honest = before(FrameKind.LEVEL)
    with pytest.raises(FrameRefused, match="root of a tree does not hold all rows"):
        host.answer(FrameKind.LEVEL, {**honest, "node": nodes_of(ROWS - 1, 1)}, 0, 0)
    with pytest.raises(FrameRefused, match="out of order"):
        host.answer(FrameKind.LEVEL, honest, 0, 1)
    host.answer(FrameKind.LEVEL, honest, 0, 0)
    below = {**honest, "nodes": 2, "build": np.array([0], np.int32)}
    with pytest.raises(FrameRefused, match="not the two parts of those above"):
        host.answer(FrameKind.LEVEL, {**below, "node": nodes_of(THIRD, ROWS - THIRD - 1, 1)}, 0, 1)
    host.answer(FrameKind.LEVEL, {**below, "node": nodes_of(THIRD, ROWS - THIRD)}, 0, 1)
    assert host._tree is not None
    host._tree.min_leaf_rows = 10
    with pytest.raises(BadValue, match="a node of 5 rows"):
        host.answer(FrameKind.LEVEL, {**below, "node": nodes_of(5, THIRD - 5, ROWS - THIRD)}, 0, 2)
    host.answer(FrameKind.LEVEL, {**below, "node": nodes_of(10, THIRD - 10, ROWS - THIRD)}, 0, 2)


class ChangedResponses(Host):
    """A host that changes its responses."""

    change: Callable[[FrameKind, dict[str, Any]], None]

    def answer(self, kind: FrameKind, fields: dict[str, Any], tree: int, level: int) -> Fields:
        response = dict(super().answer(kind, fields, tree, level))
        type(self).change(kind, response)
        return response


def larger_counts(kind: FrameKind, response: dict[str, Any]) -> None:
    if kind is FrameKind.LEVEL:
        response["counts"] = response["counts"] + 10**6


def swapped_counts(kind: FrameKind, response: dict[str, Any]) -> None:
    if kind is FrameKind.LEVEL:
        response["counts"] = response["counts"][:, ::-1].copy()


def other_sums(kind: FrameKind, response: dict[str, Any]) -> None:
    if kind is FrameKind.LEVEL:
        data = np.frombuffer(response["sums"], np.uint64).copy()
        data[1::4] ^= np.uint64(1)  # the last bit of some sums
        response["sums"] = data.tobytes()


def huge_sums(kind: FrameKind, response: dict[str, Any]) -> None:
    if kind is FrameKind.LEVEL:
        response["sums"] = b"\xff" * len(response["sums"])


def fewer_sums(kind: FrameKind, response: dict[str, Any]) -> None:
    if kind is FrameKind.LEVEL:
        response["sums"] = response["sums"][:256]


def other_rows(kind: FrameKind, response: dict[str, Any]) -> None:
    if kind is FrameKind.SPLIT:
        response["left"] = bytes(255 - b for b in response["left"])


def no_rows(kind: FrameKind, response: dict[str, Any]) -> None:
    if kind is FrameKind.SPLIT:
        response["left"] = b""


@pytest.mark.parametrize(
    "change",
    [larger_counts, swapped_counts, other_sums, huge_sums, fewer_sums, other_rows, no_rows],
    ids=lambda f: f.__name__,
)
def test_responses_that_cannot_be_true_end_the_training(change: Callable[[FrameKind, dict[str, Any]], None]) -> None:
    kind = type("FaultyHost", (ChangedResponses,), {"change": staticmethod(change)})
    with pytest.raises((PartyFailed, FrameRefused)):
        guest(LocalChannel(kind(TABLES[1], policy=PLAIN), "faulty")).train()
