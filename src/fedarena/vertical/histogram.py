"""A host's sums of ciphertexts: first by column, node and bin, then by candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedarena.vertical.bins import Bins, Candidates, Codes
from fedarena.vertical.crypto.ciphertexts import Ciphertexts

Places = NDArray[np.int64]


class CiphertextAdder(Protocol):
    """What a host can do with ciphertexts: it has the public key alone."""

    def sums(self, c: Ciphertexts, rows: NDArray[np.int32], starts: Places) -> Ciphertexts:
        """The sum of each segment of rows."""

    def add(self, a: Ciphertexts, b: Ciphertexts) -> Ciphertexts:
        """Pairwise."""

    def subtract(self, a: Ciphertexts, b: Ciphertexts) -> Ciphertexts:
        """Pairwise."""


@dataclass(frozen=True)
class HistogramLayout:
    """Where the sum of a (column, node, bin) stands: column by column, in it node by node, the missing bin last."""

    bins: Bins
    nodes: int

    @property
    def width(self) -> Places:
        """Bins of each column, the missing one included."""
        return self.bins.counts + 1

    @property
    def first(self) -> Places:
        """Where each column starts; the length of all at the end."""
        return np.concatenate([[0], np.cumsum(self.width)]) * self.nodes

    def at(self, column: Places, node: Places, code: Places) -> Places:
        """The place of these."""
        return self.first[column] + node * self.width[column] + code

    def pairs(self) -> tuple[Places, Places]:
        """Every (column, node), in order."""
        columns = len(self.bins.counts)
        return np.repeat(np.arange(columns), self.nodes), np.tile(np.arange(self.nodes), columns)

    def places(self, candidates: Candidates) -> tuple[Places, Places, NDArray[np.bool_]]:
        """For each node and candidate: its last bin on the left, its missing bin, and whether both go left."""
        node = np.repeat(np.arange(self.nodes), len(candidates))
        column, last = (np.tile(a, self.nodes) for a in (candidates.column, candidates.bin))
        missing = self.at(column, node, self.bins.counts[column])
        base = np.where(last >= 0, self.at(column, node, np.maximum(last, 0)), missing)
        return base, missing, np.tile(candidates.missing_left, self.nodes) & (last >= 0)

    def steps(self) -> list[Places]:
        """The bins to cumulate, one step after the other: all second bins, all third ones, ..."""
        column, node = self.pairs()
        steps = []
        for code in range(1, int(self.bins.counts.max(initial=1))):
            has = self.bins.counts[column] > code
            steps.append(self.at(column[has], node[has], np.full(int(has.sum()), code)))
        return steps

    def by_candidate(self, sums: NDArray[np.int64], candidates: Candidates) -> NDArray[np.int64]:
        """[nodes, candidates, ...] from plain sums of bins [bins, ...]: what each candidate sends left."""
        upto = sums.copy()
        for place in self.steps():
            upto[place] += upto[place - 1]
        base, missing, both = self.places(candidates)
        left = upto[base]
        left[both] += upto[missing[both]]
        return left.reshape(self.nodes, len(candidates), *sums.shape[1:])


@dataclass(frozen=True)
class Histogram:
    """Which rows make up each bin."""

    layout: HistogramLayout
    counts: Places  # rows of each bin
    rows: NDArray[np.int32]  # ciphertexts to sum, bin after bin
    starts: Places
    left_out: Places | None  # [columns x nodes]: the code of the most common bin, which is never summed

    @classmethod
    def of(
        cls, codes: Codes, bins: Bins, node: NDArray[np.integer], nodes: int, place: NDArray[np.int32], sparse: bool
    ) -> Histogram:
        """Sort rows into bins. `node` says where each row is, `place` which ciphertext it has; codes are [columns, rows]."""
        counts, lengths, rows, left_out = [], [], [], []
        for column, width in zip(codes, (bins.counts + 1).tolist(), strict=True):
            group = node.astype(np.int64) * width + column
            if nodes * width < 1 << 16:
                group = group.astype(np.uint16)  # numpy sorts 16 bits by radix
            count = np.bincount(group, minlength=nodes * width).reshape(nodes, width)
            counts.append(count.reshape(-1))
            if sparse:
                common = count.argmax(axis=1)
                kept = np.flatnonzero(column != common.astype(np.uint16)[node])
                group, own, count = group[kept], place[kept], count.copy()
                count[np.arange(nodes), common] = 0
                left_out.append(common)
            else:
                own = place
            rows.append(own[np.argsort(group, kind="stable")])
            lengths.append(count.reshape(-1))
        return cls(
            HistogramLayout(bins, nodes),
            np.concatenate(counts),
            np.concatenate(rows).astype(np.int32, copy=False),
            np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64),
            np.concatenate(left_out) if sparse else None,
        )

    def candidate_counts(self, candidates: Candidates) -> Places:
        """[nodes, candidates]: rows that each would send left."""
        return self.layout.by_candidate(self.counts, candidates)

    def candidate_sums(
        self, public: CiphertextAdder, c: Ciphertexts, totals: Ciphertexts | None, candidates: Candidates
    ) -> Ciphertexts:
        """The same of ciphertexts, node by node; `totals` are those of the nodes, if a bin was left out."""
        data = public.sums(c, self.rows, self.starts).data.copy()
        if self.left_out is not None and totals is not None:
            self._fill_in(public, data, totals)
        for place in self.layout.steps():
            data[place] = public.add(Ciphertexts(data[place - 1]), Ciphertexts(data[place])).data
        base, missing, both = self.layout.places(candidates)
        out = data[base]
        if both.any():
            out[both] = public.add(Ciphertexts(out[both]), Ciphertexts(data[missing[both]])).data
        return Ciphertexts(out)

    def _fill_in(self, public: CiphertextAdder, data: NDArray[np.uint64], totals: Ciphertexts) -> None:
        """The bin that was left out = node total - all other bins."""
        assert self.left_out is not None
        column, node = self.layout.pairs()
        edges = np.append(self.layout.at(column, node, np.zeros_like(node)), len(data))
        others = public.sums(Ciphertexts(data), np.arange(len(data), dtype=np.int32), edges)
        rest = public.subtract(totals.take(node), others)
        data[self.layout.at(column, node, self.left_out)] = rest.data
