"""A host's sums under encryption are the sums of the plain numbers, with and without the most common bin."""

from __future__ import annotations

import numpy as np
import pytest

from fedarena.trees.bins import goes_left, list_candidates, make_bins
from fedarena.vertical.crypto.ciphertexts import Plaintexts
from fedarena.vertical.crypto.keys import PrivateKey, generate
from fedarena.vertical.crypto.plain import PlainKey
from fedarena.vertical.histogram import Histogram

RNG = np.random.default_rng(0)
ROWS, NODES = 120, 3
X = np.round(RNG.normal(size=(ROWS, 3)), 1)
X[:, 1] = np.where(RNG.random(ROWS) < 0.7, 0, X[:, 1])  # a column with one very common value
X[RNG.random(X.shape) < 0.15] = np.nan
X[:, 2] = 4  # and a constant one


@pytest.fixture(scope="module", params=["plain", "paillier"])
def key(request: pytest.FixtureRequest) -> PrivateKey | PlainKey:
    return PlainKey() if request.param == "plain" else generate(2048)


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_candidate_sums_are_sums_of_rows_that_go_left(key: PrivateKey | PlainKey, sparse: bool) -> None:
    every = np.ones(ROWS, bool)
    bins = make_bins(X, every, 6)
    codes = bins.codes(X)
    candidates = list_candidates(bins, codes, every)
    values = RNG.integers(0, 2**50, (ROWS, 1)).astype(np.uint64)
    used = np.flatnonzero(RNG.random(ROWS) < 0.8)  # some rows are in no node to build
    node = RNG.integers(0, NODES, len(used))
    place = np.argsort(np.argsort(RNG.random(ROWS)))[used].astype(np.int32)  # ciphertexts in another order than rows
    stored = np.zeros_like(values)
    stored[place] = values[used]
    totals = np.array([[values[used][node == i].sum()] for i in range(NODES)], np.uint64)

    histogram = Histogram.of(codes[:, used], bins, node, NODES, place, sparse)
    encrypted_totals = key.encrypt(Plaintexts(totals)) if sparse else None
    sums = histogram.candidate_sums(key.public, key.encrypt(Plaintexts(stored)), encrypted_totals, candidates)
    counts = histogram.candidate_counts(candidates)

    got = np.array(key.decrypt(sums)).reshape(NODES, len(candidates))
    for c in range(len(candidates)):
        left = goes_left(
            codes[:, used],
            bins,
            int(candidates.column[c]),
            int(candidates.bin[c]),
            bool(candidates.missing_left[c]),
        )
        for i in range(NODES):
            assert got[i, c] == values[used][left & (node == i)].sum()
            assert counts[i, c] == np.count_nonzero(left & (node == i))


def test_the_most_common_bin_is_not_summed() -> None:
    every = np.ones(ROWS, bool)
    bins = make_bins(X, every, 6)
    codes, node, place = bins.codes(X), np.zeros(ROWS, np.int64), np.arange(ROWS, dtype=np.int32)
    dense, sparse = (Histogram.of(codes, bins, node, 1, place, s) for s in (False, True))
    common = sum(int(np.bincount(column).max()) for column in codes)
    assert len(dense.rows) == 3 * ROWS
    assert len(sparse.rows) == 3 * ROWS - common
