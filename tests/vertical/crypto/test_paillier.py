"""Keys and ciphertexts: what is encrypted comes back, sums are sums, masks are fresh, what is no ciphertext is refused."""

from __future__ import annotations

import json
import math
import random
import stat
from pathlib import Path

import numpy as np
import pytest

from fedarena.config.errors import BadValue, CannotWrite, DataBroken, DataMissing, UnknownName
from fedarena.vertical.crypto import (
    Ciphertexts,
    Exponents,
    PrivateKey,
    PublicKey,
    backends,
    generate,
    plaintexts,
    primes,
    unpack,
)
from fedarena.vertical.crypto.limbs import to_words

KINDS: list[Exponents] = ["full", "short"]
FAIR = 35.0  # chi-square with three degrees of freedom exceeds it once in ten million times; one kind missing is more


def whole(public: PublicKey, c: Ciphertexts) -> list[int]:
    """The ciphertexts as numbers modulo n²."""
    return [low + public.n * high for low, high in public.digits(c)]


def edge_plaintexts(key: PrivateKey) -> list[int]:
    n = key.public.n
    return [0, 1, 2, n - 1, n // 2, key.p, key.q, *(1 << k for k in (31, 63, 64, 127, key.public.bits - 1))]


@pytest.mark.slow
@pytest.mark.parametrize("exponents", KINDS)
def test_what_is_encrypted_comes_back(backend: str, key: PrivateKey, exponents: Exponents) -> None:
    plain = edge_plaintexts(key)
    assert key.decrypt(key.encrypt(plaintexts(plain), exponents)) == plain


@pytest.mark.slow
@pytest.mark.parametrize("exponents", KINDS)
def test_ciphertexts_are_those_of_the_textbook(backend: str, short_key: PrivateKey, exponents: Exponents) -> None:
    """m = L(c^lambda mod n²) / lambda mod n, with L(x) = (x - 1) / n: Paillier 1999, scheme 1 with g = 1 + n."""
    n, lam = short_key.public.n, math.lcm(short_key.p - 1, short_key.q - 1)
    plain = edge_plaintexts(short_key)
    c = whole(short_key.public, short_key.encrypt(plaintexts(plain), exponents))
    assert [(pow(x, lam, n * n) - 1) // n * pow(lam, -1, n) % n for x in c] == plain


@pytest.mark.slow
def test_all_backends_read_each_other(short_key: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = edge_plaintexts(short_key)
    written = {}
    for name in backends.available():
        monkeypatch.setenv(backends.SWITCH, name)
        written[name] = short_key.encrypt(plaintexts(plain))
    for name in backends.available():
        monkeypatch.setenv(backends.SWITCH, name)
        assert all(short_key.decrypt(c) == plain for c in written.values())
    rows, starts = np.array([0, 1, 2, 3, 3, 4], np.int32), np.array([0, 2, 2, 6])
    c, sums = written["python"], []
    for name in backends.available():
        monkeypatch.setenv(backends.SWITCH, name)
        packed = short_key.public.pack(short_key.public.sums(c, rows, starts), 100, 2)
        sums.append(packed.to_bytes())
    assert len(set(sums)) == 1  # not only the same plaintexts: the same ciphertexts


def test_sums_differences_and_an_empty_segment(backend: str, short_key: PrivateKey) -> None:
    dice, public, n = random.Random(0), short_key.public, short_key.public.n
    plain = [dice.randrange(n) for _ in range(40)]
    c = short_key.encrypt(plaintexts(plain))
    rows, starts = np.array(dice.choices(range(40), k=700), np.int32), np.array([0, 1, 1, 650, 700])
    wanted = [sum(plain[row] for row in rows[a:b]) % n for a, b in ((0, 1), (1, 1), (1, 650), (650, 700))]
    assert short_key.decrypt(public.sums(c, rows, starts)) == wanted
    assert short_key.decrypt(public.add(c[:5], c[5:10])) == [
        (a + b) % n for a, b in zip(plain[:5], plain[5:10], strict=True)
    ]
    assert short_key.decrypt(public.subtract(c[:5], c[5:10])) == [
        (a - b) % n for a, b in zip(plain[:5], plain[5:10], strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_does_not_matter(backend: str, short_key: PrivateKey, threads: int) -> None:
    plain = list(range(37))
    c = short_key.encrypt(plaintexts(plain), "short", threads=threads)
    assert short_key.decrypt(c, threads=threads) == plain
    rows = np.arange(37, dtype=np.int32)
    sums = short_key.public.sums(c, rows, np.array([0, 1, 30, 30, 37]), threads=threads)
    many = short_key.public.sums(c, np.tile(rows, 60), np.arange(0, 37 * 60 + 1, 37 * 5), threads=threads)
    assert short_key.decrypt(many) == [5 * sum(range(37))] * 12
    packed = short_key.public.pack(sums, 20, 3, threads=threads)
    assert unpack(short_key.decrypt(packed, threads=threads), 20, 3, 4) == [0, sum(range(1, 30)), 0, sum(range(30, 37))]


def test_slots_are_packed_from_the_lowest_bits(backend: str, short_key: PrivateKey) -> None:
    slots, width = [(1 << 90) - 1 - i for i in range(25)], 92
    count = short_key.public.capacity // width
    packed = short_key.public.pack(short_key.encrypt(plaintexts(slots)), width, count)
    assert len(packed) == -(-25 // count)
    assert unpack(short_key.decrypt(packed), width, count, 25) == slots
    with pytest.raises(BadValue, match="do not fit"):
        short_key.public.pack(packed, width, count + 1)


def test_nothing_to_do_is_done(backend: str, short_key: PrivateKey) -> None:
    none = short_key.encrypt(plaintexts([]))
    public = short_key.public
    assert len(none) == len(public.rerandomise(none)) == len(public.pack(none, 8, 2)) == 0
    assert short_key.decrypt(none) == []
    assert len(Ciphertexts.from_bytes(public, b"")) == 0
    assert short_key.decrypt(public.sums(none, np.array([], np.int32), np.array([0, 0]))) == [0]


def characters(key: PrivateKey, masks: list[int]) -> np.ndarray:
    """How many masks are squares or not, modulo p and modulo q: four kinds."""
    kinds = [2 * (pow(x, key.p // 2, key.p) == 1) + (pow(x, key.q // 2, key.q) == 1) for x in masks]
    return np.bincount(kinds, minlength=4)


@pytest.mark.slow
def test_masks_are_uniform_over_all_residues(short_key: PrivateKey) -> None:
    """c mod n is r^n: squares and non-squares modulo p and q are equally frequent, in all four combinations.

    Powers of a base that is itself a square, or one exponent for both primes, would miss some of them.
    """
    public, count = short_key.public, 400
    masks = [low for low, _ in public.digits(short_key.encrypt(plaintexts([5] * count)))]
    assert len(set(masks)) == count
    assert ((characters(short_key, masks) - count / 4) ** 2 / (count / 4)).sum() < FAIR


@pytest.mark.slow
def test_rerandomising_hides_the_old_mask(backend: str, short_key: PrivateKey) -> None:
    """Against the owner of the key, too: what was multiplied to c is uniform, so that nothing can be tested on it."""
    public, count = short_key.public, 160 if backend != "python" else 60
    c = short_key.encrypt(plaintexts([7] * count))
    fresh = public.rerandomise(c)
    assert short_key.decrypt(fresh) == [7] * count
    ratios = [b * pow(a, -1, public.n) % public.n for a, b in zip(whole(public, c), whole(public, fresh), strict=True)]
    assert len(set(ratios)) == count
    assert ((characters(short_key, ratios) - count / 4) ** 2 / (count / 4)).sum() < FAIR


def test_only_ciphertexts_of_the_key_are_let_in(backend: str, short_key: PrivateKey) -> None:
    public, n, words = short_key.public, short_key.public.n, short_key.public.words
    good = short_key.encrypt(plaintexts(list(range(12))))
    assert np.array_equal(Ciphertexts.from_bytes(public, good.to_bytes()).data, good.data)
    for digit in (0, 1):
        for value in (n, n + 1, (1 << 64 * words) - 1):
            data = good.data.copy()
            data[7, digit * words : (digit + 1) * words] = to_words([value], words)[0]
            with pytest.raises(BadValue, match="out of range"):
                Ciphertexts.from_bytes(public, Ciphertexts(data).to_bytes())
    for low in (0, short_key.p, 3 * short_key.q):
        data = good.data.copy()
        data[3, :words] = to_words([low], words)[0]
        with pytest.raises(BadValue, match="shares a factor"):
            Ciphertexts.from_bytes(public, Ciphertexts(data).to_bytes())
    with pytest.raises(BadValue, match="not a whole number"):
        Ciphertexts.from_bytes(public, good.to_bytes()[:-1])


def test_rows_out_of_reach_are_refused(short_key: PrivateKey) -> None:
    c = short_key.encrypt(plaintexts([1, 2]))
    for rows, starts in (([2], [0, 1]), ([-1], [0, 1]), ([0], [0, 2]), ([0, 1], [1, 0]), ([0], [-1, 1])):
        with pytest.raises(IndexError):
            short_key.public.sums(c, np.array(rows, np.int32), np.array(starts))


def test_ciphertexts_of_a_longer_key_are_not_taken_for_ours(short_key: PrivateKey, key: PrivateKey) -> None:
    c = short_key.encrypt(plaintexts([1, 2]))
    one, all_of_it = np.array([0], np.int32), np.array([0, 1])
    for work in (lambda: key.public.sums(c, one, all_of_it), lambda: key.public.pack(c, 8, 2), lambda: key.decrypt(c)):
        with pytest.raises(ValueError, match="have 64 words"):
            work()


def test_plaintexts_that_do_not_fit_are_refused(short_key: PrivateKey) -> None:
    for number in (short_key.public.n, 1 << 1024, 1 << 2000):
        with pytest.raises(BadValue, match="larger than the key"):
            short_key.encrypt(plaintexts([0, number]))
    with pytest.raises(BadValue, match="exponents"):
        short_key.encrypt(plaintexts([0]), "tiny")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_key_that_cannot_be_one_is_refused(short_key: PrivateKey, key: PrivateKey) -> None:
    assert PublicKey.from_bytes(key.public.to_bytes()) == key.public
    p = primes.random_prime(2048)
    even, has_factor, square = key.public.n + 1, 3 * (p // 3 | 1), (math.isqrt(key.public.n) | 1) ** 2
    for n in (even, p, has_factor, square, key.public.n >> 8 | 1, 0, 1):
        with pytest.raises(BadValue):
            PublicKey(n).check()
    with pytest.raises(BadValue, match="1024 bits is not offered"):
        PublicKey.from_bytes(short_key.public.to_bytes())
    with pytest.warns(UserWarning, match="can be broken"):
        PublicKey.from_bytes(short_key.public.to_bytes(), allow_1024=True)
    for bits in (512, 1024, 2047, 4096):
        with pytest.raises(BadValue, match="not offered"):
            generate(bits)


def test_a_key_is_made_of_primes_of_our_kind(short_key: PrivateKey) -> None:
    p, q = short_key.p, short_key.q
    for a, b in ((p, p), (p, q + 2), (p, primes.key_prime(256)), (p, 2**521 - 1)):
        with pytest.raises(BadValue, match="not the primes of a key"):
            PrivateKey(a, b)


@pytest.mark.slow
def test_3072_bits() -> None:
    key = generate(3072)
    plain = edge_plaintexts(key)
    c = key.encrypt(plaintexts(plain))
    assert key.public.bits == 3072
    assert key.decrypt(key.public.rerandomise(c)) == plain


def test_the_key_file_is_for_its_owner_only(short_key: PrivateKey, tmp_path: Path) -> None:
    path = tmp_path / "guest.key"
    short_key.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert PrivateKey.load(path) == short_key
    with pytest.raises(CannotWrite):
        short_key.save(path)
    path.chmod(0o640)
    with pytest.raises(BadValue, match="read by others"):
        PrivateKey.load(path)
    path.chmod(0o600)
    for text in ("", "[]", "{}", json.dumps({"format": "x", "version": 1, "p": "0x5", "q": "0x7"})):
        path.write_text(text)
        with pytest.raises(DataBroken):
            PrivateKey.load(path)
    with pytest.raises(DataMissing):
        PrivateKey.load(tmp_path / "none")


def test_a_key_does_not_print_its_secret(short_key: PrivateKey) -> None:
    for secret in (short_key.p, short_key.q):
        assert str(secret)[:12] not in repr(short_key)
        assert hex(secret)[2:12] not in repr(short_key)
    assert short_key.public.fingerprint in repr(short_key)


def test_the_backend_is_named_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "python" in backends.available()
    monkeypatch.delenv(backends.SWITCH, raising=False)
    assert backends.backend().name == backends.available()[0]
    monkeypatch.setenv(backends.SWITCH, "pyton")
    with pytest.raises(UnknownName, match="did you mean 'python'"):
        backends.backend()
    monkeypatch.setenv(backends.SWITCH, "ifma")
    monkeypatch.setitem(backends.MAKERS, "ifma", lambda: None)
    backends.backend_called.cache_clear()
    with pytest.raises(BadValue, match="does not run on this machine"):
        backends.backend()
    backends.backend_called.cache_clear()
