"""Horizontal federated gradient boosting on histograms, lossless: the trees of pooled XGBoost (Chen and Guestrin 2016,
arXiv:1603.02754), grown from sums that clients add up on their own rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Reply, RequestSender, Vector, Work, known, summed
from fedarena.algorithms.tree_algorithm import TreeAlgorithm
from fedarena.config.registry import register
from fedarena.trees.cut_search import PASSES, CutSearch, count_cells
from fedarena.trees.cut_table import CutPoints
from fedarena.trees.forest import Float32Array, Forest
from fedarena.trees.row_growth import RowGrowth


@dataclass(frozen=True)
class BoostState:
    """The state of the server: the forest as a vector, the common cut points, and the trees that clients do not have yet."""

    w: Vector
    cuts: CutPoints | None
    unsent: Float32Array


@dataclass(frozen=True)
class Cells:
    """Cells of the grid of numbers, column after column: how many values lie in the finer cells of each?"""

    cells: list[NDArray[np.uint32]]
    passes: int


@dataclass(frozen=True)
class Counts:
    """Counts of values, or of columns and rows before the first pass."""

    counts: NDArray[np.int64] = summed()


@dataclass(frozen=True)
class Level:
    """A level of the trees under way: `build` are the nodes to sum, `news` what clients do not know yet."""

    news: tuple[NDArray[np.generic], ...]
    build: NDArray[np.int64]
    depth: int
    rows: int  # of all clients, from which the fixed point follows
    w: Vector = known()
    cuts: CutPoints = known()
    trees: Float32Array = known()


@dataclass(frozen=True)
class LevelSums:
    """Sums of g and h in fixed point, [build, bins, 2]."""

    sums: NDArray[np.int64] = summed()


@register("algorithm", "histboost", paper="Chen and Guestrin 2016, arXiv:1603.02754")
@dataclass(frozen=True)
class HistBoost(TreeAlgorithm):
    """Gradient boosting whose trees equal those of pooled XGBoost `hist`: clients send sums by node, column and bin.

    Cut points are the quantiles of all rows together, found from counts alone in the first round. A tree is grown level by
    level: each client adds up g and h as integers, the server adds the sums of the clients and picks the splits.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.HistBoost(trees=5), **federation)
    >>> run.final.accuracy > 0.9
    True
    """

    @property
    def most_exchanges(self) -> int:
        """Return the passes that find the cut points in the first round, and the levels of a tree."""
        return len(PASSES) + self.depth

    def init(self, w: Vector) -> BoostState:
        """Start without trees and without cut points."""
        return BoostState(w, None, np.empty((0, 0, 4), np.float32))

    def client(self, message: Level, client_state: None, work: Work) -> Reply:
        """Sum g and h of the client's rows by node, column and bin."""
        rows, forest, table = work.boosted_rows, Forest.of(message.w), message.cuts.table
        boosting = self.boosting(forest)
        integers = rows.integers(message.w, boosting, boosting.point(message.rows), self.chosen_rows(work))
        return Reply(LevelSums(rows.sums(table, integers, message.trees, message.depth, message.build)))

    def count(self, message: Cells, client_state: None, work: Work) -> Reply:
        """Count the client's values in the cells of the message."""
        keys = work.boosted_rows.keys
        cells = message.cells or [np.zeros(1, np.uint32) for _ in keys]
        return Reply(Counts(count_cells(keys, cells, message.passes)))

    def round(self, state: BoostState, request: RequestSender) -> BoostState:
        """Grow the trees of one boosting step, an exchange for each level; a tree ends where a client leaves."""
        cuts = state.cuts or self._find_cuts(request)
        if cuts is None:
            return state
        forest, rows = Forest.of(state.w), request.cohort.total_rows
        boosting = self.boosting(forest)
        growth = RowGrowth(boosting, boosting.point(rows), cuts.table)
        news: tuple[NDArray[np.generic], ...] = (
            state.unsent,
            *((cuts.values, cuts.counts) if state.cuts is None else ()),
        )
        answered: tuple[int, ...] | None = None
        while len(growth.build):
            level = Level(news, growth.build, growth.depth, rows, state.w, cuts, growth.trees.copy())
            found = request(level)
            if found is None or request.cohort.answered != (answered or request.cohort.answered):
                break
            answered = request.cohort.answered
            news = (growth.advance(found.sums),)
        if answered is None:
            return replace(state, cuts=cuts)
        grown = growth.result()
        vector = forest.with_trees(grown).vector
        vector.flags.writeable = False  # clients need not compare what cannot change
        return BoostState(vector, cuts, grown[(grown[:, :, 0] < 0) & (grown[:, :, 3] != 0)][:, 3:])

    def _find_cuts(self, request: RequestSender) -> CutPoints | None:
        """Find the quantiles of all rows together, one exchange for each pass; None where a client leaves in between."""
        search: CutSearch | None = None
        answered: tuple[int, ...] | None = None
        while search is None or not search.is_done:
            found = request(
                Cells([], 0) if search is None else Cells(search.cells, search.passes), "count", everyone=True
            )
            if found is None or request.cohort.answered != (answered or request.cohort.answered):
                return None  # the next round begins again: counts of other rows do not go with those so far
            answered = request.cohort.answered
            search = search or CutSearch(len(found.counts) // CutSearch.first_cells, self.bins)
            search.refine(found.counts)
        return search.result(request.cohort.rows)
