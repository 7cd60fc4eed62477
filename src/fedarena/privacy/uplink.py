"""What happens to an answer on its way up, as the experiment's `uplink` says.

On the client: clip -> top-k, with what was left out kept for the next round -> quantise -> if secure: a share of the noise,
fixed point, mask. On the server: sum -> mean -> noise, unless the clients have added it. Every step is made from streams of
its own, so that bits do not depend on who works on which client.

Clipping is flat: all that a client sends is one vector. With noise every client counts the same, however many rows it has:
what one client can change is then known beforehand. Numbers and counts beside a vector can be neither clipped nor noised.
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
from fedarena.config.experiment import Uplink
from fedarena.config.seeds import stream
from fedarena.models.pytree import WeightedMean, leaves, nbytes, reductions, replace_leaves
from fedarena.privacy import secure_aggregation
from fedarena.privacy.accountant import Release
from fedarena.privacy.secure_aggregation import MaskedExchange, SimulatedMasks

WORD = 32  # bits in which masked numbers are summed
RANGE = 8.0  # of a number in fixed point, where no clip says it (Flower's)
TAILS = 8.0  # deviations of its own noise that a client's number has room for
SHORT = 1e-6  # by so much is a clipped vector shorter still: rounding must not make it longer than it may be

Leaf = NDArray[Any] | float
Residual = dict[str, list[Any]]  # what top-k left out, for each kind of exchange


class CannotSend(BadValue):
    """What the algorithm sends does not go through these steps."""


class SentReply(NamedTuple):
    """What leaves the client, in how many bytes; and what stays."""

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
    """The masked numbers of a tree, with what it takes to make it again."""
    parts = leaves(tree)
    skeleton = replace_leaves(
        tree, (np.empty(0, part.dtype) if isinstance(part, np.ndarray) else 0.0 for part in parts)
    )
    return MaskedVector(words, skeleton, tuple(np.shape(part) for part in parts))


class MaskedSum:
    """Masked vectors added up; nothing else can be done with them."""

    def __init__(self) -> None:
        self.first: MaskedVector | None = None
        self.words: secure_aggregation.Words = np.empty(0, np.uint32)

    def add(self, sealed: MaskedVector) -> None:
        """Take one in, or the sum of several."""
        if self.first is None:
            self.first, self.words = sealed, sealed.words.copy()
        else:
            self.words += sealed.words

    def merge(self, later: MaskedSum) -> None:
        """Take in those of other clients."""
        if later.first is not None:
            self.add(MaskedVector(later.words, later.first.skeleton, later.first.shapes))


@dataclass(frozen=True)
class FixedPointCode:
    """Numbers of [-largest, largest] as whole ones, so few bits that the sum of all fits into a word."""

    largest: float
    bits: int
    width: int  # of the sum

    @classmethod
    def of(cls, largest: float, asked: int, bits: int | None) -> FixedPointCode:
        """For so many clients."""
        carry = math.ceil(math.log2(max(asked, 1)))
        bits = min(bits or WORD, WORD - carry)
        return cls(largest, bits, bits + carry)

    @property
    def levels(self) -> int:
        """The largest whole number."""
        return int(2**self.bits - 1)

    def encode(self, values: NDArray[np.float64], rng: np.random.Generator) -> secure_aggregation.Words:
        """Up or down by chance, so that the mean is right."""
        whole = np.floor((values + self.largest) * (self.levels / (2 * self.largest)) + rng.random(len(values)))
        return whole.clip(0, self.levels).astype(np.uint32)

    def decode(self, total: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """The sum of so many."""
        return total * (2 * self.largest / self.levels) - count * self.largest


class UplinkSteps:
    """Both halves of the way up, for one experiment."""

    def __init__(
        self,
        settings: Uplink,
        algorithm: str,
        seed: int,
        heaviest: float,
        participants: int,
        noise_seed: int | None = None,
        seals: secure_aggregation.MaskProvider | None = None,
    ) -> None:
        self.settings, self.algorithm, self.seed = settings, algorithm, seed
        self.noise_seed = seed if noise_seed is None else noise_seed  # a secret, where there is something to hide
        self.seals: secure_aggregation.MaskProvider = SimulatedMasks(seed) if seals is None else seals
        self.heaviest = 1.0 if settings.noise else max(heaviest, 1.0)  # largest weight of a client
        self.participants = participants

    # On the client

    def send(self, reply: Reply, do: str, turn: MaskedExchange, client: int, kept: Residual | None) -> SentReply:
        """What the client sends in place of its reply."""
        settings = self.settings
        how, parts = list(reductions(reply.send)), list(leaves(reply.send))
        self.check(parts, how)
        size = nbytes(reply.send)
        residual = kept
        parts = self._clipped(parts)
        if settings.top_k is not None:
            parts, left = self._largest(parts, (kept or {}).get(do))
            residual = {**(kept or {}), do: left}
        rng = stream(self.seed, "uplink", turn.round, client, turn.exchange)
        if settings.quantise is not None and not settings.secure:
            parts = [self._quantised(part, rng) if _is_vector(part) else part for part in parts]
        if settings.top_k is not None or (settings.quantise is not None and not settings.secure):
            size = sum(map(self._bytes, parts))
            parts = self._clipped(parts)  # what was added may have made it longer
        weight = 1.0 if settings.noise else reply.weight
        if settings.secure:
            sealed, size = self._sealed(reply.send, parts, how, weight, turn, client, rng)
            return SentReply(replace(reply, send=sealed, weight=weight), size, residual)
        return SentReply(replace(reply, send=replace_leaves(reply.send, iter(parts)), weight=weight), size, residual)

    def check(self, parts: list[Leaf], how: list[str]) -> None:
        """Refuse what cannot be right."""
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
        """All together at most `clip` long; what is shorter stays as it is, to the bit."""
        if self.settings.clip is None:
            return parts
        length = norm(parts)
        if length <= self.settings.clip:
            return parts
        factor = self.settings.clip / length * (1 - SHORT)
        return [np.multiply(part, factor, dtype=np.float64).astype(part.dtype) for part in parts if _is_vector(part)]

    def _largest(self, parts: list[Leaf], kept: list[Any] | None) -> tuple[list[Leaf], list[Any]]:
        """Error feedback: of each vector and what is left from before, the largest numbers; and what is left now."""
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
        """Whole multiples of the largest number's share, up or down by chance, so that the mean is right."""
        assert self.settings.quantise is not None
        levels = 2 ** (self.settings.quantise - 1) - 1
        scale = float(np.max(np.abs(part), initial=0.0))
        if scale == 0.0:
            return np.zeros_like(part)
        whole = np.floor(np.multiply(part, levels / scale, dtype=np.float64) + rng.random(part.shape))
        told: NDArray[Any] = (whole.clip(-levels, levels) * (scale / levels)).astype(part.dtype)
        return told

    def _bytes(self, part: Leaf) -> int:
        """As it is sent: places and numbers of the chosen, so many bits each and what to multiply them by."""
        if not _is_vector(part):
            return nbytes(part)
        count = part.size if self.settings.top_k is None else self._count(part.size)
        places = 0 if self.settings.top_k is None else 4 * count
        bits = self.settings.quantise
        return places + (count * part.itemsize if bits is None else -(-count * bits // 8) + part.itemsize)

    def _sealed(
        self,
        tree: Any,
        parts: list[Leaf],
        how: list[str],
        weight: float,
        turn: MaskedExchange,
        client: int,
        rng: np.random.Generator,
    ) -> tuple[MaskedVector, int]:
        """Weighted, with its share of the noise, in fixed point, masked; the weight comes last."""
        fixed = self._fixed(turn)
        if not 0 <= weight <= self.heaviest:
            raise CannotSend(
                f"{self.algorithm} weighs an answer {weight:g}, and uplink.secure knows weights up to {self.heaviest:g}",
                remedy="weigh by rows, or equally",
                where="uplink.secure",
            )
        share = max(round(weight / self.heaviest * fixed.levels), 1 if weight > 0 else 0)  # few rows are not none
        factor = share / fixed.levels
        flat = [
            np.ravel(part) * (factor if way == "mean" else 1.0)
            for part, way in zip(_as_doubles(parts), how, strict=True)
        ]
        values = np.concatenate([*flat, np.empty(0)])
        top = float(np.max(np.abs(values), initial=0.0))
        if self.settings.clip is None and top > fixed.largest:
            raise CannotSend(
                f"{self.algorithm} sends {top:.3g}, and fixed point ends at {fixed.largest:g}",
                remedy="set uplink.range above it, or uplink.clip",
                where="uplink.range",
            )
        if self.settings.noise:
            values += self._share(turn) * self._noise(turn, client).standard_normal(len(values))
        words = np.append(fixed.encode(values, rng), np.uint32(share))
        words = words + self.seals.mask(len(words), turn, client)
        keys_and_shares = secure_aggregation.mask_overhead_bytes(secure_aggregation.share_ring(self.seed, turn))[0]
        return masked_vector(words, tree), -(-len(words) * fixed.width // 8) + keys_and_shares

    def _fixed(self, turn: MaskedExchange) -> FixedPointCode:
        reach = self.settings.clip or self.settings.range or RANGE
        if self.settings.noise:
            reach += TAILS * self._share(turn)
        return FixedPointCode.of(reach, len(turn.asked), self.settings.quantise)

    def used_bits(self, turn: MaskedExchange) -> np.uint32:
        """Those bits of a masked number that the sum needs: what is above them is nothing but mask."""
        return np.uint32(2 ** self._fixed(turn).width - 1)

    def _share(self, turn: MaskedExchange) -> float:
        """Deviation of one client's noise, where all that are asked add up to what was wished."""
        return self.settings.noise * (self.settings.clip or 0.0) / math.sqrt(len(turn.asked))

    def _noise(self, turn: MaskedExchange, *client: int) -> np.random.Generator:
        return stream(self.noise_seed, "privacy", turn.round, turn.exchange, *client)

    # On the server

    def receive(self, mean: WeightedMean, sealed: MaskedSum, turn: MaskedExchange, answered: list[int]) -> Any:
        """The mean as the server gets it; None where nobody answered, or too few to open the sum."""
        tree = self._opened(sealed, turn, answered) if self.settings.secure else mean.result()
        if tree is None:
            return None
        parts, how = list(leaves(tree)), list(reductions(tree))
        count = len(answered)
        if self._by_coins(turn):  # a round's size would tell who is in: all are divided by what is expected of one
            parts = [
                part * (count / self.participants) if way == "mean" else part
                for part, way in zip(parts, how, strict=True)
            ]
            count = self.participants
        if self.settings.noise and not self.settings.secure:
            rng, deviation = self._noise(turn), self.settings.noise * (self.settings.clip or 0.0)
            parts = [
                part + (deviation / count if way == "mean" else deviation) * rng.standard_normal(np.shape(part))
                for part, way in zip(parts, how, strict=True)
            ]
        return replace_leaves(tree, iter(parts))

    def _opened(self, sealed: MaskedSum, turn: MaskedExchange, answered: list[int]) -> Any:
        """From the sum of masked vectors to the mean."""
        if sealed.first is None:
            return None
        words = self.seals.unmask(sealed.words, turn, set(answered))
        if words is None:
            return None
        fixed = self._fixed(turn)
        total = (words & self.used_bits(turn)).astype(np.float64)
        weight = total[-1] / fixed.levels
        if not weight:
            return None
        values = fixed.decode(total[:-1], len(answered))
        skeleton, shapes = sealed.first.skeleton, sealed.first.shapes
        cuts = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
        parts = []
        for part, shape, way in zip(np.split(values, cuts), shapes, reductions(skeleton), strict=True):
            scaled = part / weight if way == "mean" else part
            parts.append(scaled.reshape(shape) if shape else float(scaled[0]))
        return replace_leaves(skeleton, iter(parts))

    def _by_coins(self, turn: MaskedExchange) -> bool:
        return self.settings.sampling == "poisson" and not turn.everyone

    def released(self, turn: MaskedExchange, answered: int, population: int) -> Release | None:
        """What the accountant must know of an exchange; shares of the noise of those who left are missing in it."""
        settings = self.settings
        if not settings.noise or (settings.secure and not answered):
            return None
        noise = settings.noise * (math.sqrt(answered / len(turn.asked)) if settings.secure else 1.0)
        if self._by_coins(turn):
            return "poisson", self.participants, noise
        asked = len(turn.asked)
        return ("everyone" if asked == population else "fixed"), asked, noise

    def bytes_down(self, turn: MaskedExchange) -> int:
        """Keys and shares that a client is sent."""
        return (
            secure_aggregation.mask_overhead_bytes(secure_aggregation.share_ring(self.seed, turn))[1]
            if self.settings.secure and turn.asked
            else 0
        )


def norm(parts: Iterable[Leaf]) -> float:
    """Of all vectors together."""
    return math.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in parts))


def largest(values: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """Which are the largest, by size; of equal ones the first."""
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


def _as_doubles(parts: list[Leaf]) -> list[NDArray[np.float64]]:
    return [np.asarray(part, np.float64) for part in parts]
