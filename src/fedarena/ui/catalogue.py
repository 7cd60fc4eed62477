"""What lies under a folder: runs and comparisons, each with an id, looked at again only where something changed."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from fedarena.common import locks
from fedarena.config.comparison_plan import Plan
from fedarena.config.components import title_of
from fedarena.config.errors import FedarenaError
from fedarena.results import run_status
from fedarena.results.plan_file import read_plan
from fedarena.ui import round_log
from fedarena.ui.cache import FileCache
from fedarena.ui.round_log import RoundLog
from fedarena.ui.safe_files import REASON, SafeFolder, reason

FOLDERS = 20_000  # looked into at most: somebody may have named the root of a disk
KEPT_ROUNDS = 2_000_000  # of all logs in memory, at 100 bytes each
LOG_WEIGHT = 1000  # rounds that a log counts for, however short it is
COMPARISONS = 16  # kept in memory with all their runs
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
RESULT = (
    "metric", "metrics", "own_metrics", "final_accuracy", "best_accuracy", "final_metric", "best_metric",
    "validated_accuracy", "validated_metric", "validated_metrics", "validated_own_metrics",
)  # fmt: skip
STATES = ("running", "waiting", "interrupted", "failed", "diverged", "finished", "damaged")
SHAPE: dict[str, Any] = {
    "experiment": dict, "contestants": dict, "folds": int | None, "repeats": int, "rope": float, "threshold": float,
    "notes": tuple, "fixed": tuple, "per_repeat": tuple, "test_share": float | None,
    "at_most": int | None, "looks": tuple,
}  # fmt: skip
WORDS: dict[str, str] = {"done": "finished", "stopped": "interrupted"}

Seen = TypeVar("Seen")


@dataclass(frozen=True)
class RunSummary:
    """A run at a glance, as safe as it can be made: whatever the folder holds, these are texts and finite numbers."""

    id: str
    folder: Path
    name: str
    state: str  # one of STATES
    table: dict[str, Any]  # its experiment
    round: int = 0
    rounds: int | None = None
    accuracy: float | None = None
    best: float | None = None
    validated: float | None = None  # of the round chosen on validation samples, once the run is over
    spark: tuple[tuple[float, float], ...] = ()  # round, accuracy
    changed: float = 0.0  # seconds since 1970
    why: str = ""  # it failed, or is damaged
    result: dict[str, Any] = field(default_factory=dict)  # result.json, once it has ended

    @property
    def share(self) -> float:
        """How much of it is done, 0 to 1."""
        if self.state in ("finished", "diverged", "failed"):
            return 1.0
        return min(self.round / self.rounds, 1.0) if self.rounds else 0.0

    def part(self, key: str) -> str:
        """The name of a component: algorithm, data, partition, model."""
        return part_name(self.table.get(key))

    def settings(self, key: str) -> dict[str, Any]:
        """What the component was given."""
        value = self.table.get(key)
        return {k: v for k, v in value.items() if k not in ("name", "own")} if isinstance(value, dict) else {}


def part_name(value: Any) -> str:
    """Return the name of a component as a file has it, or that of the file which a data set is read from."""
    if isinstance(value, dict):
        return title_of(str(value.get("name", "?")), value)
    return "?" if value is None else str(value)


@dataclass(frozen=True)
class ComparisonSummary:
    """A comparison at a glance: its plan, and its cells in the order of the plan's labels and splits."""

    id: str
    folder: Path
    name: str
    plan: Plan | None
    cells: dict[str, list[RunSummary]] = field(default_factory=dict)
    left_out: list[RunSummary] = field(default_factory=list)  # runs without a client
    busy: bool = False  # somebody is at work on it
    why: str = ""  # it is damaged

    @property
    def everyone(self) -> list[RunSummary]:
        """All its cells, and those without a client."""
        return [*(sight for row in self.cells.values() for sight in row), *self.left_out]

    @property
    def over(self) -> int:
        """How many of its cells have ended."""
        return sum(sight.state in ("finished", "diverged", "failed") for sight in self.everyone)

    @property
    def state(self) -> str:
        """One of STATES."""
        if self.plan is None:
            return "damaged"
        if self.busy:
            return "running"
        is_open = self.plan.at_most is not None and self.plan.stopped is None  # further repeats may be added
        if self.over < len(self.everyone) or is_open:
            return "interrupted"
        return "failed" if all(s.state == "failed" for s in self.everyone) else "finished"

    @property
    def changed(self) -> float:
        """When something last happened in it."""
        return max((sight.changed for sight in self.everyone), default=0.0)


