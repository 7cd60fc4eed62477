"""The log of a run, rounds.jsonl, read while it grows: each line once, or a few lines of a long one for a glance."""

from __future__ import annotations

import json
import math
import os
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

Record = dict[str, Any]

COLUMNS: dict[str, Callable[[Record], Any]] = {
    "sent": lambda r: (r["bytes_up"] + r["bytes_down"]) / 1e6,
    **{
        name: lambda r, name=name: r[name]  # type: ignore[misc]
        for name in (
            "round", "accuracy", "loss", "train_loss", "best_accuracy", "weighted_accuracy", "client_worst",
            "uploads", "clock", "wall_seconds", "dropped",
        )
    },
}  # fmt: skip
WHOLE = 1 << 16  # bytes up to which a log is read whole for a glance
SAMPLES = 48  # places at which a longer one is looked at
STEP = 1 << 14  # bytes read at each of them
EVALUATED = re.compile(rb'(?<=\n).*"accuracy": \d.*(?=\n)')


class Log:
    """A column of numbers for each of `COLUMNS`, NaN where nothing is known; `read` adds what was appended since."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._forget()

    def _forget(self) -> None:
        self.columns = {name: array("d") for name in COLUMNS}
        self._at, self._inode = 0, -1

    def __getitem__(self, name: str) -> array[float]:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["round"])

    def read(self) -> Log:
        """Take in the lines that are complete by now; start again if it is another file than before."""
        try:
            with self.file.open("rb") as stream:
                stat = os.fstat(stream.fileno())
                if stat.st_ino != self._inode or stat.st_size < self._at:
                    self._forget()
                    self._inode = stat.st_ino
                stream.seek(self._at)
                new = stream.read()
        except OSError:
            self._forget()
            return self
        new = new[: new.rfind(b"\n") + 1]  # a line may still be on its way
        self._at += len(new)
        for record in _records(new):
            self._add(record)
        return self

    def _add(self, record: Record) -> None:
        row = {name: number(_value(column, record)) for name, column in COLUMNS.items()}
        if not math.isfinite(row["round"]):
            return
        known = self.columns["round"]
        if known and row["round"] <= known[-1]:  # a round was done again
            again = bisect_left(known, row["round"])
            for values in self.columns.values():
                del values[again:]
        for name, values in self.columns.items():
            values.append(row[name])


def glance(file: Path) -> list[tuple[float, float]]:
    """(round, accuracy) at some places along the log, in order: enough for a small picture, however long the log is."""
    seen: dict[float, float] = {}
    try:
        with file.open("rb") as stream:
            for lines in _places(stream, os.fstat(stream.fileno()).st_size):
                for record in _records(lines):
                    round, accuracy = number(record.get("round")), number(record.get("accuracy"))
                    if math.isfinite(round) and math.isfinite(accuracy):
                        seen[round] = accuracy
    except OSError:
        return []
    return sorted(seen.items())


def _places(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """The whole log, or an evaluated line at each of some places that are equally far apart, and the last one."""
    if size <= WHOLE:
        yield stream.read()
        return
    for k in range(SAMPLES):
        stream.seek((size - STEP) * k // (SAMPLES - 1))
        lines = (b"" if k else b"\n") + stream.read(STEP)
        if k == SAMPLES - 1:
            yield b"\n".join(EVALUATED.findall(lines)[-1:])
        elif found := EVALUATED.search(lines):
            yield found[0]


def _records(lines: bytes) -> Iterator[Record]:
    """What lines hold; one that is cut or damaged is passed over."""
    for line in lines.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def _value(column: Callable[[Record], Any], record: Record) -> Any:
    try:
        return column(record)
    except (KeyError, TypeError):
        return None


def number(value: Any) -> float:
    """A finite number, or NaN for anything else: what is in a folder may be anything."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return math.nan
    return float(value)
