"""The plan of a suite: the plans of its federations, as its folder holds them.

A suite is a folder: suite.json lists the federations and their plans, federations/NAME/ are ordinary comparison folders,
and verdict.json holds the result once all runs have ended.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedarena.common.files import make_folder
from fedarena.config.comparison_plan import Plan, folder_name
from fedarena.config.errors import BadValue
from fedarena.data.published_files import reading
from fedarena.results.json_files import read_table, write_table
from fedarena.results.plan_file import DAMAGED, parse_plan, read_plan, write_plan
from fedarena.results.plan_file import FILE as PLAN

FILE, RESULT, FOLDERS = "suite.json", "verdict.json", "federations"


@dataclass(frozen=True)
class SuitePlan:
    """The plans of all federations by name; contestants, splits, score, metric and view are the same in all of them."""

    plans: dict[str, Plan]
    seeds: dict[str, int] = field(default_factory=dict)  # as they were given; a plan's own follows from seed and name
    rope: float = 0.01  # of the verdict over federations; a share of the value where differences are log ratios
    notes: tuple[str, ...] = field(default=())

    @property
    def first(self) -> Plan:
        """The first plan, for what all plans have in common."""
        return next(iter(self.plans.values()))

    @staticmethod
    def folder(root: Path, name: str) -> Path:
        """Return the folder of the comparison of one federation."""
        return root / FOLDERS / folder_name(name)

    def with_plan(self, name: str, plan: Plan) -> SuitePlan:
        """Return the same suite with another plan for one federation."""
        return replace(self, plans={**self.plans, name: plan})

    def write(self, root: Path) -> None:
        """Write suite.json first, which is enough to resume, then the plan of every federation into its folder."""
        tables = [
            {"name": name, "seed": self.seeds.get(name, 0), "plan": plan.as_dict()} for name, plan in self.plans.items()
        ]
        write_table(root / FILE, {"federations": tables, "rope": self.rope, "notes": list(self.notes)})
        self._write_plans(root, self.plans)

    def complete(self, root: Path) -> None:
        """Write the plans of federations that a kill left without one."""
        missing = {name: plan for name, plan in self.plans.items() if not (self.folder(root, name) / PLAN).exists()}
        self._write_plans(root, missing)

    def _write_plans(self, root: Path, plans: dict[str, Plan]) -> None:
        for name, plan in plans.items():
            folder = self.folder(root, name)
            make_folder(folder)
            write_plan(plan, folder)

    @classmethod
    def read(cls, root: Path) -> SuitePlan:
        """Return the suite of a folder; where a kill left a federation without a plan, that of suite.json counts."""
        file = root / FILE
        if not file.exists():
            raise BadValue(f"{root} holds no suite", remedy="give the folder of one", where=str(root))
        table = read_table(file, DAMAGED)
        plans: dict[str, Plan] = {}
        with reading(file, remedy=DAMAGED):
            entries = [(str(entry["name"]), dict(entry["plan"])) for entry in table["federations"]]
            seeds = {str(entry["name"]): int(entry["seed"]) for entry in table["federations"]}
            rope, notes = float(table["rope"]), tuple(map(str, table["notes"]))
            if not entries or not all(re.match(r"\w", name) for name, _ in entries):
                raise ValueError("it names no federation")
        for name, planned in entries:
            folder = cls.folder(root, name)
            plans[name] = read_plan(folder) if (folder / PLAN).exists() else parse_plan(planned, file)
        return cls(plans, seeds, rope, notes)


def holds_suite(folder: Any) -> bool:
    """Return whether this is the folder of a suite."""
    return isinstance(folder, str | Path) and os.path.isfile(Path(folder) / FILE)
