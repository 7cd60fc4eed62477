"""Secure aggregation: masks that cancel in the sum, and shares that bring back those of clients who left.

Bonawitz et al. 2017, with the sparse neighbourhoods of Bell et al. 2020 (SecAgg+), which Flower runs in deployment. Every
client has two secrets. From one and its neighbours' public keys follow masks in pairs, one of a pair added, the other
subtracted; the other secret gives a mask of its own. Shamir shares of both lie with the neighbours: of a client that
answered they reveal its own mask, of one that left the key of its pairs, never both.

This is the arithmetic. In a simulation the group is small and the keys follow from the experiment's seed: it shows what
secure aggregation computes and costs, and protects nobody. In a real federation keys are drawn by their owners, and the
group is a curve (federation/secure_aggregation.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedarena.config.seeds import stream

PRIME = 2**127 - 1
GENERATOR = 3
KEY = 16  # bytes of a key, of a secret and of a share

Words = NDArray[np.uint32]  # sums of them wrap around: arithmetic modulo 2^32
Shares = dict[int, int]  # holder -> its share


class MaskedExchange:
    """One exchange of a round, and everyone who was asked in it; `everyone` if that was no draw, but all there are.

    No dataclass: every job has it, and trees need not look into it.
    """

    __slots__ = ("asked", "everyone", "exchange", "round")

    def __init__(self, round: int, exchange: int, asked: tuple[int, ...], everyone: bool = False) -> None:
        self.round, self.exchange, self.asked, self.everyone = round, exchange, asked, everyone

    def _key(self) -> tuple[Any, ...]:
        return self.round, self.exchange, self.asked

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MaskedExchange) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


@dataclass(frozen=True)
class ShareRing:
    """Who holds shares of whom: those that are asked stand in a ring, in an order of the exchange's own."""

    order: tuple[int, ...]
    places: Mapping[int, int]
    reach: int  # neighbours on each side; all where they are few

    @property
    def holders(self) -> int:
        """Of a client's shares: its neighbours and itself."""
        return min(2 * self.reach + 1, len(self.order))

    @property
    def threshold(self) -> int:
        """So many shares bring a secret back: more than half."""
        return self.holders // 2 + 1

    def holders_of(self, client: int) -> list[int]:
        """In ascending order."""
        n, place = len(self.order), self.places[client]
        if self.holders == n:
            return sorted(self.order)
        return sorted(self.order[(place + step) % n] for step in range(-self.reach, self.reach + 1))

    def beside(self, client: int) -> list[int]:
        """Its neighbours."""
        return [other for other in self.holders_of(client) if other != client]


@functools.lru_cache(maxsize=4)
def share_ring(seed: int, turn: MaskedExchange) -> ShareRing:
    """The ring of an exchange: log2(n) neighbours on each side."""
    people = np.array(turn.asked)
    order = tuple(stream(seed, "masks", turn.round, turn.exchange).permutation(people).tolist())
    reach = max(math.ceil(math.log2(max(len(order), 2))), 1)
    return ShareRing(order, {client: place for place, client in enumerate(order)}, reach)


class KeyGroup(Protocol):
    """How a secret number becomes a public key, and what masks follow from secrets."""

    def public(self, secret: int) -> Any:
        """What everybody may know."""
        ...

    def of_pair(self, secret: int, public: Any, size: int) -> Words:
        """A mask that only the owners of the secret and of the public key can make, each the same."""
        ...

    def of_own(self, secret: int, size: int) -> Words:
        """A mask that only the owner of the secret can make."""
        ...


class SimulationGroup:
    """A group for simulations."""

    def public(self, secret: int) -> int:
        """A power of the generator."""
        return pow(GENERATOR, secret, PRIME)

    def of_pair(self, secret: int, public: int, size: int) -> Words:
        """After Diffie and Hellman."""
        return self.of_own(pow(public, secret, PRIME), size)

    def of_own(self, secret: int, size: int) -> Words:
        """A long mask from a short secret."""
        return np.random.Generator(np.random.PCG64(secret)).integers(0, 2**32, size, dtype=np.uint32)


SIMULATION_GROUP = SimulationGroup()


@dataclass(frozen=True)
class ClientSecrets:
    """What a client keeps to itself during an exchange: the key to its pairs, and that of its own mask."""

    pairs: int
    own: int

    def mask(
        self, client: int, ring: ShareRing, publics: Mapping[int, Any], size: int, group: KeyGroup = SIMULATION_GROUP
    ) -> Words:
        """To be added to what it sends; `publics` are the keys of its neighbours."""
        total = group.of_own(self.own, size)
        for other in ring.beside(client):
            _add(total, group.of_pair(self.pairs, publics[other], size), client < other)
        return total


def secret_shares(secret: int, client: int, ring: ShareRing, draw: Callable[[], int]) -> Shares:
    """A point of a polynomial for each holder; `draw` gives its other coefficients."""
    polynomial = [secret, *(draw() for _ in range(ring.threshold - 1))]
    return {holder: _value(polynomial, holder + 1) for holder in ring.holders_of(client)}


