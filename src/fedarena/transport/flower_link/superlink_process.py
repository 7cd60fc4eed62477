"""The organiser's hand on the process of its SuperLink."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from fedarena.config.errors import BadValue, CannotWrite, PartyFailed
from fedarena.transport.certificates import ServerKeys
from fedarena.transport.flower_link.superlink_calls import plain

LOG = "superlink.log"
START = 60.0  # seconds until it listens: on a busy machine Python alone takes many


class SuperLinkProcess:
    """A SuperLink that listens, or an error that says why not."""

    def __init__(
        self,
        folder: Path,
        host: str,
        port: int,
        keys: ServerKeys,
        names: Mapping[str, bytes],
        limit: int,
        longest_call: int,
        say: Callable[[str], None],
    ) -> None:
        self.secret = secrets.token_hex(32)
        self._say, self._log = say, folder / LOG
        self._first: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._process = self._spawn(folder)
        orders = {
            "host": host,
            "port": port,
            "cert": str(keys.folder / "cert.pem"),
            "key": str(keys.folder / "key.pem"),
            "secret": self.secret,
            "names": {name: key.decode() for name, key in names.items()},
            "limit": limit,
            "longest_call": longest_call,
        }
        threading.Thread(target=self._listen, daemon=True).start()
        assert self._process.stdin is not None
        try:
            with suppress(OSError):  # it has ended: the next line says so
                self._process.stdin.write(json.dumps(orders) + "\n")
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
                start_new_session=True,  # Ctrl-C is for us: we may still have to say farewell
            )

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if told["kind"] == "refused":
                self._say(told["text"])
            else:
                self._first.put(told)
        self._first.put({"kind": "ended"})

    def _wait(self, address: str) -> int:
        try:
            told = self._first.get(timeout=START)
        except Empty:
            told = {"kind": "late"}
        if told["kind"] == "listening":
            return int(told["port"])
        if told["kind"] == "failed" and told["port_taken"]:
            raise BadValue(
                f"cannot listen on {address}: {told['why']}",
                remedy="name a free port of this machine",
                where="--address",
            )
        if told["kind"] == "failed":
            raise BadValue(
                f"the organiser's certificate cannot be used: {told['why']}", remedy="make a new one", where="--keys"
            )
        last = self._log.read_text(errors="replace").strip().rpartition("\n")[2] if told["kind"] == "ended" else "late"
        raise PartyFailed(f"the SuperLink did not start: {plain(last, 200)}", remedy=f"look into {self._log}")

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def close(self) -> None:
        """End it, politely at first."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=5.0)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
