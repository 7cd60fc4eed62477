"""Each protection of the threat model, against someone who tries; the page is docs/vertical/threats.md."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedarena.config.errors import BadValue, FedarenaError, FrameRefused, PartyFailed, TranscriptDiffers
from fedarena.transport.channel import LocalChannel, Session
from fedarena.transport.frames import Fields, Frame, FrameKind, pack_fields, unpack_fields
from fedarena.vertical.crypto.ciphertexts import Ciphertexts, Plaintexts
from fedarena.vertical.crypto.keys import PrivateKey, PublicKey, generate
from fedarena.vertical.crypto.limbs import to_numbers, to_words
from fedarena.vertical.crypto.plain import PlainKey, PlainPublicKey
from fedarena.vertical.guest import Guest
from fedarena.vertical.host import SPARE_TREES, Host, HostPolicy
from fedarena.vertical.model import GuestModel, HostModel
from fedarena.vertical.settings import BoostSettings

OUT_OF_RANGE, NOT_COPRIME = "a ciphertext is out of range", "a ciphertext shares a factor with the modulus"
ROWS = 80
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, 4)).round(2)
Y = (X @ [0.3, 0, 1, -1] > 0).astype(float)
EVERY = np.packbits(np.ones(ROWS, bool)).tobytes()
SETTINGS = BoostSettings(trees=2, depth=2, bins=8)
UNCOMPRESSED = HostPolicy(most_bits=2047)


class Line(LocalChannel):
    """A channel that records all frames, and whose bytes may be changed on the way."""

    def __init__(self, host: Any, change: Callable[[Frame], Frame] | None = None) -> None:
        super().__init__(host, "bank")
        self.up: list[Frame] = []
        self.down: list[Frame] = []
        self._change = change

    def carry(self, raw: bytes, kind: FrameKind) -> bytes:
        """Record both frames, and change the response where asked."""
        self.up.append(Frame.decode(raw))
        got = Frame.decode(super().carry(raw, kind))
        self.down.append(got)
        return (self._change(got) if self._change else got).encode()


class FaultyHost(Host):
    """A host that answers LEVEL otherwise than it should."""

    change_response: Callable[[dict[str, Any]], Fields] = dict

    def answer(self, kind: FrameKind, fields: dict[str, Any], tree: int, level: int) -> Fields:
        """Change the response to LEVEL only."""
        reply = super().answer(kind, fields, tree, level)
        return self.change_response(dict(reply)) if kind is FrameKind.LEVEL else reply


KEY = generate(2048)
PLAIN = PlainKey(PlainPublicKey(2048))


@pytest.fixture
def key() -> PrivateKey:
    return KEY


def train(line: LocalChannel, settings: BoostSettings = SETTINGS, cipher: Any = "paillier") -> GuestModel:
    guest = Guest(X[:, :2], Y, [line], settings, cipher=cipher)
    if cipher == "paillier":
        guest._key = KEY  # one for all tests: making a key takes longer than a tree
    return guest.train()


def fields_of(frames: list[Frame], kind: FrameKind) -> list[dict[str, Any]]:
    return [unpack_fields(frame.body) for frame in frames if frame.kind is kind]


# The network


@pytest.mark.slow
def test_a_frame_changed_behind_tls_ends_the_training_with_both_digests() -> None:
    def change(frame: Frame) -> Frame:
        if frame.kind is not FrameKind.SPLIT:
            return frame
        fields = unpack_fields(frame.body)  # what the guest will ask the host for, later, when it predicts
        return dataclasses.replace(frame, body=pack_fields({**fields, "records": fields["records"] + np.int32(1)}))

    with pytest.raises(TranscriptDiffers, match=r"[0-9a-f]{64} here, [0-9a-f]{64} there"):
        train(Line(Host(X[:, 2:]), change), SETTINGS.with_(depth=1))


def changed(kind: FrameKind, name: str, value: Any) -> type[LocalChannel]:
    """A channel that changes one field of one kind of request."""

    class Changing(LocalChannel):
        """Change the frame behind TLS."""

        def carry(self, raw: bytes, sent: FrameKind) -> bytes:
            """The host reads something else."""
            if sent is kind:
                frame = Frame.decode(raw)
                raw = dataclasses.replace(frame, body=pack_fields({**unpack_fields(frame.body), name: value})).encode()
            return super().carry(raw, sent)

    return Changing


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (FrameKind.HELLO, "purpose", "training"),
        (FrameKind.SETUP, "settings", SETTINGS.with_(bins=4).to_json()),
        (FrameKind.PUBLIC_KEY, "more", 1),
    ],
    ids=str,
)
def test_the_first_tree_ends_the_training_if_what_came_before_it_was_changed(
    kind: FrameKind, name: str, value: Any
) -> None:
    line = changed(kind, name, value)(Host(X[:, 2:], policy=HostPolicy(plain=True)), "bank")
    trees: list[Any] = []
    guest = Guest(X[:, :2], Y, [line], SETTINGS, cipher="none", on_tree=trees.append)
    with pytest.raises(TranscriptDiffers):
        guest.train()
    assert not trees


@pytest.mark.parametrize(
    "kind", [FrameKind.ROWS, FrameKind.LEVEL, FrameKind.SPLIT, FrameKind.TREE_END, FrameKind.HELLO]
)
def test_no_recorded_frame_can_be_played_again(kind: FrameKind) -> None:
    line = Line(Host(X[:, 2:], policy=HostPolicy(plain=True)))
    train(line, cipher="none")
    for frame in (frame for frame in line.up if frame.kind is kind):
        reply = Frame.decode(line.session.handle(frame.encode()))
        assert reply.kind is FrameKind.ERROR
        assert b"repeated" in reply.body
        fresh = Frame.decode(Session(Host(X[:, 2:])).handle(frame.encode()))
        assert (fresh.kind is FrameKind.ERROR) == (kind is not FrameKind.HELLO), (
            "a host that was restarted refuses it too"
        )


# A curious host


HOST_MAY_KNOW = {
    FrameKind.HELLO: {"purpose"},
    FrameKind.SETUP: {"settings", "rows", "training", "trees", "training_id"},
    FrameKind.PUBLIC_KEY: {"cipher", "key"},
    FrameKind.TREE_START: {"rows"},
    FrameKind.ROWS: {"part", "start", "data"},
    FrameKind.LEVEL: {"nodes", "node", "build", "totals"},
    FrameKind.SPLIT: {"nodes", "candidates", "starts"},
    FrameKind.TREE_END: {"digest"},
    FrameKind.DONE: {"digest"},
}


def test_a_host_receives_only_what_the_page_says() -> None:
    line = Line(Host(X[:, 2:]))
    model = train(line)
    sent: dict[FrameKind, set[str]] = {}
    for frame in line.up:
        sent.setdefault(frame.kind, set()).update(unpack_fields(frame.body))
    assert sent == HOST_MAY_KNOW
    sent = b"".join(frame.body for frame in line.up)
    secrets = [Y.tobytes(), Y.astype(np.int8).tobytes(), np.packbits(Y.astype(bool)).tobytes()]
    leaves = [w for tree in model.trees for node in tree.nodes for w in node.weights]
    secrets += [kind(w).tobytes() for w in leaves if w for kind in (np.float32, np.float64)]
    assert leaves
    assert not any(secret in sent for secret in secrets)


def test_equal_gradients_look_unlike() -> None:
    """In the first tree there are two gradients only, one for each label: a host must not see which rows share one."""
    line = Line(Host(X[:, 2:]))
    train(line, SETTINGS.with_(trees=1))
    data = b"".join(fields["data"] for fields in fields_of(line.up, FrameKind.ROWS))
    size = len(data) // ROWS
    assert size == 512
    each = [data[i * size : (i + 1) * size] for i in range(ROWS)]
    assert len(set(each)) == ROWS
    low = np.array([c[0] for c in each])  # a byte of each ciphertext reveals nothing of the label
    assert stats.mannwhitneyu(low[Y > 0], low[Y == 0]).pvalue > 1e-4


# A curious guest


def shown_counts(host: Host, key: Any, trees: int) -> np.ndarray:
    """What a host shows of its candidates at the root of so many fresh trees."""
    line = LocalChannel(host, "bank", key=bytes.fromhex(key.public.fingerprint)[:8])
    settings = SETTINGS.with_(trees=1)
    question = {"settings": settings.to_json(), "rows": ROWS, "training": EVERY, "training_id": "one"}
    found = []
    for _ in range(trees):
        line.ask(FrameKind.HELLO, {"purpose": "train"})
        line.ask(FrameKind.SETUP, {**question, "trees": 0})
        line.ask(FrameKind.PUBLIC_KEY, {"cipher": "none", "key": key.public.to_bytes()})
        line.ask(FrameKind.TREE_START, {"rows": EVERY})
        data = key.encrypt(plain_rows()).to_bytes()
        line.ask(FrameKind.ROWS, {"part": 0, "start": 0, "data": data})
        level = {"nodes": 1, "node": np.zeros(ROWS, np.uint8), "build": np.zeros(1, np.int32)}
        total = key.encrypt(plain_rows(1)).to_bytes()
        found.append(line.ask(FrameKind.LEVEL, {**level, "totals": total})["counts"][0])
    return np.array(found)


def plain_rows(count: int = ROWS) -> Any:
    return Plaintexts(np.ones((count, 2), np.uint64))


@pytest.mark.slow
def test_the_order_of_candidates_reveals_nothing() -> None:
    """Where a candidate appears is uniform over all places, and does not follow seeds that a guest could know."""
    column = np.concatenate([np.repeat(np.arange(7.0), [5, 7, 8, 10, 13, 17, 20])])[:, None]
    host = Host(column, policy=HostPolicy(plain=True))
    trials = 350
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    counts = shown_counts(host, PLAIN, trials)
    assert set(counts[0]) == {5, 12, 20, 30, 43, 60}, "rows to the left of each threshold: they name the candidates"
    for candidate in (5, 60):
        places = np.bincount(np.nonzero(counts == candidate)[1], minlength=6)
        assert stats.chisquare(places).pvalue > 1e-6
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert (shown_counts(host, PLAIN, 8) != counts[:8]).any(), "the same seeds, another order"


def products(line: Line, public: PublicKey, host: Host) -> set[bytes]:
    """What the guest can compute itself: the product of the ciphertexts of every set of rows that a column may cut off."""
    data = b"".join(fields["data"] for fields in fields_of(line.up, FrameKind.ROWS))
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
    host = Host(X[:, 2:], policy=UNCOMPRESSED)
    line = Line(host)
    train(line, settings)
    (key_sent,) = fields_of(line.up, FrameKind.PUBLIC_KEY)
    public = PublicKey.from_bytes(key_sent["key"])
    (reply,) = fields_of(line.down, FrameKind.LEVEL)
    size = len(reply["sums"]) // reply["counts"].size
    shown = {reply["sums"][i : i + size] for i in range(0, len(reply["sums"]), size)}
    assert len(shown) == reply["counts"].size > 10
    recognised = shown & products(line, public, host)
    assert len(recognised) == (len(shown) if skipped else 0)


# A malicious host


def written(public: PublicKey, low: int, high: int) -> bytes:
    """The number low + high n, in the form in which ciphertexts travel: two digits below n."""
    size = public.width * 4
    return low.to_bytes(size, "little") + high.to_bytes(size, "little")


def replaced(low: Callable[[int], int], high: Callable[[int], int]) -> Callable[[dict[str, Any], PublicKey], Fields]:
    """The first ciphertext of a reply, replaced by another number."""

    def change_response(reply: dict[str, Any], public: PublicKey) -> Fields:
        bad = written(public, low(public.n), high(public.n))
        return {**reply, "sums": bad + reply["sums"][len(bad) :]}

    return change_response


def swollen(reply: dict[str, Any], public: PublicKey) -> Fields:
    """The first sum twice: a sum over more than its rows."""
    sums = Ciphertexts.from_bytes(public, reply["sums"])
    return {**reply, "sums": public.add(sums, sums).to_bytes()}


FALSE_RESPONSES: dict[str, tuple[Callable[[dict[str, Any], Any], Fields], str]] = {
    "zero": (replaced(lambda n: 0, lambda n: 0), NOT_COPRIME),
    "n squared": (replaced(lambda n: 0, lambda n: n), OUT_OF_RANGE),
    "beyond n squared": (replaced(lambda n: n - 1, lambda n: 2**2048 - 1), OUT_OF_RANGE),
    "not in its one form": (replaced(lambda n: n, lambda n: 1), OUT_OF_RANGE),
    "a multiple of n": (replaced(lambda n: 0, lambda n: 1), NOT_COPRIME),
    "sums doubled": (swollen, "larger than they can be"),
    "minus one": (replaced(lambda n: 1, lambda n: n - 1), "larger than they can be"),
    "a count too large": (lambda reply, _: {**reply, "counts": reply["counts"] + np.int32(ROWS)}, "larger than the nodes"),
    "a negative count": (lambda reply, _: {**reply, "counts": -reply["counts"] - np.int32(1)}, "larger than the nodes"),
    "one sum less": (lambda reply, public: {**reply, "sums": reply["sums"][: -public.width * 8]}, "wrong number"),
    "no counts": (lambda reply, _: {"sums": reply["sums"]}, "wrong form"),
    "counts of another shape": (lambda reply, _: {**reply, "counts": reply["counts"][:, :-1]}, "wrong form"),
    "no sums": (lambda reply, _: {"counts": reply["counts"]}, "the field 'sums' is not bytes"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FALSE_RESPONSES)
def test_answers_that_cannot_be_true_are_refused(name: str) -> None:
    change_response, message = FALSE_RESPONSES[name]
    host = FaultyHost(X[:, 2:], policy=UNCOMPRESSED)
    host.change_response = lambda reply: change_response(reply, host._public)  # type: ignore[method-assign]
    with pytest.raises(FedarenaError, match=message):
        train(Line(host), SETTINGS.with_(trees=1, depth=1, compression=False))


def test_counts_of_siblings_must_add_up() -> None:
    """A false count of a child shows in its sibling, which the guest computes from their parent."""
    host = FaultyHost(X[:, 2:])
    seen: list[np.ndarray] = []

    def change_response(reply: dict[str, Any]) -> Fields:
        seen.append(reply["counts"])
        return reply if len(seen) == 1 else {**reply, "counts": np.full_like(reply["counts"], reply["counts"].max())}

    host.change_response = change_response  # type: ignore[method-assign]
    with pytest.raises(PartyFailed, match="its counts do not add up"):
        train(Line(host), SETTINGS.with_(trees=1))


# A malicious guest


def greeted(host: Host, key: Any, settings: BoostSettings = SETTINGS) -> LocalChannel:
    line = LocalChannel(host, "bank", key=bytes.fromhex(key.public.fingerprint)[:8])
    line.ask(FrameKind.HELLO, {"purpose": "train"})
    question = {"settings": settings.to_json(), "rows": len(host.x), "training_id": "one", "trees": 0}
    line.ask(FrameKind.SETUP, {**question, "training": np.packbits(np.ones(len(host.x), bool)).tobytes()})
    return line


def test_a_key_that_is_not_the_announced_one_is_refused_and_not_used(key: PrivateKey) -> None:
    line = greeted(Host(X[:, 2:]), key)
    other = generate(2048)
    with pytest.raises(FrameRefused, match="public key is not the one of this session"):
        line.ask(FrameKind.PUBLIC_KEY, {"cipher": "paillier", "key": other.public.to_bytes()})
    with pytest.raises(FedarenaError):
        line.ask(FrameKind.TREE_START, {"rows": EVERY})


def test_a_key_of_another_size_than_agreed_is_refused_and_not_used(key: PrivateKey) -> None:
    settings = SETTINGS.with_(key_bits=3072)
    line = greeted(Host(X[:, 2:]), key, settings)
    with pytest.raises(BadValue, match="the key has 2048 bits, the settings say 3072"):
        line.ask(FrameKind.PUBLIC_KEY, {"cipher": "paillier", "key": key.public.to_bytes()})
    with pytest.raises(FrameRefused, match="before PUBLIC_KEY"):
        line.ask(FrameKind.TREE_START, {"rows": EVERY})


NO_PRODUCT = "not the product of two large primes"
N = KEY.public.n
ROOT = max(KEY.p, KEY.q)  # a prime whose square is as long as the modulus
BAD_MODULI: dict[str, tuple[int, str]] = {
    "even": (N - 1, NO_PRODUCT),
    "a small factor": ((N // 65_521 | 1) * 65_521, NO_PRODUCT),
    "a square": (ROOT * ROOT, NO_PRODUCT),
    "a prime": (2**2048 - 1942289, NO_PRODUCT),
    "short": (N >> 1024 | 1, "1024 bits"),
    "cut": (N & (1 << 2040) - 1, "bits is not offered"),
    "nothing": (0, "bits is not offered"),
}


@pytest.mark.parametrize("what", BAD_MODULI)
def test_a_host_checks_the_modulus(what: str) -> None:
    """The guest announces the bad key itself, so that nothing but the check of the modulus can refuse it."""
    n, message = BAD_MODULI[what]
    bad = PublicKey(n)
    line = LocalChannel(Host(X[:, 2:]), "bank", key=bytes.fromhex(bad.fingerprint)[:8])
    line.ask(FrameKind.HELLO, {"purpose": "train"})
    question = {"settings": SETTINGS.to_json(), "rows": ROWS, "training": EVERY, "training_id": "one", "trees": 0}
    line.ask(FrameKind.SETUP, question)
    with pytest.raises(BadValue, match=message):
        line.ask(FrameKind.PUBLIC_KEY, {"cipher": "paillier", "key": bad.to_bytes()})


def test_a_host_does_not_work_without_encryption() -> None:
    line = greeted(Host(X[:, 2:]), PLAIN)
    with pytest.raises(BadValue, match="the cipher 'none' is not allowed here"):
        line.ask(FrameKind.PUBLIC_KEY, {"cipher": "none", "key": PLAIN.public.to_bytes()})


def plain_tree(line: LocalChannel, plain: Any = None) -> dict[str, Any]:
    """Begin a tree without encryption, and ask for the root."""
    rows = len(line.session.host.x)  # type: ignore[attr-defined]
    line.ask(FrameKind.PUBLIC_KEY, {"cipher": "none", "key": PLAIN.public.to_bytes()})
    line.ask(FrameKind.TREE_START, {"rows": np.packbits(np.ones(rows, bool)).tobytes()})
    data = PLAIN.encrypt(plain if plain is not None else plain_rows(rows)).to_bytes()
    line.ask(FrameKind.ROWS, {"part": 0, "start": 0, "data": data})
    return line.ask(FrameKind.LEVEL, {"nodes": 1, "node": np.zeros(rows, np.uint8), "build": np.zeros(1, np.int32)})


def test_trees_that_were_begun_are_counted_whatever_a_guest_does(tmp_path: Path) -> None:
    """Each start gives it new sums and a split, so repeated trees, new sessions and restarts all count."""
    settings = SETTINGS.with_(trees=3, sparse=False)
    policy = HostPolicy(plain=True, most_trees=3)
    host = Host(X[:, 2:], folder=tmp_path, policy=policy)
    line = greeted(host, PLAIN, settings)
    for begun in range(1, 3 + SPARE_TREES + 1):
        plain_tree(line)
        assert HostModel.load(tmp_path).begun == begun
        if begun % 3 == 0:
            line = greeted(host, PLAIN, settings)
        if begun % 5 == 0:
            host = Host(X[:, 2:], folder=tmp_path, policy=policy)
            line = greeted(host, PLAIN, settings)
    for _ in range(2):
        with pytest.raises(BadValue, match="23 trees were started here, this host allows 3"):
            plain_tree(line)


def test_a_split_does_not_leave_fewer_rows_than_a_host_allows() -> None:
    """The answer says which rows go left: of one row, it would name it."""
    policy = HostPolicy(plain=True, min_leaf_rows=20)
    settings = SETTINGS.with_(min_leaf_rows=20, bins=80, sparse=False)
    line = greeted(Host(X[:, 2:], policy=policy), PLAIN, settings)
    counts = plain_tree(line)["counts"][0]
    first = {"nodes": np.zeros(1, np.int32), "starts": np.array([0, 1], np.int32)}
    for rows in (1, ROWS - 1):
        few = np.flatnonzero(counts == rows)[:1].astype(np.int32)
        with pytest.raises(BadValue, match="a node of 1 rows, or a split that makes one"):
            line.ask(FrameKind.SPLIT, {**first, "candidates": few})
    enough = np.flatnonzero((counts >= 20) & (counts <= ROWS - 20))[:1].astype(np.int32)
    line.ask(FrameKind.SPLIT, {**first, "candidates": enough})


def test_sums_of_few_missing_values_are_not_shown() -> None:
    gap = X[:, 2:3].copy()
    gap[3] = np.nan
    policy = HostPolicy(plain=True, min_bin_count=20)
    line = greeted(Host(gap, policy=policy), PLAIN, SETTINGS.with_(min_bin_count=20, sparse=False))
    counts = plain_tree(line)["counts"]
    assert counts.size
    assert counts.min() >= 20
    assert counts.max() <= ROWS - 20


@pytest.mark.parametrize(
    ("values", "bits"),
    [
        ({"compression": False}, 2047),
        ({"algorithm": "secureboost"}, 4094),
        ({"objective": "softmax", "classes": 3, "multi_output": True}, 384),
    ],
    ids=str,
)
def test_a_host_limits_what_a_guest_reads_of_a_candidate(values: dict[str, Any], bits: int) -> None:
    settings = SETTINGS.with_(**values)
    with pytest.raises(
        BadValue, match=f"read {bits} bits of each candidate, this host allows 128\n.*--most-bits {bits}"
    ):
        greeted(Host(X[:, 2:]), KEY, settings)
    greeted(Host(X[:, 2:], policy=HostPolicy(most_bits=bits)), KEY, settings)


@pytest.mark.parametrize(("compression", "readable"), [(True, 128), (False, 2047)])
def test_what_crafted_gradients_tell_is_what_the_page_says(compression: bool, readable: int) -> None:
    """Row i as the number 2^i: the sum of a candidate is the list of its rows, as far as a sum has bits."""
    x = np.random.default_rng(0).permutation(np.repeat(np.arange(15.0), 140))[:, None]  # 14 candidates, one ciphertext
    policy = HostPolicy(plain=True, most_bits=2047, min_leaf_rows=20, min_bin_count=20)
    settings = SETTINGS.with_(bins=15, min_leaf_rows=20, min_bin_count=20, sparse=False)
    line = greeted(Host(x, policy=policy), PLAIN, settings.with_(compression=compression))
    marked = [1 << i if i < readable else 0 for i in range(len(x))]
    reply = plain_tree(line, Plaintexts(to_words(marked, PLAIN.public.words)))
    sums = to_numbers(np.frombuffer(reply["sums"], np.uint64).reshape(-1, PLAIN.public.words))
    if compression:
        (packed,) = sums
        sums = [packed >> 128 * i & (1 << 128) - 1 for i in range(14)]
    read = {frozenset(i for i in range(readable) if number >> i & 1) for number in sums}
    assert read == {frozenset(np.flatnonzero(x[:readable, 0] <= cut).tolist()) for cut in range(14)}


def test_a_host_limits_trees_depth_and_the_size_of_nodes(key: PrivateKey) -> None:
    for policy, message in (
        (HostPolicy(most_trees=1), "trees = 2 is not allowed here"),
        (HostPolicy(most_depth=1), "depth = 2 is not allowed here"),
        (HostPolicy(min_leaf_rows=5), "min_leaf_rows = 1 is not allowed here"),
    ):
        with pytest.raises(BadValue, match=message):
            greeted(Host(X[:, 2:], policy=policy), key)
    host = Host(X[:, 2:], policy=HostPolicy(min_leaf_rows=5))
    line = greeted(host, key, SETTINGS.with_(min_leaf_rows=5, sparse=False))
    begin(line, key)
    root = {"nodes": 1, "node": np.zeros(ROWS, np.uint8), "build": np.zeros(1, np.int32)}
    line.ask(FrameKind.LEVEL, root)
    few = np.where(np.arange(ROWS) < 4, 0, 1).astype(np.uint8)  # node 0 has four people
    with pytest.raises(BadValue, match="a node of 4 rows"):
        line.ask(FrameKind.LEVEL, {**root, "nodes": 2, "node": few}, level=1)


def begin(line: LocalChannel, key: PrivateKey) -> None:
    line.ask(FrameKind.PUBLIC_KEY, {"cipher": "paillier", "key": key.public.to_bytes()})
    line.ask(FrameKind.TREE_START, {"rows": EVERY})
    line.ask(FrameKind.ROWS, {"part": 0, "start": 0, "data": key.encrypt(plain_rows()).to_bytes()})


@pytest.mark.parametrize("number", ["zero", "n", "n squared"])
def test_a_host_refuses_ciphertexts_that_are_none(key: PrivateKey, number: str) -> None:
    line = greeted(Host(X[:, 2:]), key)
    line.ask(FrameKind.PUBLIC_KEY, {"cipher": "paillier", "key": key.public.to_bytes()})
    line.ask(FrameKind.TREE_START, {"rows": EVERY})
    good = key.encrypt(plain_rows()).to_bytes()
    bad = written(key.public, *{"zero": (0, 0), "n": (0, 1), "n squared": (0, key.public.n)}[number])
    with pytest.raises(BadValue, match=OUT_OF_RANGE if number == "n squared" else NOT_COPRIME):
        line.ask(FrameKind.ROWS, {"part": 0, "start": 0, "data": bad + good[len(bad) :]})


# Colluding hosts


def test_hosts_have_orders_of_their_own(key: PrivateKey) -> None:
    """The same columns at two hosts are shown in unlike orders: neither can read the guest's questions to the other."""
    one, two = (shown_counts(Host(X[:, 2:], policy=HostPolicy(plain=True)), PLAIN, 1) for _ in range(2))
    assert (np.sort(one) == np.sort(two)).all()
    assert (one != two).any()
