"""The metrics of every algorithm, its confusion matrix and its calibration curve."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedarena.common.grouping import group_by_key
from fedarena.engine.task_metrics import FinalMetrics
from fedarena.reports.charts.distributions import heat_map
from fedarena.reports.charts.lines import Series, line_chart
from fedarena.reports.charts.svg import WIDE
from fedarena.reports.page_elements import Cell, Row, Table
from fedarena.reports.report_data import ReportData
from fedarena.reports.templating import macros
from fedarena.statistics.metric_registry import all_metrics
from fedarena.statistics.metrics import BINS

MANY_CLASSES = 20  # from which a confusion matrix is too large to draw

Bins = Sequence[Mapping[str, float]]


def metrics(data: ReportData) -> Markup:
    """Return the tables of metrics and the charts; nothing for runs from before there were metrics."""
    scoring = data.result.scoring()
    measured = {label: [scoring.measured(run) for run in data.result.runs[label]] for label in data.all_labels}
    views = {
        "On the common test samples": {label: [one.common for one in each] for label, each in measured.items()},
        "On clients' own test samples": {label: [one.own for one in each] for label, each in measured.items()},
    }
    tables = [_table(data, caption, values) for caption, values in views.items() if any(map(any, values.values()))]
    if not tables:
        return Markup()
    confusions = [
        macros.folded(f"Confusion matrix of {label}", _confusion(each))
        for label, each in measured.items()
        if all(one.confusion is not None for one in each)
    ]
    note = macros.paragraphs([_note(data, len(tables) > 1)], "how")
    return Markup().join([*map(macros.table, tables), note, _calibration(data, measured), *confusions])


def _note(data: ReportData, has_own: bool) -> str:
    which = "validated" if data.result.scoring().score == "validated" else "last"
    names = dict.fromkeys(name for each in data.result.runs.values() for run in each for name in run.metrics)
    known = all_metrics()
    falling = [name.replace("_", " ") for name in names if name in known and not known[name].maximize]
    sentences = [f"Values after the {which} round" + (", means over splits." if data.has_splits else ".")]
    if falling:
        sentences.append(f"Smaller is better: {', '.join(falling)}.")
    sentences.append("A question mark means that the metric is undefined.")
    if has_own:
        sentences.append(
            "On clients' own test samples: the mean over clients weighted by samples, without clients for which the "
            "metric is undefined."
        )
    return " ".join(sentences)


def _table(data: ReportData, caption: str, values: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    names = list(dict.fromkeys(name for each in values.values() for one in each for name in one))
    if "log_loss" in names:
        names = [name for name in names if name != "loss"]  # they differ only where a probability is next to zero
    means = {label: {name: _mean(each, name) for name in names} for label, each in values.items()}
    candidates = [label for label in data.all_labels if not data.is_aside(label)]
    best = {name: _best(name, [means[label][name] for label in candidates]) for name in names}
    rows = []
    for label in data.all_labels:
        is_best = {name: label in candidates and means[label][name] == best[name] for name in names}
        cells = [Cell(short(means[label][name], 3), best=is_best[name]) for name in names]
        rows.append(Row(label, cells, data.key(label)))
    return Table(caption, [name.replace("_", " ") for name in names], rows, "rows metrics", has_caption=True)


def _mean(values: Sequence[Mapping[str, float]], name: str) -> float:
    return float(np.mean([one.get(name, math.nan) for one in values]))


def _best(name: str, values: Sequence[float]) -> float | None:
    """Return the best of at least two different values; a metric that is not registered has none."""
    known, metric = [value for value in values if not math.isnan(value)], all_metrics().get(name)
    if metric is None or len(set(known)) < 2:
        return None
    return max(known) if metric.maximize else min(known)


def short(value: float, digits: int = 4) -> str:
    """Write a number briefly, or a question mark where a value is undefined."""
    return "?" if not math.isfinite(value) else f"{value:.{digits}f}" if abs(value) < 100 else f"{value:.4g}"


def _calibration(data: ReportData, measured: Mapping[str, Sequence[FinalMetrics]]) -> Markup:
    bins = {label: pooled([one.calibration or () for one in each]) for label, each in measured.items()}
    series = [
        calibration_series(label, found, data.index(label), data.is_aside(label))
        for label, found in bins.items()
        if found
    ]
    caption = (
        "Calibration on the common test samples: accuracy of the samples that a model predicts with a given confidence. "
        "Below the dashed diagonal a model is overconfident, above it underconfident."
    )
    draw = lambda width: calibration_chart(series, width)
    return macros.figure([draw], caption, series, names_lines=True) if series else Markup()


def calibration_series(label: str, bins: Bins, index: int, aside: bool = False) -> Series:
    """Return a calibration curve as a line."""
    x, y = [one["confidence"] for one in bins], [one["accuracy"] for one in bins]
    return Series(label, x, y, index=index, aside=aside)


def calibration_chart(series: Sequence[Series], width: float) -> Markup:
    """Draw accuracy over confidence, beside the diagonal of perfect calibration."""
    inside = [s for s in series if not s.aside] or series  # a reference may continue beyond the edge
    ends = [min(min(s.x) for s in inside), max(max(s.x) for s in inside)]
    return line_chart(
        [*series, Series("perfect", ends, ends, aside=True)],
        x_label="confidence",
        width=width,
        height=360 if width >= WIDE else 300,
        label=f"Accuracy over confidence of {', '.join(s.label for s in series)}",
    )


def pooled(each: Iterable[Bins]) -> list[dict[str, float]]:
    """Return the calibration bins of several runs taken together."""
    found = group_by_key((min(int(one["confidence"] * BINS), BINS - 1), one) for bins in each for one in bins)
    means = []
    for _, members in sorted(found.items()):
        samples = np.array([one["samples"] for one in members])
        mean = {
            key: float(np.average([one[key] for one in members], weights=samples)) for key in ("confidence", "accuracy")
        }
        means.append({**mean, "samples": float(samples.sum())})
    return means


def _confusion(runs: Sequence[FinalMetrics]) -> Markup:
    """Return the confusion matrix of all runs, unless it is too large to draw."""
    counts: Any = sum(run.confusion for run in runs if run.confusion is not None)
    if len(counts) > MANY_CLASSES:
        text = "<p>{} classes are too many to draw: <code>run.confusion()</code> has the counts.</p>"
        return Markup(text).format(len(counts))
    of = f"all {len(runs)} runs" if len(runs) > 1 else "the run"
    caption = f"Common test samples of {of}: labels in rows, predictions in columns."
    return macros.figure([lambda width: confusion_chart(counts, runs[0].class_names, width)], caption)


def confusion_chart(counts: NDArray[np.int64], class_names: Sequence[str], width: float) -> Markup:
    """Draw a confusion matrix as a heat map."""
    named = len(class_names) == len(counts)
    names = [str(name)[:20] for name in class_names] if named else list(map(str, range(len(counts))))
    labels = {"row_label": "label", "column_label": "prediction"}
    return heat_map(counts.tolist(), names, names, **labels, unit="samples", width=width)
