"""comparison.json: the plan of a comparison, read from its folder and written to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedarena.config.comparison_plan import LookRecord, Plan
from fedarena.config.data_sources import with_recorded_form
from fedarena.config.errors import BadValue
from fedarena.data.published_files import reading
from fedarena.results.json_files import read_table, write_table

FILE = "comparison.json"
DAMAGED = "restore the file from a copy, or compare again in a new folder"
LISTS = ("notes", "fixed", "per_repeat", "leave_one_out")


def write_plan(plan: Plan, root: Path) -> None:
    """Write the plan into the folder of its comparison, atomically."""
    write_table(root / FILE, plan.as_dict())


def read_plan(root: Path) -> Plan:
    """Return the plan of a comparison folder."""
    file = root / FILE
    if not file.exists():
        raise BadValue(f"{root} holds no comparison", remedy="give the folder of one", where=str(root))
    return parse_plan(read_table(file, DAMAGED), file)


def parse_plan(table: dict[str, Any], file: Path) -> Plan:
    """Return the plan that a table of this file holds, or raise if the table is damaged."""
    with reading(file, remedy=DAMAGED):
        lists: dict[str, Any] = {key: tuple(table.get(key, ())) for key in LISTS}
        lists["looks"] = TypeAdapter(tuple[LookRecord, ...]).validate_python(table.get("looks", ()))
        TypeAdapter(Plan).validate_python({**table, **lists, "own": {}})
        return Plan(**{**table, **lists, "experiment": with_recorded_form(table["experiment"])})
