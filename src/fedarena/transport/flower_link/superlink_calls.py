"""Calls to a SuperLink: what each carries besides Flower's own headers, how long it may take, what its failure means."""

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
from fedarena.transport.flower_link.access_control import HOLD, REFUSED, RING
from fedarena.transport.flower_link.flower_internals import RuntimeVersionMetadata, connect

CONNECT = 10.0  # seconds to reach the machine
READ = 30.0  # seconds without a byte of an answer

Hear = Callable[[Mapping[str, str]], None]
_extra: ContextVar[tuple[dict[str, str], float]] = ContextVar("extra")


class ConnectionLost(Exception):
    """Nothing came back: the machine is away, or the line broke."""


class CallRefused(Exception):
    """The SuperLink answered, and said no."""

    def __init__(self, status: int, why: str, said: str, seconds_ahead: float) -> None:
        super().__init__(f"{status} {said}")
        self.status, self.why, self.said, self.seconds_ahead = status, why, said, seconds_ahead


class HeaderInterceptor:
    """Adds our headers, the pinned name and the time limit to each request of one of Flower's clients."""

    def __init__(self, name: str, component: str, headers: Mapping[str, str], hear: Hear | None) -> None:
        versions = RuntimeVersionMetadata.from_local_component(component).as_metadata()
        self._name, self._headers, self._hear = name, {**dict(versions), **headers}, hear

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """As Flower's clients call it."""
        extra, read = _extra.get(({}, READ))
        context.request.headers.update({**self._headers, **extra})
        context.request.extensions["sni_hostname"] = self._name
        context.request.extensions["timeout"] = httpx.Timeout(READ, connect=min(CONNECT, read), read=read).as_dict()
        answer = call_next(context)
        if self._hear is not None:
            self._hear(answer.headers)
        return answer


def check_address(address: str, example: str = "organiser.example.org:8440") -> str:
    """`machine:port`."""
    machine, colon, port = address.rpartition(":")
    if not (colon and machine and port.isdigit() and int(port) < 65536):
        raise BadValue(f"'{address}' is not an address", remedy=f"write machine:port, e.g. {example}")
    return address


def open_client(
    kind: type,
    address: str,
    ca: bytes,
    name: str,
    component: str,
    headers: Mapping[str, str],
    *others: Any,
    hear: Hear | None = None,
) -> Any:
    """A client of Flower's for the SuperLink at an address, whose certificate must bear the name.

    `hear` is given the headers of each answer.
    """
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        trust.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise BadValue("ca.pem holds no certificate", remedy="ask the organiser for it", where="--keys") from None
    return connect(kind, address, trust, [HeaderInterceptor(name, component, headers, hear), *others])


def call(method: Callable[[Any], Any], request: Any, *, hold: float = 0.0, ring: str = "", read: float = READ) -> Any:
    """One call; raises `ConnectionLost`, `Refused`, or an error of ours if the other is not who it should be."""
    extra = {name: value for name, value in ((HOLD, f"{hold:.3f}" if hold > 0 else ""), (RING, ring)) if value}
    token = _extra.set((extra, hold + read))
    try:
        with _understood():
            return method(request)
    finally:
        _extra.reset(token)


@contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        answer = error.response
        if answer.status_code >= 500:
            raise ConnectionLost(f"the SuperLink says {answer.status_code}") from None
        raise CallRefused(answer.status_code, answer.headers.get(REFUSED, ""), _said(answer), _ahead(answer)) from None
    except httpx.TransportError as error:
        _raise_if_not_trusted(error)
        raise ConnectionLost(f"{type(error).__name__}: {error}") from None
    except ValueError as error:  # an answer that is not Flower's
        raise CallRefused(200, "", str(error), 0.0) from None


def _said(answer: Any) -> str:
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = answer.text
    return plain(str(detail))


def plain(text: str, longest: int = 2000) -> str:
    """What others wrote, fit to be shown."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text[:longest])


def _ahead(answer: Any) -> float:
    """By how many seconds our clock is ahead of the other's."""
    try:
        return time.time() - parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return 0.0


def _raise_if_not_trusted(error: BaseException) -> None:
    """A line that broke is tried again; one that leads to somebody else is not."""
    address = ""
    if isinstance(error, httpx.RequestError) and error._request is not None:
        address = error.request.url.netloc.decode()
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None or isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return
    who = f"the organiser at {address} is not who it should be: "
    if not isinstance(cause, ssl.SSLCertVerificationError):
        raise BadValue(f"{who}it does not speak TLS ({cause.reason})", remedy="check the address") from None
    what, remedy = {
        9: ("its certificate is not valid yet", "compare the clocks of the two machines"),
        10: ("its certificate has expired", "the organiser needs a new certificate"),
        62: ("its certificate bears another name", "check the address, and the organiser's name in its certificate"),
        64: ("its certificate bears another address", "check the address, and the organiser's certificate"),
    }.get(cause.verify_code, ("its certificate is not from the authority in ca.pem", "take the organiser's ca.pem"))
    raise BadValue(who + what, remedy=remedy, where="--keys") from None
