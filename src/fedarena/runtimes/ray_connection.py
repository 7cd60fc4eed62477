"""Start Ray on this machine or connect to a cluster, in a bounded time and without Ray's own output."""

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
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.worker_count import limit_workers, usable_cores

PATIENCE = 5.0  # seconds for a cluster to answer
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # how HTTP/2 begins: RFC 9113, 3.4
SETTINGS = 4  # the type of the first frame of the other side
SILENCE = {
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # the pool handles dead workers
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a warning about a change in Ray that does not matter here
    "RAY_USAGE_STATS_ENABLED": "0",
}


def need_ray() -> Any:
    """Return the module Ray, or raise `MissingDependency`."""
    with _silenced_ray():
        return import_optional(
            "ray",
            needed_by="the runtime ray",
            install="'fedarena[ray]'",
            where="--runtime ray",
            alternative="use --runtime processes",
        )


@contextlib.contextmanager
def connected(address: str | None = None, workers: int | None = None) -> Iterator[ClusterNodes]:
    """Connect to a cluster whose nodes all have the versions of this machine; without an address, start Ray here.

    What was started or connected here ends with the block; a program's own connection stays. Where no address is given,
    `RAY_ADDRESS` is used.
    """
    ray = need_ray()
    address = address or os.environ.get("RAY_ADDRESS")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_silenced_ray())
        if not ray.is_initialized():
            stack.callback(_reset_token, ray, os.environ.get("RAY_AUTH_MODE", "disabled"))
            stack.enter_context(_no_worker_logs(ray))
            stack.callback(ray.shutdown)
            with _kept_sigterm():
                _connect(ray, address, workers)
        nodes = ClusterNodes(ray)
        nodes.check()
        yield nodes


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    how: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address in (None, "local"):
        how |= {"address": "local", "num_cpus": limit_workers(workers or usable_cores()), "include_dashboard": False}
    else:
        how |= {"address": address}
        _check_reachable(str(address))
    try:
        with warnings.catch_warnings(), _discarded_stderr():
            warnings.simplefilter("ignore")
            ray.init(**how)
    except Exception as error:
        if "authentication token" in f"{error} {error.__cause__}".lower():
            raise BadValue(
                f"the Ray cluster at {address} requires an authentication token",
                remedy="set RAY_AUTH_MODE=token and provide the cluster's token as Ray's documentation describes",
                where="--address",
            ) from None
        raise _unreachable(address, " ".join(str(error).split()) or type(error).__name__) from None


def _check_reachable(address: str) -> None:
    """Raise if no gRPC server listens at the address: Ray itself would try for a quarter of an hour."""
    place = re.fullmatch(r"(?:ray://)?(?:\[(?P<six>[^]]+)\]|(?P<host>[^:/]+)):(?P<port>\d{1,5})(?:/.*)?", address)
    if address == "auto" or os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return
    if place is None:
        raise BadValue(
            f"'{address}' is not the address of a cluster",
            remedy="give auto, HOST:PORT of its head (usually port 6379) or ray://HOST:PORT (usually 10001)",
            where="--address",
        )
    try:
        with socket.create_connection((place["six"] or place["host"], int(place["port"])), PATIENCE) as connection:
            connection.settimeout(PATIENCE)
            connection.sendall(HELLO)
            answer = connection.recv(9, getattr(socket, "MSG_WAITALL", 0))
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(getattr(error, "strerror", None) or error)) from None
    if len(answer) < 4 or answer[3] != SETTINGS:
        raise _unreachable(address, "the server there is not Ray")


def _unreachable(address: str | None, why: str) -> BadValue:
    if address in (None, "local"):
        return BadValue(
            f"Ray does not start on this machine: {why[:300]}", remedy="use --runtime processes", where="--runtime ray"
        )
    return BadValue(
        f"no Ray cluster can be reached at {address}: {why[:300]}",
        remedy="start one with `ray start --head`, on the other machines `ray start --address=HEAD:6379`; "
        "or leave out --address to use this machine alone",
        where="--address",
    )


@contextlib.contextmanager
def _silenced_ray() -> Iterator[None]:
    """Silence Ray within the block, and restore the environment variables afterwards, some of which Ray changes."""
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


def _reset_token(ray: Any, mode: str) -> None:
    """Remove the token of a Ray that was started here: this process would use it for other clusters as well."""
    os.environ["RAY_AUTH_MODE"] = mode
    with contextlib.suppress(AttributeError):  # older versions have no tokens
        ray._raylet.Config.initialize("")
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _discarded_stderr() -> Iterator[None]:
    """Discard what the libraries of Ray write to file descriptor 2, a line for every attempt; errors are raised anyway."""
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as devnull:
            os.dup2(devnull.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@contextlib.contextmanager
def _no_worker_logs(ray: Any) -> Iterator[None]:
    """Stop Ray from printing dead workers to stdout; there is no public option for it."""
    module = ray._private.worker
    before = getattr(module, "_worker_logs_enabled", True)
    module._worker_logs_enabled = False
    try:
        yield
    finally:
        module._worker_logs_enabled = before


@contextlib.contextmanager
def _kept_sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces: SIGTERM saves the state and says how to resume, like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
