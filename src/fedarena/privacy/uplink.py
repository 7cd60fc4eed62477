"""The steps of an update on its way to the server, as the experiment's `uplink` says.

On the client: clip -> top-k, with error feedback to the next round -> quantise -> if secure: a share of the noise, fixed
point, mask. On the server: sum -> mean -> noise, unless the clients have added it. Every step has random streams of its own,
so that bits do not depend on the worker that runs a client. Integers that are summed are masked as they are, in 64 bits:
their sum is exact.

Clipping is flat: everything a client sends is one vector. With noise every client has the same weight, however many rows it
has, so that the influence of one client is bounded. Numbers and counts beside a vector get neither clipping nor noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Reply
from fedarena.config.errors import BadValue
from fedarena.config.seeds import stream
from fedarena.config.settings_tables import Uplink
from fedarena.models.pytree import WeightedMean, leaves, nbytes, reductions, replace_leaves
from fedarena.privacy import secure_aggregation
from fedarena.privacy.accountant import Release
from fedarena.privacy.secure_aggregation import MaskedExchange, SimulatedMasks

WORD = 32  # bits in which masked numbers are summed
RANGE = 8.0  # of a number in fixed point, where no clip says it (Flower's)
TAILS = 8.0  # deviations of its own noise for which a client's number has room
SHORT = 1e-6  # a clipped vector is shorter by this share, so that rounding does not exceed the bound

Leaf = NDArray[Any] | float
Residual = dict[str, list[Any]]  # what top-k left out, for each kind of exchange


class CannotSend(BadValue):
    """Raised where an algorithm sends something that these steps cannot handle."""


class SentReply(NamedTuple):
    """The reply that leaves the client, its bytes, and the residual that stays."""

    reply: Reply
    size: int
    residual: Residual | None


@dataclass(frozen=True)
class MaskedVector:
    """A masked vector, and the tree it stands for without its numbers."""

    words: secure_aggregation.Words
    skeleton: Any
    shapes: tuple[tuple[int, ...], ...]


def masked_vector(words: secure_aggregation.Words, tree: Any) -> MaskedVector:
    """Return the masked numbers of a tree, with its structure."""
    parts = leaves(tree)
    skeleton = replace_leaves(
        tree, (np.empty(0, part.dtype) if isinstance(part, np.ndarray) else 0.0 for part in parts)
    )
    return MaskedVector(words, skeleton, tuple(np.shape(part) for part in parts))


def add_masked(total: MaskedVector | None, masked: MaskedVector | None) -> MaskedVector | None:
    """Return the sum of masked vectors, the only operation that they allow; None stands for the sum of no vectors."""
    if total is None or masked is None:
        return total or masked
    return replace(total, words=total.words + masked.words)


@dataclass(frozen=True)
class FixedPointCode:
    """Encodes numbers of [-largest, largest] as integers of so few bits that the sum of all fits into a word."""

    largest: float
    bits: int
    width: int  # of the sum

    @classmethod
    def of(cls, largest: float, asked: int, bits: int | None) -> FixedPointCode:
        """Return the code for a sum over `asked` clients."""
        carry = math.ceil(math.log2(max(asked, 1)))
        bits = min(bits or WORD, WORD - carry)
        return cls(largest, bits, bits + carry)

    @property
    def levels(self) -> int:
        """Return the largest integer of the code."""
        return int(2**self.bits - 1)

    def encode(self, values: NDArray[np.float64], rng: np.random.Generator) -> secure_aggregation.Words:
        """Round up or down at random, without bias."""
        whole = np.floor((values + self.largest) * (self.levels / (2 * self.largest)) + rng.random(len(values)))
        return whole.clip(0, self.levels).astype(np.uint32)

    def decode(self, total: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """Return the numbers of a sum of `count` codes."""
        return total * (2 * self.largest / self.levels) - count * self.largest


class UplinkSteps:
    """The uplink steps of one experiment, on the client and on the server."""

    def __init__(
        self,
        settings: Uplink,
        algorithm: str,
        seed: int,
        heaviest: float,
        participants: int,
        noise_seed: int | None = None,
        masks: secure_aggregation.MaskProvider | None = None,
    ) -> None:
        self.settings, self.algorithm, self.seed = settings, algorithm, seed
        self.noise_seed = seed if noise_seed is None else noise_seed  # a secret in a real federation
        self.masks: secure_aggregation.MaskProvider = SimulatedMasks(seed) if masks is None else masks
        self.heaviest = 1.0 if settings.noise else max(heaviest, 1.0)  # largest weight of a client
        self.participants = participants

    # On the client

    def send(self, reply: Reply, do: str, exchange: MaskedExchange, client: int, kept: Residual | None) -> SentReply:
        """Return the reply after the client's steps, its bytes and the new residual."""
        settings = self.settings
        how, parts = list(reductions(reply.send)), list(leaves(reply.send))
        if settings.secure and settings.clip is None and are_exact_sums(parts, how):
            return self._masked_integers(reply, parts, exchange, client, kept)
        self.check(parts, how)
        size = nbytes(reply.send)
        residual = kept
        parts = self._clipped(parts)
        if settings.top_k is not None:
            parts, left = self._largest(parts, (kept or {}).get(do))
            residual = {**(kept or {}), do: left}
        if settings.quantise is not None and not settings.secure:
            rng = self._rounding(exchange, client)
            parts = [self._quantised(part, rng) if _is_vector(part) else part for part in parts]
        if settings.top_k is not None or (settings.quantise is not None and not settings.secure):
            size = sum(map(self._bytes, parts))
            parts = self._clipped(parts)  # the residual may have made it longer
        weight = 1.0 if settings.noise else reply.weight
        if settings.secure:
            sent, size = self._masked(reply.send, parts, weight, exchange, client)
        else:
            sent = replace_leaves(reply.send, iter(parts))
        return SentReply(replace(reply, send=sent, weight=weight), size, residual)

    def check(self, parts: list[Leaf], how: list[str]) -> None:
        """Refuse an update to which the steps cannot be applied."""
        if "collect" in how:
            raise CannotSend(
                f"{self.algorithm} collects what each client sends, and the uplink lets only means through",
                remedy='set uplink = "plain", or choose an algorithm that needs only the mean, such as fedavg',
                where="uplink",
            )
        counts = any(isinstance(part, np.ndarray) and not _is_vector(part) for part in parts)
        if self.settings.clip is not None and not all(map(_is_vector, parts)):
            what = "counts" if counts else "a number beside its vector"
            raise CannotSend(
                f"{self.algorithm} sends {what}, and uplink.clip would treat both as one vector",
                remedy="leave out uplink.clip and uplink.noise, or choose an algorithm that sends vectors alone",
                where="uplink.clip",
            )
        if self.settings.secure and counts:
            raise CannotSend(
                f"{self.algorithm} sends counts, which must be exact, and uplink.secure rounds",
                remedy='set uplink = "mean_only", or choose an algorithm that sends vectors',
                where="uplink.secure",
            )

    def _clipped(self, parts: list[Leaf]) -> list[Leaf]:
        """Scale all parts together to a norm of at most `clip`; a shorter vector stays unchanged, to the bit."""
        if self.settings.clip is None:
            return parts
        length = norm(parts)
        if length <= self.settings.clip:
            return parts
        factor = self.settings.clip / length * (1 - SHORT)
        return [np.multiply(part, factor, dtype=np.float64).astype(part.dtype) for part in parts if _is_vector(part)]

    def _largest(self, parts: list[Leaf], kept: list[Any] | None) -> tuple[list[Leaf], list[Any]]:
        """Return the largest numbers of each vector plus its residual, and the new residual (error feedback)."""
        sent: list[Leaf] = []
        left: list[Any] = []
        for part, before in zip(parts, kept or [None] * len(parts), strict=True):
            if not _is_vector(part):
                sent.append(part)
                left.append(None)
                continue
            whole = part if before is None else part + before
            chosen = largest(whole, self._count(whole.size))
            sent.append(np.where(chosen, whole, 0))
            left.append(np.where(chosen, 0, whole))
        return sent, left

    def _count(self, size: int) -> int:
        return min(max(round((self.settings.top_k or 1.0) * size), 1), size)

    def _quantised(self, part: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Round to multiples of the largest number over the levels, up or down at random, without bias."""
        assert self.settings.quantise is not None
        levels = 2 ** (self.settings.quantise - 1) - 1
        scale = float(np.max(np.abs(part), initial=0.0))
        if scale == 0.0:
            return np.zeros_like(part)
        whole = np.floor(np.multiply(part, levels / scale, dtype=np.float64) + rng.random(part.shape))
        quantised: NDArray[Any] = (whole.clip(-levels, levels) * (scale / levels)).astype(part.dtype)
        return quantised

    def _bytes(self, part: Leaf) -> int:
        """Return the bytes of a part as it is sent: positions and numbers of the top k, quantised with one scale."""
        if not _is_vector(part):
            return nbytes(part)
        count = part.size if self.settings.top_k is None else self._count(part.size)
        places = 0 if self.settings.top_k is None else 4 * count
        bits = self.settings.quantise
        return places + (count * part.itemsize if bits is None else -(-count * bits // 8) + part.itemsize)

    def _rounding(self, exchange: MaskedExchange, client: int) -> np.random.Generator:
        return stream(self.seed, "uplink", exchange.round, client, exchange.number)

    def _masked(
        self, tree: Any, parts: list[Leaf], weight: float, exchange: MaskedExchange, client: int
    ) -> tuple[MaskedVector, int]:
        """Return the update weighted, with its share of the noise, in fixed point and masked; the weight comes last."""
        fixed = self._fixed(exchange)
        if not 0 <= weight <= self.heaviest:
            raise CannotSend(
                f"{self.algorithm} weighs an answer {weight:g}, and uplink.secure allows weights up to {self.heaviest:g}",
                remedy="weigh by rows, or equally",
                where="uplink.secure",
            )
        share = round(weight / self.heaviest * fixed.levels)
        share = max(share, 1 if weight > 0 else 0)  # a small weight must not become 0
        factor = share / fixed.levels
        factors = (factor if way == "mean" else 1.0 for way in reductions(tree))
        flat = [np.ravel(np.asarray(part, np.float64)) * by for part, by in zip(parts, factors, strict=True)]
        values = np.concatenate([*flat, np.empty(0)])
        top = float(np.max(np.abs(values), initial=0.0))
        if self.settings.clip is None and top > fixed.largest:
            raise CannotSend(
                f"{self.algorithm} sends {top:.3g}, and fixed point ends at {fixed.largest:g}",
                remedy="set uplink.range above it, or uplink.clip",
                where="uplink.range",
            )
        if self.settings.noise:
            values += self._share(exchange) * self._noise(exchange, client).standard_normal(len(values))
        words = np.append(fixed.encode(values, self._rounding(exchange, client)), np.uint32(share))
        words = words + self.masks.mask(len(words), exchange, client)
        return masked_vector(words, tree), -(-len(words) * fixed.width // 8) + self._overhead(exchange)[0]

    def _masked_integers(
        self, reply: Reply, parts: list[Leaf], exchange: MaskedExchange, client: int, kept: Residual | None
    ) -> SentReply:
        """Return integers masked in 64 bits, without rounding and without a weight."""
        words = np.concatenate([np.ravel(part) for part in parts]).astype(np.int64).view(np.uint64)
        words = words + self.masks.mask(len(words), exchange, client, np.uint64)
        size = words.nbytes + self._overhead(exchange)[0]
        return SentReply(replace(reply, send=masked_vector(words, reply.send)), size, kept)

    def _fixed(self, exchange: MaskedExchange) -> FixedPointCode:
        reach = self.settings.clip or self.settings.range or RANGE
        if self.settings.noise:
            reach += TAILS * self._share(exchange)
        return FixedPointCode.of(reach, len(exchange.asked), self.settings.quantise)

    def used_bits(self, exchange: MaskedExchange) -> np.uint32:
        """Return the bits of a masked number that the sum needs; those above them are only mask."""
        return np.uint32(2 ** self._fixed(exchange).width - 1)

    def shortened(self, masked: MaskedVector, exchange: MaskedExchange) -> MaskedVector:
        """Return a masked vector with the bits that the sum needs; exact integers need all of them."""
        if masked.words.dtype == np.uint64:
            return masked
        return replace(masked, words=masked.words & self.used_bits(exchange))

    def masked_pattern(self, tree: Any) -> MaskedVector:
        """Return a masked vector of zeros in the structure of what is sent for a tree; refuse a tree that is not sent."""
        parts, how = leaves(tree), list(reductions(tree))
        size = sum(map(np.size, parts))
        if are_exact_sums(parts, how):
            return masked_vector(np.zeros(size, np.uint64), tree)
        self.check(parts, how)
        return masked_vector(np.zeros(1 + size, np.uint32), tree)  # the weight comes last

    def _share(self, exchange: MaskedExchange) -> float:
        """Return the deviation of one client's noise; the noise of all asked clients adds up to the setting."""
        return self.settings.noise * (self.settings.clip or 0.0) / math.sqrt(len(exchange.asked))

    def _noise(self, exchange: MaskedExchange, *client: int) -> np.random.Generator:
        return stream(self.noise_seed, "privacy", exchange.round, exchange.number, *client)

    # On the server

    def receive(
        self, mean: WeightedMean, masked: MaskedVector | None, exchange: MaskedExchange, answered: list[int]
    ) -> Any:
        """Return the mean after the server's steps; None without responses, or with too few to unmask the sum."""
        tree = self._unmasked(masked, exchange, answered) if self.settings.secure else mean.result()
        if tree is None:
            return None
        parts, how = list(leaves(tree)), list(reductions(tree))
        count = len(answered)
        if self._is_poisson(exchange):  # the size of a round would reveal who takes part: divide by its expectation
            parts = [
                part * (count / self.participants) if way == "mean" else part
                for part, way in zip(parts, how, strict=True)
            ]
            count = self.participants
        if self.settings.noise and not self.settings.secure:
            rng, deviation = self._noise(exchange), self.settings.noise * (self.settings.clip or 0.0)
            parts = [
                part + (deviation / count if way == "mean" else deviation) * rng.standard_normal(np.shape(part))
                for part, way in zip(parts, how, strict=True)
            ]
        return replace_leaves(tree, iter(parts))

    def _unmasked(self, masked: MaskedVector | None, exchange: MaskedExchange, answered: list[int]) -> Any:
        """Return the mean from the sum of masked vectors."""
        if masked is None:
            return None
        words = self.masks.unmask(masked.words, exchange, set(answered))
        if words is None:
            return None
        if words.dtype == np.uint64:
            cuts = np.cumsum([math.prod(shape) for shape in masked.shapes])[:-1]
            exact = np.split(words.view(np.int64), cuts)
            return replace_leaves(
                masked.skeleton, (part.reshape(shape) for part, shape in zip(exact, masked.shapes, strict=True))
            )
        fixed = self._fixed(exchange)
        total = (words & self.used_bits(exchange)).astype(np.float64)
        weight = total[-1] / fixed.levels
        if not weight:
            return None
        values = fixed.decode(total[:-1], len(answered))
        skeleton, shapes = masked.skeleton, masked.shapes
        cuts = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
        parts = []
        for part, shape, way in zip(np.split(values, cuts), shapes, reductions(skeleton), strict=True):
            scaled = part / weight if way == "mean" else part
            parts.append(scaled.reshape(shape) if shape else float(scaled[0]))
        return replace_leaves(skeleton, iter(parts))

    def _is_poisson(self, exchange: MaskedExchange) -> bool:
        return self.settings.sampling == "poisson" and not exchange.everyone

    def released(self, exchange: MaskedExchange, answered: int, population: int) -> Release | None:
        """Return the release of an exchange for the accountant; noise of clients that left is missing in it."""
        settings = self.settings
        if not settings.noise or (settings.secure and not answered):
            return None
        noise = settings.noise * (math.sqrt(answered / len(exchange.asked)) if settings.secure else 1.0)
        if self._is_poisson(exchange):
            return "poisson", self.participants, noise
        asked = len(exchange.asked)
        return ("everyone" if asked == population else "fixed"), asked, noise

    def bytes_down(self, exchange: MaskedExchange) -> int:
        """Return the bytes of keys and shares that each client receives."""
        return self._overhead(exchange)[1] if self.settings.secure and exchange.asked else 0

    def _overhead(self, exchange: MaskedExchange) -> tuple[int, int]:
        return secure_aggregation.mask_overhead_bytes(secure_aggregation.share_ring(self.seed, exchange))


def are_exact_sums(parts: list[Leaf], how: list[str]) -> bool:
    """Return whether an update is made of integers that are added up, and of nothing else."""
    return bool(parts) and all(
        way == "sum" and isinstance(part, np.ndarray) and part.dtype.kind == "i"
        for part, way in zip(parts, how, strict=True)
    )


def norm(parts: Iterable[Leaf]) -> float:
    """Return the norm of all vectors together."""
    return math.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in parts))


def largest(values: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """Return which numbers have the largest absolute values; of equal ones the first."""
    if not values.size:
        return np.zeros(values.shape, bool)
    size = np.abs(values).ravel()
    edge = np.partition(size, len(size) - count)[len(size) - count]
    chosen: NDArray[np.bool_] = size > edge
    equal = np.flatnonzero(size == edge)[: count - int(chosen.sum())]
    chosen[equal] = True
    return chosen.reshape(values.shape)


def _is_vector(part: Leaf) -> TypeGuard[NDArray[Any]]:
    return isinstance(part, np.ndarray) and part.dtype.kind == "f"
