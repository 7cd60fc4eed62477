"""The runs, comparisons and suites under a folder, each with an id; folders are read again only where a file changed."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from fedarena.common import locks
from fedarena.common.grouping import group_by_key
from fedarena.config.comparison_plan import Plan
from fedarena.config.errors import FedarenaError
from fedarena.results import run_status
from fedarena.results.plan_file import read_plan
from fedarena.ui import round_log
from fedarena.ui.cache import FileCache
from fedarena.ui.round_log import RoundLog
from fedarena.ui.safe_files import REASON, SafeFolder, reason
from fedarena.ui.summaries import ComparisonSummary, Listing, RunSummary, SuiteSummary

FOLDERS = 20_000  # searched at most: the folder may be the root of a disk
KEPT_ROUNDS = 2_000_000  # of all logs in memory, at 100 bytes each
LOG_WEIGHT = 1000  # rounds that a log counts for, however short it is
COMPARISONS = 16  # held in memory with all their runs
EXPERIMENT = 1 << 20  # bytes of an experiment
SUITE = 16 << 20  # bytes of the files of a suite
SENTENCES = 40  # of a suite's verdict
RUN_FILES = (
    "experiment.toml",
    "result.json",
    "failure.txt",
    "checkpoint/rounds.jsonl",
    "checkpoint/lock",
    "clients.parquet",
)
KIND_FILES = {"run": "experiment.toml", "comparison": "comparison.json", "suite": "suite.json"}
RESULT = (
    "metric", "metrics", "own_metrics", "final_accuracy", "best_accuracy", "final_metric", "best_metric",
    "validated_accuracy", "validated_metric", "validated_metrics", "validated_own_metrics",
)  # fmt: skip
SHAPE: dict[str, Any] = {
    "experiment": dict, "contestants": dict, "folds": int | None, "repeats": int, "rope": float, "threshold": float,
    "notes": tuple, "fixed": tuple, "per_repeat": tuple, "test_share": float | None,
    "at_most": int | None, "looks": tuple,
}  # fmt: skip
WORDS: dict[str, str] = {"done": "finished", "stopped": "interrupted"}

Value = TypeVar("Value")


class Catalogue:
    """A folder and what is in it; ids are assigned here, and a page can only ask for a folder that has one."""

    def __init__(self, folder: Path) -> None:
        self.name, self.root = str(folder), folder.resolve()
        self.files = SafeFolder(self.root)
        self._known: FileCache[Any] = FileCache()
        self._places: dict[str, Path] = {}
        self._logs: FileCache[RoundLog] = FileCache(KEPT_ROUNDS, lambda log: len(log) + LOG_WEIGHT)
        self._comparisons: FileCache[Any] = FileCache(COMPARISONS)
        self._summarizers: dict[str, Callable[[Any], Any]] = {
            "run": self.summary,
            "comparison": self._summarize_comparison,
            "suite": self._summarize_suite,
        }

    def path(self, folder: Path) -> str:
        """Return the path of a folder as the user named the one above it."""
        inside = folder.relative_to(self.root) if folder == self.root or self.root in folder.parents else folder
        return str(Path(self.name) / inside)

    def scan(self) -> Listing:
        """Return all runs, comparisons and suites: those under way first, then the newest."""
        found: dict[str, list[Any]] = {kind: [] for kind in KIND_FILES}
        partial = False
        for count, (folder, kind) in enumerate(_folders(self.root)):
            if kind in found:
                found[kind].append(self._summarizers[kind](folder))
            partial = count >= FOLDERS
        runs, comparisons, suites = (sorted(each, key=_order) for each in found.values())
        return Listing(runs, comparisons, partial, suites)

    def find(self, id: str, *kinds: str) -> Any:
        """Return the run, comparison or suite with this id that a listing has shown; None if it is of another kind."""
        if id not in self._places:
            self.scan()  # the page may be older than this server
        folder = self._places.get(id)
        known = (kind for kind in kinds if folder is not None and (folder / KIND_FILES[kind]).exists())
        return next((self._summarizers[kind](folder) for kind in known), None)

    def _summarize_suite(self, folder: Path) -> SuiteSummary:
        """Return a suite as it is now; an error in its folder is part of the summary, and affects no other."""
        id, name = self._name(folder)
        try:
            self.files.check(folder, ("suite.json", "verdict.json", "lock"))
            for file in ("suite.json", "verdict.json"):
                self.files.check_size(folder / file)
            files = [folder / "suite.json", folder / "verdict.json"]
            seen = self.cached("suite", folder, files, lambda: _read_suite(self.files, id, name, folder))
            return replace(seen, state="running") if locks.is_locked(folder) and seen.state != "damaged" else seen
        except Exception as error:
            return SuiteSummary(id, folder, name, "damaged", why=reason(error))

    def comparison_of(self, run: RunSummary) -> ComparisonSummary | None:
        """Return the comparison that a run is a cell of."""
        above = run.folder.parents
        inside = len(above) > 2 and above[1].name == "cells" and self.root in (above[2], *above[2].parents)
        return self._summarize_comparison(above[2]) if inside and (above[2] / "comparison.json").exists() else None

    def log(self, run: RunSummary) -> RoundLog:
        """Return the rounds of a run, read to the end of its log."""
        file = run.folder / "checkpoint" / "rounds.jsonl"
        return self._logs.get(file, _stamp(file), lambda before: (before or RoundLog(file, self._open)).continued())

    def _open(self, file: Path) -> BinaryIO:
        """Open a log; one that is refused counts as one that is not there."""
        try:
            return self.files.open(file)
        except FedarenaError as error:
            raise OSError(error.what) from error

    def summary(self, folder: Path) -> RunSummary:
        """Return a run as it is now; an error in its folder is part of the summary, and affects no other."""
        id, name = self._name(folder)
        files = [folder / name for name in RUN_FILES[:4]]
        try:
            self.files.check(folder, RUN_FILES)
            busy = (folder / "experiment.toml").exists() and not (folder / "result.json").exists()
            busy = busy and locks.is_locked(folder / "checkpoint")
            return self.cached(f"run {busy}", folder, files, lambda: _read_run(self.files, id, name, folder))
        except Exception as error:
            return RunSummary(id, folder, name, "damaged", {}, changed=_changed(folder), why=reason(error))

    def _summarize_comparison(self, folder: Path) -> ComparisonSummary:
        """Return a comparison as it is now; an error in its folder is part of the summary, and affects no other."""
        id, name = self._name(folder)
        try:
            return self._read_comparison(id, name, folder)
        except Exception as error:
            return ComparisonSummary(id, folder, name, None, why=reason(error))

    def _read_comparison(self, id: str, name: str, folder: Path) -> ComparisonSummary:
        file = folder / "comparison.json"
        self.files.check(folder, ("comparison.json", "lock"))
        self.files.check_size(file)
        plan = self.cached("plan", folder, [file], lambda: _plan(folder))
        if isinstance(plan, str):
            return ComparisonSummary(id, folder, name, None, why=plan)
        found = run_status.comparison_cells(plan, folder)
        cells = group_by_key((cell.label, self.summary(cell.folder)) for cell in found)
        left_out = [self.summary(cell.folder) for cell in run_status.left_out_cells(plan, folder)]
        comparison = ComparisonSummary(id, folder, name, plan, cells, left_out)
        busy = locks.is_locked(folder) or any(s.state == "running" for s in comparison.all_runs)
        return replace(comparison, busy=busy)

    def _name(self, folder: Path) -> tuple[str, str]:
        """Return the id and the name of a folder, and register it under this id."""
        name = folder.relative_to(self.root).as_posix() if folder != self.root else folder.name
        id = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        self._places[id] = folder
        return id, name

    def cached(self, what: str, folder: Path, files: list[Path], make: Callable[[], Value]) -> Value:
        """Return the value made from these files, made again only if one of them has changed."""
        value: Value = self._known.get((what, folder), tuple(map(_stamp, files)), lambda before: make())
        return value

    def loaded_comparison(self, comparison: ComparisonSummary, make: Callable[[], Value]) -> Value:
        """Return a finished comparison with all its runs, loaded again only if one of them has changed."""
        files = [comparison.folder / "comparison.json", *(run.folder / "result.json" for run in comparison.all_runs)]
        value: Value = self._comparisons.get(comparison.folder, tuple(map(_stamp, files)), lambda before: make())
        return value


def _folders(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield folders from the top down, each with its kind; runs and comparisons are not searched further."""
    waiting, count = [root], 0
    while waiting and count <= FOLDERS:
        folder, count = waiting.pop(), count + 1
        try:
            with os.scandir(folder) as entries:
                found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:
            continue
        kind = next((kind for kind in ("comparison", "run", "suite") if KIND_FILES[kind] in found), "")
        yield folder, kind
        if kind in ("", "suite"):  # the comparisons of a suite lie below it
            waiting += [folder / name for name, is_folder in found.items() if is_folder and not name.startswith(".")]


