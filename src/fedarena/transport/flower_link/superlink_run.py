"""A run of the SuperLink, in which the server takes the place of Flower's ServerApp."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from fedarena.transport.certificates import ServerKeys
from fedarena.transport.flower_link.access_control import SECRET
from fedarena.transport.flower_link.flower_internals import (
    SUPERLINK_NODE_ID,
    AcquireTaskRequest,
    ControlHttpClient,
    Fab,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    RegisterNodeRequest,
    RuntimeHttpClient,
    SendTaskHeartbeatRequest,
    StartRunRequest,
    SubStatus,
    TaskType,
    smallest_app,
)
from fedarena.transport.flower_link.payload import forget, numbered
from fedarena.transport.flower_link.superlink_calls import CallRefused, ConnectionLost, call, open_client
from fedarena.transport.flower_link.superlink_process import SuperLinkProcess

TOKEN = "flwr-task-token"
BEAT = 10.0  # seconds between heartbeats; Flower ends a run after 60 without
SERVER_NODE = numbered(SUPERLINK_NODE_ID)


class SuperLinkRun:
    """A run of a SuperLink: its process, and the ids under which the clients are registered."""

    def __init__(self, child: SuperLinkProcess, host: str, keys: ServerKeys) -> None:
        self.child, self._over = child, threading.Event()
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self._to, self._keys = f"[{here}]:{child.port}" if ":" in here else f"{here}:{child.port}", keys
        try:
            control = self._client(ControlHttpClient, {})
            self.ids = {
                name: call(control.RegisterNode, RegisterNodeRequest(public_key=key, name=name)).node_id
                for name, key in keys.clients.items()
            }
            call(control.StartRun, StartRunRequest(fab=Fab(content=smallest_app())))
            control.close()
            runtime = self._client(RuntimeHttpClient, {})
            task = call(runtime.AcquireTask, AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            runtime.close()
            self.client = self._client(RuntimeHttpClient, {TOKEN: task.token})
            self.id: int = call(self.client.PullTaskInput, PullTaskInputRequest()).run.run_id
        except BaseException:
            self.child.close()
            raise
        self.names = {node: name for name, node in self.ids.items()}
        threading.Thread(target=self._beat, daemon=True).start()

    def forget(self, *tickets: str) -> None:
        """Let the SuperLink drop the content of messages."""
        for ticket in tickets:
            forget(self.client, SERVER_NODE, self.id, ticket)

    def _client(self, kind: type, headers: dict[str, str]) -> Any:
        headers = {**headers, SECRET: self.child.secret}
        return open_client(kind, self._to, self._keys.ca, self._keys.name, "flwr-serverapp", headers)

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            # After an error the next call reports the reason, or the client is closed.
            with suppress(ConnectionLost, CallRefused, RuntimeError):
                call(self.client.SendTaskHeartbeat, SendTaskHeartbeatRequest(), read=5.0)

    def end(self) -> None:
        """Stop the run, then the SuperLink."""
        self._over.set()
        try:
            with suppress(ConnectionLost, CallRefused):
                if self.child.alive:
                    call(self.client.PushTaskOutput, PushTaskOutputRequest(sub_status=SubStatus.COMPLETED), read=2.0)
        finally:
            self.child.close()
            self.client.close()
