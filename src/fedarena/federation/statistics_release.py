"""Statistics that a client releases before training: sums over its training samples, and how they are hidden in totals.

Of each feature: how many values are present, their sum and, to standardise, the sum of their squares; the same of the label
of a regression; and class counts, where the algorithm needs them. All are exact integers. With at least three clients each
adds masks that cancel in the total (one exchange of X25519 keys, one mask for every pair), so that the server learns the
totals and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.federation.redaction import ShareableError
from fedarena.federation.secure_aggregation import agreed_key, draw_key, key_stream, public_half
from fedarena.statistics.exact_sums import (
    LARGEST_POWER,
    POINT,
    SQUARE_POINT,
    WIDTH,
    WORDS,
    exact_sum,
    exact_sum_of_squares,
)

MASKED_FROM = 3  # clients: with two, the total and one's own sums give those of the other
MODULUS = 1 << WIDTH
STALE_KEY = "keys that are not those of this exchange"  # a client was restarted: all draw new ones

Masked = NDArray[np.uint32]  # an integer in each row


@dataclass(frozen=True)
class StatisticsLayout:
    """The integers that a client releases, in their order; the server and every client derive it from the experiment."""

    features: int  # 0 where no sums are needed
    squares: bool
    classes: int  # 0 where no class counts are needed
    label: bool = False  # number, sum and sum of squares of a regression's labels
    levels_only: bool = False  # features are the levels of text columns, and no numbers

    @property
    def size(self) -> int:
        """Return how many integers there are."""
        return self.features * (3 if self.squares else 2) + self.classes + 3 * self.label


@dataclass(frozen=True)
class Totals:
    """The statistics of one client, or of all of them together."""

    present: tuple[int, ...]
    sums: tuple[int, ...]  # times 2**1074
    squares: tuple[int, ...]  # times 2**2148; empty unless columns are standardised
    class_counts: tuple[int, ...]
    label: Totals | None = None  # of a regression's labels, as of one column

    @classmethod
    def of(cls, integers: Sequence[int], layout: StatisticsLayout) -> Totals:
        """Split the integers into the parts of the layout."""
        n, numbers, end = layout.features, tuple(integers), layout.size - 3 * layout.label
        squares = numbers[2 * n : 3 * n] if layout.squares else ()
        label = cls.of(numbers[end:], StatisticsLayout(1, True, 0)) if layout.label else None
        return cls(numbers[:n], numbers[n : 2 * n], squares, numbers[end - layout.classes : end], label)

    @classmethod
    def of_values(cls, values: NDArray[np.float64]) -> Totals:
        """Return the statistics of one column."""
        return cls((len(values),), (exact_sum(values),), (exact_sum_of_squares(values),), ())

    @property
    def integers(self) -> tuple[int, ...]:
        """Return all of them in the order of the layout."""
        label = () if self.label is None else self.label.integers
        return (*self.present, *self.sums, *self.squares, *self.class_counts, *label)

    def implausible(self, samples: int) -> str:
        """Return what cannot be true of the statistics of this number of samples, or an empty text."""
        if not all(0 <= count <= samples for count in self.present):
            return "more values are present than there are training samples"
        if self.class_counts and (min(self.class_counts) < 0 or sum(self.class_counts) != samples):
            return "the class counts do not add up to the training samples"
        if any(
            abs(total) > count << POINT + LARGEST_POWER for count, total in zip(self.present, self.sums, strict=True)
        ):
            return "a sum is larger than its values can be"
        for count, total, square in zip(self.present, self.sums, self.squares, strict=bool(self.squares)):
            if square * count < total * total:
                return "a sum of squares is too small for its sum"
        if self.label is not None and self.label.present != (samples,):
            return "the labels are not those of the training samples"
        return "" if self.label is None else self.label.implausible(samples)

    def means(self) -> tuple[float, ...]:
        """Return the mean of each feature, rounded once."""
        return tuple(total / (count << POINT) for total, count in zip(self.sums, self.present, strict=True))

    def variances(self, samples: int) -> tuple[float, ...]:
        """Return the mean squared distance from the mean, rounded once; a missing value stands at the mean."""
        parts = zip(self.present, self.sums, self.squares, strict=True)
        return tuple((sq * n - total * total) / ((n * samples) << SQUARE_POINT) for n, total, sq in parts)


class StatisticsMask:
    """The key of a client for one release of its statistics; it masks one vector, for one list of keys."""

    def __init__(self) -> None:
        self._private = draw_key()
        self._used: tuple[dict[int, str], tuple[int, ...]] | None = None  # the keys and the integers of its release

    @property
    def public(self) -> str:
        """Return the public half, in hex."""
        return public_half(self._private).hex()

    def masked(self, integers: Iterable[int], client: int, keys: Mapping[int, str]) -> Masked:
        """Add the masks of all pairs: the client with the lower number adds, the other subtracts."""
        if keys.get(client) != self.public or len({*keys.values()}) < len(keys):
            raise ShareableError(STALE_KEY, remedy="the server must ask for keys again")
        total = [integer % MODULUS for integer in integers]
        if self._used not in (None, (dict(keys), tuple(total))):  # two vectors under one mask reveal their difference
            raise ShareableError(
                "a key masks one release, for one list of clients", remedy="the server must ask for keys again"
            )
        self._used = dict(keys), tuple(total)
        for other, key in keys.items():
            if other != client:
                secret = agreed_key(self._private, bytes.fromhex(key), "statistics mask")
                sign = 1 if client < other else -1
                for i, mask in enumerate(decoded(key_stream(secret, len(total) * WORDS).reshape(-1, WORDS))):
                    total[i] = (total[i] + sign * mask) % MODULUS
        return encoded(total)


def encoded(integers: Sequence[int]) -> Masked:
    """Return integers modulo 2**3264 as rows of 32-bit words."""
    whole = b"".join((integer % MODULUS).to_bytes(4 * WORDS, "little") for integer in integers)
    return np.frombuffer(whole, "<u4").astype(np.uint32).reshape(-1, WORDS)


def decoded(rows: Masked) -> list[int]:
    """Return the integers in rows of words, as they are modulo 2**3264."""
    return [int.from_bytes(row.astype("<u4").tobytes(), "little") for row in rows]


def signed_total(parts: Iterable[Masked], size: int) -> list[int]:
    """Add the vectors of all clients; masks cancel, and what is left are signed integers."""
    total = [0] * size
    for part in parts:
        total = [a + b for a, b in zip(total, decoded(part), strict=True)]
    return [(number + MODULUS // 2) % MODULUS - MODULUS // 2 for number in total]


def is_vector(load: Any, size: int) -> bool:
    """Return whether a message's load is a vector of so many integers."""
    return isinstance(load, np.ndarray) and load.dtype == np.uint32 and load.shape == (size, WORDS)