@dataclass(frozen=True)
class SuiteSight:
    """A suite at a glance: the verdict sentences of its folder, once all of its runs have ended."""

    id: str
    folder: Path
    name: str
    state: str  # one of STATES
    federations: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    why: str = ""  # it is damaged
    changed: float = 0.0


@dataclass(frozen=True)
class Listing:
    """Everything under the folder at one moment."""

    runs: list[RunSummary]
    matches: list[ComparisonSummary]
    partial: bool = False  # there were too many folders
    suites: list[SuiteSight] = field(default_factory=list)


class Catalogue:
    """A folder and what is in it. Ids are made here, and only what has one can be asked for."""

    def __init__(self, folder: Path) -> None:
        self.name, self.root = str(folder), folder.resolve()
        self.files = SafeFolder(self.root)
        self._known: FileCache[Any] = FileCache()
        self._places: dict[str, Path] = {}
        self._logs: FileCache[RoundLog] = FileCache(KEPT_ROUNDS, lambda log: len(log) + LOG_WEIGHT)
        self._comparisons: FileCache[Any] = FileCache(COMPARISONS)

    def path(self, folder: Path) -> str:
        """Return the path of a folder as the user named the one above it."""
        inside = folder.relative_to(self.root) if folder == self.root or self.root in folder.parents else folder
        return str(Path(self.name) / inside)

    def look(self) -> Listing:
        """All runs and comparisons, those under way first, then the newest."""
        runs, matches, suites, partial = [], [], [], False
        for count, (folder, kind) in enumerate(_folders(self.root)):
            if kind == "run":
                runs.append(self.summary(folder))
            elif kind == "comparison":
                matches.append(self._match(folder))
            elif kind == "suite":
                suites.append(self._suite(folder))
            partial = count >= FOLDERS
        return Listing(sorted(runs, key=_order), sorted(matches, key=_order), partial, sorted(suites, key=_order))

    def run(self, id: str) -> RunSummary | None:
        """The run with this id, if a listing has shown it."""
        return self.summary(self._places[id]) if self._is(id, "experiment.toml") else None

    def match(self, id: str) -> ComparisonSummary | None:
        """The comparison with this id, if a listing has shown it."""
        return self._match(self._places[id]) if self._is(id, "comparison.json") else None

    def suite(self, id: str) -> SuiteSight | None:
        """Return the suite with this id, if a listing has shown it."""
        return self._suite(self._places[id]) if self._is(id, "suite.json") else None

    def _suite(self, folder: Path) -> SuiteSight:
        """Return a suite as it is now; whatever is wrong with its folder is said, and stops no other."""
        id, name = self._name(folder)
        try:
            self.files.check(folder, ("suite.json", "verdict.json", "lock"))
            for file in ("suite.json", "verdict.json"):
                self.files.check_size(folder / file)
            files = [folder / "suite.json", folder / "verdict.json"]
            seen = self.remembered("suite", folder, files, lambda: _read_suite(self.files, id, name, folder))
            return replace(seen, state="running") if locks.is_locked(folder) and seen.state != "damaged" else seen
        except Exception as error:
            return SuiteSight(id, folder, name, "damaged", why=reason(error))

    def _is(self, id: str, file: str) -> bool:
        if id not in self._places:
            self.look()  # the page may be older than this server
        return id in self._places and (self._places[id] / file).exists()

    def home(self, sight: RunSummary) -> ComparisonSummary | None:
        """The comparison that a run is a cell of."""
        above = sight.folder.parents
        inside = len(above) > 2 and above[1].name == "cells" and self.root in (above[2], *above[2].parents)
        return self._match(above[2]) if inside and (above[2] / "comparison.json").exists() else None

    def log(self, sight: RunSummary) -> RoundLog:
        """Its rounds, read to the end."""
        file = sight.folder / "checkpoint" / "rounds.jsonl"
        return self._logs.get(file, _stamp(file), lambda before: (before or RoundLog(file, self._open)).continued())

    def _open(self, file: Path) -> BinaryIO:
        """Open a log; one that is refused counts as one that is not there."""
        try:
            return self.files.open(file)
        except FedarenaError as error:
            raise OSError(error.what) from error

    def summary(self, folder: Path) -> RunSummary:
        """A run, as it is now; whatever is wrong with its folder, it is said and stops no other."""
        id, name = self._name(folder)
        files = [folder / name for name in RUN_FILES[:4]]
        try:
            self.files.check(folder, RUN_FILES)
            busy = (folder / "experiment.toml").exists() and not (folder / "result.json").exists()
            busy = busy and locks.is_locked(folder / "checkpoint")
            return self.remembered(f"run {busy}", folder, files, lambda: _sight(self.files, id, name, folder))
        except Exception as error:
            return RunSummary(id, folder, name, "damaged", {}, changed=_changed(folder), why=reason(error))

    def _match(self, folder: Path) -> ComparisonSummary:
        """A comparison, as it is now; whatever is wrong with its folder, it is said and stops no other."""
        id, name = self._name(folder)
        try:
            return self._sound_match(id, name, folder)
        except Exception as error:
            return ComparisonSummary(id, folder, name, None, why=reason(error))

    def _sound_match(self, id: str, name: str, folder: Path) -> ComparisonSummary:
        file = folder / "comparison.json"
        self.files.check(folder, ("comparison.json", "lock"))
        self.files.check_size(file)
        plan = self.remembered("plan", folder, [file], lambda: _plan(folder))
        if isinstance(plan, str):
            return ComparisonSummary(id, folder, name, None, why=plan)
        cells: dict[str, list[RunSummary]] = {label: [] for label in plan.contestants}
        for cell in run_status.comparison_cells(plan, folder):
            cells[cell.label].append(self.summary(cell.folder))
        left_out = (
            [self.summary(cell.folder) for cell in run_status.left_out_cells(plan, folder)]
            if plan.leave_one_out
            else []
        )
        match = ComparisonSummary(id, folder, name, plan, cells, left_out)
        busy = locks.is_locked(folder) or any(s.state == "running" for s in match.everyone)
        return replace(match, busy=busy)

    def _name(self, folder: Path) -> tuple[str, str]:
        """An id and a name; from now on the folder can be asked for."""
        name = folder.relative_to(self.root).as_posix() if folder != self.root else folder.name
        id = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        self._places[id] = folder
        return id, name

    def remembered(self, what: str, folder: Path, files: list[Path], make: Callable[[], Seen]) -> Seen:
        """What was made from these files before, or, if one has changed, made again."""
        seen: Seen = self._known.get((what, folder), tuple(map(_stamp, files)), lambda before: make())
        return seen

    def comparison(self, match: ComparisonSummary, make: Callable[[], Seen]) -> Seen:
        """All runs of a comparison that is over, loaded again if one of them has changed."""
        files = [match.folder / "comparison.json", *(sight.folder / "result.json" for sight in match.everyone)]
        seen: Seen = self._comparisons.get(match.folder, tuple(map(_stamp, files)), lambda before: make())
        return seen


