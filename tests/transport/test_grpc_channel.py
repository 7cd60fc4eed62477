"""The line between processes: mutual TLS, pinned names, deadlines, and a host that dies and comes back."""

from __future__ import annotations

import hashlib
import socket
import ssl
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
from tests.support.small_host import SmallHost, channel, wait_for

from fedarena.config.errors import BadValue, CannotWrite, DataMissing, FedarenaError, PartyLost
from fedarena.transport.certificates import Identity, make_vertical_keys
from fedarena.transport.channel import LocalChannel
from fedarena.transport.frames import LIMITS, Frame, FrameKind, pack_fields
from fedarena.transport.grpc_channel import METHOD, HostServer, NetworkChannel, grpc_library

ROOT = Path(__file__).parents[2]
UNTOUCHED = hashlib.sha256().digest()  # of a session that accepted no frame


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Parties of one authority, and strangers of another with the same names."""
    folder = tmp_path_factory.mktemp("keys")
    ours = make_vertical_keys(folder / "ours", ["guest", "bank", "shop"])
    theirs = make_vertical_keys(folder / "theirs", ["guest", "bank"])
    return {**ours, **{f"foreign {name}": path for name, path in theirs.items()}}


@pytest.fixture
def bank(keys: dict[str, Path], tmp_path: Path) -> Iterator[HostServer]:
    with HostServer(SmallHost(tmp_path), "127.0.0.1:0", Identity.load(keys["bank"])) as server:
        yield server


def test_the_network_carries_the_same_bytes_as_one_process(
    bank: HostServer, keys: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_bytes", lambda n: b"\7" * n)
    digests = []
    for line in (channel("bank", bank.port, keys["guest"]), LocalChannel(SmallHost(tmp_path / "b"), "bank")):
        line.ask(FrameKind.HELLO)
        line.ask(FrameKind.TREE_START, tree=1)
        line.ask(FrameKind.ROWS, {"x": np.arange(100_000)}, tree=1)
        assert line.ask(FrameKind.LEVEL, tree=1)["sum"] == 4_999_950_000
        digests.append((line.transcript.digest(), line.bytes_up, line.bytes_down))
        line.close()
    assert digests[0] == digests[1]


def refusal(name: str, port: int, identity: Identity, patience: float = 0.0) -> FedarenaError:
    line = NetworkChannel(name, f"127.0.0.1:{port}", identity, patience=patience)
    with pytest.raises(FedarenaError) as error:
        line.ask(FrameKind.HELLO)
    return error.value


def test_a_host_under_another_name_is_refused(bank: HostServer, keys: dict[str, Path]) -> None:
    error = refusal("shop", bank.port, Identity.load(keys["guest"]))
    assert isinstance(error, BadValue)
    assert "is for another name" in error.what


def test_a_host_of_another_authority_is_refused(keys: dict[str, Path], tmp_path: Path) -> None:
    with HostServer(SmallHost(tmp_path), "127.0.0.1:0", Identity.load(keys["foreign bank"])) as stranger:
        error = refusal("bank", stranger.port, Identity.load(keys["guest"]))
    assert isinstance(error, BadValue)
    assert "not from the authority" in error.what


def test_a_guest_of_another_authority_is_refused(bank: HostServer, keys: dict[str, Path]) -> None:
    """Even one that trusts the host: it gets no answer at all."""
    ours, stranger = Identity.load(keys["guest"]), Identity.load(keys["foreign guest"])
    error = refusal("bank", bank.port, Identity("guest", ours.ca, stranger.cert, stranger.key))
    assert isinstance(error, PartyLost)
    assert bank.session.transcript.digest() == UNTOUCHED


def test_another_party_of_the_same_authority_is_not_the_guest(bank: HostServer, keys: dict[str, Path]) -> None:
    error = refusal("bank", bank.port, Identity.load(keys["shop"]))
    assert isinstance(error, BadValue)
    assert "this host works with 'guest', the certificate says 'shop'" in error.what
    assert bank.session.transcript.digest() == UNTOUCHED


def certified(keys: dict[str, Path], *names: Any) -> Identity:
    """Someone to whom the same authority has given a certificate with these names."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = keys["guest"].parent
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    authority = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "guest")])
    build = x509.CertificateBuilder().issuer_name(ca.subject).subject_name(subject).public_key(key.public_key())
    build = build.serial_number(x509.random_serial_number())
    build = build.not_valid_before(ca.not_valid_before_utc).not_valid_after(ca.not_valid_after_utc)
    if names:
        build = build.add_extension(x509.SubjectAlternativeName(names), critical=False)
    cert = build.sign(authority, hashes.SHA256())  # type: ignore[arg-type]
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(pem, form, serialization.NoEncryption())
    return Identity("eve", ca.public_bytes(pem), cert.public_bytes(pem), private)


