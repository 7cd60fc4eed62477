"""Run, comparison and search folders, damaged at random from fixed seeds, then loaded, resumed, verified and reported.

Every command either works or raises a FedarenaError. A resumed run that works has the bits of the undamaged one, and
`verify` notices every change.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedarena as fa
from fedarena.config.errors import FedarenaError
from fedarena.engine import checkpoint
from fedarena.reports import collect_runs, write_report
from fedarena.results.run_status import read_status

DEFAULT, ALL = 80, 300  # folders
SECONDS = 120  # after which a command hangs
ROUND: dict[str, Any] = {"clients": 4, "per_round": 3, "model": "logreg", "partition": "iid", "seed": 1}
ALGORITHMS = ("scaffold", "fedavg", "coop")
KINDS = ("half-finished run", "finished run", "half-finished run", "finished run", "comparison", "search")
WHOLE_FILES = (b"", b"null", b"[]", b"{}", b"0", b"\xff\xfe\x00", b'{"a": 1}\n')

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs an alarm to end a command that hangs")


class Made:
    """The undamaged folders, and what comes of them if nothing is wrong."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs: dict[str, fa.Run] = {}
        for name in ALGORITHMS:
            how: dict[str, Any] = {**ROUND, "algorithm": name, "rounds": 5, "runtime": "serial"}
            self.runs[name] = fa.run("digits", out=root / f"{name}-whole", **how)
            fa.run("digits", out=root / f"{name}-half", on_round=lambda record: record.round == 3, **how)
            unfinish(root / f"{name}-half")
        names = ["fedavg", "scaffold"]
        how = {**ROUND, "rounds": 3, "seeds": 2, "baseline": False, "workers": 1}
        self.comparison = fa.compare("digits", names, out=root / "comparison", **how)
        unfinish(root / "comparison" / "cells" / "scaffold" / "seed1")
        space = {"local.lr": {"choices": [0.01, 0.05, 0.1, 0.2]}}
        how = {**ROUND, "rounds": 2, "method": "grid", "workers": 1}
        fa.search("digits", space=space, trials=2, out=root / "search", **how)
        self.search = fa.search("digits", space=space, trials=3, out=False, **how)


def unfinish(run: Path) -> None:
    """Make it a run that was killed after its last round: the results are not there yet."""
    for name in ("result.json", "rounds.parquet", "clients.parquet", "model.safetensors"):
        (run / name).unlink()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "SYNC_SECONDS", 0.0)  # so that the folders hold a second snapshot
        patch.setattr(checkpoint, "SYNC_SHARE", float("inf"))
        yield Made(tmp_path_factory.mktemp("folders"))


# Damage


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in files_of(folder)}


def truncate(rng: np.random.Generator, path: Path, _: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.integers(len(content))])


def change_bytes(rng: np.random.Generator, path: Path, _: Path) -> None:
    content = bytearray(path.read_bytes())
    for _i in range(int(rng.integers(1, 4))):
        content[rng.integers(len(content))] = int(rng.integers(256))
    path.write_bytes(content)


def flip_digit(rng: np.random.Generator, path: Path, _: Path) -> None:
    """A number that is still a number."""
    content = bytearray(path.read_bytes())
    digits = [at for at, byte in enumerate(content) if byte in b"0123456789"]
    if digits:
        at = digits[rng.integers(len(digits))]
        content[at] = b"0123456789"[(content[at] - 48 + int(rng.integers(1, 10))) % 10]
    path.write_bytes(content)


def replace(rng: np.random.Generator, path: Path, _: Path) -> None:
    path.write_bytes(WHOLE_FILES[rng.integers(len(WHOLE_FILES))])


def delete(rng: np.random.Generator, path: Path, _: Path) -> None:
    path.unlink()


def swap(rng: np.random.Generator, path: Path, other: Path) -> None:
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)


def change_value(rng: np.random.Generator, path: Path, _: Path) -> None:
    """Another value, or another key, somewhere in JSON; any other file loses a line."""
    lines = path.read_bytes().splitlines(keepends=True)
    try:
        whole = [json.loads(path.read_bytes())] if path.suffix == ".json" else [json.loads(line) for line in lines]
    except ValueError:
        del lines[rng.integers(len(lines))]
        path.write_bytes(b"".join(lines))
        return
    table = whole[rng.integers(len(whole))]
    key = list(table)[rng.integers(len(table))]
    new: list[Any] = [None, [], {}, -1, 1e300, "x", True]
    if rng.random() < 0.3:
        table[f"{key}_"] = table.pop(key)
    else:
        table[key] = new[rng.integers(len(new))]
    path.write_text("".join(json.dumps(one) + "\n" for one in whole))


