"""Secure aggregation: masks that cancel in the sum, and shares that recover the masks of clients that left.

Bonawitz et al. 2017, with the sparse neighbourhoods of Bell et al. 2020 (SecAgg+), which Flower runs in deployment. Every
client has two secrets. One of them and the neighbours' public keys give pairwise masks, which one client of a pair adds and
the other subtracts; the second secret gives the client's own mask. The neighbours hold Shamir shares of both: for a client
that answered they reveal its own mask, for one that left the key of its pairs, never both.

This file has the arithmetic. In a simulation the group is small and the keys follow from the experiment's seed: it shows
what secure aggregation computes and costs, and protects no one. In a real federation clients draw their own keys, and the
group is an elliptic curve (federation/secure_aggregation.py).
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

Words = NDArray[Any]  # unsigned integers of 32 or 64 bits, whose sums wrap around
Word = type[np.uint32] | type[np.uint64]
Shares = dict[int, int]  # holder -> its share


class MaskedExchange:
    """The identity of one exchange of a round: its number and its clients; `everyone` if those are all, not a sample.

    It is not a dataclass, so that functions over trees treat it as a leaf.
    """

    __slots__ = ("asked", "everyone", "number", "round")

    def __init__(self, round: int, number: int, asked: tuple[int, ...], everyone: bool = False) -> None:
        self.round, self.number, self.asked, self.everyone = round, number, asked, everyone

    def _key(self) -> tuple[Any, ...]:
        return self.round, self.number, self.asked

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MaskedExchange) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


@dataclass(frozen=True)
class ShareRing:
    """The ring that decides which clients hold shares of which: a random order of the clients of an exchange."""

    order: tuple[int, ...]
    places: Mapping[int, int]
    reach: int  # neighbours on each side

    @property
    def holders(self) -> int:
        """Return the number of holders of a client's shares: its neighbours and itself."""
        return min(2 * self.reach + 1, len(self.order))

    @property
    def threshold(self) -> int:
        """Return how many shares recover a secret: more than half."""
        return self.holders // 2 + 1

    def holders_of(self, client: int) -> list[int]:
        """Return the clients that hold shares of a client, in ascending order."""
        n, place = len(self.order), self.places[client]
        if self.holders == n:
            return sorted(self.order)
        return sorted(self.order[(place + step) % n] for step in range(-self.reach, self.reach + 1))

    def neighbours(self, client: int) -> list[int]:
        """Return the neighbours of a client in the ring."""
        return [other for other in self.holders_of(client) if other != client]


@functools.lru_cache(maxsize=4)
def share_ring(seed: int, exchange: MaskedExchange) -> ShareRing:
    """Return the ring of an exchange, with log2(n) neighbours on each side."""
    people = np.array(exchange.asked)
    order = tuple(stream(seed, "masks", exchange.round, exchange.number).permutation(people).tolist())
    reach = max(math.ceil(math.log2(max(len(order), 2))), 1)
    return ShareRing(order, {client: place for place, client in enumerate(order)}, reach)


class KeyGroup(Protocol):
    """A group in which secrets have public keys, and from which masks are derived."""

    def public(self, secret: int) -> Any:
        """Return the public key of a secret."""

    def of_pair(self, secret: int, public: Any, size: int) -> Words:
        """Return the mask of a pair, which only the owners of the secret and of the public key can compute."""

    def of_own(self, secret: int, size: int) -> Words:
        """Return the mask that only the owner of the secret can compute."""


class SimulationGroup:
    """A small multiplicative group for simulations."""

    def public(self, secret: int) -> int:
        """Return a power of the generator."""
        return pow(GENERATOR, secret, PRIME)

    def of_pair(self, secret: int, public: int, size: int) -> Words:
        """Return the mask of the shared secret of Diffie and Hellman."""
        return self.of_own(pow(public, secret, PRIME), size)

    def of_own(self, secret: int, size: int) -> Words:
        """Expand a short secret to a long mask."""
        return np.random.Generator(np.random.PCG64(secret)).integers(0, 2**32, size, dtype=np.uint32)


SIMULATION_GROUP = SimulationGroup()


@dataclass(frozen=True)
class ClientSecrets:
    """The secrets of a client in an exchange: the key to its pairs, and the key of its own mask."""

    pairs: int
    own: int

    def mask(
        self,
        client: int,
        ring: ShareRing,
        publics: Mapping[int, Any],
        size: int,
        group: KeyGroup = SIMULATION_GROUP,
        word: Word = np.uint32,
    ) -> Words:
        """Return the mask to add to the client's update; `publics` are the keys of its neighbours."""
        halves = size * np.dtype(word).itemsize // 4  # a mask is drawn in words of 32 bits
        total = group.of_own(self.own, halves).view(word)
        for other in ring.neighbours(client):
            _add(total, group.of_pair(self.pairs, publics[other], halves).view(word), client < other)
        return total


