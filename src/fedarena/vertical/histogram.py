"""Sums of ciphertexts at a host: first by column, node and bin, then by candidate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedarena.trees.bins import Bins, Candidates, Codes
from fedarena.trees.histogram_layout import HistogramLayout, Indices
from fedarena.vertical.crypto.ciphertexts import Ciphertexts
from fedarena.vertical.crypto.keys import PublicKey
from fedarena.vertical.crypto.plain import PlainPublicKey


@dataclass(frozen=True)
class Histogram:
    """The rows of each bin of each node."""

    layout: HistogramLayout
    counts: Indices  # rows of each bin
    rows: NDArray[np.int32]  # ciphertexts to sum, bin after bin
    starts: Indices
    left_out: Indices | None  # [columns x nodes]: the code of the most common bin, which is not summed

    @classmethod
    def of(
        cls, codes: Codes, bins: Bins, node: NDArray[np.integer], nodes: int, position: NDArray[np.int32], sparse: bool
    ) -> Histogram:
        """Sort rows with codes [columns, rows] into bins; `node` is the node of each row, `position` its ciphertext."""
        counts, lengths, rows, left_out = [], [], [], []
        for column, width in zip(codes, (bins.counts + 1).tolist(), strict=True):
            group = node.astype(np.int64) * width + column
            if nodes * width < 1 << 16:
                group = group.astype(np.uint16)  # numpy sorts 16 bits by radix
            count = np.bincount(group, minlength=nodes * width).reshape(nodes, width)
            counts.append(count.reshape(-1))
            if sparse:
                common = count.argmax(axis=1)
                summed = np.flatnonzero(column != common.astype(np.uint16)[node])
                group, own, count = group[summed], position[summed], count.copy()
                count[np.arange(nodes), common] = 0
                left_out.append(common)
            else:
                own = position
            rows.append(own[np.argsort(group, kind="stable")])
            lengths.append(count.reshape(-1))
        return cls(
            HistogramLayout(bins, nodes),
            np.concatenate(counts),
            np.concatenate(rows).astype(np.int32, copy=False),
            np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64),
            np.concatenate(left_out) if sparse else None,
        )

    def candidate_counts(self, candidates: Candidates) -> Indices:
        """Return the number of rows that each candidate sends left, [nodes, candidates]."""
        return self.layout.by_candidate(self.counts, candidates)

    def candidate_sums(
        self, public: PublicKey | PlainPublicKey, c: Ciphertexts, totals: Ciphertexts | None, candidates: Candidates
    ) -> Ciphertexts:
        """Return the same sums of ciphertexts, node by node; `totals` are those of the nodes, if a bin was left out."""
        data = public.sums(c, self.rows, self.starts).data.copy()
        if self.left_out is not None and totals is not None:
            self._fill_in(public, data, totals)
        for step in self.layout.steps():
            data[step] = public.add(Ciphertexts(data[step - 1]), Ciphertexts(data[step])).data
        base, missing, both = self.layout.candidate_bins(candidates)
        out = data[base]
        if both.any():
            out[both] = public.add(Ciphertexts(out[both]), Ciphertexts(data[missing[both]])).data
        return Ciphertexts(out)

    def _fill_in(self, public: PublicKey | PlainPublicKey, data: NDArray[np.uint64], totals: Ciphertexts) -> None:
        """Compute the bin that was left out: the total of the node minus all other bins."""
        assert self.left_out is not None
        column, node = self.layout.pairs()
        edges = np.append(self.layout.index(column, node, np.zeros_like(node)), len(data))
        others = public.sums(Ciphertexts(data), np.arange(len(data), dtype=np.int32), edges)
        rest = public.subtract(totals.take(node), others)
        data[self.layout.index(column, node, self.left_out)] = rest.data
