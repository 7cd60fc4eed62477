"""The metrics of a finished run on its page: a table, the confusion matrix and the calibration curve."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from markupsafe import Markup

from fedarena.reports.metrics_section import MANY_CLASSES, calibration_chart, calibration_series, confusion_chart, short
from fedarena.reports.page_elements import Row, Section, Table
from fedarena.reports.templating import macros
from fedarena.results.scoring import VALIDATED
from fedarena.ui.catalogue import Catalogue
from fedarena.ui.rendering import HALF
from fedarena.ui.round_log import number
from fedarena.ui.summaries import RunSummary, part_table

BIN = ("confidence", "accuracy", "samples")


def metric_sections(catalogue: Catalogue, run: RunSummary) -> Iterator[Section | list[Section]]:
    """Yield sections, and lists of those side by side; none for a run that is not finished, or older than metrics."""
    file = run.folder / "result.json"
    result = catalogue.cached("metrics", run.folder, [file], lambda: catalogue.files.table(file))
    if unseen := _unseen(part_table(result, "unseen")):
        yield unseen
    if not _numbers(result.get("metrics")):
        return
    note = "after the last round, on the common and on clients' own test samples; ? is undefined"
    yield Section("metrics", "Metrics", _table(result, ""), note)
    if _numbers(result.get("validated_metrics")):
        note = f"after round {number(result.get('validated_round')):.0f}, {VALIDATED}"
        yield Section("validated", "Validated round", _table(result, "validated_"), note)
    yield [section for section in (_confusion(result), _calibration(result)) if section]


def _unseen(unseen: dict[str, Any]) -> Section | None:
    """Return the metrics of clients that never trained; None where all clients train."""
    before, after = (_numbers(unseen.get(key)) for key in ("before", "after"))
    if not before:
        return None
    rows = [Row(name, [short(value), short(after.get(name, math.nan))]) for name, value in before.items()]
    head = ("at once", f"after {number(unseen.get('steps')):.0f} steps")
    table = Table("Clients that never trained", head, rows, "metrics", row_head="metric")
    note = "on their own test samples, before and after steps on their own training samples"
    return Section("unseen", "Clients that never trained", macros.table(table), note)


def _numbers(values: Any) -> dict[str, float]:
    return {str(name): number(value) for name, value in values.items()} if isinstance(values, dict) else {}


def _table(result: dict[str, Any], prefix: str) -> Markup:
    names = (f"{prefix}{key}" for key in ("metrics", "own_metrics", "own_undefined"))
    common, own, undefined = (_numbers(result.get(name)) for name in names)
    rows = []
    for name, value in common.items():
        missing = undefined.get(name, 0.0)
        left_out = f"{missing:.0f} client{'s' * (missing != 1)}" if math.isfinite(missing) and missing else ""
        rows.append(Row(name, [short(value), short(own[name]) if name in own else "–", left_out]))
    table = Table("Metrics", ("common", "clients' own", "undefined for"), rows, "metrics", row_head="metric")
    return macros.table(table)


def _confusion(result: dict[str, Any]) -> Section | None:
    """Return the confusion matrix, if it is valid and small enough to draw."""
    evaluation = part_table(result, "evaluation")
    try:
        counts = np.array(evaluation.get("confusion"), np.int64)
    except (TypeError, ValueError, OverflowError):
        return None
    if (
        counts.ndim != 2
        or counts.shape[0] != counts.shape[1]
        or not 2 <= len(counts) <= MANY_CLASSES
        or counts.min() < 0
    ):
        return None
    names = evaluation.get("class_names")
    named = [str(name) for name in names] if isinstance(names, list) else []
    note = "common test samples: labels in rows, predictions in columns"
    draw = lambda width: confusion_chart(counts, named, width)
    return Section("confusion", "Confusion matrix", macros.charts([draw], HALF), note)


def _calibration(result: dict[str, Any]) -> Section | None:
    listed = part_table(result, "evaluation").get("calibration")
    bins = [_numbers(one) for one in listed] if isinstance(listed, list) else []
    bins = [one for one in bins if all(math.isfinite(one.get(key, math.nan)) for key in BIN)]
    if not bins:
        return None
    series = [calibration_series("model", bins, 0)]
    draw = lambda width: calibration_chart(series, width)
    note = "accuracy over confidence, on the common test samples"
    return Section("calibration", "Calibration", macros.charts([draw], HALF), note)
