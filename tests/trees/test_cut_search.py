"""Quantiles from counts alone are those of the pooled rows, to the bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedarena.trees.cut_search import CutSearch, count_cells, key_values, ordered_keys
from fedarena.trees.cut_table import CutPoints

FLOATS = st.floats(-(2.0**90), 2.0**90, width=32) | st.sampled_from([np.nan, 0.0, -0.0, 1.0, 2.0, 1e-42])


@given(st.lists(FLOATS, min_size=1, max_size=120), st.integers(2, 9), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_cut_points_are_those_of_the_pooled_rows(values: list[float], bins: int, clients: int) -> None:
    x = np.array(values, np.float32)[:, None] + np.float32(0)
    search = CutSearch(columns=1, bins=bins)
    while not search.is_done:
        parts = (
            count_cells([ordered_keys(part[:, 0])], search.cells, search.passes) for part in np.array_split(x, clients)
        )
        search.refine(sum(parts, np.int64(0)))
    found, pooled = search.result(len(x)), CutPoints.of_rows(x, bins)
    for name in ("values", "counts", "has_values", "has_missing"):
        assert np.array_equal(getattr(found, name), getattr(pooled, name)), name


@given(st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=1, max_size=20))
def test_keys_are_ordered_and_lead_back(values: list[float]) -> None:
    x = np.sort(np.array(values, np.float32)) + np.float32(0)
    keys = ordered_keys(x)
    assert np.all(np.diff(keys.astype(np.int64)) >= 0)
    assert np.array_equal(key_values(keys), x)
