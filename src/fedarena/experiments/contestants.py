"""The contestants of a comparison: texts, tables or objects as labels with their own part of the experiment.

>>> contestants(["fedavg", "fedavgm:beta=0.9+fedir", "slow=fedavg:local.lr=0.01"])["slow"]
{'algorithm': {'name': 'fedavg'}, 'local': {'lr': 0.01}}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fedarena.config.algorithm_text import Table, label_of, parse
from fedarena.config.comparison_plan import OWN_PARTS, folder_name
from fedarena.config.components import Component
from fedarena.config.errors import BadValue, quoted

Contestants = dict[str, Table]  # label -> tables that replace those of the experiment
LONGEST = 200  # bytes of a folder's name; file systems allow 255, and tuning adds the split


def contestants(choices: Iterable[Any] | Mapping[str, Any], least: int = 2) -> Contestants:
    """Return the contestants of texts, tables with a name or algorithm objects; a mapping gives them labels."""
    if isinstance(choices, Mapping):
        if "name" in choices:
            raise BadValue("a comparison needs two algorithms", remedy="give a list of algorithms", where="algorithms")
        named = [(str(label), _table(choice)) for label, choice in choices.items()]
    else:
        named = [_named(choice) for choice in ([choices] if isinstance(choices, str) else choices)]
    check_labels([label for label, _ in named], "a contestant", "-a short=fedavg:...", "-a")
    found = dict(named)
    for label, table in named:
        Component.choose("algorithm", table["algorithm"], f"-a {label}, algorithm")
    if len(found) < least:
        raise BadValue(
            "one algorithm cannot be compared" if found else "no algorithm is named",
            remedy="name two or more: -a fedavg -a scaffold",
            where="-a",
        )
    return found


def check_labels(labels: Iterable[str], kind: str, example: str, where: str) -> None:
    """Raise if a label cannot be the name of a folder, or if two labels would have the same folder."""
    folders: dict[str, str] = {}
    for label in labels:
        folder = folder_name(label).casefold()  # some file systems do not distinguish A and a
        if not re.match(r"\w", label) or len(folder.encode()) > LONGEST:
            raise BadValue(
                f"'{quoted(label)}' cannot be the name of {kind}",
                remedy=f"give it a name that begins with a letter or digit, of at most {LONGEST} bytes: {example}",
                where=where,
            )
        if folder in folders:
            names = f"'{label}' twice" if label == folders[folder] else f"'{folders[folder]}' and '{label}'"
            raise BadValue(
                f"the names {quoted(names)} cannot be distinguished",
                remedy=f"give one of them another name: {example}",
                where=where,
            )
        folders[folder] = label


def _named(choice: Any) -> tuple[str, Table]:
    if isinstance(choice, str):
        return parse(choice)
    table = _table(choice)
    return label_of(table), table


def _table(choice: Any) -> Table:
    """Return the tables that replace those of the experiment."""
    if isinstance(choice, str):
        label, table = parse(choice)
        if label != choice.strip():
            raise BadValue(f"'{quoted(choice)}' has two labels", remedy="leave one out", where="algorithms")
        return table
    if isinstance(choice, Mapping) and "name" not in choice:
        strange = [str(key) for key in choice if key not in OWN_PARTS]
        if strange or "algorithm" not in choice:
            what = f"{strange[0]} cannot differ between algorithms" if strange else "no algorithm is named"
            raise BadValue(what, remedy='give {"algorithm": ..., "local": {...}}', where="algorithms")
        return dict(choice)
    return {"algorithm": dict(choice) if isinstance(choice, Mapping) else choice}
