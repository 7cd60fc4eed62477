"""Sums of vectors by the kernels: numpy's, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedarena.models import compiled
from fedarena.models.compiled import BUILDS, add_scaled, all_finite, library

ABLE = [name for name in BUILDS["AVX512"] if library(name) is not None]


@pytest.fixture(params=ABLE)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    found = library(request.param)
    assert found is not None
    monkeypatch.setattr(compiled, "kernels", lambda: found[1])
    return str(request.param)


def as_numpy(total: NDArray[np.float64], part: NDArray[Any], factor: float) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        summed: NDArray[np.float64] = total + np.multiply(part, factor, dtype=np.float64)
    return summed


singles = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(singles, max_size=40), factor=st.floats(-1e3, 1e3))
def test_any_numbers_are_added_as_numpy_adds_them(values: list[float], factor: float, build: str) -> None:
    part, total = np.array(values, np.float32), np.linspace(-1, 1, len(values))
    expected = as_numpy(total, part, factor)
    add_scaled(total, part, factor)
    np.testing.assert_array_equal(total, expected)
    assert all_finite(part) == bool(np.isfinite(part).all())


def test_products_are_rounded_before_they_are_added(build: str) -> None:
    """A fused operation, which rounds once, would differ in a quarter of these."""
    rng = np.random.default_rng(0)
    part, total = rng.standard_normal(1003, np.float32), rng.standard_normal(1003)
    exact = total.astype(np.longdouble) + part.astype(np.longdouble) * np.longdouble(1 / 3)
    expected = as_numpy(total, part, 1 / 3)
    assert (exact.astype(np.float64) != expected).mean() > 0.05  # rounded once: another sum
    add_scaled(total, part, 1 / 3)
    np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("at", [0, 15, 16, 31, 36])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_single_bad_number_is_found_wherever_it_is(at: int, bad: float, build: str) -> None:
    x = np.full(37, np.finfo(np.float32).max, np.float32)
    assert all_finite(x)
    x[at] = bad
    assert not all_finite(x)


@pytest.mark.parametrize(
    "part",
    [
        np.linspace(0, 1, 12),
        np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4).T,
        np.arange(12, dtype=np.float32)[::-1],
        np.full((), 0.1, np.float32),
        np.frombuffer(np.linspace(0, 1, 12, dtype=np.float32).tobytes(), np.float32),
    ],
    ids=["double", "transposed", "backwards", "number", "read-only"],
)
def test_whatever_kind_of_array_it_is(part: NDArray[Any]) -> None:
    total = np.full(part.shape, 0.25)
    expected = as_numpy(total, part, 0.1)
    add_scaled(total, part, 0.1)
    np.testing.assert_array_equal(total, expected)
    assert all_finite(part)


def test_without_kernels_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "kernels", lambda: None)
    part, total = np.linspace(0, 1, 12, dtype=np.float32), np.zeros(12)
    add_scaled(total, part, 1 / 3)
    np.testing.assert_array_equal(total, as_numpy(np.zeros(12), part, 1 / 3))
    assert all_finite(part)
    assert not all_finite(np.array([np.nan], np.float32))
    assert all_finite(np.empty(0, np.float32))