DAMAGES: tuple[Callable[[np.random.Generator, Path, Path], None], ...] = (
    truncate, change_bytes, change_bytes, flip_digit, replace, delete, swap, change_value,
)  # fmt: skip


def damage(rng: np.random.Generator, folder: Path) -> str:
    """Damage one file; return what was done."""
    files = [path for path in files_of(folder) if path.stat().st_size]
    kinds = sorted({path.suffix for path in files})
    kind = kinds[rng.integers(len(kinds))]  # or else nearly all would be client states
    of_kind = [path for path in files if path.suffix == kind]
    path, other = of_kind[rng.integers(len(of_kind))], files[rng.integers(len(files))]
    how = DAMAGES[rng.integers(len(DAMAGES))]
    how(rng, path, other)
    return f"{how.__name__} {path.relative_to(folder)}"


# Commands


@contextlib.contextmanager
def ended_in_time() -> Iterator[None]:
    def hangs(*_: Any) -> None:
        raise TimeoutError("the command hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(do: Callable[[], Any]) -> Any:
    """Return the result, or None where it is refused as it should be; any other error fails the test."""
    with ended_in_time(), contextlib.suppress(FedarenaError):
        return do()
    return None


def check_resume(folder: Path, whole: fa.Run) -> None:
    """What is resumed has the bits of the undamaged run, and so has the folder afterwards."""
    for from_intact in (False, True):
        again = attempt(lambda: fa.run(resume=folder, runtime="serial", from_intact=from_intact))  # noqa: B023
        if again is not None:
            assert again.weights_sha256 == whole.weights_sha256
            assert again.curve == whole.curve
            assert again.bytes == whole.bytes
            assert fa.verify(folder, runtime="serial").same
            return


def check_finished(folder: Path, before: dict[str, bytes], whole: fa.Run) -> None:
    changed = contents(folder) != before
    loaded = attempt(lambda: fa.load(folder))
    if loaded is not None:
        assert loaded.weights_sha256 == whole.weights_sha256
        assert loaded.summary()["best_accuracy"] == whole.summary()["best_accuracy"]
    attempt(lambda: write_report(collect_runs([folder]), folder.parent / "report.html"))
    verdict = attempt(lambda: fa.verify(folder, runtime="serial"))
    if verdict is not None:
        assert verdict.same == (not changed)
    check_resume(folder, whole)


def check_comparison(root: Path, made: Made) -> None:
    attempt(lambda: write_report(collect_runs([root]), root.parent / "report.html"))
    again = attempt(lambda: fa.compare(resume=root, workers=1))
    if again is None:
        return
    scores = made.comparison.scores()
    assert again.failures or again.scores() == scores
    for label in again.labels:
        assert again.scores()[label] == scores[label]
    assert again.plan.as_dict() == made.comparison.plan.as_dict()


def check_search(root: Path, made: Made, database_is_sound: bool) -> None:
    again = attempt(lambda: fa.search(resume=root, trials=3, workers=1))
    if again is not None and database_is_sound:
        assert again.best == made.search.best
        assert again.trials == made.search.trials


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [pytest.param(k, marks=() if k < DEFAULT else pytest.mark.fuzz_full) for k in range(ALL)]
)
def test_damage_is_refused_or_harmless(seed: int, made: Made, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    kind, algorithm = KINDS[seed % len(KINDS)], ALGORITHMS[rng.integers(len(ALGORITHMS))]
    name = {"half-finished run": f"{algorithm}-half", "finished run": f"{algorithm}-whole"}.get(kind, kind)
    folder = Path(shutil.copytree(made.root / name, tmp_path / name))
    before = contents(folder)
    print(kind, damage(rng, folder))
    for run in [path.parent for path in folder.rglob("experiment.toml")]:
        read_status(run)
    if kind == "half-finished run":
        assert attempt(lambda: fa.load(folder)) is None
        check_resume(folder, made.runs[algorithm])
    elif kind == "finished run":
        check_finished(folder, before, made.runs[algorithm])
    elif kind == "comparison":
        check_comparison(folder, made)
    else:
        now = contents(folder)
        check_search(folder, made, now.get("study.db") == before["study.db"])
