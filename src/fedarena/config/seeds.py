"""One seed, many named streams.

Each use of randomness has its own stream for a purpose, round and client. A stream does not depend on which other clients
were selected, which worker runs it or what was drawn before: the same experiment gives the same bits in any order.

>>> stream(0, "shuffle", 3, 7).permutation(4)
array([3, 2, 1, 0])
>>> stream(0, "shuffle", 3, 7).permutation(4)
array([3, 2, 1, 0])
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Mapping
from typing import Literal

import numpy as np

Purpose = Literal[
    "select",  # clients of a round
    "shuffle",  # order of a client's samples
    "inner",  # batches of a client beside those of its steps
    "dropout",  # random numbers of torch in a client's training (nn.Dropout)
    "evaluate",  # random numbers of torch in an evaluation
    "personal",  # everything random in a client's training at evaluation
    "augment",  # random crops and flips of a client's images
    "noise",  # feature noise of a client
    "failure",  # simulated clients that never answer
    "vc",  # samples of virtual clients
    "straggler",  # which clients stop early, and when
    "latency",  # durations on the virtual clock
    "available",  # when devices are online
    "init",  # initial weights
    "partition",  # which client has which samples
    "client_test",  # per-client test sets
    "split",  # training and test samples where a data set has no split of its own
    "folds",  # which samples are held out for testing
    "valid",  # samples held out of training for a search
    "validation",  # samples held out of training to choose a round
    "search",  # trials of a search
    "algorithm",  # random decisions of an algorithm on the server
    "uplink",  # random rounding of what a client sends
    "privacy",  # noise of differential privacy on the way up
    "record_privacy",  # batches and noise of a client's differentially private training
    "masks",  # keys and shares of secure aggregation
    "attackers",  # which clients attack
    "unseen",  # which clients never train
    "attack",  # samples and updates of attackers
]

SeedKey = Literal["seed", "fold_seed", "partition_seed", "start_seed", "schedule_seed"]

# The purposes that each key of an experiment seeds; `seed` also takes the place of a key that is not given.
_PURPOSES: Mapping[SeedKey, tuple[Purpose, ...]] = {
    "schedule_seed": ("select", "failure", "straggler", "latency", "available", "attackers", "unseen"),
    "start_seed": ("init",),
    "partition_seed": ("partition", "client_test", "noise"),
    "fold_seed": ("split", "folds"),
    "seed": (
        "shuffle", "inner", "dropout", "evaluate", "personal", "augment", "vc", "valid", "validation", "search",
        "algorithm", "uplink", "privacy", "record_privacy", "masks", "attack",
    ),
}  # fmt: skip
SEED_KEYS: Mapping[Purpose, SeedKey] = {purpose: key for key, purposes in _PURPOSES.items() for purpose in purposes}

WORD = (1 << 64) - 1


@functools.cache
def number_of(purpose: Purpose) -> int:
    """Return the number that stands for a purpose in the key of a stream."""
    return zlib.crc32(purpose.encode())


def stream(seed: int, purpose: Purpose, *key: int) -> np.random.Generator:
    """Return an independent generator for a purpose and key (round, client, ...)."""
    words = (seed, number_of(purpose), *key)
    if max(words) < 1 << 32:  # the same stream, quicker: numpy would split the numbers into these words one by one
        return np.random.Generator(np.random.PCG64(np.array(words, np.uint32)))
    return np.random.default_rng(words)


def derived_seed(*words: int | str | None) -> int:
    """Return a 32-bit seed that is hashed from these words; other words give an unrelated seed.

    >>> derived_seed(15, "split", 1, 0) == derived_seed(16, "split", 0, 0)
    False
    """
    return int.from_bytes(hashlib.blake2b(repr(words).encode(), digest_size=4).digest(), "little")


def torch_seed(seed: int, purpose: Purpose, *key: int) -> int:
    """Return a 63-bit seed for `torch.manual_seed` from the stream of this purpose and key."""
    return int(stream(seed, purpose, *key).integers(0, 2**63 - 1))


def quick_seed(seed: int, purpose: Purpose, *key: int) -> int:
    """Return a 63-bit seed from hashes, much faster than `torch_seed`: every client needs one in every round."""
    *first, last = key
    mixed = (_hashed(seed, purpose, *first) + last * 0x9E3779B97F4A7C15) & WORD  # the golden ratio: splitmix64
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & WORD
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & WORD
    return (mixed ^ mixed >> 31) >> 1


@functools.lru_cache(maxsize=64)
def _hashed(*words: int | str) -> int:
    return int.from_bytes(hashlib.blake2b(repr(words).encode(), digest_size=8).digest(), "little")
