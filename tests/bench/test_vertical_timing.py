"""The suite of vertical training measures two real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
pytest.importorskip("gmpy2")
from fedarena.bench.vertical import FULL, ROWS, _row, measure_training, missed_targets, print_rows, textbook_seconds
from fedarena.config.errors import PartyFailed
from fedarena.transport.certificates import make_vertical_keys


@pytest.mark.slow
def test_a_training_between_two_processes_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_vertical_keys(tmp_path / "keys", ["guest", "host"])
    found = measure_training(tmp_path, 300, ("exponents=short",), trees=1)
    assert 0 < found.seconds < 60
    assert 300 * 512 < found.bytes_up < 400 * 512, "a ciphertext of 512 bytes for each row, and little else"
    assert 0 < found.bytes_down < found.bytes_up
    assert min(found.guest_mb, found.host_mb) > 20
    print_rows([_row("here", 300, found.seconds, 0.03, found)])
    assert "300" in capsys.readouterr().out
    with pytest.raises(PartyFailed, match="no key 'nothing'"):
        measure_training(tmp_path, 300, ("nothing=1",))


def test_a_sample_of_the_textbook_costs_two_encryptions_at_least() -> None:
    assert textbook_seconds(2) > 2e-3


def test_missed_targets_are_named() -> None:
    assert missed_targets([_row(FULL, ROWS, 14.9, 0.03)]) == []
    assert "promised 15" in missed_targets([_row(FULL, ROWS, 15.1, 0.03)])[0]
    assert "promised 100" in missed_targets([_row(FULL, 1000, 1.0, 0.03)])[0], (
        "0.03 s a row against 0.001 is a ratio of 30"
    )
