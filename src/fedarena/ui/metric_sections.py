"""The metrics of a finished run on its page: a table, the confusion matrix and the calibration curve."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.config.errors import FedarenaError
from fedarena.reports.charts import escape
from fedarena.reports.metrics_section import MANY_CLASSES, calibration_chart, calibration_series, confusion_chart, short
from fedarena.results.scoring import VALIDATED
from fedarena.ui.catalogue import Catalogue, RunSummary
from fedarena.ui.html import HALF, both, section, table
from fedarena.ui.round_log import number

BIN = ("confidence", "accuracy", "samples")


def metric_sections(catalogue: Catalogue, sight: RunSummary) -> Iterator[str]:
    """Yield the sections; none for a run that is not finished, or older than metrics."""
    file = sight.folder / "result.json"
    result = catalogue.remembered("metrics", sight.folder, [file], lambda: _read(catalogue, file))
    if not _numbers(result.get("metrics")):
        return
    yield _table(result)
    if _numbers(result.get("validated_metrics")):
        yield _validated(result)
    drawn = "".join(filter(None, (_confusion(result), _calibration(result))))
    if drawn:
        yield f'<div class="halves">{drawn}</div>'


def _read(catalogue: Catalogue, file: Path) -> dict[str, Any]:
    """Return the result of a run; nothing where the file is damaged or must not be opened."""
    try:
        result = json.loads(catalogue.files.text(file))
    except (OSError, ValueError, FedarenaError):
        return {}
    return result if isinstance(result, dict) else {}


def _numbers(values: Any) -> dict[str, float]:
    return {str(name): number(value) for name, value in values.items()} if isinstance(values, dict) else {}


def _table(result: dict[str, Any]) -> str:
    note = "after the last round, on the common and on clients' own test samples; ? is undefined"
    return section("metrics", "Metrics", _rows(result, ""), note=note)


def _validated(result: dict[str, Any]) -> str:
    """The metrics of the round that held-out training samples chose."""
    note = f"after round {number(result.get('validated_round')):.0f}, {VALIDATED}"
    return section("validated", "Validated round", _rows(result, "validated_"), note=note)


def _rows(result: dict[str, Any], prefix: str) -> str:
    names = (f"{prefix}{key}" for key in ("metrics", "own_metrics", "own_undefined"))
    common, own, undefined = (_numbers(result.get(name)) for name in names)
    rows = []
    for name, value in common.items():
        missing = undefined.get(name, 0.0)
        left_out = f"{missing:.0f} client{'s' * (missing != 1)}" if math.isfinite(missing) and missing else ""
        rows.append([escape(name), short(value), short(own[name]) if name in own else "–", left_out])
    head = ("metric", "common", "clients' own", "undefined for")
    return table(map(escape, head), rows, "metrics")


def _confusion(result: dict[str, Any]) -> str:
    """The confusion matrix, if it is one and small enough to draw."""
    evaluation = result.get("evaluation")
    evaluation = evaluation if isinstance(evaluation, dict) else {}
    try:
        counts = np.array(evaluation.get("confusion"), np.int64)
    except (TypeError, ValueError, OverflowError):
        return ""
    if (
        counts.ndim != 2
        or counts.shape[0] != counts.shape[1]
        or not 2 <= len(counts) <= MANY_CLASSES
        or counts.min() < 0
    ):
        return ""
    names = evaluation.get("class_names")
    named = [str(name) for name in names] if isinstance(names, list) else []
    drawn = both(lambda width: confusion_chart(counts, named, width), HALF)
    return section("confusion", "Confusion matrix", drawn, note="common test samples: labels in rows, predictions in columns")


def _calibration(result: dict[str, Any]) -> str:
    evaluation = result.get("evaluation")
    listed = evaluation.get("calibration") if isinstance(evaluation, dict) else None
    bins = [_numbers(one) for one in listed] if isinstance(listed, list) else []
    bins = [one for one in bins if all(math.isfinite(one.get(key, math.nan)) for key in BIN)]
    if not bins:
        return ""
    series = [calibration_series("model", bins, 0)]
    drawn = both(lambda width: calibration_chart(series, width), HALF)
    return section("calibration", "Calibration", drawn, note="accuracy over confidence, on the common test samples")