def test_only_a_dns_name_is_a_name(bank: HostServer, keys: dict[str, Path], tmp_path: Path) -> None:
    """An address of a page or of mail that reads `guest` is another thing, and so is a second name beside the first."""
    from cryptography import x509

    page, mail, name = x509.UniformResourceIdentifier("guest"), x509.RFC822Name("guest"), x509.DNSName("guest")
    for names, said in {
        (page,): "UniformResourceIdentifier:guest",
        (mail,): "RFC822Name:guest",
        (name, x509.DNSName("eve")): "guest, eve",
        (name, page): "guest, UniformResourceIdentifier:guest",
        (): "",
    }.items():
        eve = certified(keys, *names)
        error = refusal("bank", bank.port, eve)
        assert isinstance(error, BadValue)
        assert f"this host works with 'guest', the certificate says '{said}'" in error.what
        for file, content in {"ca.pem": eve.ca, "cert.pem": eve.cert, "key.pem": eve.key}.items():
            (tmp_path / file).write_bytes(content)
        with pytest.raises(BadValue, match="one alternative name, a DNS name"):
            Identity.load(tmp_path)
    assert bank.session.transcript.digest() == UNTOUCHED
    with NetworkChannel("bank", f"127.0.0.1:{bank.port}", certified(keys, name)) as line:
        line.ask(FrameKind.HELLO)


def test_a_line_that_closes_later_is_not_put_down_to_the_certificate(bank: HostServer, keys: dict[str, Path]) -> None:
    """A host that was killed while it worked closes the line, too."""
    line = channel("bank", bank.port, keys["guest"])

    class Closed:
        """The error of gRPC for a closed connection."""

        def code(self) -> Any:
            """Return the status of a machine that cannot be reached."""
            return grpc_library().StatusCode.UNAVAILABLE

        def details(self) -> str:
            """Return the text in the form of gRPC."""
            return "failed to connect to all addresses; last error: Socket closed"

    assert "certificate" in str(line._reason(Closed(), FrameKind.HELLO))
    assert "certificate" not in str(line._reason(Closed(), FrameKind.SETUP))


def test_without_a_certificate_or_without_tls_there_is_no_answer(bank: HostServer, keys: dict[str, Path]) -> None:
    grpc = grpc_library()
    raw = Frame(FrameKind.HELLO, pack_fields({}), b"1" * 16).encode()
    trust = grpc.ssl_channel_credentials((keys["guest"] / "ca.pem").read_bytes())
    name = [("grpc.ssl_target_name_override", "bank")]
    address = f"127.0.0.1:{bank.port}"
    for line in (grpc.secure_channel(address, trust, name), grpc.insecure_channel(address)):
        with line, pytest.raises(grpc.RpcError):
            line.unary_unary(METHOD)(raw, timeout=5)


