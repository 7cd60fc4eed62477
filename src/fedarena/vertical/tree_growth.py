"""Grow one tree, level by level: every party sums its candidates, the best gain wins, and its owner splits."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedarena.trees.gain import leaf_weights, may_split
from fedarena.trees.growth import BestSplit, best_splits
from fedarena.vertical.model import GUEST, Tree, TreeNode
from fedarena.vertical.party_columns import (
    ColumnOwner,
    MadeSplits,
    Rows,
    TreeGradients,
    TreeLevel,
    faulty_host,
)
from fedarena.vertical.settings import BoostSettings


def splitting_parties(settings: BoostSettings, parties: int, tree: int, level: int) -> list[int]:
    """Return the parties that may split on this level of this tree; the guest is 0.

    >>> splitting_parties(BoostSettings(tree_mode="layered", host_depth=2), 3, tree=4, level=1)
    [1, 2]
    >>> [splitting_parties(BoostSettings(tree_mode="mix"), 3, tree, 0) for tree in range(4)]
    [[0], [1], [2], [0]]
    """
    boosting_round = tree // settings.trees_per_round
    if parties == 1 or (settings.first_tree_guest_only and boosting_round == 0):
        return [GUEST]
    if settings.tree_mode == "mix":
        return [boosting_round // settings.trees_per_party % parties]
    if settings.tree_mode == "layered":
        return list(range(1, parties)) if level < settings.host_depth else [GUEST]
    return list(range(parties))


@dataclass(frozen=True)
class GrownTree:
    """A finished tree, and the leaf of each row of the table."""

    tree: Tree
    leaf: Rows

    def margins(self) -> NDArray[np.float32]:
        """Return what the tree adds to the margins, [rows, outputs of the tree]."""
        outputs = max(len(n.weights) for n in self.tree.nodes)
        table = np.array([n.weights or (0.0,) * outputs for n in self.tree.nodes], np.float32)
        return table[self.leaf]


class TreeGrowth:
    """A tree during its growth, as the guest sees it."""

    def __init__(
        self,
        settings: BoostSettings,
        parties: Sequence[ColumnOwner],
        gradients: TreeGradients,
        rows: int,
    ) -> None:
        self.settings, self.parties, self.gradients = settings, parties, gradients
        self.nodes: list[TreeNode] = [TreeNode(rows=len(gradients.chosen))]
        self.node_of: Rows = np.zeros(rows, np.int64)  # of each row of the table: its node in the tree
        self.position: Rows = np.full(rows, -1, np.int64)  # of each row: its position among the chosen rows
        self.position[gradients.chosen] = np.arange(len(gradients.chosen))

    def grow(self, tree: int, output: int) -> GrownTree:
        """Grow all levels, then set the weights of the leaves."""
        frontier, parents = [0], np.zeros(0, np.int64)
        with ThreadPoolExecutor(max(len(self.parties), 1)) as pool:
            for depth in range(self.settings.depth):
                level = self._make_level(tree, depth, frontier, parents)
                owners = splitting_parties(self.settings, len(self.parties), tree, depth)
                best = self._find_best(pool, level, owners) if level.open.any() else {}
                parents = np.array(sorted(best), np.int64)
                frontier = self._split(pool, level, frontier, best)
                if not frontier:
                    break
        self._set_leaf_weights()
        return GrownTree(Tree(tuple(self.nodes), output), self.node_of)

    def _make_level(self, tree: int, depth: int, frontier: list[int], parents: Rows) -> TreeLevel:
        number = np.full(len(self.nodes), -1)
        number[frontier] = np.arange(len(frontier))
        node = number[self.node_of]
        inside = np.flatnonzero(node[self.gradients.chosen] >= 0)
        group = node[self.gradients.chosen][inside]
        totals = self.gradients.exact.by_group(group, len(frontier), inside)
        rows = np.bincount(group, minlength=len(frontier)).astype(np.int64)
        large = may_split(self.settings, self.gradients.point, totals, rows)
        return TreeLevel(tree, depth, node, totals, rows, parents, large)

    def _find_best(self, pool: ThreadPoolExecutor, level: TreeLevel, owners: list[int]) -> dict[int, BestSplit]:
        """Return the best split of each node that is worth one; of equal gains, that of the first party."""
        requests = {p: pool.submit(self.parties[p].sum_candidates, level) for p in owners if p != GUEST}
        sums = {GUEST: self.parties[GUEST].sum_candidates(level)} if GUEST in owners else {}
        sums |= {party: request.result() for party, request in requests.items()}
        offers = {owner: sums[owner] for owner in owners}
        nodes = np.flatnonzero(level.open)
        return best_splits(self.settings, self.gradients.point, level.totals, level.rows, nodes, offers)

    def _split(
        self, pool: ThreadPoolExecutor, level: TreeLevel, frontier: list[int], best: dict[int, BestSplit]
    ) -> list[int]:
        """Let the owners split; return the nodes of the next level, in pairs."""
        own = {
            owner: {n: best[n].tied for n in sorted(best) if best[n].owner == owner}
            for owner in range(len(self.parties))
        }
        requests = {o: pool.submit(self.parties[o].split, level, tied) for o, tied in own.items() if tied}
        made: dict[int, tuple[MadeSplits, int]] = {}
        for owner, request in requests.items():
            made |= {node: (request.result(), i) for i, node in enumerate(own[owner])}
        following: list[int] = []
        for node in sorted(best):
            following += self._apply_split(level, frontier[node], node, best[node], *made[node])
        return following

    def _apply_split(
        self, level: TreeLevel, number: int, node: int, best: BestSplit, made: MadeSplits, i: int
    ) -> list[int]:
        """Move the rows of a node to its children, after a check that their sums are those of the winning candidate."""
        rows, left = np.flatnonzero(level.node == node), made.left[i]
        position = self.position[rows[left]]
        position = position[position >= 0]
        count, sums = len(position), self.gradients.integers[position].sum(axis=0)
        if not ((best.rows == count) & (best.sums == sums).all(axis=(1, 2))).any():
            raise faulty_host(self.parties[best.owner].name, "the rows it sends left are not those it summed")
        children = [len(self.nodes), len(self.nodes) + 1]
        self.nodes[number] = replace(
            self.nodes[number],
            owner=best.owner,
            record=made.records[i],
            column=made.columns[i],
            gain=float(best.gain) / 2 - self.settings.gamma,
            left=children[0],
            right=children[1],
        )
        self.nodes += [TreeNode(rows=count), TreeNode(rows=int(level.rows[node]) - count)]
        self.node_of[rows] = np.where(left, children[0], children[1])
        return children

    def _set_leaf_weights(self) -> None:
        """Set the weights of the leaves from the guest's own sums over their rows, not from a host's response."""
        totals = self.gradients.exact.by_group(self.node_of[self.gradients.chosen], len(self.nodes))
        for number, node in enumerate(self.nodes):
            if node.owner < 0:
                weights = leaf_weights(self.settings, self.gradients.point, totals[number])
                self.nodes[number] = replace(node, weights=tuple(weights.tolist()))
