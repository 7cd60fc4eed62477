"""A log that grows, is cut, is damaged, is replaced: what is read is what it holds."""

from __future__ import annotations

import itertools
import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena.ui import round_log as logs
from fedarena.ui.round_log import RoundLog, sample_log


def line(round: int, accuracy: float | None = 0.5) -> bytes:
    return json.dumps({"round": round, "accuracy": accuracy, "bytes_up": 1_000_000, "bytes_down": 500_000}).encode()


def test_only_whole_lines_count(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"
    file.write_bytes(line(1) + b"\n" + line(2)[:9])
    log = RoundLog(file)
    assert list(log.read()["round"]) == [1]
    with file.open("ab") as stream:
        stream.write(line(2)[9:] + b"\n")
    assert list(log.read()["round"]) == [1, 2]
    assert list(log["sent"]) == [1.5, 1.5]
    assert math.isnan(log["loss"][0])


def test_what_was_read_is_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"
    file.write_bytes(line(1) + b"\n")
    log = RoundLog(file).read()
    with file.open("r+b") as stream:  # the same length and the same file: only a second reading shows the difference
        stream.write(line(7))
        stream.seek(0, os.SEEK_END)
        stream.write(line(8) + b"\n")
    assert list(log.read()["round"]) == [1, 8]


def test_a_log_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    file, other = tmp_path / "rounds.jsonl", tmp_path / "other"
    file.write_bytes(b"".join(line(n) + b"\n" for n in (1, 2, 3)))
    log = RoundLog(file).read()
    other.write_bytes(line(1) + b"\n" + line(2, 0.75) + b"\n")
    os.replace(other, file)
    assert list(log.read()["accuracy"]) == [0.5, 0.75]
    file.unlink()
    assert len(log.read()) == 0


def test_a_round_that_was_done_again_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"
    file.write_bytes(b"".join(line(n, a) + b"\n" for n, a in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 0.9))))
    log = RoundLog(file).read()
    assert list(log["round"]) == [1, 2]
    assert list(log["accuracy"]) == [0.1, 0.9]


@given(st.binary(max_size=300))
def test_any_bytes_can_be_read(tmp_path_factory, junk: bytes) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path_factory.mktemp("junk") / "rounds.jsonl"
    file.write_bytes(line(1) + b"\n" + junk + b"\n" + line(2) + b"\n")
    assert list(RoundLog(file).read()["round"])[-1] == 2
    assert sample_log(file)[-1] == (2, 0.5)


def test_a_glance_at_a_long_log_sees_its_shape_and_reads_little(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"
    text = b"".join(line(n, n / 20_000 if n % 3 == 0 else None) + b" " * 300 + b"\n" for n in range(1, 20_001))
    file.write_bytes(text)
    seen = sample_log(file)
    assert len(seen) == logs.SAMPLES
    assert seen[-1] == (19_998, 19_998 / 20_000)
    assert all(accuracy == round / 20_000 for round, accuracy in seen)
    gaps = [b - a for (a, _), (b, _) in itertools.pairwise(seen)]
    assert max(gaps) < 2 * 20_000 / logs.SAMPLES
    assert len(text) > 9 * logs.SAMPLES * logs.STEP


def test_a_very_long_log_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LARGEST", 50 * len(line(1000)))
    file = tmp_path / "rounds.jsonl"
    file.write_bytes(b"".join(line(n) + b"\n" for n in range(1000, 2000)))
    log = RoundLog(file).read()
    assert log.is_cut
    assert list(log["round"]) == list(range(2000 - len(log), 2000))
    assert 40 <= len(log) <= 50
    with file.open("ab") as stream:
        stream.write(line(2000) + b"\n")
    assert log.read()["round"][-1] == 2000
    file.write_bytes(line(1) + b"\n")
    assert (list(log.read()["round"]), log.is_cut) == ([1], False)


def test_only_the_last_of_many_rounds_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "ROUNDS", 100)
    file = tmp_path / "rounds.jsonl"
    file.write_bytes(b"".join(line(n) + b"\n" for n in range(1, 1001)))
    log = RoundLog(file).read()
    assert log.is_cut
    assert 100 <= len(log) <= 125
    assert list(log["round"]) == list(range(1001 - len(log), 1001))
    assert {len(log[name]) for name in logs.COLUMNS} == {len(log)}


def test_a_line_without_end_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LINE", 1000)
    file = tmp_path / "rounds.jsonl"
    file.write_bytes(line(1) + b"\n" + b" " * 5000 + line(2) + b"\n" + line(3) + b"\n" + b"x" * 5000)
    log = RoundLog(file).read()
    assert list(log["round"]) == [1, 3]
    with file.open("ab") as stream:
        stream.write(b"\n" + line(4) + b"\n")
    assert list(log.read()["round"]) == [1, 3, 4]


def test_a_copy_reads_on_and_leaves_the_first_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"
    file.write_bytes(line(1) + b"\n")
    log = RoundLog(file).read()
    with file.open("ab") as stream:
        stream.write(line(2) + b"\n")
    assert list(log.continued()["round"]) == [1, 2]
    assert list(log["round"]) == [1]