def secret_shares(secret: int, client: int, ring: ShareRing, draw: Callable[[], int]) -> Shares:
    """Return a point of a polynomial for each holder; `draw` gives its other coefficients."""
    polynomial = [secret, *(draw() for _ in range(ring.threshold - 1))]
    return {holder: _evaluate(polynomial, holder + 1) for holder in ring.holders_of(client)}


class SimulatedParty:
    """A client's half in a simulation: its secrets, and the shares that it hands out."""

    def __init__(self, seed: int, exchange: MaskedExchange, client: int) -> None:
        self.client, self.ring = client, share_ring(seed, exchange)
        self._key = (seed, exchange.round, exchange.number, client)
        rng = stream(seed, "masks", *self._key[1:])
        self.secrets = ClientSecrets(_draw_secret(rng), _draw_secret(rng))

    @property
    def public(self) -> int:
        """Return the public key of the client's pairs."""
        return SIMULATION_GROUP.public(self.secrets.pairs)

    def shares(self, of_pairs: bool) -> Shares:
        """Return the shares of the key to its pairs, or of its own mask."""
        seed, *key = self._key
        rng = stream(seed, "masks", *key, 1 + of_pairs)
        secret = self.secrets.pairs if of_pairs else self.secrets.own
        return secret_shares(secret, self.client, self.ring, lambda: _draw_secret(rng))


class MaskProvider:
    """Masks the updates of clients, or unmasks their sum, or both."""

    def mask(self, size: int, exchange: MaskedExchange, client: int, word: Word = np.uint32) -> Words:
        """Return the mask to add to a client's update of so many words."""
        raise NotImplementedError("updates are masked by their owners")

    def unmask(self, total: Words, exchange: MaskedExchange, answered: Collection[int]) -> Words | None:
        """Return the sum over the clients that answered; None if too few are left to unmask it."""
        raise NotImplementedError("sums are unmasked by the server")


@dataclass(frozen=True)
class SimulatedMasks(MaskProvider):
    """The masks of all clients of a simulation, whose keys follow from one seed."""

    seed: int

    def mask(self, size: int, exchange: MaskedExchange, client: int, word: Word = np.uint32) -> Words:
        """Return a client's mask from its secrets and the keys of its neighbours."""
        party = SimulatedParty(self.seed, exchange, client)
        publics = {other: SimulatedParty(self.seed, exchange, other).public for other in party.ring.neighbours(client)}
        return party.secrets.mask(client, party.ring, publics, size, word=word)

    def unmask(self, total: Words, exchange: MaskedExchange, answered: Collection[int]) -> Words | None:
        """Let the clients that answered reveal the shares that they hold, and unmask the sum.

        They refuse where only one client is left: the sum would be its update.
        """
        if len(answered) < 2:
            return None
        parties = {client: SimulatedParty(self.seed, exchange, client) for client in exchange.asked}
        revealed: dict[int, Shares] = {}
        for client, party in parties.items():
            shares = party.shares(of_pairs=client not in answered)
            revealed[client] = {holder: share for holder, share in shares.items() if holder in answered}
        publics = {client: party.public for client, party in parties.items()}
        return unmask_sum(total, share_ring(self.seed, exchange), answered, publics, revealed)


def unmask_sum(
    total: Words,
    ring: ShareRing,
    answered: Collection[int],
    publics: Mapping[int, Any],
    revealed: Mapping[int, Shares],
    group: KeyGroup = SIMULATION_GROUP,
) -> Words | None:
    """Return the sum without masks, from public keys and revealed shares; None if too few shares are left.

    `revealed` has shares of the own mask of each client that answered, and of the key to the pairs of each other one.
    """
    opened = total.copy()
    word, halves = total.dtype, len(total) * total.itemsize // 4
    for client in ring.order:
        others = [other for other in ring.neighbours(client) if other in answered]
        if client not in answered and not others:
            continue  # no client has added a mask of such a pair
        if len(revealed[client]) < ring.threshold:
            return None
        secret = _recover_secret(dict(sorted(revealed[client].items())[: ring.threshold]))
        if client in answered:
            _add(opened, group.of_own(secret, halves).view(word), False)
            continue
        for other in others:  # what it added for the pair is taken away
            _add(opened, group.of_pair(secret, publics[other], halves).view(word), other > client)
    return opened


def mask_overhead_bytes(ring: ShareRing) -> tuple[int, int]:
    """Return the bytes of keys and shares that a client sends beside its vector, and that it receives."""
    others = ring.holders - 1
    up = KEY + 2 * KEY * others + KEY * ring.holders  # its key; shares of two secrets; one share of each revealed
    return up, KEY * others + 2 * KEY * others


def _add(total: Words, words: Words, plus: bool) -> None:
    (np.add if plus else np.subtract)(total, words, out=total)


def _draw_secret(rng: np.random.Generator) -> int:
    return int.from_bytes(rng.bytes(KEY), "little") % (PRIME - 1) + 1


def _evaluate(polynomial: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def _recover_secret(shares: Shares) -> int:
    """Return the polynomial at 0 by Lagrange interpolation."""
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
