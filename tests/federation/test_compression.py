"""Fewer bytes, the same bits; and forms that do not fit are refused, however large they say they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from tests.support.federation_clients import Federation

from fedarena.federation.compression import compress, decompress

LIMIT = 1 << 24


def size(arrays: dict[str, Any]) -> int:
    return sum(array.nbytes for array in arrays.values())


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@pytest.mark.slow
@given(
    npst.arrays(
        st.sampled_from([np.float32, np.float64, np.uint32, np.int64]),
        npst.array_shapes(max_dims=2, max_side=40),
        elements=st.sampled_from([0, 0, 0, 1, 2, 3, 200]),
    ),
    st.integers(1, 5),
)
@settings(max_examples=100)
def test_any_array_comes_back_to_the_bit(array: np.ndarray, negate: int) -> None:
    if array.dtype.kind == "f":
        array.reshape(-1)[::negate] *= -1  # minus zeros among them
        array.reshape(-1)[:1] = np.nan
    assert same(decompress(compress({"a": array}), LIMIT)["a"], array)


def test_a_tenth_of_the_numbers_in_eight_bits_takes_a_tenth_of_a_byte_and_places() -> None:
    rng = np.random.default_rng(0)
    chosen = rng.random(20_000) < 0.1
    dense = np.floor(rng.standard_normal(20_000) * 40).astype(np.float32) / 40
    for array, most in ((np.where(chosen, rng.standard_normal(20_000), 0).astype(np.float32), 12_000), (dense, 25_000)):
        parts = compress({"a": array})
        assert size(parts) < most < array.nbytes
        assert same(decompress(parts, LIMIT)["a"], array)
    words = rng.integers(0, 2**12, 1000, dtype=np.uint32)
    assert size(compress({"a": words})) < 1000 * 12 / 8 + 100
    many = rng.integers(0, 2**11, 200_001, dtype=np.uint32)  # more than one piece
    assert same(decompress(compress({"a": many}), LIMIT)["a"], many)
    noise = rng.standard_normal(1000)
    assert compress({"a": noise})["a"] is noise


@pytest.mark.slow
@given(st.data())
@settings(max_examples=200)
def test_parts_that_do_not_fit_are_refused(data: st.DataObject) -> None:
    """Any number of the form, any length of any part: an error of a known kind, or an array within the limit."""
    array = np.where(np.arange(200) % 7 == 0, np.arange(200) % 3, 0).astype(np.float32)
    parts = {name: part.copy() for name, part in compress({"a": array}).items()}
    name = data.draw(st.sampled_from(sorted(parts)))
    if name == "a:form":
        at = data.draw(st.integers(0, len(parts[name]) - 1))
        parts[name][at] = data.draw(st.one_of(st.integers(-3, 300), st.sampled_from([2**40, 2**62, -(2**40)])))
    elif data.draw(st.booleans()):
        parts[name] = parts[name][: data.draw(st.integers(0, len(parts[name])))]
    else:
        parts[name] = parts[name] + parts[name].dtype.type(data.draw(st.integers(1, 200)))
    try:
        found = decompress(parts, LIMIT)["a"]
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError):
        return
    assert found.nbytes <= LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("uplink", [{"top_k": 0.05}, {"quantise": 4}, {"top_k": 0.05, "quantise": 8}])
def test_what_is_counted_is_about_what_is_sent(uplink: dict[str, Any], tmp_path: Path) -> None:
    """A message has a body of some hundred bytes; the rest is within a quarter of what the uplink counts."""
    federation = Federation(tmp_path)
    federation.start()
    run = federation.serve(federation.experiment(model="mlp_2nn", uplink=uplink, rounds=1))
    sent = [len(content) for _, content in federation.link.up if b'"what":"done"' in content]
    assert len(sent) == 4
    assert sum(sent) - 4 * 1200 < 1.25 * run.final.bytes_up
    assert run.final.bytes_up < 0.2 * run.final.bytes_down
