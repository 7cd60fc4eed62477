"""The suite of vertical training: the time of a tree, the gain of each optimisation of SecureBoost+, and a baseline.

Everything is measured in one run on one machine: a guest and a host in processes of their own, over TLS, on synthetic
columns. The baseline is textbook SecureBoost with gmpy2: g and h encrypted one by one, every bin of every node summed and
decrypted. It is measured on few samples, and compared by the time that one sample takes.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.bench.runtimes import free_port
from fedarena.bench.table_format import Row, print_table, read_tables
from fedarena.common.optional_imports import import_optional
from fedarena.config.errors import PartyFailed
from fedarena.transport.certificates import make_vertical_keys
from fedarena.vertical.model import GuestModel

LOGGER = logging.getLogger(__name__)
ROWS, COLUMNS, DEPTH, BINS = 150_000, 5, 5, 32
SUBSET = 20_000
TEXTBOOK_ROWS = 100
FULL, SHORT = "SecureBoost+, full exponents", "SecureBoost+, short exponents"
PROMISED = {FULL: 15.0, SHORT: 6.0}  # seconds a tree
LEAST_RATIO = 100.0
EVERY_BIT = 2 * 2047  # that a guest can read of a candidate split: without compression a host must allow it
SWITCHES = {
    "all shortcuts": (),
    "without packing": ("packing=false",),
    "without subtraction": ("subtraction=false",),
    "without compression": ("compression=false",),
    "without sparse bins": ("sparse=false",),
    "with GOSS": ("goss=true",),
    "mix trees": ("tree_mode=mix",),
    "layered trees": ("tree_mode=layered",),
    "short exponents": ("exponents=short",),
}
CLASSES = {"3 classes, a tree for each": (), "3 classes, multi-output": ("multi_output=true",)}


@dataclass(frozen=True)
class MeasuredTraining:
    """The measurements of one training between two processes."""

    seconds: float  # a tree
    bytes_up: int  # a tree
    bytes_down: int
    guest_mb: float  # peak memory of the process
    host_mb: float


def measure(names: Sequence[str], repetitions: int) -> list[Row]:
    """Return a row for each design; the large ones train as many trees as there are repetitions."""
    LOGGER.info(f"textbook SecureBoost, {TEXTBOOK_ROWS} rows")
    plain = textbook_seconds(TEXTBOOK_ROWS)
    found = [_row("textbook SecureBoost, gmpy2", TEXTBOOK_ROWS, plain * TEXTBOOK_ROWS, plain)]
    with tempfile.TemporaryDirectory() as folder:
        make_vertical_keys(Path(folder) / "keys", ["guest", "host"])
        for design, options in {FULL: (), SHORT: ("exponents=short",)}.items():
            LOGGER.info(f"{design}, {ROWS:,} rows")
            measured = measure_training(Path(folder), ROWS, options, trees=repetitions)
            found.append(_row(design, ROWS, measured.seconds, plain, measured))
        for classes, designs in ((2, SWITCHES), (3, CLASSES)):
            for design, options in designs.items():
                LOGGER.info(f"{design}, {SUBSET:,} rows")
                each = 1 if classes == 2 or "multi_output=true" in options else classes  # a round is a tree for each
                measured = measure_training(Path(folder), SUBSET, options, classes=classes, trees=4, per_round=each)
                found.append(_row(design, SUBSET, measured.seconds, plain, measured))
    return found


def _row(design: str, rows: int, seconds: float, plain: float, more: MeasuredTraining | None = None) -> Row:
    return {
        "work": "vertical",
        "design": design,
        "rows": rows,
        "seconds_per_tree": seconds,
        "samples_per_second": rows / seconds,
        "ratio_to_plain": plain / (seconds / rows),
        "bytes_up": more and more.bytes_up,
        "bytes_down": more and more.bytes_down,
        "roofline_percent": None,
        "memory_mb": more and more.guest_mb + more.host_mb,
        "promised_seconds": PROMISED.get(design) if rows == ROWS else None,
        "floor": LEAST_RATIO if design in PROMISED else None,
    }


def missed_targets(rows: Sequence[Row]) -> list[str]:
    """Return a message for each target that these rows miss."""
    missed = []
    for row in rows:
        if row["promised_seconds"] is not None and row["seconds_per_tree"] > row["promised_seconds"]:
            missed.append(
                f"{row['design']}: {row['seconds_per_tree']:.1f} s a tree, promised {row['promised_seconds']:g}"
            )
        if row["floor"] is not None and row["ratio_to_plain"] < row["floor"]:
            missed.append(f"{row['design']}: {row['ratio_to_plain']:.0f} times the textbook, promised {row['floor']:g}")
    return missed


def print_rows(rows: Sequence[Row]) -> None:
    """Print the measured rows as a table."""
    for title, columns in read_tables("vertical", DEPTH=DEPTH, COLUMNS=COLUMNS).values():
        print_table(title, columns, rows, left=("design",))
    print(" ratio: rows a second to those of the textbook protocol on gmpy2")


# Two processes


def measure_training(
    folder: Path, rows: int, options: Sequence[str], *, classes: int = 2, trees: int = 3, per_round: int = 1
) -> MeasuredTraining:
    """Train on synthetic columns between a guest and a host in processes of their own."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        _write_tables(Path(place), rows, classes)
        port = free_port()
        settings = [word for option in options for word in ("--set", option)]
        own = ["--trees", str(trees), "--depth", str(DEPTH), "--set", f"bins={BINS}", "--test-share", "0", *settings]
        own_host = ["--listen", f"127.0.0.1:{port}", "--most-bits", str(EVERY_BIT)]
        host = _start(place, folder, "host", own_host)
        try:
            guest = _start(place, folder, "guest", ["--peers", f"host=127.0.0.1:{port}", *own])
            guest_mb = _ended(guest, place)
            host_mb = _ended(host, place)
        except BaseException:
            host.kill()
            raise
        history = GuestModel.load(Path(place) / "guest-model").history
    seconds = [h["seconds"] for h in history]
    rounds = [sum(seconds[i : i + per_round]) for i in range(0, len(seconds), per_round)]
    up, down = (sum(h[way] for h in history) // len(rounds) for way in ("bytes_up", "bytes_down"))
    settled = rounds[-2:]  # the first makes tables of powers; two, because mix trees alternate
    return MeasuredTraining(sum(settled) / len(settled), up, down, guest_mb, host_mb)


def _write_tables(folder: Path, rows: int, classes: int) -> None:
    """Write columns that each predict the label weakly, the same in every run."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2 * COLUMNS)).astype(np.float32)
    score = x @ rng.normal(size=2 * COLUMNS) + rng.normal(size=rows)
    y = np.digitize(score, np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1]))
    for name, own in (("guest", x[:, :COLUMNS]), ("host", x[:, COLUMNS:])):
        names = [f"{name} {i}" for i in range(COLUMNS)]
        labels: dict[str, Any] = {"y": y} if name == "guest" else {}
        np.savez(folder / f"{name}.npz", X=own, feature_names=names, **labels)


def _start(place: str, folder: Path, party: str, options: Sequence[str]) -> subprocess.Popen[bytes]:
    words = ["train", f"{party}.npz", "--party", party, "--keys", str(folder / "keys" / party)]
    command = [sys.executable, "-m", "fedarena", "vertical", *words, "--out", f"{party}-model", "-q", *options]
    with (Path(place) / f"{party}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=place, stdout=log, stderr=log)


def _ended(process: subprocess.Popen[bytes], place: str) -> float:
    """Wait for a party and return its peak memory in megabytes, NaN if the system does not say."""
    peak = math.nan
    if hasattr(os, "wait4"):
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        peak = used.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)  # bytes there, else kilobytes
    else:
        process.wait()
    if process.returncode:
        log = "\n".join(path.read_text(errors="replace") for path in sorted(Path(place).glob("*.log")))
        raise PartyFailed(f"a party ended with exit code {process.returncode}:\n{log}", remedy="see its messages above")
    return peak


# The textbook


def textbook_seconds(rows: int) -> float:
    """Return the seconds of one sample in a tree of textbook SecureBoost on one core; decryption is not counted."""
    gmpy2 = import_optional("gmpy2", needed_by="textbook SecureBoost", install="'fedarena[vertical]'")
    from fedarena.vertical.crypto.keys import generate

    n = gmpy2.mpz(generate(2048).public.n)
    square = n * n
    codes = np.random.default_rng(0).integers(0, BINS, size=(COLUMNS, rows)).tolist()
    began = time.perf_counter()
    for _ in ("g", "h"):
        drawn = [(secrets.randbits(53), secrets.randbelow(int(n) - 1) + 1) for _ in range(rows)]
        row = [(1 + m * n) * gmpy2.powmod(r, n, square) % square for m, r in drawn]
        for _ in range(DEPTH):
            for column in codes:
                sums = [gmpy2.mpz(1)] * BINS
                for code, c in zip(column, row, strict=True):
                    sums[code] = sums[code] * c % square
    return (time.perf_counter() - began) / rows
