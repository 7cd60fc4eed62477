"""The files of a checkpoint folder: how they are written, read and checked.

server-ROUND.safetensors           a snapshot; it names the client states it needs and carries its own hash
clients/CLIENT-ROUND.safetensors   the state of one client
rounds.jsonl                       the record of every round, one per line
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fedarena.common.files import writing
from fedarena.config.errors import DataBroken
from fedarena.engine.record import parse_records
from fedarena.engine.tensor_file import file_hash, write_tensors
from fedarena.models.pytree import UnknownType, from_plain, to_plain
from fedarena.models.task import Buffers

UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError)  # raised by damaged files


def save_tree(path: Path, tree: Any, *, hashed: bool = True, sync: bool = False) -> bytes:
    """Write a tree to one file, atomically, and return the file's hash (see `write_tensors`)."""
    arrays: dict[str, Any] = {}
    plain = json.dumps(to_plain(tree, arrays))
    with writing(path):
        return write_tensors(path, arrays, plain, hashed=hashed, sync=sync)


def load_tree(path: Path, types: dict[str, type], *, check: bool = True) -> Any:
    """Read a tree back, checked against the hash in its file if it has one; nothing in the file is executed."""
    try:
        if check:
            file_hash(path)
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return from_plain(json.loads(file.metadata()["tree"]), arrays, types)
    except UnknownType as error:
        raise DataBroken(
            f"{path} holds a '{error}', and no such class is defined",
            remedy="define the classes of your algorithm's state beside it, at the top of a module",
            where="checkpoint",
        ) from None
    except UNREADABLE as error:
        raise DataBroken(
            f"{path} is damaged: {error}", remedy="restore the file from a copy, or start a new run", where="checkpoint"
        ) from error


