"""Random, truncated and altered frames at both parties for a bounded time: refused, and nothing worse.

No crash: every response of a host is a frame, every failure of a guest is an error of ours. No hang: each frame has a
moment only. No memory growth: what was refused is forgotten. Training with and without encryption, prediction, and
alignment down to the library that does it.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedarena.config.errors import FedarenaError
from fedarena.transport.channel import LocalChannel
from fedarena.transport.frames import DTYPES, HEADER, Fields, Frame, FrameKind, pack_fields, unpack_fields
from fedarena.vertical.align import SMALLEST
from fedarena.vertical.crypto.keys import generate
from fedarena.vertical.guest import Cipher, Guest
from fedarena.vertical.handshake import HostParty, Matching, align_guest
from fedarena.vertical.host import Host, HostPolicy
from fedarena.vertical.model import HostModel
from fedarena.vertical.party_tables import PartyTable
from fedarena.vertical.prediction import PredictingHost, predict_margins
from fedarena.vertical.settings import BoostSettings

SECONDS = float(os.environ.get("FEDARENA_FUZZ_SECONDS", "1"))  # for each party; more at a desk
SETTLED = 5  # turns until memory is expected not to grow any more
SLOWEST = 5.0  # seconds for one frame, on a busy machine
GROWTH = 40 << 20  # bytes: allocators retain some, a leak of frames would be hundreds of megabytes
ROWS = 60
X = np.random.default_rng(5).normal(size=(ROWS, 4)).round(2)
Y = (X @ [0.3, 0, 1, -1] > 0).astype(float)
SETTINGS = BoostSettings(trees=3, depth=3, bins=8)
SEED = random.randrange(2**32) if not os.environ.get("CI") else 0


def resident() -> int:
    """Bytes of memory that this process has, after garbage collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Recorder(LocalChannel):
    """Records the frames of both directions."""

    def __init__(self, host: Any) -> None:
        super().__init__(host, "bank")
        self.up: list[bytes] = []
        self.down: list[bytes] = []

    def carry(self, raw: bytes, kind: FrameKind) -> bytes:
        """Record a frame and its response."""
        self.up.append(raw)
        self.down.append(super().carry(raw, kind))
        return self.down[-1]


class Halt(Exception):
    """Raised when the guest leaves."""


class Halting(LocalChannel):
    """A line that a guest uses for so many frames; then it is ours."""

    def __init__(self, host: Any, frames: int) -> None:
        super().__init__(host, "bank")
        self.left: float = frames

    def carry(self, raw: bytes, kind: FrameKind) -> bytes:
        """Pass it on while frames are left."""
        if self.left <= 0:
            raise Halt
        self.left -= 1
        return super().carry(raw, kind)


def host() -> Host:
    return Host(X[:, 2:], policy=HostPolicy(plain=True))


@pytest.fixture(params=["none", "paillier"])
def cipher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cipher:
    """Without encryption for many turns, with it so that the kernels see hostile words; one key serves all turns."""
    if request.param == "paillier":
        key = generate()
        monkeypatch.setattr("fedarena.vertical.guest.generate", lambda *args, **more: key)
    found: Cipher = request.param
    return found


def settings_of(cipher: Cipher) -> BoostSettings:
    return SETTINGS if cipher == "none" else BoostSettings(trees=1, depth=2, bins=4)


def recorded(cipher: Cipher) -> Recorder:
    line = Recorder(host())
    Guest(X[:, :2], Y, [line], settings_of(cipher), cipher=cipher).train()
    return line


def halted(cipher: Cipher, frames: int) -> Halting:
    """A line to a host in the midst of a training."""
    line = Halting(host(), frames)
    with pytest.raises(Halt):
        Guest(X[:, :2], Y, [line], settings_of(cipher), cipher=cipher).train()
    line.left = float("inf")
    return line


# Ways to spoil a frame


def any_value(rng: random.Random) -> Any:
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice([0, 1, -1, 2**31, -(2**63), 2**63 - 1, rng.randrange(-100, 100)])
    if kind == 1:
        return rng.choice([0.0, float("nan"), float("inf"), -1e308])
    if kind == 2:
        return "".join(chr(rng.randrange(1, 0x2FF)) for _ in range(rng.randrange(20)))
    if kind == 3:
        return rng.randbytes(rng.choice([0, 1, 8, 511, 512, 1024]))
    shape = tuple(rng.randrange(0, 5) for _ in range(rng.randrange(0, 4)))
    dtype = rng.choice(DTYPES)
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = bytes(b & 1 for b in rng.randbytes(size)) if dtype == np.bool_ else rng.randbytes(size)
    return np.frombuffer(raw, dtype).reshape(shape)


