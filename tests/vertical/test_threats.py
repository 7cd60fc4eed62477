"""Each protection of the threat model, against someone who tries; the page is docs/vertical/threats.md."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedarena.errors import BadValue, FedarenaError, FrameRefused, PartyFailed, TranscriptDiffers
from fedarena.vertical.channel import LocalChannel, Session
from fedarena.vertical.crypto.ciphertexts import Ciphertexts
from fedarena.vertical.crypto.keys import PrivateKey, PublicKey, generate
from fedarena.vertical.frames import Fields, Frame, Kind, pack_fields, unpack_fields
from fedarena.vertical.guest import Guest
from fedarena.vertical.host import Host, HostPolicy
from fedarena.vertical.model import GuestModel
from fedarena.vertical.settings import BoostSettings

NO_CIPHERTEXT = r"range|coprime|ciphertext"
ROWS = 80
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, 4)).round(2)
Y = (X @ [0.3, 0, 1, -1] > 0).astype(float)
EVERY = np.packbits(np.ones(ROWS, bool)).tobytes()
SETTINGS = BoostSettings(trees=2, depth=2, bins=8)


class Line(LocalChannel):
    """A line that keeps all frames, and whose bytes may be changed on the way."""

    def __init__(self, host: Any, change: Callable[[Frame], Frame] | None = None) -> None:
        super().__init__(host, "bank")
        self.up: list[Frame] = []
        self.down: list[Frame] = []
        self._change = change

    def carry(self, raw: bytes, kind: Kind) -> bytes:
        """Pass it on."""
        self.up.append(Frame.decode(raw))
        got = Frame.decode(super().carry(raw, kind))
        self.down.append(got)
        return (self._change(got) if self._change else got).encode()


class Liar(Host):
    """A host that answers LEVEL otherwise than it should."""

    lie: Callable[[dict[str, Any]], Fields] = dict

    def answer(self, kind: Kind, fields: dict[str, Any], tree: int, level: int) -> Fields:
        """The truth, but for LEVEL."""
        reply = super().answer(kind, fields, tree, level)
        return self.lie(dict(reply)) if kind is Kind.LEVEL else reply


KEY = generate(2048)


@pytest.fixture
def key() -> PrivateKey:
    return KEY


def train(line: LocalChannel, settings: BoostSettings = SETTINGS, cipher: Any = "paillier") -> GuestModel:
    guest = Guest(X[:, :2], Y, [line], settings, cipher=cipher)
    if cipher == "paillier":
        guest._key = KEY  # one for all tests: making a key takes longer than a tree
    return guest.train()


def fields_of(frames: list[Frame], kind: Kind) -> list[dict[str, Any]]:
    return [unpack_fields(frame.body) for frame in frames if frame.kind is kind]


# The network


def test_a_frame_changed_behind_tls_ends_the_training_with_both_digests() -> None:
    def change(frame: Frame) -> Frame:
        if frame.kind is not Kind.SPLIT:
            return frame
        fields = unpack_fields(frame.body)  # what the guest will ask the host for, later, when it predicts
        return dataclasses.replace(frame, body=pack_fields({**fields, "records": fields["records"] + np.int32(1)}))

    with pytest.raises(TranscriptDiffers, match=r"[0-9a-f]{64} here, [0-9a-f]{64} there"):
        train(Line(Host(X[:, 2:]), change), dataclasses.replace(SETTINGS, depth=1))


@pytest.mark.parametrize("kind", [Kind.ROWS, Kind.LEVEL, Kind.SPLIT, Kind.TREE_END, Kind.HELLO])
def test_no_recorded_frame_can_be_played_again(kind: Kind) -> None:
    line = Line(Host(X[:, 2:], policy=HostPolicy(plain=True)))
    train(line, cipher="none")
    for frame in (frame for frame in line.up if frame.kind is kind):
        reply = Frame.decode(line.session.handle(frame.encode()))
        assert reply.kind is Kind.ERROR
        assert b"repeated" in reply.body
        fresh = Frame.decode(Session(Host(X[:, 2:])).handle(frame.encode()))
        assert (fresh.kind is Kind.ERROR) == (kind is not Kind.HELLO), "nor to a host that was restarted"


# A curious host


HOST_MAY_KNOW = {
    Kind.HELLO: {"trees"},
    Kind.SETUP: {"settings", "rows", "training", "trees"},
    Kind.PUBLIC_KEY: {"cipher", "key"},
    Kind.TREE_START: {"rows", "parts", "slots"},
    Kind.ROWS: {"part", "start", "data"},
    Kind.LEVEL: {"nodes", "node", "build", "totals"},
    Kind.SPLIT: {"nodes", "candidates", "starts"},
    Kind.TREE_END: {"digest"},
    Kind.DONE: set(),
}


def test_a_host_is_told_nothing_but_what_the_page_says() -> None:
    line = Line(Host(X[:, 2:]))
    model = train(line)
    for frame in line.up:
        assert set(unpack_fields(frame.body)) <= HOST_MAY_KNOW[frame.kind]
    sent = b"".join(frame.body for frame in line.up)
    secrets = [Y.tobytes(), Y.astype(np.int8).tobytes(), np.packbits(Y.astype(bool)).tobytes()]
    leaves = [w for tree in model.trees for node in tree.nodes for w in node.weights]
    secrets += [kind(w).tobytes() for w in leaves if w for kind in (np.float32, np.float64)]
    assert leaves
    assert not any(secret in sent for secret in secrets)


def test_equal_gradients_look_unlike() -> None:
    """In the first tree there are two gradients only, one for each label: a host must not see which rows share one."""
    line = Line(Host(X[:, 2:]))
    train(line, dataclasses.replace(SETTINGS, trees=1))
    data = b"".join(fields["data"] for fields in fields_of(line.up, Kind.ROWS))
    size = len(data) // ROWS
    assert size == 512
    each = [data[i * size : (i + 1) * size] for i in range(ROWS)]
    assert len(set(each)) == ROWS
    low = np.array([c[0] for c in each])  # a byte of each ciphertext tells nothing of the label
    assert stats.mannwhitneyu(low[Y > 0], low[Y == 0]).pvalue > 1e-4


# A curious guest


def shown_counts(host: Host, key: Any, trees: int) -> np.ndarray:
    """What a host shows of its candidates at the root of so many fresh trees."""
    line = LocalChannel(host, "bank", key=bytes.fromhex(key.public.fingerprint)[:8])
    settings = dataclasses.replace(SETTINGS, trees=1)
    question = {"settings": settings.to_json(), "rows": ROWS, "training": EVERY}
    found = []
    for _ in range(trees):
        line.ask(Kind.HELLO, {"trees": 0})
        line.ask(Kind.SETUP, {**question, "trees": 0})
        line.ask(Kind.PUBLIC_KEY, {"cipher": "none", "key": key.public.to_bytes()})
        line.ask(Kind.TREE_START, {"rows": EVERY, "parts": 1, "slots": 2})
        data = key.encrypt(plain_rows()).to_bytes()
        line.ask(Kind.ROWS, {"part": 0, "start": 0, "data": data})
        level = {"nodes": 1, "node": np.zeros(ROWS, np.uint8), "build": np.zeros(1, np.int32)}
        total = key.encrypt(plain_rows(1)).to_bytes()
        found.append(line.ask(Kind.LEVEL, {**level, "totals": total})["counts"][0])
    return np.array(found)


def plain_rows(count: int = ROWS) -> Any:
    from fedarena.vertical.crypto.ciphertexts import Plaintexts

    return Plaintexts(np.ones((count, 2), np.uint64))


def test_the_order_of_candidates_reveals_nothing() -> None:
    """Where a candidate appears is uniform over all places, and does not follow seeds that a guest could know."""
    from fedarena.vertical.crypto.plain import PlainKey, PlainPublicKey

    key = PlainKey(PlainPublicKey(2048))
    column = np.concatenate([np.repeat(np.arange(7.0), [5, 7, 8, 10, 13, 17, 20])])[:, None]
    host = Host(column, policy=HostPolicy(plain=True))
    trials = 350
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    counts = shown_counts(host, key, trials)
    assert set(counts[0]) == {5, 12, 20, 30, 43, 60}, "rows to the left of each threshold: they name the candidates"
    for candidate in (5, 60):
        places = np.bincount(np.nonzero(counts == candidate)[1], minlength=6)
        assert stats.chisquare(places).pvalue > 1e-6
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert (shown_counts(host, key, 8) != counts[:8]).any(), "the same seeds, another order"


def products(line: Line, public: PublicKey, host: Host) -> set[bytes]:
    """What the guest can compute itself: the product of the ciphertexts of every set of rows that a column may cut off."""
    data = b"".join(fields["data"] for fields in fields_of(line.up, Kind.ROWS))
    sent = Ciphertexts.from_bytes(public, data)
    found = set()
    for column in host.x.T:
        for threshold in np.unique(column):
            rows = np.flatnonzero(column <= threshold).astype(np.int32)
            product = public.sums(sent, rows, np.array([0, len(rows)], np.int64))
            found.add(product.to_bytes())
    return found


@pytest.mark.parametrize("skipped", [False, True])
def test_replies_are_rerandomised(skipped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest knows every mask it drew, so it could recognise which rows a sum is over; ours it cannot recognise.

    The attack is carried out on a host that skips the step as well: there it succeeds for every single sum.
    """
    if skipped:
        monkeypatch.setattr(PublicKey, "rerandomise", lambda self, c, threads=None: c)
    settings = BoostSettings(trees=1, depth=1, bins=8, compression=False, sparse=False)
    host = Host(X[:, 2:])
    line = Line(host)
    train(line, settings)
    (key_sent,) = fields_of(line.up, Kind.PUBLIC_KEY)
    public = PublicKey.from_bytes(key_sent["key"])
    (reply,) = fields_of(line.down, Kind.LEVEL)
    size = len(reply["sums"]) // reply["counts"].size
    shown = {reply["sums"][i : i + size] for i in range(0, len(reply["sums"]), size)}
    assert len(shown) == reply["counts"].size > 10
    recognised = shown & products(line, public, host)
    assert len(recognised) == (len(shown) if skipped else 0)


