"""A real SuperLink and real clients, each a process: messages travel, and every failure is reported in time."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from tests.transport.flower_link.conftest import LIMIT, ROOT, Federation

from fedarena.config.errors import BadValue, PartyFailed, PartyLost, UnknownName
from fedarena.transport.certificates import CertificateAuthority, ClientKeys, ServerKeys, make_federation_keys, number
from fedarena.transport.flower_link import FederationEnded, join, open_link


@pytest.mark.slow
def test_two_clients_echo_within_a_second_or_so(federation: Federation) -> None:
    """With TLS and node authentication; Flower's defaults take six seconds for this."""
    nodes = federation.up("ash", "birch")
    assert [federation.link.nodes()[node] for node in nodes] == ["ash", "birch"]
    seconds = []
    for exchange in range(5):
        began = time.monotonic()
        tickets = [federation.link.send(node, b"hello %d" % exchange, 20.0) for node in nodes]
        got = federation.gather(2, 20.0)
        seconds.append(time.monotonic() - began)
        assert {(a.node, a.ticket, a.content, a.problem) for a in got} == {
            (node, ticket, b"hello %d" % exchange, "") for node, ticket in zip(nodes, tickets, strict=True)
        }
    print(f"\nexchange with two clients: {sorted(seconds)[2]:.3f} s (median of 5)")
    assert min(seconds) < 3.0


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"x", os.urandom(30_000_000)], ids=["nothing", "a byte", "30 MB"])
def test_every_byte_comes_back(federation: Federation, content: bytes) -> None:
    (node,) = federation.up("ash")
    began = time.monotonic()
    assert federation.ask(node, content, 60.0).content == content
    print(f"\n{len(content)} bytes there and back: {time.monotonic() - began:.2f} s")


@pytest.mark.slow
def test_an_error_of_a_client_is_reported_and_it_continues(federation: Federation) -> None:
    (node,) = federation.up("ash")
    response = federation.ask(node, b"raise")
    assert (response.content, response.problem) == (None, "ValueError: not today")
    response = federation.ask(node, b"mistake")
    assert (response.content, response.problem) == (None, "the table has no rows\n  -> give it some")
    assert federation.ask(node, b"well?").content == b"well?"


@pytest.mark.slow
def test_one_killed_in_the_middle_delays_no_other_client_and_may_return(federation: Federation) -> None:
    ash, birch = federation.up("ash", "birch")
    federation.link.send(birch, b"die", 3.0)
    federation.link.send(ash, b"and you?", 3.0)
    began = time.monotonic()
    got = federation.gather(2, 4.0)
    assert [a.node for a in got] == [ash]
    assert time.monotonic() - began < 6.0
    assert federation.processes.pop("birch").wait(5.0) == -signal.SIGKILL
    (again,) = federation.up("birch")
    assert again == birch
    assert federation.ask(birch, b"back").content == b"back"


@pytest.mark.slow
def test_one_that_is_stopped_yields_nothing_and_late_answers_are_not_taken(federation: Federation) -> None:
    ash, birch = federation.up("ash", "birch")
    federation.processes["birch"].send_signal(signal.SIGSTOP)
    try:
        federation.link.send(birch, b"late", 1.0)
        assert federation.ask(ash, b"still here").content == b"still here"
        began = time.monotonic()
        assert federation.link.receive(2.0) == []
        assert time.monotonic() - began < 4.0
    finally:
        federation.processes["birch"].send_signal(signal.SIGCONT)
    assert federation.ask(birch, b"awake").content == b"awake"


def test_a_missing_party_is_reported_at_once(federation: Federation) -> None:
    absent = number(federation.server_keys.clients["oak"])
    response = federation.ask(absent, b"hello")
    assert (response.content, response.problem) == (None, "'oak' is not connected")
    with pytest.raises(UnknownName):
        federation.link.send(7, b"hello", 1.0)


@pytest.mark.slow
def test_the_newer_of_two_processes_with_the_same_keys_counts(federation: Federation) -> None:
    (node,) = federation.up("birch")
    older = federation.processes["birch"]
    federation.start("birch")
    assert older.stderr is not None
    assert older.wait(30.0) == 1
    assert "another process has joined as 'birch'" in older.stderr.read()
    assert federation.ask(node, b"which?").content == b"which?"


@pytest.mark.slow
def test_the_last_message_ends_a_client(federation: Federation) -> None:
    (node,) = federation.up("birch")
    assert federation.ask(node, b"over").content == b"farewell"
    assert federation.processes.pop("birch").wait(10.0) == 0
    assert "birch" not in federation.link.nodes().values()


