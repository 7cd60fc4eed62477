"""The arithmetic of private set intersection: points on the curve, keys that commute, points that no honest party sends."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedarena.vertical import private_intersection
from fedarena.vertical.private_intersection import FIELD, POINT, A, BlindingKey, InvalidPoint, curve_point

# The coordinates of points of order 1, 2, 4 and 8 on the curve and on its twist (Bernstein 2006, "Curve25519", section 3).
SMALL_ORDER = (
    0,
    1,
    FIELD - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)


def square_root(number: int) -> int:
    """Return a root modulo 2^255 - 19, which is 5 modulo 8 (RFC 8032, section 5.1.3)."""
    root = pow(number, (FIELD + 3) // 8, FIELD)
    return root if root * root % FIELD == number % FIELD else root * pow(2, (FIELD - 1) // 4, FIELD) % FIELD


@given(st.text(max_size=20))
@settings(max_examples=50, deadline=None)
def test_every_id_is_a_point_of_the_curve(name: str) -> None:
    x = int.from_bytes(curve_point(name), "little")
    square = x * (x * x + A * x + 1) % FIELD
    assert x < FIELD
    assert square_root(square) ** 2 % FIELD == square


def test_both_ways_to_find_squares_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gmpy2")
    names = [f"person {i}" for i in range(40)]
    fast = [curve_point(name) for name in names]
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    private_intersection._legendre.cache_clear()
    try:
        assert [curve_point(name) for name in names] == fast
    finally:
        private_intersection._legendre.cache_clear()


@given(st.sets(st.text(max_size=5), max_size=20), st.sets(st.text(max_size=5), max_size=20))
@settings(max_examples=25, deadline=None)
def test_the_same_points_under_both_keys_are_the_common_ids(ours: set[str], theirs: set[str]) -> None:
    guest, host = BlindingKey(), BlindingKey()
    named = sorted(ours)
    both = host.blind_again(guest.blind(named))
    known = set(guest.blind_again(host.blind(theirs)))
    assert {name for name, point in zip(named, both, strict=True) if point in known} == ours & theirs


def test_blinded_points_are_on_the_curve_too_so_that_they_reveal_no_bit_of_an_id() -> None:
    for point in BlindingKey().blind([f"person {i}" for i in range(30)]):
        x = int.from_bytes(point, "little")
        assert pow(x * (x * x + A * x + 1), (FIELD - 1) // 2, FIELD) == 1


def test_keys_differ_between_alignments() -> None:
    assert BlindingKey().blind(["a"]) != BlindingKey().blind(["a"])


@pytest.mark.parametrize("x", SMALL_ORDER)
def test_points_of_a_small_order_are_refused(x: int) -> None:
    with pytest.raises(InvalidPoint):
        BlindingKey().blind_again([x.to_bytes(POINT, "little")])


@pytest.mark.parametrize("length", [0, POINT - 1, POINT + 1])
def test_points_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(InvalidPoint):
        BlindingKey().blind_again([bytes(length)])
