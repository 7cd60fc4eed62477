"""One tree, level by level: every owner shows its candidates, the best gain wins, its owner splits."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedarena.vertical.fixed_point import Sums
from fedarena.vertical.model import GUEST, Tree, TreeNode
from fedarena.vertical.party_columns import CandidateSums, ColumnOwner, MadeSplits, Rows, TreeLevel, TreeSource, faulty
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.split_gain import gains, leaf_weights, may_split, worth_it


def owners(settings: BoostSettings, parties: int, tree: int, level: int) -> list[int]:
    """Who may split on this level of this tree; the guest is 0.

    >>> owners(BoostSettings(tree_mode="layered", host_depth=2), 3, tree=4, level=1)
    [1, 2]
    >>> [owners(BoostSettings(tree_mode="mix"), 3, tree, 0) for tree in range(4)]
    [[0], [1], [2], [0]]
    """
    turn = tree // settings.trees_per_round
    if parties == 1 or (settings.first_tree_guest_only and turn == 0):
        return [GUEST]
    if settings.tree_mode == "mix":
        return [turn // settings.trees_per_party % parties]
    if settings.tree_mode == "layered":
        return list(range(1, parties)) if level < settings.host_depth else [GUEST]
    return list(range(parties))


@dataclass(frozen=True)
class GrownTree:
    """A tree, and the leaf that each row of the table has come to."""

    tree: Tree
    leaf: Rows

    def margins(self) -> NDArray[np.float32]:
        """[rows, outputs of the tree]: what the tree adds."""
        wide = max(len(n.weights) for n in self.tree.nodes)
        table = np.array([n.weights or (0.0,) * wide for n in self.tree.nodes], np.float32)
        return table[self.leaf]


@dataclass(frozen=True)
class BestSplit:
    """The best split of a node: whose it is, and those of its owner's candidates that reach this gain."""

    owner: int
    gain: np.float32
    tied: Rows
    sums: Sums  # [tied, outputs, 2]: what they are said to send left
    rows: Rows  # [tied]


class TreeGrowth:
    """A tree under way."""

    def __init__(
        self,
        settings: BoostSettings,
        parties: Sequence[ColumnOwner],
        names: Sequence[str],
        source: TreeSource,
        rows: int,
    ) -> None:
        self.settings, self.parties, self.names, self.source = settings, parties, names, source
        self.nodes: list[TreeNode] = [TreeNode(rows=len(source.chosen))]
        self.at: Rows = np.zeros(rows, np.int64)  # of each row of the table: its node in the tree
        self.place: Rows = np.full(rows, -1, np.int64)  # of each row: where it stands among those chosen
        self.place[source.chosen] = np.arange(len(source.chosen))

    def grow(self, tree: int, output: int) -> GrownTree:
        """All levels, then the leaves."""
        frontier, parents = [0], np.zeros(0, np.int64)
        with ThreadPoolExecutor(max(len(self.parties), 1)) as pool:
            for level in range(self.settings.depth):
                stage = self._stage(tree, level, frontier, parents)
                who = owners(self.settings, len(self.parties), tree, level)
                best = self._best(pool, stage, who) if stage.open.any() else {}
                parents = np.array(sorted(best), np.int64)
                frontier = self._split(pool, stage, frontier, best)
                if not frontier:
                    break
        self._weigh()
        return GrownTree(Tree(tuple(self.nodes), output), self.at)

    def _stage(self, tree: int, level: int, frontier: list[int], parents: Rows) -> TreeLevel:
        place = np.full(len(self.nodes), -1)
        place[frontier] = np.arange(len(frontier))
        node = place[self.at]
        inside = np.flatnonzero(node[self.source.chosen] >= 0)
        group = node[self.source.chosen][inside]
        totals = self.source.exact.by_group(group, len(frontier), inside)
        rows = np.bincount(group, minlength=len(frontier)).astype(np.int64)
        large = [may_split(self.settings, self.source.point, t, int(n)) for t, n in zip(totals, rows, strict=True)]
        return TreeLevel(tree, level, node, totals, rows, parents, np.array(large))

    def _best(self, pool: ThreadPoolExecutor, stage: TreeLevel, who: list[int]) -> dict[int, BestSplit]:
        """The best split of each node that is worth one; of equal gains, that of the first party."""
        asked = [pool.submit(self.parties[p].show, stage) for p in who if p != GUEST]
        shown = {GUEST: self.parties[GUEST].show(stage)} if GUEST in who else {}
        shown |= dict(zip([p for p in who if p != GUEST], (a.result() for a in asked), strict=True))
        best: dict[int, BestSplit] = {}
        for node in np.flatnonzero(stage.open).tolist():
            for owner in who:
                self._consider(best, stage, node, owner, shown[owner])
        return {node: b for node, b in best.items() if worth_it(self.settings, b.gain)}

    def _consider(
        self, best: dict[int, BestSplit], stage: TreeLevel, node: int, owner: int, shown: CandidateSums
    ) -> None:
        if not shown.rows.shape[1]:
            return
        total, rows = stage.totals[node], int(stage.rows[node])
        gain = gains(self.settings, self.source.point, shown.sums[node], shown.rows[node], total, rows)
        top = gain.max()
        if node not in best or top > best[node].gain:
            tied = np.flatnonzero(gain == top)
            best[node] = BestSplit(owner, top, tied, shown.sums[node][tied], shown.rows[node][tied])

    def _split(
        self, pool: ThreadPoolExecutor, stage: TreeLevel, frontier: list[int], best: dict[int, BestSplit]
    ) -> list[int]:
        """Let the owners split; the nodes of the next level, in pairs."""
        mine = {
            owner: {n: best[n].tied for n in sorted(best) if best[n].owner == owner}
            for owner in range(len(self.parties))
        }
        asked = {o: pool.submit(self.parties[o].split, stage, tied) for o, tied in mine.items() if tied}
        made: dict[int, tuple[MadeSplits, int]] = {}
        for owner, answer in asked.items():
            made |= {node: (answer.result(), i) for i, node in enumerate(mine[owner])}
        following: list[int] = []
        for node in sorted(best):
            following += self._divide(stage, frontier[node], node, best[node], *made[node])
        return following

    def _divide(self, stage: TreeLevel, number: int, node: int, best: BestSplit, made: MadeSplits, i: int) -> list[int]:
        rows, left = np.flatnonzero(stage.node == node), made.left[i]
        place = self.place[rows[left]]
        place = place[place >= 0]
        counted, sums = len(place), self.source.whole[place].sum(axis=0)
        if not ((best.rows == counted) & (best.sums == sums).all(axis=(1, 2))).any():
            raise faulty(self.names[best.owner], "the rows it sends left are not those it summed")
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
        self.nodes += [TreeNode(rows=counted), TreeNode(rows=int(stage.rows[node]) - counted)]
        self.at[rows] = np.where(left, children[0], children[1])
        return children

    def _weigh(self) -> None:
        """Weights of the leaves, from the rows that are in them and not from what anybody says."""
        totals = self.source.exact.by_group(self.at[self.source.chosen], len(self.nodes))
        for number, node in enumerate(self.nodes):
            if node.owner < 0:
                weights = leaf_weights(self.settings, self.source.point, totals[number])
                self.nodes[number] = replace(node, weights=tuple(weights.tolist()))
