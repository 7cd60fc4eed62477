"""A log that grows, is cut, is damaged, is replaced: what is read is what it holds."""

from __future__ import annotations

import itertools
import json
import math
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fedarena.ui import log as logs
from fedarena.ui.log import Log, glance


def line(round: int, accuracy: float | None = 0.5) -> bytes:
    return json.dumps({"round": round, "accuracy": accuracy, "bytes_up": 1_000_000, "bytes_down": 500_000}).encode()


def test_only_whole_lines_count(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"
    file.write_bytes(line(1) + b"\n" + line(2)[:9])
    log = Log(file)
    assert list(log.read()["round"]) == [1]
    with file.open("ab") as stream:
        stream.write(line(2)[9:] + b"\n")
    assert list(log.read()["round"]) == [1, 2]
    assert list(log["sent"]) == [1.5, 1.5]
    assert math.isnan(log["loss"][0])


def test_what_was_read_is_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"
    file.write_bytes(line(1) + b"\n")
    log = Log(file).read()
    with file.open("r+b") as stream:  # the same length and the same file: only somebody who reads it again can tell
        stream.write(line(7))
        stream.seek(0, os.SEEK_END)
        stream.write(line(8) + b"\n")
    assert list(log.read()["round"]) == [1, 8]


def test_a_log_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    file, other = tmp_path / "rounds.jsonl", tmp_path / "other"
    file.write_bytes(b"".join(line(n) + b"\n" for n in (1, 2, 3)))
    log = Log(file).read()
    other.write_bytes(line(1) + b"\n" + line(2, 0.75) + b"\n")
    os.replace(other, file)
    assert list(log.read()["accuracy"]) == [0.5, 0.75]
    file.unlink()
    assert len(log.read()) == 0


def test_a_round_that_was_done_again_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"
    file.write_bytes(b"".join(line(n, a) + b"\n" for n, a in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 0.9))))
    log = Log(file).read()
    assert list(log["round"]) == [1, 2]
    assert list(log["accuracy"]) == [0.1, 0.9]


@given(st.binary(max_size=300))
def test_any_bytes_can_be_read(tmp_path_factory, junk: bytes) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path_factory.mktemp("junk") / "rounds.jsonl"
    file.write_bytes(line(1) + b"\n" + junk + b"\n" + line(2) + b"\n")
    assert list(Log(file).read()["round"])[-1] == 2
    assert glance(file)[-1] == (2, 0.5)


def test_a_glance_at_a_long_log_sees_its_shape_and_reads_little(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"
    text = b"".join(line(n, n / 20_000 if n % 3 == 0 else None) + b" " * 300 + b"\n" for n in range(1, 20_001))
    file.write_bytes(text)
    seen = glance(file)
    assert len(seen) == logs.SAMPLES
    assert seen[-1] == (19_998, 19_998 / 20_000)
    assert all(accuracy == round / 20_000 for round, accuracy in seen)
    gaps = [b - a for (a, _), (b, _) in itertools.pairwise(seen)]
    assert max(gaps) < 2 * 20_000 / logs.SAMPLES
    assert len(text) > 9 * logs.SAMPLES * logs.STEP
