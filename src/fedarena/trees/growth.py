"""The growth of a level of a tree: of all candidates of a node, the one with the largest gain splits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedarena.trees.cut_table import CutTable
from fedarena.trees.fixed_point import FixedPoint, Sums
from fedarena.trees.gain import is_worth_splitting, split_gains
from fedarena.trees.kernels import best_candidates
from fedarena.trees.settings import GainSettings

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class CandidateSums:
    """Sums and counts of the rows that candidates send left; counts are 0 where no setting needs them."""

    sums: Sums  # [nodes, candidates, outputs, 2]
    rows: Rows  # [nodes, candidates]


@dataclass(frozen=True)
class BestSplit:
    """The best split of a node: its owner, and those of the owner's candidates that reach this gain."""

    owner: int
    gain: np.float32
    tied: Rows
    sums: Sums  # [tied, outputs, 2]: of the rows that go left
    rows: Rows  # [tied]


def best_splits(
    settings: GainSettings,
    point: FixedPoint,
    totals: Sums,
    rows: Rows,
    nodes: Rows,
    offers: Mapping[int, CandidateSums],
) -> dict[int, BestSplit]:
    """Return the best split of each of these nodes that is worth one; of equal gains, that of the first owner.

    `totals` [nodes, outputs, 2] and `rows` [nodes] are those of all nodes of the level.
    """
    best: dict[int, BestSplit] = {}
    for owner, offer in offers.items():
        if not len(nodes) or not offer.sums.shape[1]:
            continue
        every, count = totals[nodes][:, None], rows[nodes][:, None]
        gains = split_gains(settings, point, offer.sums[nodes], offer.rows[nodes], every, count)
        for node, gain in zip(nodes.tolist(), gains, strict=True):
            top = gain.max()
            if node not in best or top > best[node].gain:
                tied = np.flatnonzero(gain == top)
                best[node] = BestSplit(owner, top, tied, offer.sums[node][tied], offer.rows[node][tied])
    return {node: best[node] for node in sorted(best) if is_worth_splitting(settings, best[node].gain)}


def find_candidates(
    settings: GainSettings, point: FixedPoint, table: CutTable, sums: Sums, totals: Sums
) -> tuple[Rows, NDArray[np.float32], Sums]:
    """Return the first candidate with the largest gain of each node, this gain, and the sums [nodes, 2] to its left.

    `sums` [nodes, bins, 2] and `totals` [nodes, 2] are of one output, without counts of rows.
    """
    found = best_candidates(sums, totals, table.ranges, point.units, settings.lambda_, settings.min_child_weight)
    if found is not None:
        return found
    left, every, nodes = table.left_sums(sums), np.arange(len(sums)), np.zeros((len(sums), 1), np.int64)
    if not left.shape[1]:
        return nodes[:, 0], np.full(len(sums), -np.inf, np.float32), np.zeros_like(totals)
    gains = split_gains(settings, point, left[:, :, None], nodes, totals[:, None, None], nodes)
    best = gains.argmax(axis=1)
    return best, gains[every, best], left[every, best]
