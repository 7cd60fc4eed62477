"""Checkpoints: the server's snapshot and the clients' states, on disk after every round, each file written as a whole.

A client's state is one file named by client and round. A snapshot names every such file it needs with its SHA-256, and the
hash of the log up to its round; it carries its own hash. So a file that is missing or was changed is found on resume.
Every few seconds a snapshot is synced to the disk. It stays, with its files, until a later one has been synced and another
round is saved: an earlier complete round to fall back to. Ten thousand clients cost disk, not memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.common.files import atomic_write, writing
from fedarena.common.folder_lock import hold_folder
from fedarena.config.errors import DataBroken
from fedarena.engine.checkpoint_files import (
    CheckpointFolder,
    ClientFiles,
    DamagedCheckpoint,
    IntactSnapshot,
    Snapshot,
    load_tree,
    save_tree,
)
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.task_metrics import FinalMetrics, UnseenMetrics
from fedarena.engine.tensor_file import sync_path
from fedarena.engine.validated_round import ValidatedRound, ValidatedSnapshot
from fedarena.models.pytree import types_in, types_near
from fedarena.models.task import Buffers

SYNC_SECONDS = 10.0  # at least, between two syncs to the disk
SYNC_SHARE = 0.01  # largest share of the time that is spent in them
RUN_FILES = ("experiment.toml", "versions.json", "partition.npz")  # without which a run cannot be resumed


def stored_types(algorithm: Any) -> dict[str, type]:
    """Return the classes that the files of a checkpoint may be made of, by name."""
    metrics = (ValidatedRound, FinalMetrics, UnseenMetrics)
    return types_near(algorithm, Snapshot, ValidatedSnapshot, *metrics, ClientFiles, Buffers, ClientState, Broadcast)


class CheckpointStore:
    """The checkpoint folder of a run. One that will not be resumed holds only the clients' states.

    `from_intact` says what to do about a damaged newest round: refuse it (False), continue from the last intact round
    (True), or refuse it without offering that (None).
    """

    def __init__(self, folder: Path, algorithm: Any, resumable: bool = True, from_intact: bool | None = False) -> None:
        self.folder, self.resumable, self.from_intact = folder, resumable, from_intact
        self._types = stored_types(algorithm)
        self.files = CheckpointFolder(folder, self._types)
        self._loaded: IntactSnapshot | None = None
        self._last: Snapshot | None = None  # saved
        self._durable = 0  # newest round that is synced to the disk
        self._rounds = np.zeros(0, np.int64)  # of each client's newest state, 0 without one
        self._hashes = np.zeros((0, 32), np.uint8)  # of the same files
        self._log = hashlib.sha256()
        self._old: list[Path] = []  # to be removed once the next snapshot is saved
        self._fallback: list[Path] = []  # replaced since, but needed by the durable snapshot
        self._due = time.monotonic() + SYNC_SECONDS
        with writing(folder):
            (folder / "clients").mkdir(parents=True, exist_ok=True)
        self._lock = contextlib.ExitStack()
        self._lock.enter_context(hold_folder(folder))

    def close(self) -> None:
        """Release the lock on the folder."""
        self._lock.close()

    @classmethod
    def read_client_state(cls, folder: Path, algorithm: Any, client: int) -> ClientState | None:
        """Return a client's state at the end of a run, without changing any file."""
        rounds = [int(p.stem.partition("-")[2]) for p in (folder / "clients").glob(f"{client}-*.safetensors")]
        if not rounds:
            return None
        path = CheckpointFolder(folder, {}).state_path(client, max(rounds))
        state: ClientState = load_tree(path, stored_types(algorithm))
        return state

    # Client states

    def client_state(self, client: int) -> ClientState | None:
        """Return the client's newest state; None before its first round."""
        if client >= len(self._rounds) or not self._rounds[client]:
            return None
        path = self.files.state_path(client, int(self._rounds[client]))
        state: ClientState = load_tree(path, self._types, check=False)
        return state

    def save_client_state(self, client: int, round: int, state: ClientState) -> None:
        """Save a client's state of this round; it is valid once the round's snapshot is saved."""
        before = int(self._rounds[client]) if client < len(self._rounds) else 0
        if not state.holds_anything and not before:
            return
        self._types |= types_in(state)
        digest = save_tree(self.files.state_path(client, round), state, hashed=self.resumable)
        if before not in (0, round):
            replaced = self._fallback if before <= self._durable else self._old
            replaced.append(self.files.state_path(client, before))
        if client >= len(self._rounds):
            more = max(client + 1 - len(self._rounds), len(self._rounds))
            self._rounds = np.append(self._rounds, np.zeros(more, np.int64))
            self._hashes = np.append(self._hashes, np.zeros((more, 32), np.uint8), axis=0)
        self._rounds[client] = round
        if digest:
            self._hashes[client] = np.frombuffer(digest, np.uint8)

    def _client_files(self) -> ClientFiles | None:
        """Return the table of all newest states, if there are any."""
        if not len(self._rounds):
            return None
        clients = np.flatnonzero(self._rounds)
        return ClientFiles(clients, self._rounds[clients], self._hashes[clients])

    # Snapshots

    def save(self, snapshot: Snapshot, record: dict[str, Any]) -> None:
        """Save a round: log its record, write the snapshot, remove files that no remaining snapshot needs.

        A snapshot has a name of its own: renaming one file over another makes some file systems write it out at once.
        """
        self._loaded = None
        if self.resumable:
            line = (json.dumps(record) + "\n").encode()
            with writing(self.files.log), self.files.log.open("ab") as file:
                file.write(line)
            self._log.update(line)
            snapshot = replace(snapshot, files=self._client_files(), log=(self._log.hexdigest(),))
            save_tree(self.files.snapshot_path(snapshot.round), snapshot)
            if self._last is not None and self._last.round != self._durable:
                self._old.append(self.files.snapshot_path(self._last.round))
            self._last = snapshot
        for path in self._old:
            path.unlink(missing_ok=True)
        self._old.clear()
        if self.resumable and time.monotonic() >= self._due:
            self._sync()

    def replace_log(self, records: list[dict[str, Any]]) -> None:
        """Replace the log; the last snapshot first accepts both logs, so that a kill in between does no harm."""
        text = "".join(json.dumps(r) + "\n" for r in records).encode()
        changed = hashlib.sha256(text)
        if self._last is not None and self._last.names_its_files:
            both = replace(self._last, log=(self._log.hexdigest(), changed.hexdigest()))
            save_tree(self.files.snapshot_path(both.round), both, sync=True)
        self._write_log(text)

    def _write_log(self, text: bytes) -> None:
        with atomic_write(self.files.log, sync=True) as file:
            file.write(text)
        self._log = hashlib.sha256(text)

    def sync_results(self, *results: Path) -> None:
        """Sync a finished run and its results to the disk, unless it was shorter than the time between syncs."""
        if self.resumable and (self._durable or time.monotonic() >= self._due):
            self._sync(*results)

    def _sync(self, *results: Path) -> None:
        """Make the last snapshot and all its files survive a loss of power, as a round to fall back to."""
        if self._last is None:
            return
        began, run = time.monotonic(), self.folder.parent
        fresh = np.flatnonzero(self._rounds > self._durable).tolist()
        paths = [self.files.state_path(client, int(self._rounds[client])) for client in fresh]
        paths += [self.files.snapshot_path(self._last.round), self.files.log, *(run / name for name in RUN_FILES)]
        folders = (self.folder / "clients", self.folder, run, run.absolute().parent)
        with writing(self.folder):
            for path in (*paths, *results, *folders):
                sync_path(path)
        if self._durable not in (0, self._last.round):
            self._old += [*self._fallback, self.files.snapshot_path(self._durable)]
            self._fallback.clear()
        self._durable = self._last.round
        now = time.monotonic()
        self._due = now + max(SYNC_SECONDS, (now - began) / SYNC_SHARE)

    # Resuming

    def load(self) -> tuple[Snapshot | None, list[dict[str, Any]]]:
        """Return the last complete round, with the records up to it, and remove the files of a killed round."""
        if self._loaded is None:
            self._loaded = self._recover() if self.resumable else IntactSnapshot()
            self._continue_from(self._loaded)
        return self._loaded.snapshot, list(self._loaded.records)

    def _recover(self) -> IntactSnapshot:
        """Find the round to continue from; damage to a later one is an error unless `from_intact`."""
        intact, damage = self.files.last_intact()
        if damage is None or self.from_intact:
            return intact
        last = f"round {intact.round}" if intact.round else "round 0, no saved round is intact"
        resume = f"continue from round {intact.round}" if intact.round else "start over in the same folder"
        offered = f"{resume}: fedarena run --resume {self.folder.parent} --from-intact"
        raise DataBroken(
            f"{damage}; the last intact round is {last}",
            remedy=f"restore the file from a copy, or {'start a new run' if self.from_intact is None else offered}",
            where="checkpoint",
        )

    def _continue_from(self, intact: IntactSnapshot) -> None:
        """Remove files that belong to no complete round; the round before stays until the next one is saved."""
        self._last, table = intact.snapshot, intact.files
        size = int(table.clients.max(initial=-1)) + 1
        self._rounds, self._hashes = np.zeros(size, np.int64), np.zeros((size, 32), np.uint8)
        self._rounds[table.clients], self._hashes[table.clients] = table.rounds, table.hashes
        needed, earlier = self.files.paths(intact.round, table), self._files_before(intact.round)
        for path in (*self.folder.glob("server-*"), *(self.folder / "clients").iterdir()):
            if path not in needed | earlier:
                path.unlink(missing_ok=True)
        self._old = sorted(earlier - needed)
        if self.resumable:
            text = b"".join(self.files.lines()[: intact.round])
            if (self.files.log.read_bytes() if self.files.log.exists() else b"") != text:
                self._write_log(text)
            self._log = hashlib.sha256(text)
            if self._last is not None and not self._last.names_its_files:  # of an earlier version of fedarena
                self._last = replace(self._last, files=self._client_files(), log=(self._log.hexdigest(),))
                save_tree(self.files.snapshot_path(self._last.round), self._last, sync=True)
            self._sync()

    def _files_before(self, last: int) -> set[Path]:
        """Return the files of the newest snapshot before a round, if they are intact."""
        for round in [round for round in self.files.rounds() if round < last][:1]:
            with contextlib.suppress(DamagedCheckpoint):
                return self.files.paths(round, self.files.check(round, self.files.lines()).files)
        return set()
