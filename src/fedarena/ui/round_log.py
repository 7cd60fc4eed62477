"""Read the log of a run, rounds.jsonl, while it grows: each line once, or a sample of lines for a sparkline."""

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

from fedarena.common.locks import open_regular

Opener = Callable[[Path], BinaryIO]
Record = dict[str, Any]

COLUMNS = (
    "sent", "round", "accuracy", "loss", "train_loss", "best_accuracy", "weighted_accuracy", "client_worst", "metric",
    "uploads", "clock", "wall_seconds", "dropped",
)  # fmt: skip
LARGEST = 16 << 20  # bytes that are read at once; of a longer log only the end is read
LINE = 1 << 20  # bytes of a line; a longer one is skipped
ROUNDS = 100_000  # held at most, the last ones
WHOLE = 1 << 16  # bytes up to which a log is read whole for a sparkline
SAMPLES = 48  # places at which a longer one is sampled
STEP = 1 << 14  # bytes read at each of them
EVALUATED = re.compile(rb'(?<=\n).*"accuracy": \d.*(?=\n)')


class RoundLog:
    """A column of numbers for each of `COLUMNS`, NaN where nothing is known; `read` adds what was appended since."""

    def __init__(self, file: Path, open_file: Opener = open_regular) -> None:
        self.file, self._open = file, open_file
        self._reset()

    def _reset(self) -> None:
        self.columns = {name: array("d") for name in COLUMNS}
        self._at, self._inode = 0, -1
        self.is_cut = False  # the log was too long, and its beginning is not here

    def __getitem__(self, name: str) -> array[float]:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["round"])

    def read(self) -> RoundLog:
        """Read the lines that are complete by now; start again if it is another file than before."""
        try:
            with self._open(self.file) as stream:
                stat = os.fstat(stream.fileno())
                if stat.st_ino != self._inode or stat.st_size < self._at:
                    self._reset()
                if stat.st_size - self._at > LARGEST:
                    self._reset()
                    self._at, self.is_cut = stat.st_size - LARGEST, True
                self._inode = stat.st_ino
                stream.seek(self._at)
                self._read_lines(stream)
        except OSError:
            self._reset()
        return self

    def continued(self) -> RoundLog:
        """Return a copy that has also read what was appended since; this one stays as it is."""
        later = RoundLog(self.file, self._open)
        later.columns = {name: values[:] for name, values in self.columns.items()}
        later._at, later._inode, later.is_cut = self._at, self._inode, self.is_cut
        return later.read()

    def _read_lines(self, stream: BinaryIO) -> None:
        """Read to the last line that is complete."""
        length = 0
        while part := stream.readline(LINE):
            length += len(part)
            if part.endswith(b"\n"):
                if length == len(part):
                    for record in _records(part):
                        self._add(record)
                self._at += length
                length = 0

    def _add(self, record: Record) -> None:
        row = {name: number(record.get(name)) for name in COLUMNS}
        row["sent"] = (number(record.get("bytes_up")) + number(record.get("bytes_down"))) / 1e6
        if not math.isfinite(row["round"]):
            return
        known = self.columns["round"]
        if known and row["round"] <= known[-1]:  # a round was done again
            again = bisect_left(known, row["round"])
            for values in self.columns.values():
                del values[again:]
        for name, values in self.columns.items():
            values.append(row[name])
        if len(known) > ROUNDS * 5 // 4:  # not at every line: it moves all rows
            self.is_cut = True
            for values in self.columns.values():
                del values[:-ROUNDS]


def sample_log(file: Path, open_file: Opener = open_regular) -> list[tuple[float, float]]:
    """Return (round, accuracy) at some places along the log, in order: enough for a sparkline of a log of any length."""
    seen: dict[float, float] = {}
    try:
        with open_file(file) as stream:
            for lines in _places(stream, os.fstat(stream.fileno()).st_size):
                for record in _records(lines):
                    round, accuracy = number(record.get("round")), number(record.get("accuracy"))
                    if math.isfinite(round) and math.isfinite(accuracy):
                        seen[round] = accuracy
    except OSError:
        return []
    return sorted(seen.items())


def _places(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the whole log, or an evaluated line at each of some places that are equally far apart, and the last one."""
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
    """Yield the records in lines; one that is cut or damaged is skipped."""
    for line in lines.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def number(value: Any) -> float:
    """Return a finite number, or NaN for anything else that a file may hold."""
    if type(value) is float:
        return value if math.isfinite(value) else math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        known = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.nan
    return known if math.isfinite(known) else math.nan


def finite(value: Any) -> float | None:
    """Return a finite number, or None for anything else that a file may hold."""
    known = number(value)
    return None if math.isnan(known) else known
