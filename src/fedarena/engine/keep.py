"""What must survive a kill: server state and client memories, on disk after every round, each file replaced as a whole.

A memory is one file named by client and round. The one a client had before stays until the checkpoint of the new round
is written, so that at any moment the folder holds one complete round. Ten thousand clients cost disk, not memory.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedarena.engine.tree import UnknownType, assemble, dismantle, types_in, types_near
from fedarena.engine.work import Common, Memory
from fedarena.errors import CannotWrite, DataBroken
from fedarena.models.task import Buffers

HELD: set[Path] = set()  # folders at work in this process: the system's locks only tell processes apart
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a full disk or a forbidden folder into an error that says what is still safe."""
    try:
        yield
    except FileExistsError:  # a question of names, not of room
        raise
    except (OSError, SafetensorError) as error:
        number = getattr(error, "errno", None)
        full = number in FULL or "os error 28" in str(error).lower() or "os error 27" in str(error).lower()
        if full:
            raise CannotWrite(
                f"the disk is full: {path}",
                remedy="make room, then go on with --resume; the last finished round is safe",
            ) from error
        raise CannotWrite(
            f"cannot write {path}: {error}", remedy="choose a folder you may write to with --out"
        ) from error


def locked(file: int) -> bool:
    """Take a lock that ends with this process, however it ends, and that its workers do not inherit."""
    try:
        import fcntl
    except ImportError:  # no such locks on this platform: nothing is guarded
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def save_tree(path: Path, tree: Any) -> None:
    """Write a tree to one file, atomically."""
    arrays: dict[str, Any] = {}
    plain = json.dumps(dismantle(tree, arrays))
    temporary = path.with_suffix(".tmp")
    with writing(path):
        try:
            contiguous = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
            save_file(contiguous, temporary, metadata={"tree": plain})
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def load_tree(path: Path, types: dict[str, type]) -> Any:
    """Read it back; nothing in the file is executed."""
    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return assemble(json.loads(file.metadata()["tree"]), arrays, types)
    except UnknownType as error:
        raise DataBroken(
            f"{path} holds a '{error}', and no such class is in sight",
            remedy="define the classes of your algorithm's state beside it, at the top of a module",
            where="checkpoint",
        ) from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise DataBroken(
            f"{path} is damaged: {error}", remedy="start the run anew in another folder", where="checkpoint"
        ) from error


@dataclass(frozen=True)
class Snapshot:
    """Everything the loop needs to go on after a round."""

    round: int  # completed
    state: Any
    buffers: Buffers
    totals: dict[str, float]
    client_accuracy: NDArray[np.float64]  # at the last evaluation, NaN where a client has no test rows
    noted: dict[str, Any] = field(default_factory=dict)  # troubles so far: how often, and the first case
    queue: Any = None  # who is at work, where clients keep no rounds (engine/events.py)
    spent: dict[Any, int] = field(default_factory=dict)  # privacy: what was released, and how often