def other_fields(fields: dict[str, Any], rng: random.Random) -> Fields:
    """The right names with other values, some gone, some new."""
    changed = dict(fields)
    for name in list(fields):
        if isinstance(fields[name], bytes) and fields[name] and rng.random() < 0.6:
            changed[name] = other_bytes(fields[name], rng)
        elif rng.random() < 0.4:
            changed[name] = any_value(rng)
        elif isinstance(fields[name], np.ndarray) and fields[name].size and rng.random() < 0.4:
            array = fields[name].copy()
            array.reshape(-1)[rng.randrange(array.size)] = rng.choice([0, 1, 3, 100])
            changed[name] = array
        elif rng.random() < 0.1:
            del changed[name]
    if rng.random() < 0.1:
        changed["more"] = any_value(rng)
    return changed


def other_bytes(raw: bytes, rng: random.Random) -> bytes:
    """As long as before or shorter; in the middle noise, zeros or ones: ciphertexts that are none, points off the curve."""
    first = rng.randrange(len(raw))
    length = min(rng.choice([1, 8, 512, len(raw)]), len(raw) - first)
    middle = rng.choice([rng.randbytes(length), bytes(length), b"\xff" * length])
    return raw[:first] + middle + (b"" if rng.random() < 0.2 else raw[first + length :])


def spoiled(raw: bytes, rng: random.Random) -> bytes:
    """Return a frame with some of its bytes changed."""
    way = rng.randrange(5)
    if way == 0:
        return rng.randbytes(rng.randrange(0, 400))
    if way == 1:
        return raw[: rng.randrange(len(raw))]
    changed = bytearray(raw)
    if way == 2:
        for _ in range(rng.randrange(1, 5)):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif way == 3:  # the header holds, the body is noise
        changed[HEADER.size :] = rng.randbytes(len(changed) - HEADER.size)
    else:  # a wrong length
        struct.pack_into("<Q", changed, HEADER.size - 8, rng.choice([0, 1, 2**32, 2**64 - 1, len(raw)]))
    return bytes(changed)


def clock(seconds: float) -> Iterator[int]:
    """Counts until the time is over, each turn within its moment, and memory at the end as after the first turns."""
    end = time.monotonic() + seconds
    turn = before = 0
    while (began := time.monotonic()) < end or turn < 2 * SETTLED:
        if turn == SETTLED:
            before = resident()
        yield turn
        assert time.monotonic() - began < SLOWEST, "a frame took too long"
        turn += 1
    assert before
    assert resident() - before < GROWTH


def must_be_named(error: FedarenaError, kind: FrameKind) -> None:
    """A host foresaw it: it did not stumble over something unexpected."""
    assert "it failed with" not in error.what, f"seed {SEED}: {kind.name} gave {error}"


# Both parties


@pytest.mark.slow
def test_a_host_survives_any_frames(cipher: Cipher) -> None:
    """In every state that a training has: a guest trains up to a point, then spoiled frames come."""
    rng = random.Random(SEED)
    good = [Frame.decode(raw) for raw in recorded(cipher).up]
    refused = answered = 0
    for _ in clock(SECONDS):
        until = rng.randrange(1, len(good))
        line = halted(cipher, until)
        for _ in range(8):
            frame = good[rng.choice([until, rng.randrange(len(good))])]
            if rng.random() < 0.5:
                try:
                    fields = other_fields(dict(_question(frame)), rng)
                    line.ask(frame.kind, fields, tree=frame.tree, level=frame.level)
                    answered += 1
                except FedarenaError as error:
                    refused += 1
                    must_be_named(error, frame.kind)
            else:
                fresh = dataclasses.replace(frame, session=line._session, sequence=line._sequence, key=line.key)
                reply = Frame.decode(line.session.handle(spoiled(fresh.encode(), rng)))
                assert reply.reply
                unpack_fields(reply.body)
    assert refused > 20
    assert answered > 0


def _question(frame: Frame) -> Fields:
    fields = unpack_fields(frame.body)
    fields.pop("digest", None)
    return fields


class Spoiling(LocalChannel):
    """A host that answers rightly up to a point, and nonsense from there on."""

    def __init__(self, host: Any, rng: random.Random, good: int) -> None:
        super().__init__(host, "bank")
        self._rng, self._good = rng, good

    def carry(self, raw: bytes, kind: FrameKind) -> bytes:
        """Return a response, possibly damaged."""
        got = super().carry(raw, kind)
        self._good -= 1
        if self._good >= 0:
            return got
        if self._rng.random() < 0.5:
            return spoiled(got, self._rng)
        frame = Frame.decode(got)
        fields = other_fields(unpack_fields(frame.body), self._rng)
        return dataclasses.replace(frame, body=pack_fields(fields)).encode()


@pytest.mark.slow
def test_a_guest_survives_any_answers(cipher: Cipher) -> None:
    rng = random.Random(SEED)
    length = len(recorded(cipher).up)
    failed = 0
    for _ in clock(SECONDS):
        line = Spoiling(host(), rng, rng.randrange(length))
        try:
            Guest(X[:, :2], Y, [line], settings_of(cipher), cipher=cipher).train()
        except FedarenaError:
            failed += 1
    assert failed > 5, f"seed {SEED}"


