"""The result of a reproduction as a value: published and measured numbers, the verdict, and every score.

Its file, ID-SIZE.json, holds all that is needed to check it and to repeat any of its runs; it names no machine.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ValidationError
from rich.box import SIMPLE_HEAD
from rich.table import Table as Printed
from rich.text import Text

from fedarena.common.files import make_folder
from fedarena.common.formatting import as_json
from fedarena.config.comparison_plan import Split
from fedarena.config.errors import BadValue, DataBroken
from fedarena.data.published_files import reading
from fedarena.reports.terminal_tables import open_console
from fedarena.reproduction.check_kinds import sign
from fedarena.reproduction.judgement import RecipeJudgement
from fedarena.reproduction.score_sheet import Cell, ScoreSheet, format_number, label
from fedarena.results.json_files import fingerprint, write_text

Table = dict[str, Any]
Scores = dict[str, dict[Cell, list[float]]]  # measure -> cell -> one number a split
MOST, WIDTH = 60, 110  # rows that a terminal shows, and columns where the output is not one
NEVER = "never"  # how a target that was not reached is written in a file


@dataclass(frozen=True)
class ReproducedRun:
    """One run (or other computation) of a cell: its complete settings and its scores."""

    made_by: Cell
    split: Split
    settings: Table
    scores: Table
    weights_sha256: str | None
    seconds: float


@dataclass(frozen=True, repr=False)
class Reproduction:
    """The published and measured numbers of a recipe, and whether they agree.

    >>> import fedarena as fa
    >>> found = fa.reproduce("N-F2")
    >>> found.id, found.verdict
    ('N-F2', 'agrees')
    """

    id: str
    size: str
    kind: str
    title: str
    source: str
    claim: str
    command: str
    sheet: ScoreSheet
    judgement: RecipeJudgement
    runs: list[ReproducedRun]
    reads: Table  # the definitions of its measures, and the cells they read
    notes: tuple[str, ...] = ()
    tuned: dict[Cell, str] = field(default_factory=dict)  # cell -> the choice that was best
    failures: dict[str, str] = field(default_factory=dict)
    versions: Table = field(default_factory=dict)
    dir: Path | None = None
    figure: Path | None = None

    @property
    def verdict(self) -> str:
        """The verdict: agrees, ordering agrees, differs, or not comparable."""
        return self.judgement.verdict

    @property
    def reason(self) -> str:
        """The reason for the verdict, as a sentence."""
        return self.judgement.reason

    @property
    def rows(self) -> list[Table]:
        """One row per cell and measure with the published value (None if there is none) and the measured one."""
        found = [
            self._row(cell, measure, self.sheet.published.get(measure, {}).get(cell), list(values))
            for measure, scores in self.sheet.scores.items()
            for cell, values in scores.items()
        ]
        return found + self._sign_rows()

    def _row(self, cell: Cell, measure: str, published: Any, values: list[float]) -> Table:
        finite = np.isfinite(values).all()
        return {
            "cell": label(cell),
            "measure": measure,
            "published": written(published),
            "measured": written(float(np.mean(values))),
            "deviation": float(np.std(values, ddof=1)) if len(values) > 1 and finite else None,
            "scores": [written(value) for value in values],
            **({"waited": list(waited)} if (waited := self.sheet.limits.get(measure, {}).get(cell)) else {}),
            **({"tuned": self.tuned[cell]} if cell in self.tuned else {}),
        }

    def _sign_rows(self) -> list[Table]:
        measure = next(iter(self.sheet.scores), "")
        found = []
        for where, printed in self.sheet.published.get("sign", {}).items():
            ours = sign(self.sheet, measure, where)
            if ours is not None:
                *row, column = where
                cell = f"{' '.join(row)} against {column}"
                found.append({"cell": cell, "measure": "sign", "published": printed, "measured": ours})
        return found

    def as_dict(self) -> Table:
        """Return the content of the result file."""
        common, own = _common([made.settings for made in self.runs])
        checks = [
            {
                "says": check.says,
                "held": all(f.held for f in found) if found else None,
                "judged": check in self.judgement.deciding,
                "findings": [{"of": f.what, "value": f.value, "held": f.held} for f in found],
            }
            for check, found in self.judgement.checks
        ]
        runs: list[Table] = [
            {
                "cell": label(made.made_by),
                "split": made.split.name,
                "scores": {name: written(value) for name, value in made.scores.items()},
                "weights_sha256": made.weights_sha256,
                "seconds": round(made.seconds, 2),
                "settings": settings,
            }
            for made, settings in zip(self.runs, own, strict=True)
        ]
        table = {
            **{key: getattr(self, key) for key in ("id", "size", "title", "source", "claim", "command")},
            "verdict": self.verdict,
            "reason": self.reason,
            "rows": self.rows,
            "checks": checks,
            "notes": list(self.notes),
            "failures": self.failures,
            "seconds": round(sum(run["seconds"] for run in runs), 1),
            "versions": self.versions,
            "kind": self.kind,
            "reads": self.reads,
            "common": common,
            "runs": runs,
        }
        return {**table, "sha256": fingerprint(table)}

    @property
    def file(self) -> str:
        """The name of the result file."""
        return f"{self.id}-{self.size}.json"

    def write(self, folder: Path) -> Path:
        """Write the result file into a folder and return its path."""
        make_folder(folder)
        write_text(folder / self.file, as_json(self.as_dict()) + "\n")
        return folder / self.file

    def __repr__(self) -> str:
        return f"<Reproduction {self.id} at size {self.size}: {self.verdict}>"

    def __str__(self) -> str:
        return f"{self.id}: {self.verdict}. {self.reason}"


def written(value: Any) -> Any:
    """Return a number for a file: "never" if it is infinite, None if it is unknown."""
    if isinstance(value, float) and math.isinf(value):
        return NEVER
    return None if isinstance(value, float) and math.isnan(value) else value


def read_back(value: Any) -> float:
    """Return the number that a file holds as a number, "never" or None."""
    return math.inf if value == NEVER else math.nan if value is None else float(value)


def measured(rows: list[Table]) -> tuple[Scores, Scores, dict[Cell, str]]:
    """Return the scores in the rows of a file, the lengths of runs with a target, and the tuned choices."""
    scores: Scores = {}
    limits: Scores = {}
    tuned: dict[Cell, str] = {}
    for row in rows:
        if "scores" in row:
            cell, measure = tuple(row["cell"].split()), row["measure"]
            scores.setdefault(measure, {})[cell] = [read_back(value) for value in row["scores"]]
            if "waited" in row:
                limits.setdefault(measure, {})[cell] = row["waited"]
            if "tuned" in row:
                tuned[cell] = row["tuned"]
    return scores, limits, tuned


def _common(tables: list[Table]) -> tuple[Table, list[Table]]:
    """Return the entries that all tables share, and the other entries of each."""
    if not tables:
        return {}, []
    shared = {key: value for key, value in tables[0].items() if all(t.get(key) == value for t in tables)}
    return shared, [{key: value for key, value in table.items() if key not in shared} for table in tables]


class _Row(BaseModel, extra="allow"):
    cell: str
    measure: str
    published: Any
    measured: Any


class _Run(BaseModel):
    cell: str
    split: str
    scores: Table
    weights_sha256: str | None
    seconds: float
    settings: Table


class _File(BaseModel, extra="allow"):
    """The keys of a result file that other code relies on."""

    id: str
    size: Literal["smoke", "small", "full"]
    kind: Literal["run", "open", "posterior", "boost"]
    command: str
    verdict: str
    reason: str
    seconds: float
    rows: list[_Row]
    checks: list[Table]
    notes: list[str]
    failures: dict[str, str]
    versions: Table
    reads: Table
    common: Table
    runs: list[_Run]


def read_result(path: Path) -> Table:
    """Return the content of a result file, validated."""
    with reading(path, remedy="make it again with `fedarena reproduce`"):
        if not path.is_file():
            raise BadValue(
                f"there is no file {path}", remedy="give a result file, such as papers/results/N-F2-full.json"
            )
        table: Table = json.loads(path.read_text(encoding="utf-8"))
    try:
        _File.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadValue(
            f"{path} is not a result of `fedarena reproduce`, or one of another version: {where or 'it'}: {first['msg']}",
            remedy="give one, or make it again",
        ) from None
    if table.get("sha256") != fingerprint(table):
        raise DataBroken(
            f"{path} is not as it was written: its sha256 does not match its content",
            remedy="fetch it again, or make it again with `fedarena reproduce`",
        )
    return table


def show_reproduction(result: Reproduction) -> None:
    """Print published and measured numbers side by side, then the verdict and its reason."""
    console = open_console(width=WIDTH)
    rows = result.rows
    known = [row for row in rows if row["published"] is not None] or rows
    console.print(Text(f"{result.id}: {result.title}", style="bold"))
    table = Printed(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("cell", "measure"):
        table.add_column(name, overflow="fold")
    for name in ("published", "measured"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in known[:MOST]:
        cell = row["cell"] + (f" ({row['tuned']})" if "tuned" in row else "")
        table.add_row(Text(cell), row["measure"], format_number(row["published"]), measured_text(row))
    console.print(table)
    if len(known) > MOST:
        console.print(f"... and {len(known) - MOST} more rows in {result.file}")
    console.print(f"{result.source}\n", style="dim", markup=False)
    for check, found in result.judgement.checks if result.verdict != "not comparable" else ():
        mark = "-" if not found else "holds" if all(f.held for f in found) else "BROKEN"
        beside = "" if not found or check in result.judgement.deciding else " (not judged)"
        console.print(f"  {mark:7} {check.says}{beside}", markup=False)
    console.print(Text(f"\n{result.verdict}", style="bold"), Text(f": {result.reason}"), sep="")


def show_verdicts(results: list[Reproduction]) -> None:
    """Print one line per reproduction."""
    console = open_console(width=WIDTH)
    table = Printed(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("id", "verdict", "runs", "reason"):
        table.add_column(name, overflow="fold", no_wrap=name == "id", ratio=1 if name == "reason" else None)
    for result in results:
        table.add_row(result.id, result.verdict, str(len(result.runs)), Text(result.reason))
    console.print(table)


def measured_text(row: Table) -> str:
    """Return the measured mean, and the standard deviation over splits where there are several."""
    spread = row.get("deviation")
    if row["measured"] is None:
        return "no number"  # a run that diverged
    return format_number(row["measured"]) + (f" ± {spread:.2g}" if spread else "")
