"""500 generated tables: each is refused with an error of ours, or becomes a data set that runs and repeats its bits.

Separators, quotes, encodings, missing values, huge cells, mixed types, strange names and strange labels, as CSV and as
Parquet, through `fa.run` and through `data show`. The first 100 are part of the default run; `make fuzz` runs them all.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config.errors import FedarenaError
from tests.fuzz import limited

CASES, CHUNK, DEFAULT = 500, 25, 100
LONGEST_MESSAGE = 1500
NO_NAMES = {"inf", "-inf", "nan", str(-(2**63))}  # the last one is what infinity becomes as an integer
NAMES = [
    "a",
    "b",
    "c",
    "d",
    "e",
    "a b",
    "x;y",
    "größe",
    "",
    " ",
    "z" * 3000,
    "n\nl",
    'quo"te',
    "nul\0",
    "1",
    "none",
    "label",
    "'",
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# Columns

Column = Callable[[random.Random, int], list[Any]]


def some_missing(column: Column, share: float = 0.1) -> Column:
    return lambda rng, n: [None if rng.random() < share else value for value in column(rng, n)]


def of(*values: Any) -> Column:
    return lambda rng, n: [rng.choice(values) for _ in range(n)]


GOOD: dict[str, Column] = {
    "numbers": lambda rng, n: [rng.gauss(0, 1) for _ in range(n)],
    "integers": lambda rng, n: [rng.randint(-5, 5) for _ in range(n)],
    "counted": lambda rng, n: list(range(n)),
    "constant": of(3.5),
    "booleans": of(True, False),
    "large": lambda rng, n: [rng.uniform(-1e30, 1e30) for _ in range(n)],
    "tiny": of(5e-324, 0.0, -5e-324),
}
ODD: dict[str, Column] = {
    "missing": some_missing(GOOD["numbers"]),
    "empty": of(None),
    "infinite": of(1.0, math.inf),
    "not numbers": of(1.0, math.nan),
    "huge": of(1e308, -1e308, 1.7e308),
    "64 bits": of(2**63 - 1, -(2**63)),
    "beyond 64 bits": of(10**30, 1),
    "words": of("red", "green", "blue"),
    "many words": lambda rng, n: [f"w{i}" for i in range(n)],
    "mixed": of(1, "one", 2.5, ""),
    "huge cells": of("z" * 50_000, "1"),
    "dates": of(datetime.date(2020, 1, 1), datetime.date(1, 1, 1), datetime.date(9999, 12, 31)),
    "times": of(datetime.datetime(2020, 1, 1, 12), datetime.datetime(1700, 1, 1)),
    "clock": of(datetime.time(12, 30)),
    "decimals": of(decimal.Decimal("1.25"), decimal.Decimal("3.50")),
    "spaces": of("yes", "yes ", " yes"),
    "control": of("a\0b", "a\tb", "a\x1bb", "ok"),
    "unicode": of("é", "e\u0301", "\u202e", "\U0001f600"),
    "lists": of([1, 2], [3]),
    "structs": of({"k": 1}, {"k": 2}),
    "bytes": of(b"\xff\xfe", b"ok"),
    "lines": of("a\nb", "c\r\nd", 'e"f'),
}
LABELS: dict[str, Column] = {
    "classes": of(0, 1, 2),
    "two": of("no", "yes"),
    "truth": of(True, False),
    "whole floats": of(1.0, 2.0),
    "fractions": of(0.5, 1.5, 2.0),
    "infinite": of(1.0, math.inf),
    "nan word": of("yes", "nan"),
    "one class": of("only"),
    "each its own": lambda rng, n: [f"class {i}" for i in range(n)],
    "gaps": some_missing(of("no", "yes")),
    **{
        name: ODD[name]
        for name in ("spaces", "dates", "huge cells", "mixed", "control", "unicode", "lists", "bytes", "decimals")
    },
}
CLIENTS: dict[str, Column] = {
    "few": of("north", "south"),
    "numbers": of(0, 1, 2),
    "floats": of(1.0, 2.5),
    "one": of("x"),
    "all": lambda rng, n: [str(i) for i in range(n)],
    **{
        name: ODD[name]
        for name in ("missing", "infinite", "spaces", "dates", "control", "lists", "structs", "huge cells")
    },
    "truth": of(True, False),
}


def columns_of(rng: random.Random) -> tuple[list[str], list[list[Any]], dict[str, Any]]:
    """Return names, columns and the settings that go with them."""
    n = rng.choice([0, 1, 2, 3, 40, 40, 40, 40, 60, 60])
    names = [f"f{i}" for i in range(rng.choice([0, 1, 1, 2, 3]))]
    kinds = {**GOOD, **ODD}
    makers = [
        rng.choice(list(GOOD.values())) if rng.random() < 0.85 else rng.choice(list(kinds.values())) for _ in names
    ]
    if rng.random() < 0.2 and names:
        names[0] = rng.choice(NAMES)
    names.append(rng.choice(NAMES) if rng.random() < 0.1 else "y")
    makers.append(
        LABELS[rng.choice(["classes", "two", "truth"])] if rng.random() < 0.6 else rng.choice(list(LABELS.values()))
    )
    settings: dict[str, Any] = {"label": names[-1]}
    if rng.random() < 0.4:
        names.append("who")
        makers.append(rng.choice(list(CLIENTS.values())))
        settings["client"] = "who"
    if rng.random() < 0.2:
        settings["missing"] = "mean"
    if rng.random() < 0.2:
        settings["one_hot"] = True
    if rng.random() < 0.1:
        settings["standardise"] = False
    if rng.random() < 0.1:
        settings[rng.choice(["label", "client"])] = rng.choice(NAMES)
    if rng.random() < 0.1:
        settings["test"] = rng.choice([1e-9, 0.5, 0.999999])
    if rng.random() < 0.05:
        names[0] = names[-1]
    return names, [make(rng, n) for make in makers], settings


# Files


def as_csv(rng: random.Random, names: list[str], columns: list[list[Any]], settings: dict[str, Any]) -> str:
    separator = rng.choice([",", ",", ",", ",", ";", "\t", "|", " "])
    quote = rng.random() < 0.8
    lines = [names, *map(list, zip(*columns, strict=True))]
    ending = rng.choice(["\n", "\n", "\r\n", "\r"])
    text = ending.join(separator.join(cell(value, separator, quote) for value in line) for line in lines) + ending
    if separator != "," and rng.random() < 0.8:
        settings["separator"] = separator
    raw = text.encode(rng.choice(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"]), "replace")
    damage = rng.random()
    if damage < 0.04:
        raw = raw[: rng.randint(0, len(raw))]
    elif damage < 0.08:
        at = rng.randint(0, len(raw))
        raw = raw[:at] + rng.choice([b"\0", b"\xff", b'"', b"\n\n", b",,,", b"\x1a", bytes(range(256))]) + raw[at:]
    Path("t.csv").write_bytes(raw)
    return "t.csv"


def cell(value: Any, separator: str, quote: bool) -> str:
    text = "" if value is None else str(value)
    if quote and any(sign in text for sign in (separator, '"', "\n", "\r")):
        return '"' + text.replace('"', '""') + '"'
    return text


def as_parquet(rng: random.Random, names: list[str], columns: list[list[Any]], settings: dict[str, Any]) -> str:
    arrays = []
    for values in columns:
        try:
            arrays.append(pa.array(values))
        except (pa.ArrowException, OverflowError, TypeError):  # what arrow cannot hold as it is becomes text
            arrays.append(pa.array([None if value is None else str(value) for value in values]))
        if rng.random() < 0.05 and pa.types.is_string(arrays[-1].type):
            arrays[-1] = arrays[-1].dictionary_encode()
    pa.parquet.write_table(pa.Table.from_arrays(arrays, names=names), "t.parquet")
    if rng.random() < 0.04:
        raw = bytearray(Path("t.parquet").read_bytes())
        raw[rng.randrange(len(raw))] ^= 255
        Path("t.parquet").write_bytes(bytes(raw[: rng.choice([len(raw), len(raw) // 2])]))
    return "t.parquet"


# What must hold


def outcome(path: str, settings: dict[str, Any]) -> Any:
    """Return the bits of a short run, or the error that refuses it."""
    try:
        made = (fa.csv if path.endswith(".csv") else fa.parquet)(path, **settings)
        few = {} if settings.get("client") else {"clients": 2}
        return fa.run(made, rounds=1, out=False, runtime="serial", **few).weights_sha256
    except FedarenaError as error:
        return error


def shown(path: str, settings: dict[str, Any]) -> int:
    """Return the exit code of `data show` on the same table."""
    assignments = [
        f"data.{key}={value}" if isinstance(value, float | bool) else f"data.{key}={_text(value)}"
        for key, value in settings.items()
    ]
    few = [] if settings.get("client") else ["clients=2"]
    options = [
        part
        for text in [*assignments, *few]
        for part in ("--set", text.replace("True", "true").replace("False", "false"))
    ]
    result = CliRunner().invoke(app, ["data", "show", path, "--json", "-q", *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def check(case: int) -> str:
    """Return the outcome of a case: a FedarenaError, a correct result, or an error of another kind, which is a bug."""
    rng = random.Random(f"table {case}")
    names, columns, settings = columns_of(rng)
    write = as_csv if rng.random() < 0.6 else as_parquet
    path = write(rng, names, columns, settings)
    first = outcome(path, settings)
    code = shown(path, settings)
    if isinstance(first, FedarenaError):
        assert len(str(first)) < LONGEST_MESSAGE, f"a message of {len(str(first))} characters"
        assert first.remedy
        assert code == 2 or type(first).__name__ in ("ClientFailed", "ModelMismatch"), code
        return "refused"
    assert code == 0
    assert first == outcome(path, settings)
    data = (fa.csv if path.endswith(".csv") else fa.parquet)(path, **settings).load(0)
    assert np.isfinite(data.x).all()
    assert not NO_NAMES & {*data.class_names, *data.owner_names}
    return "ran"


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [pytest.param(n, marks=[] if n < DEFAULT else [pytest.mark.fuzz_full]) for n in range(0, CASES, CHUNK)],
)
@pytest.mark.filterwarnings("ignore")
def test_a_table_is_refused_or_repeats(first: int) -> None:
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    for case in range(first, first + CHUNK):
        try:
            with limited(f"case {case}"):
                seen[check(case)] += 1
        except Exception as error:
            wrong.append(f"case {case}: {type(error).__name__}: {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)
    assert seen["refused"]
    assert seen["ran"]
