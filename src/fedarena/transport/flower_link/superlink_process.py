"""Start the process of the SuperLink, pass on its messages, and end it."""

from __future__ import annotations

import json
import logging
import os
import secrets
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from fedarena.config.errors import BadValue, CannotWrite, PartyFailed
from fedarena.transport.certificates import ServerKeys
from fedarena.transport.flower_link.superlink_calls import plain

LOGGER = logging.getLogger(__name__)

LOG = "superlink.log"
START = 60.0  # seconds until it listens: on a busy machine Python alone takes many


class SuperLinkProcess:
    """A SuperLink process that listens; the constructor raises an error if it does not."""

    def __init__(self, folder: Path, host: str, port: int, keys: ServerKeys, limit: int) -> None:
        self.secret = secrets.token_hex(32)
        self._log = folder / LOG
        self._first: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._process = self._spawn(folder)
        settings = {
            "host": host,
            "port": port,
            "cert": str(keys.folder / "cert.pem"),
            "key": str(keys.folder / "key.pem"),
            "secret": self.secret,
            "names": {name: key.decode() for name, key in keys.clients.items()},
            "limit": limit,
        }
        threading.Thread(target=self._listen, daemon=True).start()
        assert self._process.stdin is not None
        try:
            with suppress(OSError):  # it has ended: _wait reports it
                self._process.stdin.write(json.dumps(settings) + "\n")
                self._process.stdin.flush()
            self.port = self._wait(f"{host}:{port}")
        except BaseException:
            self.close()
            raise

    def _spawn(self, folder: Path) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
        environment |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_LOG_LEVEL": "WARNING"}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            log = open(self._log, "ab")  # noqa: SIM115 - the child keeps it
        except OSError as error:
            raise CannotWrite(f"cannot write {self._log}: {error.strerror}", remedy="name another folder") from None
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "fedarena.transport.flower_link.superlink"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C ends the server, which may still have messages to send
            )

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            report = json.loads(line)
            if report["kind"] == "refused":
                LOGGER.info(report["text"])
            else:
                self._first.put(report)
        self._first.put({"kind": "ended"})

    def _wait(self, address: str) -> int:
        try:
            report = self._first.get(timeout=START)
        except Empty:
            report = {"kind": "late"}
        kind = report["kind"]
        if kind == "listening":
            return int(report["port"])
        if kind == "failed" and report["port_taken"]:
            raise BadValue(
                f"cannot listen on {address}: {report['why']}",
                remedy="name a free port of this machine",
                where="--address",
            )
        if kind == "failed":
            raise BadValue(
                f"the server's certificate cannot be used: {report['why']}", remedy="make a new one", where="--keys"
            )
        last = self._log.read_text(errors="replace").strip().rpartition("\n")[2] if kind == "ended" else "timeout"
        raise PartyFailed(f"the SuperLink did not start: {plain(last, 200)}", remedy=f"see {self._log}")

    @property
    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self._process.pid

    def close(self) -> None:
        """End the process; kill it if it does not end within five seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=5.0)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