@pytest.mark.slow
def test_messages_that_are_too_long_are_refused_by_name(federation: Federation) -> None:
    (node,) = federation.up("ash")
    with pytest.raises(BadValue, match=rf"a message of {LIMIT + 1} bytes to 'ash': {LIMIT} are allowed"):
        federation.link.send(node, bytes(LIMIT + 1), 5.0)
    response = federation.ask(node, b"long %d" % (LIMIT + 1))
    assert (response.content, response.problem) == (None, f"its answer has {LIMIT + 1} bytes, and {LIMIT} are allowed")
    assert federation.ask(node, b"fine").content == b"fine"


@pytest.mark.slow
def test_a_client_with_a_larger_limit_respects_the_servers(federation: Federation) -> None:
    federation.start("cedar", limit=1 << 30)
    (cedar,) = federation.up("cedar")
    response = federation.ask(cedar, b"long %d" % (LIMIT + 1))
    assert (response.content, response.problem) == (None, f"its answer has {LIMIT + 1} bytes, and {LIMIT} are allowed")
    assert federation.ask(cedar, b"fine").content == b"fine"


class Cable:
    """A line to the SuperLink that can be cut."""

    def __init__(self, address: str) -> None:
        machine, _, port = address.rpartition(":")
        self._to, self._ends, self.whole = (machine, int(port)), list[socket.socket](), True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            if not self.whole:
                here.close()
                continue
            there = socket.create_connection(self._to)
            self._ends += [here, there]
            for pair in ((here, there), (there, here)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass

    def cut(self) -> None:
        self.whole = False
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ends.clear()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self.cut()


@pytest.mark.slow
def test_an_answer_survives_a_cut_line_and_who_is_interrupted_leaves_at_once(federation: Federation) -> None:
    cable = Cable(federation.link.address)
    try:
        federation.start("elm", cable.address)
        (node,) = federation.up("elm")
        ticket = federation.link.send(node, b"sleep 1", 20.0)
        assert federation.link.receive(0.5) == []
        cable.cut()
        assert federation.link.receive(1.5) == []
        cable.whole = True
        (arrival,) = federation.gather(1, 15.0)
        assert (arrival.ticket, arrival.content) == (ticket, b"sleep 1")
        federation.processes["elm"].send_signal(signal.SIGINT)
        assert federation.processes["elm"].wait(10.0) == 130
        assert "elm" not in federation.link.nodes().values()
    finally:
        federation.stop("elm")
        cable.close()


def keys_of(federation: Federation, name: str) -> ClientKeys:
    return ClientKeys.load(federation.keys[name])


def never(content: bytes) -> bytes:
    raise FederationEnded


def test_a_server_of_another_authority_is_not_joined(federation: Federation, tmp_path: Path) -> None:
    foreign = ClientKeys.load(make_federation_keys(tmp_path, ["cedar"])["cedar"])
    with pytest.raises(BadValue, match=r"its certificate is not from the authority in ca\.pem"):
        join(federation.link.address, foreign, never, patience=5.0)


def test_a_server_of_another_name_is_not_joined(federation: Federation) -> None:
    keys = ClientKeys.load(federation.keys["cedar"], server="another-name")
    with pytest.raises(BadValue, match="its certificate is for another name"):
        join(federation.link.address, keys, never, patience=5.0)


def test_a_key_that_the_server_does_not_know_is_refused_on_both_sides(federation: Federation, tmp_path: Path) -> None:
    stranger = ClientKeys.load(make_federation_keys(tmp_path, ["stranger"])["stranger"])
    stranger = ClientKeys("stranger", federation.server_keys.ca, stranger.key)
    with pytest.raises(BadValue, match="does not know the key of 'stranger'"):
        join(federation.link.address, stranger, never, patience=5.0)
    federation.until(lambda: any("its key" in text and "is not known here" in text for text in federation.messages))


def test_clocks_that_differ_are_reported(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's signatures bear the time; a node may be five seconds ahead."""
    from fedarena.transport.flower_link import superlink_calls

    late = lambda: datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=2)
    monkeypatch.setattr("flwr.supernode.node_auth_http_interceptor.now", late)
    monkeypatch.setattr(superlink_calls, "time", SimpleNamespace(time=lambda: late().timestamp()))
    with pytest.raises(
        BadValue, match=r"refuses the signature of 'oak': the clocks of the two machines differ by 1[12]\d s"
    ):
        join(federation.link.address, keys_of(federation, "oak"), never, patience=5.0)
    federation.until(lambda: any("refused 'oak'" in text and "clocks" in text for text in federation.messages))


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def _accept_one(listener: socket.socket, trust: ssl.SSLContext) -> None:
    try:
        with trust.wrap_socket(listener.accept()[0], server_side=True):
            pass
    except OSError:
        pass


def test_an_expired_certificate_is_refused(federation: Federation, tmp_path: Path, listener: socket.socket) -> None:
    expired = CertificateAuthority.at(federation.folder / "keys", 1).issue(tmp_path / "old", "organiser", days=0)
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.load_cert_chain(expired / "cert.pem", expired / "key.pem")
    thread = threading.Thread(target=_accept_one, args=(listener, trust))
    thread.start()
    with pytest.raises(BadValue, match="its certificate has expired"):
        join(f"127.0.0.1:{listener.getsockname()[1]}", keys_of(federation, "oak"), never, patience=5.0)
    thread.join()
    (expired / "participants").mkdir()
    with pytest.raises(BadValue, match="is valid from"):
        ServerKeys.load(expired)


@pytest.mark.slow
def test_a_server_that_cannot_be_reached_is_waited_for_only_so_long(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedarena")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(PartyLost, match=f"the server at 127.0.0.1:{port} cannot be reached"):
        join(f"127.0.0.1:{port}", keys_of(federation, "oak"), never, patience=1.0)
    assert time.monotonic() - began < 5.0
    assert caplog.messages == [f"waiting for the server at 127.0.0.1:{port}"]


def test_a_machine_that_does_not_speak_tls_is_reported(federation: Federation, listener: socket.socket) -> None:
    def answer() -> None:
        line, _ = listener.accept()
        with line:
            line.recv(1000)
            line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(BadValue, match="does not speak TLS"):
        join(f"127.0.0.1:{listener.getsockname()[1]}", keys_of(federation, "oak"), never, patience=5.0)
    thread.join()


@pytest.mark.parametrize(
    "path", ["/v1/control/register-node", "/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/"]
)
def test_only_the_server_may_make_the_owners_calls(federation: Federation, path: str) -> None:
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.load_verify_locations(cadata=federation.server_keys.ca.decode())
    with httpx.Client(verify=trust, trust_env=False) as client:
        for headers in ({}, {"fedarena-organiser": "guess"}):
            response = client.post(
                f"https://{federation.link.address}{path}",
                headers={"content-type": "application/protobuf", **headers},
                content=b"",
            )
            assert (response.status_code, response.json()["detail"]) == (403, "this call is only for the server")
    federation.until(lambda: any("which is only for the server" in text for text in federation.messages))


def test_a_port_that_is_taken_is_reported(federation: Federation, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=f"cannot listen on {federation.link.address}"):
        open_link(tmp_path, federation.link.address, federation.server_keys)


@pytest.mark.slow
def test_an_answer_for_a_superlink_that_has_died_is_dropped_and_the_client_goes_on(tmp_path: Path) -> None:
    """A heartbeat joins the new SuperLink while the client still works on a message of the old one."""
    federation = Federation(tmp_path)
    try:
        (node,) = federation.up("ash")
        federation.link.send(node, b"sleep 7", 30.0)  # longer than the time between heartbeats
        time.sleep(1.0)
        os.kill(federation.link.pid, signal.SIGKILL)
        (lost,) = federation.gather(1, 20.0)
        assert "has died" in lost.problem
        client = federation.processes["ash"]
        assert federation.up("ash") == [node]
        assert client.poll() is None
        assert federation.processes["ash"] is client
    finally:
        federation.close()


@pytest.mark.slow
def test_a_superlink_that_dies_is_started_again_and_found(federation: Federation) -> None:
    """Twice in a row is given up; between the two, all clients are back under the same number and address."""
    nodes = federation.up("ash", "cedar")
    address, died = federation.link.address, federation.link.pid
    tickets = {federation.link.send(node, b"sleep 1", 20.0) for node in nodes}
    os.kill(died, signal.SIGKILL)
    got = federation.gather(2, 20.0)
    assert {a.ticket for a in got} == tickets
    assert all(a.content is None and "has died" in a.problem for a in got)
    assert federation.link.pid != died
    assert federation.link.address == address
    assert federation.up("ash", "cedar") == nodes
    assert any("started again" in text for text in federation.messages)
    os.kill(federation.link.pid, signal.SIGKILL)
    with pytest.raises(PartyFailed, match="repeatedly"):
        federation.gather(1, 20.0)


@pytest.mark.slow
def test_a_superlink_ends_with_its_server(tmp_path: Path) -> None:
    """Also when the server is killed: the port is free for the one that resumes."""
    make_federation_keys(tmp_path / "keys", ["ash"])
    code = (
        "import sys, time; from fedarena.transport.flower_link import open_link;"
        "from fedarena.transport.certificates import ServerKeys;"
        f"link = open_link({str(tmp_path)!r}, '127.0.0.1:0', ServerKeys.load({str(tmp_path / 'keys/organiser')!r}));"
        "print(link.address, link.pid, flush=True); time.sleep(60)"
    )
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert server.stdout is not None
    address, pid = server.stdout.readline().split()
    server.kill()
    server.wait()
    Federation.until(lambda: not Path(f"/proc/{pid}").exists() if sys.platform == "linux" else True)
    machine, _, port = address.rpartition(":")
    with socket.create_server((machine, int(port))):
        pass
