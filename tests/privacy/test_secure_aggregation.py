"""Secure aggregation: masks cancel, those of clients that left are recovered, and too few shares reveal nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedarena.privacy.secure_aggregation import (
    PRIME,
    MaskedExchange,
    ShareRing,
    SimulatedMasks,
    SimulatedParty,
    _recover_secret,
    share_ring,
    unmask_sum,
)

SIZE = 50


def masked(turn: MaskedExchange, answered: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The true sum of what clients have, and the sum of what they send."""
    rng = np.random.default_rng(len(answered))
    true = np.zeros(SIZE, np.uint32)
    sent = np.zeros(SIZE, np.uint32)
    for client in answered:
        own = rng.integers(0, 2**32, SIZE, dtype=np.uint32)
        true += own
        sent += own + SimulatedMasks(0).mask(SIZE, turn, client)
    return true, sent


@pytest.mark.parametrize("clients", [4, 10, 40])
@pytest.mark.parametrize("dropouts", [0, 1, 2])
def test_masks_cancel_to_the_bit(clients: int, dropouts: int) -> None:
    turn = MaskedExchange(3, 0, tuple(range(100, 100 + clients)))
    if clients == 4 and dropouts == 2:
        dropouts = 1  # two of four hold too few shares, see below
    answered = list(turn.asked[dropouts:])
    true, sent = masked(turn, answered)
    assert not np.array_equal(true, sent)
    assert np.array_equal(SimulatedMasks(0).unmask(sent, turn, answered), true)


@pytest.mark.slow
@given(st.integers(2, 30), st.data())
@settings(max_examples=25, deadline=None)
def test_any_clients_may_leave(clients: int, data: st.DataObject) -> None:
    """Either the sum is exact, or it stays closed; it is exact where more than half of each client's holders are left."""
    turn = MaskedExchange(0, 1, tuple(range(clients)))
    answered = sorted(data.draw(st.sets(st.integers(0, clients - 1), min_size=2)))
    true, sent = masked(turn, answered)
    found = SimulatedMasks(0).unmask(sent, turn, answered)
    ring = share_ring(0, turn)
    left = [sum(holder in answered for holder in ring.holders_of(client)) for client in range(clients)]
    if min(left) >= ring.threshold:
        assert found is not None
    assert found is None or np.array_equal(found, true)


def test_a_sum_of_one_is_not_opened() -> None:
    turn = MaskedExchange(0, 0, (1, 2, 3))
    assert SimulatedMasks(0).unmask(masked(turn, [2])[1], turn, [2]) is None


def test_what_a_client_sends_looks_like_noise() -> None:
    """Of a vector of zeros, every bit is one half of the time: 3,200 tosses of each, within five deviations."""
    turn = MaskedExchange(0, 0, tuple(range(6)))
    words = SimulatedMasks(0).mask(3200, turn, 0)
    ones = [(words >> bit & 1).mean() for bit in range(32)]
    assert np.abs(np.array(ones) - 0.5).max() < 5 * 0.5 / np.sqrt(3200)
    assert not np.array_equal(words, SimulatedMasks(0).mask(3200, MaskedExchange(1, 0, turn.asked), 0))


def test_shares_bring_a_secret_back_and_fewer_do_not() -> None:
    party = SimulatedParty(0, MaskedExchange(0, 0, tuple(range(9))), 4)
    need = party.ring.threshold
    assert need == 5
    for of_pairs, secret in ((True, party.secrets.pairs), (False, party.secrets.own)):
        shares = party.shares(of_pairs)
        items = list(shares.items())
        assert len(items) == 9
        assert _recover_secret(dict(items[:need])) == _recover_secret(dict(items[-need:])) == secret
        assert _recover_secret(dict(items[: need - 1])) != secret


def test_a_pair_agrees_on_its_mask() -> None:
    one, two = (SimulatedParty(0, MaskedExchange(0, 0, (5, 8)), client) for client in (5, 8))
    assert pow(one.public, two.secrets.pairs, PRIME) == pow(two.public, one.secrets.pairs, PRIME)


def test_neighbours_are_mutual_and_few() -> None:
    ring = share_ring(0, MaskedExchange(0, 0, tuple(range(1000))))
    assert (ring.reach, ring.holders, ring.threshold) == (10, 21, 11)
    for client in range(0, 1000, 97):
        others = ring.neighbours(client)
        assert len(others) == 20
        assert all(client in ring.neighbours(other) for other in others)


def test_the_server_needs_nothing_but_keys_and_shares() -> None:
    """The half of the server, fed by hand with what clients would reveal."""
    turn = MaskedExchange(2, 0, (0, 1, 2, 3, 4))
    true, sent = masked(turn, [0, 1, 2, 4])
    ring: ShareRing = share_ring(0, turn)
    parties = [SimulatedParty(0, turn, client) for client in turn.asked]
    revealed = {
        party.client: {h: s for h, s in party.shares(of_pairs=party.client == 3).items() if h != 3} for party in parties
    }
    publics = {party.client: party.public for party in parties}
    assert np.array_equal(unmask_sum(sent, ring, [0, 1, 2, 4], publics, revealed), true)
    revealed[3] = dict(list(revealed[3].items())[:2])
    assert unmask_sum(sent, ring, [0, 1, 2, 4], publics, revealed) is None


@pytest.mark.parametrize("dropouts", [0, 2])
def test_masks_of_64_bits_cancel_too(dropouts: int) -> None:
    turn = MaskedExchange(1, 0, tuple(range(10)))
    answered = list(turn.asked[dropouts:])
    own = np.random.default_rng(0).integers(0, 2**64, (10, SIZE), dtype=np.uint64)
    sent = np.zeros(SIZE, np.uint64)
    for client in answered:
        sent += own[client] + SimulatedMasks(0).mask(SIZE, turn, client, np.uint64)
    true = own[answered].sum(axis=0)
    assert not np.array_equal(sent >> np.uint64(32), true >> np.uint64(32))
    assert np.array_equal(SimulatedMasks(0).unmask(sent, turn, answered), true)