@pytest.mark.slow
def test_prediction_survives_any_frames_at_both_parties() -> None:
    rng = random.Random(SEED)
    trained = host()
    model = Guest(X[:, :2], Y, [LocalChannel(trained, "bank")], SETTINGS, cipher="none").train()
    host_model: HostModel = trained.model
    refused = 0
    for _ in clock(SECONDS / 3):
        line = Spoiling(PredictingHost(host_model, X[:, 2:]), rng, rng.randrange(4))
        try:
            line.ask(FrameKind.HELLO)
            predict_margins(model, X[:, :2], [line])
        except FedarenaError:
            refused += 1
        plain = LocalChannel(PredictingHost(host_model, X[:, 2:]), "bank")
        plain.ask(FrameKind.HELLO)
        request = {"records": np.zeros(1, np.int32), "starts": np.array([0, 3]), "rows": np.arange(3, dtype=np.int32)}
        try:
            plain.ask(FrameKind.PREDICT_STEP, other_fields(request, rng))
        except FedarenaError as error:
            must_be_named(error, FrameKind.PREDICT_STEP)
    assert refused > 5


IDS = tuple(f"p{i}" for i in range(ROWS))
ALIGN_KINDS = [kind for kind in FrameKind if kind.name.startswith("ALIGN")]


@pytest.fixture(params=["psi", "hashed"])
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def aligning(method: str) -> HostParty:
    table = PartyTable("bank", X, tuple("abcd"), ids=IDS)
    how = Matching(insecure_hashed_ids=method == "hashed", most_ids=10**6)
    return HostParty(table, lambda rows: Host(rows.x), how)


@pytest.mark.slow
def test_a_host_survives_any_alignment(method: str) -> None:
    """Requests that were good before they were spoiled reach the arithmetic of the intersection itself."""
    rng = random.Random(SEED)
    line = Recorder(aligning(method))
    align_guest([line], PartyTable("shop", X, tuple("abcd"), ids=IDS), Matching(method == "hashed"))
    good = [Frame.decode(raw) for raw in line.up]
    assert {frame.kind for frame in good} >= {FrameKind.ALIGN_START, FrameKind.ALIGN_ROWS}
    assert method == "hashed" or FrameKind.ALIGN_REQUEST in {frame.kind for frame in good}
    answered = refused = 0
    for _ in clock(SECONDS / 2):
        line = Recorder(aligning(method))
        for frame in good[: rng.randrange(2, len(good))]:
            line.ask(frame.kind, _question(frame))
        for _ in range(8):
            frame = rng.choice(good[1:])
            kind = frame.kind if rng.random() < 0.9 else rng.choice(ALIGN_KINDS)
            try:
                line.ask(kind, other_fields(dict(_question(frame)), rng))
                answered += 1
            except FedarenaError as error:
                refused += 1
                must_be_named(error, kind)
    assert refused > 20
    assert answered > 0


@pytest.mark.slow
def test_a_guest_survives_any_answers_to_its_alignment(method: str) -> None:
    rng = random.Random(SEED)
    own = PartyTable("shop", X, tuple("abcd"), ids=IDS)
    failed = 0
    for _ in clock(SECONDS / 2):
        line = Spoiling(aligning(method), rng, rng.randrange(4))
        try:
            found = align_guest([line], own, Matching(method == "hashed"))
            assert len(set(found.rows.tolist()) & set(range(ROWS))) == len(found.rows) >= SMALLEST, "it may hide an id"
        except FedarenaError:
            failed += 1
    assert failed > 5, f"seed {SEED}"


@pytest.mark.slow
def test_a_listening_host_survives_noise_on_its_port(tmp_path: Path) -> None:
    """Bytes that are no TLS, TLS that is no gRPC, connections that say nothing: the guest is still answered."""
    pytest.importorskip("grpc")
    pytest.importorskip("cryptography")
    import ssl

    from fedarena.transport.certificates import Identity, make_vertical_keys
    from fedarena.transport.grpc_channel import HostServer, NetworkChannel

    rng = random.Random(SEED)
    keys = make_vertical_keys(tmp_path, ["guest", "bank"])
    context = ssl.create_default_context(cafile=keys["guest"] / "ca.pem")
    context.load_cert_chain(keys["guest"] / "cert.pem", keys["guest"] / "key.pem")
    with HostServer(host(), "127.0.0.1:0", Identity.load(keys["bank"])) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        for turn in clock(SECONDS / 3):
            try:
                with socket.create_connection(("127.0.0.1", server.port), timeout=2) as noisy:
                    line = context.wrap_socket(noisy, server_hostname="bank") if turn % 2 else noisy
                    line.sendall(rng.randbytes(rng.randrange(1, 5000)))
                    line.close()
            except OSError:
                continue
        with NetworkChannel("bank", f"127.0.0.1:{server.port}", Identity.load(keys["guest"])) as line:
            assert line.ask(FrameKind.HELLO)["rows"] == ROWS
        for connection in silent:
            connection.close()