def test_old_tls_is_not_spoken(bank: HostServer, keys: dict[str, Path]) -> None:
    context = ssl.create_default_context(cafile=keys["guest"] / "ca.pem")
    context.load_cert_chain(keys["guest"] / "cert.pem", keys["guest"] / "key.pem")
    plain = socket.create_connection(("127.0.0.1", bank.port))
    with plain, context.wrap_socket(plain, server_hostname="bank") as line:
        assert line.version() == "TLSv1.3"
    with warnings.catch_warnings(action="ignore"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", bank.port)) as plain, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(plain, server_hostname="bank")


@pytest.mark.slow
def test_a_slow_host_meets_a_deadline(bank: HostServer, keys: dict[str, Path]) -> None:
    line = channel("bank", bank.port, keys["guest"], deadline=0.3)
    line.ask(FrameKind.HELLO)
    with pytest.raises(PartyLost, match=r"did not answer within 0\.3 s"):
        line.ask(FrameKind.SETUP, {"seconds": 1.0})


@pytest.mark.slow
def test_the_longest_frame_passes(bank: HostServer, keys: dict[str, Path]) -> None:
    line = channel("bank", bank.port, keys["guest"])
    line.ask(FrameKind.HELLO)
    line.ask(FrameKind.LEVEL, {"x": bytes(LIMITS[FrameKind.LEVEL] - 64)})


def test_a_port_in_use_is_reported(bank: HostServer, keys: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="cannot listen"):
        HostServer(SmallHost(tmp_path), f"127.0.0.1:{bank.port}", Identity.load(keys["bank"]))


@pytest.mark.slow
def test_a_host_that_is_not_there_is_lost_after_patience(
    keys: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedarena")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = NetworkChannel("bank", f"127.0.0.1:{port}", Identity.load(keys["guest"]), patience=0.5)
    with pytest.raises(PartyLost, match="cannot be reached: Connection refused"):
        line.ask(FrameKind.HELLO)
    assert caplog.messages == [f"waiting for host 'bank' at 127.0.0.1:{port}"]


def start(folder: Path, keys: Path, port: int) -> tuple[subprocess.Popen[bytes], int]:
    (folder / "port").unlink(missing_ok=True)
    script = [sys.executable, "-m", "tests.support.small_host", str(folder), str(keys), str(port)]
    process = subprocess.Popen(script, cwd=ROOT)
    wait_for((folder / "port").exists)
    return process, int((folder / "port").read_text())


@pytest.mark.slow
def test_a_host_killed_in_mid_tree_is_found_again_with_its_last_finished_tree(
    keys: dict[str, Path], tmp_path: Path
) -> None:
    host, port = start(tmp_path, keys["bank"], 0)
    try:
        line = channel("bank", port, keys["guest"], patience=20)
        assert line.ask(FrameKind.HELLO)["finished"] == 0
        _tree(line, 1)
        line.ask(FrameKind.TREE_START, tree=2)
        host.kill()
        host.wait()
        with pytest.raises(PartyLost):
            line.ask(FrameKind.ROWS, {"x": np.arange(10)}, tree=2)
        host, again = start(tmp_path, keys["bank"], port)
        assert again == port
        assert line.ask(FrameKind.HELLO)["finished"] == 1
        assert _tree(line, 2) == 45
    finally:
        host.kill()
        host.wait()


def test_a_host_restarted_between_two_frames_counts_as_lost(keys: dict[str, Path], tmp_path: Path) -> None:
    identity = Identity.load(keys["bank"])
    with HostServer(SmallHost(tmp_path), "127.0.0.1:0", identity) as first:
        line = channel("bank", first.port, keys["guest"])
        line.ask(FrameKind.HELLO)
        port = first.port
    with HostServer(SmallHost(tmp_path), f"127.0.0.1:{port}", identity):
        wait_for(lambda: _lost(line))
        assert line.ask(FrameKind.HELLO) == {"finished": 0}


def _lost(line: NetworkChannel) -> bool:
    """Once the new host is reached, it says that it was never greeted."""
    with pytest.raises(PartyLost) as error:
        line.ask(FrameKind.LEVEL)
    return "restarted" in error.value.what


def _tree(line: NetworkChannel, tree: int) -> int:
    line.ask(FrameKind.TREE_START, tree=tree)
    line.ask(FrameKind.ROWS, {"x": np.arange(10)}, tree=tree)
    total = int(line.ask(FrameKind.LEVEL, tree=tree)["sum"])
    line.ask(FrameKind.TREE_END, tree=tree)
    return total


# Keys


def test_private_keys_are_for_their_owner_alone(keys: dict[str, Path]) -> None:
    for path in (keys["bank"] / "key.pem", keys["bank"].parent / "ca.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not (keys["bank"] / "ca.key").exists(), "the authority's key is not handed out"
    assert "PRIVATE" not in repr(Identity.load(keys["bank"]))


def test_a_party_can_be_added_later_and_none_is_replaced(tmp_path: Path) -> None:
    first = make_vertical_keys(tmp_path, ["guest", "bank"])
    later = make_vertical_keys(tmp_path, ["shop"])
    assert Identity.load(later["shop"]).ca == Identity.load(first["guest"]).ca
    with pytest.raises(CannotWrite, match="already there"):
        make_vertical_keys(tmp_path, ["bank"])


def test_bad_names_and_folders_are_reported(tmp_path: Path, keys: dict[str, Path]) -> None:
    for names in (["Guest"], ["a b"], ["-x"], ["a", "a"], []):
        with pytest.raises(BadValue):
            make_vertical_keys(tmp_path / "new", names)
    with pytest.raises(DataMissing, match=r"ca\.pem"):
        Identity.load(tmp_path / "nothing")
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for name, owner in {"ca.pem": "bank", "cert.pem": "bank", "key.pem": "shop"}.items():
        (mixed / name).write_bytes((keys[owner] / name).read_bytes())
    with pytest.raises(BadValue, match="does not belong"):
        Identity.load(mixed)


def test_an_expired_certificate_is_reported_before_anything_is_sent(tmp_path: Path) -> None:
    made = make_vertical_keys(tmp_path, ["guest"], days=0)
    with pytest.raises(BadValue, match="not now"):
        Identity.load(made["guest"])


def test_addresses_are_checked(keys: dict[str, Path]) -> None:
    identity: Any = Identity.load(keys["guest"])
    for address in ("bank", "bank:", ":7001", "bank:70000", "bank:x"):
        with pytest.raises(BadValue, match="not an address"):
            NetworkChannel("bank", address, identity)