def _folders(root: Path) -> Iterator[tuple[Path, str]]:
    """Folders from the top down, each with what it is; within runs and comparisons nobody looks further."""
    waiting, count = [root], 0
    while waiting and count <= FOLDERS:
        folder, count = waiting.pop(), count + 1
        try:
            with os.scandir(folder) as entries:
                found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:
            continue
        files = {"comparison.json": "comparison", "experiment.toml": "run", "suite.json": "suite"}
        kind = next((kind for file, kind in files.items() if file in found), "")
        yield folder, kind
        if kind in ("", "suite"):  # the comparisons of a suite lie below it
            waiting += [folder / name for name, is_folder in found.items() if is_folder and not name.startswith(".")]


def _order(shown: RunSummary | ComparisonSummary | SuiteSight) -> tuple[bool, float, str]:
    return shown.state != "running", -shown.changed, shown.name


def _stamp(file: Path) -> tuple[int, int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_ctime_ns  # the last one: who may read it


def _changed(folder: Path) -> float:
    files = (folder / "checkpoint" / "rounds.jsonl", folder / "experiment.toml")
    return max((stamp[0] / 1e9 for stamp in map(_stamp, files) if stamp), default=0.0)


def _sight(files: SafeFolder, id: str, name: str, folder: Path) -> RunSummary:
    file = folder / "checkpoint" / "rounds.jsonl"
    sight = RunSummary(id, folder, name, "damaged", {}, changed=_changed(folder))
    try:
        files.check_size(folder / "result.json")
        table = tomllib.loads(files.text(folder / "experiment.toml", EXPERIMENT))
        seen = run_status.read_status(folder)
    except FileNotFoundError:  # a cell whose turn has not come
        seen = run_status.read_status(folder)
        return replace(sight, state="failed" if seen.why else "waiting", why=seen.why)
    except OSError:  # it may be gone the next time, without a change of the file
        raise
    except Exception as error:
        return replace(sight, why=reason(error))
    if seen.state not in run_status.OVER and (folder / "result.json").exists():
        return replace(sight, table=table, why="result.json cannot be read")
    return replace(
        sight,
        state=WORDS.get(seen.state, seen.state),
        table=table,
        round=_whole(seen.round) or 0,
        rounds=_whole(table.get("rounds")) or _whole(seen.rounds),
        accuracy=_finite(seen.accuracy),
        best=_finite(seen.best),
        validated=_finite(seen.validated),
        spark=tuple(round_log.sample_log(file, files.open)),
        why=seen.why,
        result=_result(files, folder / "result.json") if seen.state in run_status.OVER else {},
    )


def _result(files: SafeFolder, file: Path) -> dict[str, Any]:
    """Return the numbers of a run that has ended; nothing where there are none."""
    try:
        result = json.loads(files.text(file))
    except (OSError, ValueError, FedarenaError):
        return {}
    return {key: result[key] for key in RESULT if key in result} if isinstance(result, dict) else {}


def _read_suite(files: SafeFolder, id: str, name: str, folder: Path) -> SuiteSight:
    """Return the names and the verdict sentences that the files of a suite hold, as texts."""
    planned = json.loads(files.text(folder / "suite.json", SUITE))
    names = tuple(str(one["name"])[:REASON] for one in planned["federations"])
    stamp = _stamp(folder / "verdict.json") or _stamp(folder / "suite.json")
    sight = SuiteSight(id, folder, name, "interrupted", names, changed=stamp[0] / 1e9 if stamp else 0.0)
    if not (folder / "verdict.json").exists():
        return sight
    told = json.loads(files.text(folder / "verdict.json", SUITE))
    return replace(sight, state="finished", words=tuple(str(text) for text in told["verdict"])[:SENTENCES])


def _plan(folder: Path) -> Plan | str:
    """A plan, or what is wrong with its file."""
    try:
        plan = read_plan(folder)
    except FedarenaError as error:
        return error.what
    for name, kind in SHAPE.items():
        if not isinstance(getattr(plan, name), kind):
            return f"comparison.json: {name} is {getattr(plan, name)!r}"[:REASON]
    cells = (plan.folds or 1) * plan.repeats * len(plan.contestants)
    return plan if 0 < cells <= FOLDERS else f"comparison.json: it has {cells} cells"


def _finite(value: Any) -> float | None:
    number = round_log.number(value)
    return number if math.isfinite(number) else None


def _whole(value: Any) -> int | None:
    number = round_log.number(value)
    return int(number) if math.isfinite(number) and number >= 0 else None
