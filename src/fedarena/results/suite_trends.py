"""Settings that differ between the federations of a suite, and how the difference of two algorithms depends on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedarena.results.suite_pairs import SuitePair
from fedarena.statistics.trend import LEAST_VALUES, Trend

if TYPE_CHECKING:
    from fedarena.results.comparison import Comparison
    from fedarena.results.suite import SuiteComparison

LINE_POINTS = 21  # of a trend in JSON
NOT_SETTINGS = ("seed", "partition_seed", "start_seed", "schedule_seed", "fold_seed")


@dataclass(frozen=True, eq=False)
class VaryingSetting:
    """A numeric setting with at least 3 different values over the federations."""

    key: str
    values: dict[str, float]  # federation -> value


def varying(federations: Mapping[str, Comparison]) -> list[VaryingSetting]:
    """Return the numeric settings, and the sizes of models and clients, that have at least 3 different values."""
    models = {str(one.plan.experiment.get("model")) for one in federations.values()}
    has_models = len(models) >= LEAST_VALUES
    tables = {name: _numbers(one.plan.experiment) | _sizes(one, has_models) for name, one in federations.items()}
    keys = dict.fromkeys(key for table in tables.values() for key in table)
    found = [VaryingSetting(key, {name: table[key] for name, table in tables.items() if key in table}) for key in keys]
    return [s for s in found if len(set(s.values.values())) >= LEAST_VALUES]


def _sizes(result: Comparison, with_parameters: bool) -> dict[str, float]:
    """Return the number of parameters if wanted, and that of clients where the data names them."""
    run = next((runs[0] for runs in result.runs.values()), None)
    sizes: dict[str, float] = {}
    if run is not None and with_parameters and run.state:
        sizes["parameters of the model"] = float(sum(np.asarray(v).size for v in run.state.values()))
    if run is not None and "clients" not in _numbers(result.plan.experiment):
        sizes["clients"] = float(len(run.client_sizes))
    return sizes


def setting_table(result: SuiteComparison, setting: VaryingSetting) -> dict[str, Any]:
    """Return what `compare --json` prints of a setting: its values, and the trend of every pair."""
    fits = [(pair, found) for pair in result.pairs if (found := result.trend(pair, setting)) is not None]
    return {
        "key": setting.key,
        "values": setting.values,
        "trends": [_trend_table(result, pair, found) for pair, found in fits],
    }


def _trend_table(result: SuiteComparison, pair: SuitePair, found: Trend) -> dict[str, Any]:
    names = {"left": "-", "rope": "=", "right": "+"}
    chosen = np.unique(np.linspace(0, len(found.x) - 1, LINE_POINTS).round().astype(int))
    line = result.line(found)
    return {
        "row": pair.row,
        "column": pair.column,
        "axis": "log" if found.logarithmic else "linear",
        "line": [dict(zip(("at", "mean", "low", "high"), line[k], strict=True)) for k in chosen],
        "changes": [{"at": c.at, "below": names[c.before], "above": names[c.after]} for c in found.changes],
    }


def _numbers(table: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numeric settings of an experiment by dotted key, seeds aside."""
    found: dict[str, float] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= _numbers(value, f"{prefix}{key}.")
        elif key not in NOT_SETTINGS and _is_number(value):
            found[f"{prefix}{key}"] = float(value)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