# A malicious host


def written(public: PublicKey, low: int, high: int) -> bytes:
    """The number low + high n, in the form in which ciphertexts travel: two halves below n."""
    size = public.width * 4
    return low.to_bytes(size, "little") + high.to_bytes(size, "little")


def replaced(low: Callable[[int], int], high: Callable[[int], int]) -> Callable[[dict[str, Any], PublicKey], Fields]:
    """The first ciphertext of a reply, replaced by another number."""

    def lie(reply: dict[str, Any], public: PublicKey) -> Fields:
        bad = written(public, low(public.n), high(public.n))
        return {**reply, "sums": bad + reply["sums"][len(bad) :]}

    return lie


def swollen(reply: dict[str, Any], public: PublicKey) -> Fields:
    """The first sum twice: a sum over more than its rows."""
    sums = Ciphertexts.from_bytes(public, reply["sums"])
    return {**reply, "sums": public.add(sums, sums).to_bytes()}


LIES: dict[str, tuple[Callable[[dict[str, Any], Any], Fields], str]] = {
    "zero": (replaced(lambda n: 0, lambda n: 0), NO_CIPHERTEXT),
    "n squared": (replaced(lambda n: 0, lambda n: n), NO_CIPHERTEXT),
    "beyond n squared": (replaced(lambda n: n - 1, lambda n: 2**2048 - 1), NO_CIPHERTEXT),
    "not in its one form": (replaced(lambda n: n, lambda n: 1), NO_CIPHERTEXT),
    "a multiple of n": (replaced(lambda n: 0, lambda n: 1), NO_CIPHERTEXT),
    "sums doubled": (swollen, "larger than they can be"),
    "minus one": (replaced(lambda n: 1, lambda n: n - 1), "larger than they can be"),
    "a count too large": (lambda reply, _: {**reply, "counts": reply["counts"] + np.int32(ROWS)}, "larger than the nodes"),
    "a negative count": (lambda reply, _: {**reply, "counts": -reply["counts"] - np.int32(1)}, "counts"),
    "one sum less": (lambda reply, public: {**reply, "sums": reply["sums"][: -public.width * 8]}, "wrong number"),
    "no counts": (lambda reply, _: {"sums": reply["sums"]}, "wrong form"),
    "counts of another shape": (lambda reply, _: {**reply, "counts": reply["counts"][:, :-1]}, "wrong form"),
    "no sums": (lambda reply, _: {"counts": reply["counts"]}, "sums"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_answers_that_cannot_be_true_are_refused(name: str) -> None:
    lie, told = LIES[name]
    host = Liar(X[:, 2:])
    host.lie = lambda reply: lie(reply, host._public)  # type: ignore[method-assign]
    with pytest.raises(FedarenaError, match=told):
        train(Line(host), dataclasses.replace(SETTINGS, trees=1, depth=1, compression=False))


def test_counts_of_siblings_must_add_up() -> None:
    """A lie about a child shows in its sibling, which the guest computes from their parent."""
    host = Liar(X[:, 2:])
    seen: list[np.ndarray] = []

    def lie(reply: dict[str, Any]) -> Fields:
        seen.append(reply["counts"])
        return reply if len(seen) == 1 else {**reply, "counts": np.full_like(reply["counts"], reply["counts"].max())}

    host.lie = lie  # type: ignore[method-assign]
    with pytest.raises(PartyFailed, match="cannot be true"):
        train(Line(host), dataclasses.replace(SETTINGS, trees=1))


# A malicious guest


def greeted(host: Host, key: PrivateKey, settings: BoostSettings = SETTINGS) -> LocalChannel:
    line = LocalChannel(host, "bank", key=bytes.fromhex(key.public.fingerprint)[:8])
    line.ask(Kind.HELLO, {"trees": 0})
    line.ask(Kind.SETUP, {"settings": settings.to_json(), "rows": ROWS, "training": EVERY, "trees": 0})
    return line


def test_a_key_that_is_not_the_announced_one_is_refused(key: PrivateKey) -> None:
    line = greeted(Host(X[:, 2:]), key)
    other = generate(2048)
    with pytest.raises(FrameRefused, match="public key is not the one of this session"):
        line.ask(Kind.PUBLIC_KEY, {"cipher": "paillier", "key": other.public.to_bytes()})


@pytest.mark.parametrize("what", ["even", "short", "cut", "empty", "plain"])
def test_a_host_checks_the_modulus(key: PrivateKey, what: str) -> None:
    line = greeted(Host(X[:, 2:]), key)
    raw = key.public.to_bytes()
    sent = {
        "even": (key.public.n - 1).to_bytes(len(raw), "little"),
        "short": (key.public.n >> 1024 | 1).to_bytes(len(raw) // 2, "little"),
        "cut": raw[:-1],
        "empty": b"",
        "plain": raw,
    }[what]
    with pytest.raises(FedarenaError):
        line.ask(Kind.PUBLIC_KEY, {"cipher": "none" if what == "plain" else "paillier", "key": sent})


def test_a_host_limits_trees_depth_and_the_size_of_nodes(key: PrivateKey) -> None:
    for policy, told in (
        (HostPolicy(most_trees=1), "trees = 2 is not allowed here"),
        (HostPolicy(most_depth=1), "depth = 2 is not allowed here"),
        (HostPolicy(min_leaf_rows=5), "min_leaf_rows = 1 is not allowed here"),
    ):
        with pytest.raises(BadValue, match=told):
            greeted(Host(X[:, 2:], policy=policy), key)
    host = Host(X[:, 2:], policy=HostPolicy(min_leaf_rows=5))
    line = greeted(host, key, dataclasses.replace(SETTINGS, min_leaf_rows=5, sparse=False))
    begin(line, key)
    few = np.where(np.arange(ROWS) < 4, 0, 1).astype(np.uint8)  # node 0 has four people, the others are nowhere
    with pytest.raises(BadValue, match="a node of 4 rows"):
        line.ask(Kind.LEVEL, {"nodes": 1, "node": few, "build": np.zeros(1, np.int32)})


def begin(line: LocalChannel, key: PrivateKey) -> None:
    line.ask(Kind.PUBLIC_KEY, {"cipher": "paillier", "key": key.public.to_bytes()})
    line.ask(Kind.TREE_START, {"rows": EVERY, "parts": 1, "slots": 2})
    line.ask(Kind.ROWS, {"part": 0, "start": 0, "data": key.encrypt(plain_rows()).to_bytes()})


@pytest.mark.parametrize("number", ["zero", "n", "n squared"])
def test_a_host_refuses_ciphertexts_that_are_none(key: PrivateKey, number: str) -> None:
    line = greeted(Host(X[:, 2:]), key)
    line.ask(Kind.PUBLIC_KEY, {"cipher": "paillier", "key": key.public.to_bytes()})
    line.ask(Kind.TREE_START, {"rows": EVERY, "parts": 1, "slots": 2})
    good = key.encrypt(plain_rows()).to_bytes()
    bad = written(key.public, *{"zero": (0, 0), "n": (0, 1), "n squared": (0, key.public.n)}[number])
    with pytest.raises(FedarenaError, match=NO_CIPHERTEXT):
        line.ask(Kind.ROWS, {"part": 0, "start": 0, "data": bad + good[len(bad) :]})


# Colluding hosts


def test_hosts_have_orders_of_their_own(key: PrivateKey) -> None:
    """The same columns at two hosts are shown in unlike orders: neither can read the guest's questions to the other."""
    from fedarena.vertical.crypto.plain import PlainKey, PlainPublicKey

    plain = PlainKey(PlainPublicKey(2048))
    one, two = (shown_counts(Host(X[:, 2:], policy=HostPolicy(plain=True)), plain, 1) for _ in range(2))
    assert (np.sort(one) == np.sort(two)).all()
    assert (one != two).any()