class Keeper:
    """The checkpoint folder of a run. One that nobody will resume holds only what clients remember."""

    def __init__(self, folder: Path, algorithm: Any, resumable: bool = True) -> None:
        self.folder, self.resumable = folder, resumable
        self._types: dict[str, type] = {
            **types_near(algorithm),
            **{t.__qualname__: t for t in (Snapshot, Buffers, Memory, Common)},
        }
        self._at: dict[int, int] = {}  # client -> round of its newest memory
        self._old: list[Path] = []
        with writing(folder):
            (folder / "clients").mkdir(parents=True, exist_ok=True)
            self._place = folder.resolve()
            busy = self._place in HELD
            if not busy:
                self._lock = (folder / "lock").open("w")
                busy = not locked(self._lock.fileno())
        if busy:
            raise CannotWrite(
                f"another process is at work in {folder.parent}", remedy="wait for it, or choose another folder"
            )
        HELD.add(self._place)

    def close(self) -> None:
        """Let others have the folder."""
        self._lock.close()
        HELD.discard(self._place)

    @classmethod
    def peek(cls, folder: Path, algorithm: Any, client: int) -> Memory | None:
        """What a client remembers at the end of a run, without touching anything."""
        rounds = [int(p.stem.partition("-")[2]) for p in (folder / "clients").glob(f"{client}-*.safetensors")]
        if not rounds:
            return None
        types = {**types_near(algorithm), **{t.__qualname__: t for t in (Buffers, Memory, Common)}}
        memory: Memory = load_tree(folder / "clients" / f"{client}-{max(rounds)}.safetensors", types)
        return memory

    def _memory_path(self, client: int, round: int) -> Path:
        return self.folder / "clients" / f"{client}-{round}.safetensors"

    def memory(self, client: int) -> Memory | None:
        """What the client remembers; None before its first round."""
        if client not in self._at:
            return None
        memory: Memory = load_tree(self._memory_path(client, self._at[client]), self._types)
        return memory

    def remember(self, client: int, round: int, memory: Memory) -> None:
        """Keep a client's memory of this round; valid once the round's snapshot is saved."""
        if not memory.holds_anything and client not in self._at:
            return
        self._types |= types_in(memory)
        save_tree(self._memory_path(client, round), memory)
        before = self._at.get(client, round)
        if before != round:
            self._old.append(self._memory_path(client, before))
        self._at[client] = round

    def save(self, snapshot: Snapshot, record: dict[str, Any]) -> None:
        """End of a round: log its record, write the snapshot, drop what is now out of date.

        A snapshot has a name of its own: renaming one file over another makes some file systems write it out at once.
        """
        if self.resumable:
            log = self.folder / "rounds.jsonl"
            with writing(log), log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            self._old.extend(self.folder.glob("server-*.safetensors"))
            save_tree(self.folder / f"server-{snapshot.round}.safetensors", snapshot)
        for path in self._old:
            path.unlink(missing_ok=True)
        self._old.clear()

    def load(self) -> tuple[Snapshot | None, list[dict[str, Any]]]:
        """The last complete round, with the records up to it; what a killed round left behind is removed."""
        rounds = [int(p.stem.partition("-")[2]) for p in self.folder.glob("server-*.safetensors")]
        newest = self.folder / f"server-{max(rounds, default=0)}.safetensors"
        snapshot: Snapshot | None = load_tree(newest, self._types) if rounds else None
        last = snapshot.round if snapshot else 0
        self._at.clear()
        for file in sorted((self.folder / "clients").glob("*")):
            client, _, rest = file.name.partition("-")
            round = rest.partition(".")[0]
            if not file.name.endswith(".safetensors") or int(round) > last:
                file.unlink(missing_ok=True)
            elif int(round) > self._at.get(int(client), 0):
                if int(client) in self._at:
                    self._memory_path(int(client), self._at[int(client)]).unlink(missing_ok=True)
                self._at[int(client)] = int(round)
            else:
                file.unlink(missing_ok=True)
        records = self._records(last) if self.resumable else []
        if len(records) != last:
            raise DataBroken(
                f"{self.folder / 'rounds.jsonl'} has {len(records)} of {last} rounds",
                remedy="start the run anew in another folder",
                where="checkpoint",
            )
        return snapshot, records

    def amend(self, records: list[dict[str, Any]]) -> None:
        """Replace the log."""
        log = self.folder / "rounds.jsonl"
        with writing(log):
            temporary = log.with_suffix(".tmp")
            temporary.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
            os.replace(temporary, log)

    def _records(self, last: int) -> list[dict[str, Any]]:
        log = self.folder / "rounds.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        kept = {}
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):  # a kill may have cut the last line
                record = json.loads(line)
                if record["round"] <= last:
                    kept[record["round"]] = record
        self.amend(list(kept.values()))
        return list(kept.values())