def _order(shown: RunSummary | ComparisonSummary | SuiteSummary) -> tuple[bool, float, str]:
    return shown.state != "running", -shown.changed, shown.name


def _stamp(file: Path) -> tuple[int, int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_ctime_ns  # the last one changes with the permissions


def _changed(folder: Path) -> float:
    files = (folder / "checkpoint" / "rounds.jsonl", folder / "experiment.toml")
    return max((stamp[0] / 1e9 for stamp in map(_stamp, files) if stamp), default=0.0)


def _read_run(files: SafeFolder, id: str, name: str, folder: Path) -> RunSummary:
    file = folder / "checkpoint" / "rounds.jsonl"
    run = RunSummary(id, folder, name, "damaged", {}, changed=_changed(folder))
    try:
        files.check_size(folder / "result.json")
        table = tomllib.loads(files.text(folder / "experiment.toml", EXPERIMENT))
        seen = run_status.read_status(folder)
    except FileNotFoundError:  # a cell that has not started
        seen = run_status.read_status(folder)
        return replace(run, state="failed" if seen.why else "waiting", why=seen.why)
    except OSError:  # it may be gone the next time, without a change of the file
        raise
    except Exception as error:
        return replace(run, why=reason(error))
    if seen.state not in run_status.OVER and (folder / "result.json").exists():
        return replace(run, table=table, why="result.json cannot be read")
    result = files.table(folder / "result.json") if seen.state in run_status.OVER else {}
    return replace(
        run,
        state=WORDS.get(seen.state, seen.state),
        table=table,
        round=_whole(seen.round) or 0,
        rounds=_whole(table.get("rounds")) or _whole(seen.rounds),
        accuracy=round_log.finite(seen.accuracy),
        best=round_log.finite(seen.best),
        spark=tuple(round_log.sample_log(file, files.open)),
        why=seen.why,
        result={key: result[key] for key in RESULT if key in result},
    )


def _read_suite(files: SafeFolder, id: str, name: str, folder: Path) -> SuiteSummary:
    """Return the names and the verdict sentences that the files of a suite hold, as texts."""
    planned = json.loads(files.text(folder / "suite.json", SUITE))
    names = tuple(str(one["name"])[:REASON] for one in planned["federations"])
    stamp = _stamp(folder / "verdict.json") or _stamp(folder / "suite.json")
    suite = SuiteSummary(id, folder, name, "interrupted", names, changed=stamp[0] / 1e9 if stamp else 0.0)
    if not (folder / "verdict.json").exists():
        return suite
    verdict = json.loads(files.text(folder / "verdict.json", SUITE))["verdict"]
    return replace(suite, state="finished", words=tuple(str(text) for text in verdict)[:SENTENCES])


def _plan(folder: Path) -> Plan | str:
    """Return the plan of a comparison, or what is wrong with its file."""
    try:
        plan = read_plan(folder)
    except FedarenaError as error:
        return error.what
    for name, kind in SHAPE.items():
        if not isinstance(getattr(plan, name), kind):
            return f"comparison.json: {name} is {getattr(plan, name)!r}"[:REASON]
    cells = (plan.folds or 1) * plan.repeats * len(plan.contestants)
    return plan if 0 < cells <= FOLDERS else f"comparison.json: it has {cells} cells"


def _whole(value: Any) -> int | None:
    number = round_log.finite(value)
    return int(number) if number is not None and number >= 0 else None
