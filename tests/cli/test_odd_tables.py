"""Damaged and odd tables: each ends with one message that names the file and the column, exit code 2 and no traceback."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from fedarena.cli.main import app

ROWS = 24
GOOD = "age,ward,ill\n" + "".join(f"{20 + i},{'AB'[i % 2]},{'no' if i % 3 else 'yes'}\n" for i in range(ROWS))


def changed(old: str, new: str, times: int = -1) -> str:
    text = GOOD.replace(old, new, times)
    assert text != GOOD
    return text


def with_column(name: str, values: Sequence[object]) -> str:
    """Return the good table with another column in front."""
    lines = GOOD.splitlines()
    cells = [name, *(values[i % len(values)] for i in range(ROWS))]
    return "\n".join(f"{cell},{line}" for cell, line in zip(cells, lines, strict=True)) + "\n"


class Odd(NamedTuple):
    """Files, the options of the command, and what its message must hold."""

    files: dict[str, str | bytes]
    words: tuple[str, ...]
    options: tuple[str, ...] = ("--label", "ill")


def one(content: str | bytes, *words: str, options: tuple[str, ...] = ("--label", "ill")) -> Odd:
    return Odd({"a.csv": content}, ("a.csv", *words), options)


def two(second: str | bytes, *words: str, options: tuple[str, ...] = ("--label", "ill")) -> Odd:
    return Odd({"a.csv": GOOD, "b.csv": second}, ("b.csv", *words), options)


TEST_ONLY = ["1.5" if i >= ROWS - 3 else "" for i in range(ROWS)]  # rows that are the latest, and so the test rows
ODD = {
    "empty file": one("", "cannot be used"),
    "header only": one("age,ward,ill\n", "no rows"),
    "no label is named": one(GOOD, "no label", "--label", options=()),
    "label column is absent": one(GOOD, "'il'", "did you mean 'ill'", options=("--label", "il")),
    "label is constant": one(changed(",yes", ",no"), "'ill'", "one class"),
    "label is missing in a row": one(changed(",yes", ",", 1), "'ill'", "row 1"),
    "label is infinite": one(with_column("y", ["1.5", "inf"]), "'y'", "row 2", options=("--label", "y")),
    "label is ambiguous": one(GOOD, "'age'", "24 distinct", "--task", options=("--label", "age")),
    "labels are dates": one(with_column("day", ["2020-01-01"]), "'day'", options=("--label", "day")),
    "label of many texts as numbers": one(
        GOOD, "'ward'", "'A'", "row 1", options=("--label", "ward", "--task", "regression")
    ),
    "labels are not 0 and 1": one(GOOD, "'ill'", "'yes'", "row 1", options=("--label", "ill", "--label", "ward")),
    "survival without an event column": one(GOOD, "label", options=("--label", "age", "--task", "survival")),
    "survival with a negative time": one(
        with_column("t", [-1, 2]), "'t'", "row 1", options=("--label", "t", "--label", "age", "--task", "survival")
    ),
    "column is all missing": one(with_column("empty", [""]), "'empty'", "--drop empty"),
    "column has one level": one(with_column("land", ["DE"]), "'land'", "'DE'", "--drop land"),
    "dates": one(with_column("day", [f"2020-01-{d:02}" for d in range(1, 25)]), "'day'", "dates", "--drop day"),
    "dates of another form": one(with_column("day", ["3/4/2020", "14/4/2020"]), "'day'", "dates"),
    "many levels": one(with_column("name", [f"n{i}" for i in range(ROWS)]), "'name'", "24", "--categorical name"),
    "mixed types": one(with_column("dose", [1, 2, 3, "unknown"]), "'dose'", "'unknown'", "row 4", "--numeric"),
    "duplicate names": one(changed("age,ward", "ward,ward", 1), "'ward'", "two columns"),
    "infinite value": one(with_column("dose", [1, "inf"]), "'dose'", "row 2"),
    "huge value": one(with_column("dose", [1, "1e300"]), "'dose'", "row 2"),
    "value too large for a float": one(
        with_column("dose", [1, "1e60"]),
        "'dose'",
        "32-bit",
        options=("--label", "ill", "--set", "data.standardise=false"),
    ),
    "missing value that is not allowed": one(
        with_column("dose", [1, ""]), "'dose'", "row 2", options=("--label", "ill", "--missing", "error")
    ),
    "all missing in training rows only": Odd(
        {"a.csv": with_column("dose", TEST_ONLY)},
        ("a.csv", "'dose'", "no value in any training row"),
        ("--label", "ill", "--set", "data.time=age"),
    ),
    "semicolons": one(GOOD.replace(",", ";"), "'ill'", "data.separator"),
    "unequal row lengths": one(changed("21,B,no", "21,B", 1), "columns"),
    "an open quote": one(changed("20,A,yes", '20,"A,yes', 1), "cannot be used"),
    "not UTF-8": one(GOOD.replace("A", "Ä").encode("latin-1"), "'ward'", "UTF-8"),
    "not a table": one(b"\x89PNG\r\n\x1a\n\0\0\0", "a.csv"),
    "not Parquet": Odd({"a.parquet": GOOD}, ("a.parquet", "cannot be used")),
    "no such file": Odd({}, ("missing.csv", "no file")),
    "unknown column to drop": one(GOOD, "'zip'", options=("--label", "ill", "--drop", "zip")),
    "no feature is left": one(GOOD, "feature", options=("--label", "ill", "--drop", "age", "--drop", "ward")),
    "numeric and categorical": one(
        GOOD, "'age'", options=("--label", "ill", "--numeric", "age", "--categorical", "age")
    ),
    "client is missing in a row": one(
        with_column("site", ["x", "y", ""]), "'site'", "row 3", options=("--label", "ill", "--client", "site")
    ),
    "label only in one file": two(changed("ill", "sick"), "'ill'"),
    "column that only one file has": two(with_column("dose", [1, 2]), "'dose'", "a.csv", "--drop dose"),
    "column that one file lacks": two("ward,ill\nA,no\nB,yes\n", "'age'", "a.csv"),
    "column of another type": two("age,ward,ill\nold,A,no\nyoung,B,yes\n", "'age'", "a.csv"),
    "label of another type": two(changed(",yes", ",1").replace(",no", ",0"), "'ill'", "a.csv"),
    "missing label in the second file": two(changed(",yes", ",", 1), "'ill'", "row 1"),
    "infinite value in the second file": two(changed("20,A", "inf,A", 1), "'age'", "row 1"),
    "empty second file": two("", "cannot be used"),
    "constant weight": one(with_column("w", [0]), "'w'", options=("--label", "ill", "--set", "data.weight=w")),
    "a test share without rows": one(GOOD, "no row to test on", options=("--label", "ill", "--set", "data.test=0.001")),
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("command", ["run", "data show"])
def test_an_odd_table_is_refused_by_name(
    case: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    odd = ODD[case]
    for name, content in odd.files.items():
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    if command == "data show" and case == "no label is named":
        pytest.skip("the columns are shown without a label")
    result = CliRunner().invoke(app, [*command.split(), *(odd.files or ["missing.csv"]), *odd.options])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert "\n  -> " in result.stderr
    for word in odd.words:
        assert word in result.stderr, result.stderr
    assert not Path("runs").exists()


FINE = {
    "a byte order mark": "\ufeff" + GOOD,
    "quotes": GOOD.replace("A", '"A, left"'),
    "lines of Windows": GOOD.replace("\n", "\r\n"),
    "missing texts and numbers": GOOD.replace("21,B", ",").replace("22,A", "NA,NA"),
    "whole numbers as fractions": GOOD.replace("20,", "20.0,"),
    "a constant number": with_column("one", [1]),
    "truth values": with_column("smokes", ["true", "false", ""]),
    "many levels that are named": with_column("name", [f"n{i}" for i in range(ROWS)]),
    "texts that are named numbers": with_column("dose", [1, 2, 3, "unknown"]),
}


@pytest.mark.parametrize("case", FINE)
def test_an_odd_table_is_shown(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(FINE[case], encoding="utf-8", newline="")
    named = {
        "many levels that are named": ["--categorical", "name"],
        "texts that are named numbers": ["--numeric", "dose"],
    }
    result = CliRunner().invoke(app, ["data", "show", "a.csv", "--label", "ill", *named.get(case, [])])
    assert result.exit_code == 0, result.output
    assert "classification" in result.stdout


def test_a_client_with_one_row_takes_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(GOOD)
    Path("b.csv").write_text("ill,ward,age\nno,C,77\n")  # in another order, and with a level of its own
    options = ["--label", "ill", "--set", "rounds=1", "--runtime", "serial", "-q"]
    result = CliRunner().invoke(app, ["run", "b.csv", "a.csv", *options])
    assert result.exit_code == 0, result.output
    shown = CliRunner().invoke(app, ["data", "show", "b.csv", "a.csv", "--label", "ill"])
    assert "rows of clients: a 24, b 1" in shown.stdout
    table = csv.reader(io.StringIO(Path("b.csv").read_text()))
    assert next(table) == ["ill", "ward", "age"]
