"""What a suite compares: the plans of its federations, as its folder holds them.

A suite is a folder: suite.json says which federations there are and how they were planned, federations/NAME/ are ordinary
comparison folders, verdict.json holds the result once all runs have ended.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedarena.common.files import writing
from fedarena.config.errors import BadValue
from fedarena.data.published_files import reading
from fedarena.results.comparison import DAMAGED, Plan, folder_name
from fedarena.results.run_folder import read_table, write_table

FILE, RESULT, FOLDERS = "suite.json", "verdict.json", "federations"


@dataclass(frozen=True)
class SuitePlan:
    """The plans of all federations by name; contestants, splits, score, metric and view are the same in all of them."""

    plans: dict[str, Plan]
    seeds: dict[str, int] = field(default_factory=dict)  # as they were given; a plan's own follows from seed and name
    rope: float = 0.01  # of the judgement over federations; a share of the value where differences are log ratios
    notes: tuple[str, ...] = field(default=())

    @property
    def first(self) -> Plan:
        """Return any of the plans, for what all have in common."""
        return next(iter(self.plans.values()))

    @staticmethod
    def folder(root: Path, name: str) -> Path:
        """Return where the comparison of one federation lies."""
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
        for name, plan in self.plans.items():
            folder = self.folder(root, name)
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            plan.write(folder)

    def complete(self, root: Path) -> None:
        """Write the plans of federations that a kill left without one."""
        for name, plan in self.plans.items():
            folder = self.folder(root, name)
            if not (folder / "comparison.json").exists():
                with writing(folder):
                    folder.mkdir(parents=True, exist_ok=True)
                plan.write(folder)

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
            begun = (folder / "comparison.json").exists()
            plans[name] = Plan.read(folder) if begun else Plan.of_table(planned, file)
        return cls(plans, seeds, rope, notes)


def holds_suite(folder: Any) -> bool:
    """Return whether this is the folder of a suite."""
    return isinstance(folder, str | Path) and os.path.isfile(Path(folder) / FILE)