@dataclass(frozen=True)
class ClientFiles:
    """The files of client state that belong to a snapshot: for each its client, the round it was written in, its hash."""

    clients: NDArray[np.int64]
    rounds: NDArray[np.int64]
    hashes: NDArray[np.uint8]  # 32 bytes each

    @classmethod
    def none(cls) -> ClientFiles:
        """Return the table of no files."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 32), np.uint8))


@dataclass(frozen=True)
class Snapshot:
    """Everything the loop needs to continue after a round."""

    round: int  # completed
    state: Any
    buffers: Buffers
    totals: dict[str, float]
    client_accuracy: NDArray[np.float64]  # at the last evaluation, NaN where a client has no test rows
    noted: dict[str, Any] = field(default_factory=dict)  # problems so far: kind -> count, first case
    queue: Any = None  # trainings under way, for asynchronous algorithms (engine/async_loop.py)
    spent: dict[Any, int] = field(default_factory=dict)  # privacy: release -> how often
    files: ClientFiles | None = None  # of client states, if there are any
    selection: dict[str, Any] = field(default_factory=dict)  # state of the rule that selects clients, if it has any
    log: tuple[str, ...] = ()  # SHA-256 of the log up to this round; two while its last line is being replaced

    @property
    def names_its_files(self) -> bool:
        """Return whether the snapshot lists the files it needs; those of early versions of fedarena do not."""
        return bool(self.log)


class DamagedCheckpoint(Exception):
    """A file that a snapshot needs is missing or is not the file that was written."""

    def __init__(self, file: Path, problem: str) -> None:
        super().__init__(f"{file} {problem}")


@dataclass(frozen=True)
class IntactSnapshot:
    """A snapshot of which every file is unchanged, with the records up to it."""

    snapshot: Snapshot | None = None  # None: round 0, before anything was saved
    files: ClientFiles = field(default_factory=ClientFiles.none)
    records: tuple[dict[str, Any], ...] = ()

    @property
    def round(self) -> int:
        """Return the last completed round."""
        return 0 if self.snapshot is None else self.snapshot.round


class CheckpointFolder:
    """Reads a checkpoint folder and checks what is in it, without changing anything."""

    def __init__(self, folder: Path, types: dict[str, type]) -> None:
        self.folder, self.types = folder, types

    @property
    def log(self) -> Path:
        """Return the file with the records of all rounds, one per line."""
        return self.folder / "rounds.jsonl"

    def state_path(self, client: int, round: int) -> Path:
        """Return the file of a client's state."""
        return self.folder / "clients" / f"{client}-{round}.safetensors"

    def snapshot_path(self, round: int) -> Path:
        """Return the file of a snapshot."""
        return self.folder / f"server-{round}.safetensors"

    def rounds(self) -> list[int]:
        """Return the rounds of all snapshots in the folder, the newest first."""
        names = [p.stem.partition("-")[2] for p in self.folder.glob("server-*.safetensors")]
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def lines(self) -> list[bytes]:
        """Return the complete lines of the log; a kill may have cut the last one."""
        try:
            text = self.log.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataBroken(
                f"{self.log} cannot be read: {error}", remedy="restore the file from a copy", where="checkpoint"
            ) from error
        return text[: text.rfind(b"\n") + 1].splitlines(keepends=True)

    def last_intact(self) -> tuple[IntactSnapshot, DamagedCheckpoint | None]:
        """Return the newest round of which every file is unchanged, and the damage to the newest one."""
        lines, intact = self.lines(), IntactSnapshot()
        damage: DamagedCheckpoint | None = None
        for round in self.rounds():
            try:
                intact = self.check(round, lines)
                break
            except DamagedCheckpoint as found:
                damage = damage or found
        if damage is None and len(lines) > intact.round + 1:  # a record is logged after the snapshot before it
            damage = DamagedCheckpoint(self.snapshot_path(len(lines) - 1), "is missing")
        return intact, damage

    def check(self, round: int, lines: list[bytes]) -> IntactSnapshot:
        """Return the snapshot of this round if all files that it needs are unchanged, or raise `DamagedCheckpoint`."""
        snapshot, known = self.snapshot(round), lines[:round]
        if len(known) < round:
            raise DamagedCheckpoint(self.log, f"has {len(lines)} of {round} rounds")
        if snapshot.names_its_files and hashlib.sha256(b"".join(known)).hexdigest() not in snapshot.log:
            raise DamagedCheckpoint(self.log, f"is not the log of rounds 1 to {round}, its SHA-256 differs")
        try:
            parse_records(known)
        except ValueError as error:
            raise DamagedCheckpoint(self.log, f"is damaged: {error}") from error
        records = tuple(json.loads(line) for line in known)
        return IntactSnapshot(snapshot, self._checked_files(snapshot), records)

    def snapshot(self, round: int) -> Snapshot:
        """Return the snapshot of a round if it is unchanged, or raise `DamagedCheckpoint`."""
        path = self.snapshot_path(round)
        try:
            _, hashed = file_hash(path)
        except UNREADABLE as error:
            raise DamagedCheckpoint(path, f"is damaged: {error}") from error
        try:
            snapshot = load_tree(path, self.types, check=False)
        except DataBroken as error:
            if error.__cause__ is None:  # intact, but of a class that is not known here
                raise
            raise DamagedCheckpoint(path, f"is damaged: {error.__cause__}") from error
        if not isinstance(snapshot, Snapshot) or snapshot.round != round:
            raise DamagedCheckpoint(path, f"is not the snapshot of round {round}")
        if snapshot.names_its_files and not hashed:
            raise DamagedCheckpoint(path, "is damaged: its SHA-256 is missing")
        return snapshot

    def paths(self, round: int, files: ClientFiles | None) -> set[Path]:
        """Return the snapshot of a round and the client states in its table."""
        files = files or ClientFiles.none()
        pairs = zip(files.clients.tolist(), files.rounds.tolist(), strict=True)
        return {self.snapshot_path(round), *(self.state_path(*pair) for pair in pairs)}

    def _checked_files(self, snapshot: Snapshot) -> ClientFiles:
        """Return the table of a snapshot's client states if each file has the hash it should have."""
        if not snapshot.names_its_files:
            return self._found_files(snapshot.round)
        wanted = snapshot.files or ClientFiles.none()
        for client, round, digest in zip(wanted.clients.tolist(), wanted.rounds.tolist(), wanted.hashes, strict=True):
            if self._hash_of_state(client, round) != digest.tobytes():
                raise DamagedCheckpoint(self.state_path(client, round), f"is not the state that client {client} had")
        return wanted

    def _found_files(self, last: int) -> ClientFiles:
        """Return the newest states up to a round whose snapshot, of an early version, lists none."""
        newest: dict[int, int] = {}
        for file in (self.folder / "clients").glob("*-*.safetensors"):
            client, _, round = file.stem.partition("-")
            if client.isdecimal() and round.isdecimal() and int(round) <= last:
                newest[int(client)] = max(int(round), newest.get(int(client), 0))
        found = sorted(newest.items())
        hashes = b"".join(self._hash_of_state(client, round) for client, round in found)
        clients, rounds = (np.array([pair[i] for pair in found], np.int64) for i in (0, 1))
        return ClientFiles(clients, rounds, np.frombuffer(hashes, np.uint8).reshape(-1, 32))

    def _hash_of_state(self, client: int, round: int) -> bytes:
        path = self.state_path(client, round)
        try:
            return file_hash(path)[0]
        except FileNotFoundError:
            raise DamagedCheckpoint(path, "is missing") from None
        except UNREADABLE as error:
            raise DamagedCheckpoint(path, f"is damaged: {error}") from error
