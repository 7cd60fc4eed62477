"""The slots of ciphertexts: how many integers of a row or of a candidate's sum one ciphertext holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedarena.trees.fixed_point import SLOT
from fedarena.vertical.settings import BoostSettings


def ciphertext_layout(settings: BoostSettings, capacity: int) -> tuple[int, int]:
    """Return the ciphertexts of a row and the slots of each: g and h apart, or packed together for all outputs.

    >>> ciphertext_layout(BoostSettings(), 2047), ciphertext_layout(BoostSettings(algorithm="secureboost"), 2047)
    ((1, 2), (2, 1))
    """
    slots = 2 * (settings.outputs if settings.multi_output else 1)
    if not settings.uses("packing"):
        return slots, 1
    parts = -(-slots // (capacity // SLOT))
    return parts, -(-slots // parts)


def candidate_bits(settings: BoostSettings, capacity: int) -> int:
    """Return the bits of each candidate's sum that a guest can read: its slots, or plaintexts without compression.

    >>> candidate_bits(BoostSettings(), 2047), candidate_bits(BoostSettings(algorithm="secureboost"), 2047)
    (128, 4094)
    """
    parts, slots = ciphertext_layout(settings, capacity)
    return parts * (SLOT * slots if settings.uses("compression") else capacity)


def split_slots(slots: NDArray[np.uint64], parts: int, each: int) -> NDArray[np.uint64]:
    """Return slots as [rows, parts, each], padded with zeros."""
    out = np.zeros((len(slots), parts * each), np.uint64)
    out[:, : slots.shape[1]] = slots
    return out.reshape(len(slots), parts, each)
