"""Calls to a SuperLink: headers besides Flower's own, time limits, and the errors that explain a failed call."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from fedarena.config.errors import BadValue
from fedarena.transport.flower_link.access_control import HOLD, NOTIFY, REFUSED
from fedarena.transport.flower_link.flower_internals import RuntimeVersionMetadata, connect

CONNECT = 10.0  # seconds to reach the machine
READ = 30.0  # seconds without a byte of a response

OnHeaders = Callable[[Mapping[str, str]], None]
_extra: ContextVar[tuple[dict[str, str], float]] = ContextVar("extra")


class ConnectionLost(Exception):
    """A call without a response: the machine cannot be reached, or the connection broke."""


class CallRefused(Exception):
    """A call that the SuperLink refused."""

    def __init__(self, status: int, why: str, detail: str, seconds_ahead: float) -> None:
        super().__init__(f"{status} {detail}")
        self.status, self.why, self.detail, self.seconds_ahead = status, why, detail, seconds_ahead


class HeaderInterceptor:
    """Adds fedarena's headers, the pinned name and the time limit to each request of one of Flower's clients."""

    def __init__(self, name: str, component: str, headers: Mapping[str, str], on_headers: OnHeaders | None) -> None:
        versions = RuntimeVersionMetadata.from_local_component(component).as_metadata()
        self._name, self._headers, self._on_headers = name, {**dict(versions), **headers}, on_headers

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Change a request before it is sent; Flower's clients call this."""
        extra, read = _extra.get(({}, READ))
        context.request.headers.update({**self._headers, **extra})
        context.request.extensions["sni_hostname"] = self._name
        context.request.extensions["timeout"] = httpx.Timeout(READ, connect=min(CONNECT, read), read=read).as_dict()
        response = call_next(context)
        if self._on_headers is not None:
            self._on_headers(response.headers)
        return response


def open_client(
    kind: type,
    address: str,
    ca: bytes,
    name: str,
    component: str,
    headers: Mapping[str, str],
    *others: Any,
    on_headers: OnHeaders | None = None,
) -> Any:
    """Return a client of Flower for the SuperLink at an address, whose certificate must be for the name.

    `on_headers` is called with the headers of each response.
    """
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        trust.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise BadValue(
            "ca.pem holds no certificate", remedy="ask the server's operator for it", where="--keys"
        ) from None
    return connect(kind, address, trust, [HeaderInterceptor(name, component, headers, on_headers), *others])


def call(method: Callable[[Any], Any], request: Any, *, hold: float = 0.0, notify: str = "", read: float = READ) -> Any:
    """Make one call; raise `ConnectionLost`, `CallRefused`, or BadValue if the certificate is not the server's."""
    extra = {name: value for name, value in ((HOLD, f"{hold:.3f}" if hold > 0 else ""), (NOTIFY, notify)) if value}
    token = _extra.set((extra, hold + read))
    try:
        with _translated_errors():
            return method(request)
    finally:
        _extra.reset(token)


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        response = error.response
        if response.status_code >= 500:
            raise ConnectionLost(f"the SuperLink says {response.status_code}") from None
        why = response.headers.get(REFUSED, "")
        raise CallRefused(response.status_code, why, _detail(response), _seconds_ahead(response)) from None
    except httpx.TransportError as error:
        _raise_if_not_trusted(error)
        raise ConnectionLost(f"{type(error).__name__}: {error}") from None
    except ValueError as error:  # a response that is not Flower's
        raise CallRefused(200, "", str(error), 0.0) from None


def _detail(response: Any) -> str:
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = response.text
    return plain(str(detail))


def plain(text: str, longest: int = 2000) -> str:
    """Return a text of another party without control characters."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text[:longest])


def _seconds_ahead(response: Any) -> float:
    """Return by how many seconds the clock of this machine is ahead of the other's."""
    try:
        return time.time() - parsedate_to_datetime(response.headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return 0.0


def _raise_if_not_trusted(error: BaseException) -> None:
    """Raise BadValue where TLS failed because the certificate is not the server's: trying again would not help."""
    address = ""
    if isinstance(error, httpx.RequestError) and error._request is not None:
        address = error.request.url.netloc.decode()
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None or isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return
    who = f"the server at {address} cannot be trusted: "
    if not isinstance(cause, ssl.SSLCertVerificationError):
        raise BadValue(f"{who}it does not speak TLS ({cause.reason})", remedy="check the address") from None
    what, remedy = {
        9: ("its certificate is not valid yet", "compare the clocks of the two machines"),
        10: ("its certificate has expired", "the server needs a new certificate"),
        62: ("its certificate is for another name", "check the address, and the server's name in its certificate"),
        64: ("its certificate is for another address", "check the address, and the server's certificate"),
    }.get(cause.verify_code, ("its certificate is not from the authority in ca.pem", "use the server's ca.pem"))
    raise BadValue(who + what, remedy=remedy, where="--keys") from None
