"""Connect two organisations: one gRPC method over mutual TLS, with pinned party names.

It carries the frames of `channel` unchanged. A host listens, and answers only the guest whose certificate has the
expected name. The guest checks that each host's certificate has the name under which it was given.
"""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fedarena.common.optional_imports import import_optional
from fedarena.config.errors import BadValue, FedarenaError, PartyLost
from fedarena.transport.addresses import check_address
from fedarena.transport.certificates import DNS, Identity, check_name, names_of
from fedarena.transport.channel import Channel, HostProtocol, Session
from fedarena.transport.frames import LONGEST, Fields, FrameKind

LOGGER = logging.getLogger(__name__)

SERVICE, METHOD = "fedarena.Vertical", "Ask"
EXAMPLE = "bank.example.org:7001"
SIZES = [("grpc.max_receive_message_length", LONGEST), ("grpc.max_send_message_length", LONGEST)]
PING = 20_000  # milliseconds: a broken connection is noticed within half a minute, however long a response takes
DEADLINE = 600.0  # seconds for one response
PATIENCE = 120.0  # seconds to wait for a host that is not running yet, or was restarted


class NetworkChannel(Channel):
    """The guest's end of a connection to a host on another machine."""

    def __init__(
        self,
        name: str,
        address: str,
        identity: Identity,
        *,
        deadline: float = DEADLINE,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(check_name(name))
        self.address, self.deadline, self.patience = check_address(address, EXAMPLE), deadline, patience
        self._identity = identity
        self._line: Any = None
        self._connect()

    def _connect(self) -> None:
        """Open a new connection: gRPC may wait long before it reconnects an old one."""
        grpc = grpc_library()
        self.close()
        trust = grpc.ssl_channel_credentials(self._identity.ca, self._identity.key, self._identity.cert)
        options = [
            *SIZES,
            ("grpc.ssl_target_name_override", self.name),  # the pinned name, under any address
            ("grpc.keepalive_time_ms", PING),
            ("grpc.keepalive_timeout_ms", PING // 2),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
        ]
        self._line = grpc.secure_channel(self.address, trust, options)
        self._method = self._line.unary_unary(f"/{SERVICE}/{METHOD}")

    def ask(self, kind: FrameKind, fields: Fields | None = None, *, tree: int = 0, level: int = 0) -> dict[str, Any]:
        """Send a request; with HELLO, wait until the host can be reached. Every attempt is a session of its own."""
        until = time.monotonic() + (self.patience if kind is FrameKind.HELLO else 0)
        waiting = False
        while True:
            try:
                return super().ask(kind, fields, tree=tree, level=level)
            except PartyLost:
                if time.monotonic() >= until:
                    raise
            if not waiting:
                LOGGER.info("waiting for host '%s' at %s", self.name, self.address)
            waiting = True
            time.sleep(0.2)
            self._connect()

    def carry(self, raw: bytes, kind: FrameKind) -> bytes:
        """Send a frame, and wait for the response until the deadline."""
        try:
            answer: bytes = self._method(raw, timeout=self.deadline)
        except grpc_library().RpcError as error:
            raise self._reason(error, kind) from None
        return answer

    def _reason(self, error: Any, kind: FrameKind) -> FedarenaError:
        """Return the error that explains a failed call."""
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
                + ("is for another name" if other_name else "is not from the authority in ca.pem"),
                remedy=f"its certificate must be for the name '{self.name}' and come from that authority",
                where="--peers",
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return PartyLost(f"{who} did not answer within {self.deadline:g} s", remedy="check that party")
        at_once = kind is FrameKind.HELLO and "closed" in details  # later it is closed because the host has ended
        trust = "; if the connection closes at once, it does not trust this party's certificate" * at_once
        why = details.rpartition(": ")[2]
        return PartyLost(f"{who} cannot be reached: {why}", remedy=f"start that party, or check the address{trust}")

    def close(self) -> None:
        """Close the connection to the host."""
        if self._line is not None:
            self._line.close()
            self._line = None


class HostServer:
    """A host that listens for its guest; use it as a context manager."""

    def __init__(
        self,
        host: HostProtocol,
        address: str,
        identity: Identity,
        guest: str = "guest",
    ) -> None:
        grpc = grpc_library()
        self.session = Session(host)
        self._guest = check_name(guest)
        options = [
            *SIZES,
            ("grpc.so_reuseport", 0),  # a port in use is an error: else either of two hosts might answer
            ("grpc.http2.min_ping_interval_without_data_ms", PING // 2),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", PING // 2),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="fedarena-host")
        self._server = grpc.server(self._pool, options=options, maximum_concurrent_rpcs=8)
        handlers = {METHOD: grpc.unary_unary_rpc_method_handler(self._ask)}
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        trust = grpc.ssl_server_credentials(
            [(identity.key, identity.cert)], root_certificates=identity.ca, require_client_auth=True
        )
        try:
            self.port: int = self._server.add_secure_port(check_address(address, EXAMPLE), trust)
        except RuntimeError:
            raise BadValue(
                f"cannot listen on {address}", remedy="name a free port of this machine", where="--listen"
            ) from None

    def _ask(self, raw: bytes, context: Any) -> bytes:
        names = names_of(context.auth_context()["x509_pem_cert"][0])
        if names != [f"{DNS}{self._guest}"]:
            found = ", ".join(name.removeprefix(DNS) for name in names)
            why = f"this host works with '{self._guest}', the certificate says '{found}'"
            why = "".join(c for c in why if c.isprintable())
            LOGGER.info("refused a party: %s", why)
            context.abort(grpc_library().StatusCode.PERMISSION_DENIED, why)
        return self.session.handle(raw, wanted=context.is_active)

    def __enter__(self) -> HostServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=1).wait()
        self._pool.shutdown()


def grpc_library() -> Any:
    """Return gRPC with its own log switched off, or raise MissingDependency."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return import_optional("grpc", needed_by="the network", install="'fedarena[vertical]'")
