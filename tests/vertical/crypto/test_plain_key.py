"""The key that does not encrypt does the same arithmetic."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fedarena.config.errors import BadValue
from fedarena.vertical.crypto import Ciphertexts, PlainKey, PlainPublicKey, PrivateKey, plaintexts, unpack


@pytest.mark.parametrize("bits", [3, 64, 150, 190])
def test_same_sums_as_with_encryption(short_key: PrivateKey, bits: int) -> None:
    dice, plain_key = random.Random(bits), PlainKey()
    plain = plaintexts([(1 << bits) - 1, *(dice.getrandbits(bits) for _ in range(30))])
    rows, starts = np.array(dice.choices(range(31), k=200), np.int32), np.array([0, 0, 5, 5, 5, 170, 200, 200])
    read = []
    for key in (short_key, plain_key):
        public = key.public
        c = Ciphertexts.from_bytes(public, key.encrypt(plain).to_bytes())
        sums = public.sums(c, rows, starts)
        differences = public.subtract(public.add(sums, sums), sums)
        packed = public.rerandomise(public.pack(differences, 200, 4))
        read.append((key.decrypt(sums), key.decrypt(differences), unpack(key.decrypt(packed), 200, 4, 7)))
    assert read[0] == read[1]
    assert read[0][0] == read[0][1] == read[0][2]


def test_its_name_is_not_that_of_a_key_and_it_keeps_the_limits() -> None:
    key = PlainKey()
    assert PlainPublicKey.from_bytes(key.public.to_bytes()) == key.public
    assert len(bytes.fromhex(key.public.fingerprint)) == 8
    with pytest.raises(BadValue):
        PlainPublicKey.from_bytes((77).to_bytes(8, "little"))
    with pytest.raises(BadValue, match="do not fit"):
        key.public.pack(key.encrypt(plaintexts([1])), 1024, 2)
    with pytest.raises(BadValue, match="larger"):
        key.encrypt(plaintexts([1 << 2048]))
