"""The line between two organisations: one gRPC method over mutual TLS, with pinned party names.

It carries the frames of `channel` unchanged. A host listens; it answers only the guest whose certificate bears the
expected name. The guest checks that each host's certificate bears the name under which it was given.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fedarena.config.errors import BadValue, DataMissing, FedarenaError, PartyLost
from fedarena.transport.certificates import DNS, Identity, check_name, names_of
from fedarena.transport.channel import Channel, HostProtocol, Session
from fedarena.transport.frames import LONGEST, NO_KEY, Fields, FrameKind

METHOD = "/fedarena.Vertical/Ask"
SIZES = [("grpc.max_receive_message_length", LONGEST), ("grpc.max_send_message_length", LONGEST)]
PING = 20_000  # milliseconds: a line that silently broke is noticed within half a minute, however long an answer takes
DEADLINE = 600.0  # seconds for one answer
PATIENCE = 120.0  # seconds to wait for a host that is not there yet, or was restarted


class NetworkChannel(Channel):
    """The guest's end of a line to a host elsewhere."""

    def __init__(
        self,
        name: str,
        address: str,
        identity: Identity,
        key: bytes = NO_KEY,
        *,
        deadline: float = DEADLINE,
        patience: float = PATIENCE,
        say: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(check_name(name), key)
        self.address, self.deadline, self.patience = check_address(address), deadline, patience
        self._identity, self._say = identity, say
        self._line: Any = None
        self._connect()

    def _connect(self) -> None:
        """A fresh line: an old one may wait long before it tries to reconnect."""
        grpc = grpc_library()
        self.close()
        trust = grpc.ssl_channel_credentials(self._identity.ca, self._identity.key, self._identity.cert)
        options = [
            *SIZES,
            ("grpc.ssl_target_name_override", self.name),  # the pinned name, whatever the address
            ("grpc.keepalive_time_ms", PING),
            ("grpc.keepalive_timeout_ms", PING // 2),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
        ]
        self._line = grpc.secure_channel(self.address, trust, options)
        self._method = self._line.unary_unary(METHOD)

    def ask(self, kind: FrameKind, fields: Fields | None = None, *, tree: int = 0, level: int = 0) -> dict[str, Any]:
        """As in one process; with HELLO, wait until the host is there. Every try is a session of its own."""
        until = time.monotonic() + (self.patience if kind is FrameKind.HELLO else 0)
        waiting = False
        while True:
            try:
                return super().ask(kind, fields, tree=tree, level=level)
            except PartyLost:
                if time.monotonic() >= until:
                    raise
            if not waiting and self._say is not None:
                self._say(f"waiting for host '{self.name}' at {self.address}")
            waiting = True
            time.sleep(0.2)
            self._connect()

    def carry(self, raw: bytes, kind: FrameKind) -> bytes:
        """Send it, and wait for the answer until the deadline."""
        try:
            answer: bytes = self._method(raw, timeout=self.deadline)
        except grpc_library().RpcError as error:
            raise self._reason(error, kind) from None
        return answer

    def _reason(self, error: Any, kind: FrameKind) -> FedarenaError:
        """What a failed call means, in words."""
        grpc = grpc_library()
        code, details = error.code(), str(error.details())
        who = f"host '{self.name}' at {self.address}"
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return BadValue(
                f"{who} refused this party: {details}", remedy="agree on the parties' names", where="--keys"
            )
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return BadValue(f"a frame was too long for {who}: {details}", remedy="use fewer rows or a smaller depth")
        if "SSL_ERROR_SSL" in details or "UNAUTHENTICATED" in details:
            other_name = "Hostname" in details
            return BadValue(
                f"{who} is not who it should be: its certificate "
                + ("bears another name" if other_name else "is not from the authority in ca.pem"),
                remedy=f"its certificate must bear the name '{self.name}' and come from that authority",
                where="--peers",
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return PartyLost(f"{who} did not answer within {self.deadline:g} s", remedy="look at that party")
        at_once = kind is FrameKind.HELLO and "closed" in details  # later a line closes because the host has ended
        trust = "; a line that closes at once: it does not trust this party's certificate" * at_once
        why = details.rpartition(": ")[2]
        return PartyLost(f"{who} cannot be reached: {why}", remedy=f"start that party, or check the address{trust}")

    def close(self) -> None:
        """Let go of the line."""
        if self._line is not None:
            self._line.close()
            self._line = None


class HostServer:
    """A host that listens; use it as a context."""

    def __init__(
        self,
        host: HostProtocol,
        address: str,
        identity: Identity,
        guest: str = "guest",
        *,
        say: Callable[[str], None] | None = None,
    ) -> None:
        grpc = grpc_library()
        self.session = Session(host, say)
        self._guest = check_name(guest)
        self._say = say
        options = [
            *SIZES,
            ("grpc.so_reuseport", 0),  # a port in use is an error, not a lottery between two hosts
            ("grpc.http2.min_ping_interval_without_data_ms", PING // 2),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", PING // 2),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="fedarena-host")
        self._server = grpc.server(self._pool, options=options, maximum_concurrent_rpcs=8)
        self._server.add_generic_rpc_handlers([_one_method(self._ask)])
        trust = grpc.ssl_server_credentials(
            [(identity.key, identity.cert)], root_certificates=identity.ca, require_client_auth=True
        )
        try:
            self.port: int = self._server.add_secure_port(check_address(address), trust)
        except RuntimeError:
            raise BadValue(
                f"cannot listen on {address}", remedy="name a free port of this machine", where="--listen"
            ) from None

    def _ask(self, raw: bytes, context: Any) -> bytes:
        names = names_of(context.auth_context()["x509_pem_cert"][0])
        if names != [f"{DNS}{self._guest}"]:
            said = ", ".join(name.removeprefix(DNS) for name in names)
            told = f"this host works with '{self._guest}', the certificate says '{said}'"
            told = "".join(c for c in told if c.isprintable())
            if self._say is not None:
                self._say(f"refused a party: {told}")
            context.abort(grpc_library().StatusCode.PERMISSION_DENIED, told)
        return self.session.handle(raw, wanted=context.is_active)

    def __enter__(self) -> HostServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=1).wait()
        self._pool.shutdown()


def _one_method(ask: Callable[[bytes, Any], bytes]) -> Any:
    """Bytes in, bytes out, under one name; anything else is unknown here."""
    grpc = grpc_library()
    handler = grpc.unary_unary_rpc_method_handler(ask)

    class OneMethod(grpc.GenericRpcHandler):  # type: ignore[misc, name-defined]
        """Finds the method."""

        def service(self, call: Any) -> Any:
            """The only one."""
            return handler if call.method == METHOD else None

    return OneMethod()


def check_address(address: str) -> str:
    """`machine:port`."""
    machine, colon, port = address.rpartition(":")
    if not (colon and machine and port.isdigit() and int(port) < 65536):
        raise BadValue(f"'{address}' is not an address", remedy="write machine:port, e.g. bank.example.org:7001")
    return address


def grpc_library() -> Any:
    """gRPC, or how to get it; what it has to say goes through our own messages."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        import grpc
    except ImportError:
        raise DataMissing("the network needs the package grpcio", remedy="pip install 'fedarena[vertical]'") from None
    return grpc
