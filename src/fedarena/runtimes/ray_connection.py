"""To Ray and back: start it on this machine or join a cluster, in a bounded time, and without a word of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from fedarena.common.optional_imports import import_optional
from fedarena.config.errors import BadValue
from fedarena.runtimes.processes import limited, usable_cores
from fedarena.runtimes.ray_nodes import ClusterNodes

PATIENCE = 5.0  # seconds for a cluster to say that it is there
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # how gRPC begins: RFC 9113, 3.4
SETTINGS = 4  # what the other side must begin with
SILENCE = {
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # a worker that died is our business
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a change of Ray's that it warns of, and that does not concern us
    "RAY_USAGE_STATS_ENABLED": "0",
}


def need_ray() -> Any:
    """Return the module Ray, or raise `MissingDependency`."""
    with _surroundings():
        return import_optional(
            "ray",
            needed_by="the runtime ray",
            install="'fedarena[ray]'",
            where="--runtime ray",
            alternative="use --runtime processes",
        )


@contextlib.contextmanager
def connected(address: str | None = None, workers: int | None = None) -> Iterator[ClusterNodes]:
    """The nodes of a cluster, all with our versions; without an address Ray is started here, and ended with the block.

    A program that has connected to Ray by itself keeps its connection. `RAY_ADDRESS` is the address where none is given.
    """
    ray = need_ray()
    address = address or os.environ.get("RAY_ADDRESS")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_surroundings())
        if not ray.is_initialized():
            stack.callback(_forget_token, ray, os.environ.get("RAY_AUTH_MODE", "disabled"))
            stack.enter_context(_no_news(ray))
            stack.callback(ray.shutdown)
            with _own_signals():
                _connect(ray, address, workers)
        nodes = ClusterNodes(ray)
        nodes.check()
        yield nodes


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    how: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address in (None, "local"):
        how |= {"address": "local", "num_cpus": limited(workers or usable_cores()), "include_dashboard": False}
    else:
        how |= {"address": address}
        _check_reachable(str(address))
    try:
        with warnings.catch_warnings(), _hushed():
            warnings.simplefilter("ignore")
            ray.init(**how)
    except Exception as error:
        if "authentication token" in f"{error} {error.__cause__}".lower():
            raise BadValue(
                f"the Ray cluster at {address} wants a token",
                remedy="set RAY_AUTH_MODE=token, and give Ray the token of the cluster; its pages on security say how",
                where="--address",
            ) from None
        raise _unreachable(address, " ".join(str(error).split()) or type(error).__name__) from None


def _check_reachable(address: str) -> None:
    """Does something listen there that speaks gRPC? Ray itself would go on asking for a quarter of an hour."""
    place = re.fullmatch(r"(?:ray://)?(?:\[(?P<six>[^]]+)\]|(?P<host>[^:/]+)):(?P<port>\d{1,5})(?:/.*)?", address)
    if address == "auto" or os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return
    if place is None:
        raise BadValue(
            f"'{address}' is no address of a cluster",
            remedy="give auto, HOST:PORT of its head (usually port 6379) or ray://HOST:PORT (usually 10001)",
            where="--address",
        )
    try:
        with socket.create_connection((place["six"] or place["host"], int(place["port"])), PATIENCE) as line:
            line.settimeout(PATIENCE)
            line.sendall(HELLO)
            answer = line.recv(9, socket.MSG_WAITALL) if hasattr(socket, "MSG_WAITALL") else line.recv(9)
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(getattr(error, "strerror", None) or error)) from None
    if len(answer) < 4 or answer[3] != SETTINGS:
        raise _unreachable(address, "what listens there is not Ray")


def _unreachable(address: str | None, why: str) -> BadValue:
    if address in (None, "local"):
        return BadValue(
            f"Ray does not start here: {why[:300]}", remedy="use --runtime processes", where="--runtime ray"
        )
    return BadValue(
        f"no Ray cluster can be reached at {address}: {why[:300]}",
        remedy="start one with `ray start --head`, on the other machines `ray start --address=HEAD:6379`; "
        "or leave out --address for this machine alone",
        where="--address",
    )


@contextlib.contextmanager
def _surroundings() -> Iterator[None]:
    """Ray is told to be silent, and afterwards the environment is as it was: Ray writes to it as well."""
    before = dict(os.environ)
    for name, value in SILENCE.items():
        os.environ.setdefault(name, value)
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name in [name for name in os.environ if name.startswith("RAY_") or name == "PYTHONBREAKPOINT"]:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def _forget_token(ray: Any, mode: str) -> None:
    """A Ray that was started here has a token, and this process would go on to ask for it, of other clusters as well."""
    os.environ["RAY_AUTH_MODE"] = mode
    with contextlib.suppress(AttributeError):  # older versions have no tokens
        ray._raylet.Config.initialize("")
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """What Ray's own libraries write past Python, a line for every attempt, goes nowhere; the error comes by itself."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _no_news(ray: Any) -> Iterator[None]:
    """Ray prints to stdout whatever dies, unless this switch of its own is off; there is no public one."""
    inside = ray._private.worker
    before = getattr(inside, "_worker_logs_enabled", True)
    inside._worker_logs_enabled = False
    try:
        yield
    finally:
        inside._worker_logs_enabled = before


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself: it stays ours, since it must save and explain like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