class SimulatedParty:
    """A client's half in a simulation: its secrets, its mask, and the shares it deals out."""

    def __init__(self, seed: int, turn: MaskedExchange, client: int) -> None:
        self.client, self.circle = client, share_ring(seed, turn)
        self._key = (seed, turn.round, turn.exchange, client)
        rng = stream(seed, "masks", *self._key[1:])
        self._secret, self._own = _number(rng), _number(rng)

    @property
    def public(self) -> int:
        """What everybody may know."""
        return SIMULATION_GROUP.public(self._secret)

    def mask(self, size: int, publics: Mapping[int, int]) -> Words:
        """To be added to what it sends; `publics` are the keys of its neighbours."""
        return ClientSecrets(self._secret, self._own).mask(self.client, self.circle, publics, size)

    def shares(self, of_pairs: bool) -> Shares:
        """Of the key to its pairs, or of its own mask."""
        seed, *key = self._key
        rng = stream(seed, "masks", *key, 1 + of_pairs)
        secret = self._secret if of_pairs else self._own
        return secret_shares(secret, self.client, self.circle, lambda: _number(rng))


class MaskProvider(Protocol):
    """How answers are masked, and sums opened."""

    def mask(self, size: int, turn: MaskedExchange, client: int) -> Words:
        """To be added to what a client sends."""
        ...

    def unmask(self, total: Words, turn: MaskedExchange, answered: Collection[int]) -> Words | None:
        """The sum of those who answered; None if too few are left to open it."""
        ...


@dataclass(frozen=True)
class SimulatedMasks:
    """All clients in one place, their keys from one seed."""

    seed: int

    def mask(self, size: int, turn: MaskedExchange, client: int) -> Words:
        """With the keys of its neighbours."""
        party = SimulatedParty(self.seed, turn, client)
        publics = {other: SimulatedParty(self.seed, turn, other).public for other in party.circle.beside(client)}
        return party.mask(size, publics)

    def unmask(self, total: Words, turn: MaskedExchange, answered: Collection[int]) -> Words | None:
        """See `removed`."""
        return simulate_unmasking(total, self.seed, turn, answered)


def unmask_sum(
    total: Words,
    ring: ShareRing,
    answered: Collection[int],
    publics: Mapping[int, Any],
    revealed: Mapping[int, Shares],
    group: KeyGroup = SIMULATION_GROUP,
) -> Words | None:
    """The server's half: the sum without masks, from public keys and revealed shares; None if too few are left for it.

    `revealed` has shares of its own mask for who answered, of the key to its pairs for who did not.
    """
    opened = total.copy()
    for client in ring.order:
        others = [other for other in ring.beside(client) if other in answered]
        if client not in answered and not others:
            continue  # nobody has added a mask of such a pair
        if len(revealed[client]) < ring.threshold:
            return None
        secret = _recombined(dict(sorted(revealed[client].items())[: ring.threshold]))
        if client in answered:
            _add(opened, group.of_own(secret, len(opened)), False)
            continue
        for other in others:  # what it added for the pair is taken away
            _add(opened, group.of_pair(secret, publics[other], len(opened)), other > client)
    return opened


def simulate_unmasking(total: Words, seed: int, turn: MaskedExchange, answered: Collection[int]) -> Words | None:
    """The unmasking as a conversation: clients that answered say what they hold, the server opens the sum.

    They do not where one is left: the sum would be its answer.
    """
    if len(answered) < 2:
        return None
    parties = {client: SimulatedParty(seed, turn, client) for client in turn.asked}
    revealed: dict[int, Shares] = {}
    for client, party in parties.items():
        dealt = party.shares(of_pairs=client not in answered)
        revealed[client] = {holder: share for holder, share in dealt.items() if holder in answered}
    publics = {client: party.public for client, party in parties.items()}
    return unmask_sum(total, share_ring(seed, turn), answered, publics, revealed)


def mask_overhead_bytes(ring: ShareRing) -> tuple[int, int]:
    """Bytes of keys and shares that a client sends beside its vector, and that it is sent."""
    others = ring.holders - 1
    up = KEY + 2 * KEY * others + KEY * ring.holders  # its key; shares of two secrets; one share of each revealed
    return up, KEY * others + 2 * KEY * others


def _add(total: Words, words: Words, plus: bool) -> None:
    (np.add if plus else np.subtract)(total, words, out=total)


def _number(rng: np.random.Generator) -> int:
    return int.from_bytes(rng.bytes(KEY), "little") % (PRIME - 1) + 1


def _value(polynomial: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def _recombined(shares: Shares) -> int:
    """The polynomial at 0, after Lagrange."""
    secret = 0
    points = [(holder + 1, share) for holder, share in shares.items()]
    for x, share in points:
        above = below = 1
        for other, _ in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        secret = (secret + share * above * pow(below, -1, PRIME)) % PRIME
    return secret
