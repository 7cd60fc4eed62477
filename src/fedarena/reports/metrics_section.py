"""The metrics of every algorithm, its confusion matrix and its calibration curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.engine.task_metrics import FinalMetrics
from fedarena.reports.charts.distributions import heat_map
from fedarena.reports.charts.lines import Series, legend, line_chart
from fedarena.reports.charts.svg import NARROW, WIDE, escape
from fedarena.reports.cost_table import scrolling
from fedarena.reports.report_data import ReportData
from fedarena.statistics.metric_registry import all_metrics
from fedarena.statistics.metrics import BINS

MANY_CLASSES = 20  # from which a confusion matrix is too large to draw

Bins = Sequence[Mapping[str, float]]


def metrics(subject: ReportData) -> str:
    """Return the tables of metrics and the charts; nothing for runs from before there were metrics."""
    runs, scoring = subject.result.runs, subject.result.scoring()
    measured = {label: _measured(subject, label) for label in subject.everyone}
    views = {
        "On the common test samples": {label: [one.common for one in each] for label, each in measured.items()},
        "On clients' own test samples": {label: [one.own for one in each] for label, each in measured.items()},
    }
    views = {caption: values for caption, values in views.items() if any(map(any, values.values()))}
    tables = "".join(_table(subject, caption, values) for caption, values in views.items())
    if not tables:
        return ""
    several = max(map(len, runs.values())) > 1
    which = "validated" if scoring.score == "validated" else "last"
    names = list(dict.fromkeys(name for each in runs.values() for run in each for name in run.metrics))
    known = all_metrics()
    falling = [name.replace("_", " ") for name in names if name in known and not known[name].maximize]
    told = f"Values after the {which} round" + (", means over splits." if several else ".")
    told += f" Smaller is better: {escape(', '.join(falling))}." if falling else ""
    told += " A question mark means that the metric is undefined."
    if len(views) > 1:
        told += (
            " On clients' own test samples: the mean over clients weighted by samples, without clients for which the "
            "metric is undefined."
        )
    return f'{tables}<p class="how">{told}</p>{_calibration(subject)}{_confusions(subject)}'


def _table(subject: ReportData, caption: str, values: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    names = list(dict.fromkeys(name for each in values.values() for one in each for name in one))
    if not names:
        return ""
    if "log_loss" in names:
        names = [name for name in names if name != "loss"]  # they differ only where a probability is next to zero
    means = {label: {name: _mean(each, name) for name in names} for label, each in values.items()}
    judged = [label for label in subject.everyone if not subject.is_aside(label)]
    best = {name: _best(name, [means[label][name] for label in judged]) for name in names}
    body = ""
    for label in subject.everyone:
        aside = subject.is_aside(label)
        key = legend([Series(label, [], [], index=subject.index(label), aside=aside)])
        cells = "".join(_cell(means[label][name], not aside and means[label][name] == best[name]) for name in names)
        body += f'<tr{" class=aside" if aside else ""}><th scope="row">{key}</th>{cells}</tr>'
    head = "".join(f'<th scope="col">{escape(name.replace("_", " "))}</th>' for name in names)
    table = (
        f'<table class="rows metrics"><caption>{escape(caption)}</caption><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
    return scrolling(table, caption)


def _mean(values: Sequence[Mapping[str, float]], name: str) -> float:
    return float(np.mean([one.get(name, math.nan) for one in values]))


def _best(name: str, values: Sequence[float]) -> float | None:
    """The best value of at least two that are not all the same; a metric that is not registered now has none."""
    known, metric = [value for value in values if not math.isnan(value)], all_metrics().get(name)
    if metric is None or len(set(known)) < 2:
        return None
    return max(known) if metric.maximize else min(known)


def _cell(value: float, best: bool) -> str:
    text = short(value, 3)
    return f"<td>{f'<b>{text}</b>' if best else text}</td>"


def short(value: float, digits: int = 4) -> str:
    """A number in short, or a question mark where a value is undefined."""
    return "?" if not math.isfinite(value) else f"{value:.{digits}f}" if abs(value) < 100 else f"{value:.4g}"


def _calibration(subject: ReportData) -> str:
    series = []
    for label in subject.everyone:
        bins = pooled([one.calibration or () for one in _measured(subject, label)])
        if bins:
            series.append(calibration_series(label, bins, subject.index(label), subject.is_aside(label)))
    if not series:
        return ""
    drawn = _both(lambda width: calibration_chart(series, width))
    caption = (
        "Calibration on the common test samples: accuracy of the samples that a model predicts with a given confidence. "
        "Below the dashed diagonal a model is overconfident, above it underconfident."
    )
    return f'<figure><div class="narrow">{legend(series)}</div>{drawn}<figcaption>{caption}</figcaption></figure>'


def calibration_series(label: str, bins: Bins, index: int, aside: bool = False) -> Series:
    """A calibration curve as a line."""
    x, y = [one["confidence"] for one in bins], [one["accuracy"] for one in bins]
    return Series(label, x, y, index=index, aside=aside)


def calibration_chart(series: Sequence[Series], width: float) -> str:
    """Accuracy over confidence, beside the diagonal of a model that is as right as it is sure."""
    inside = [s for s in series if not s.aside] or series  # what is shown aside may go on beyond the edge
    ends = [min(min(s.x) for s in inside), max(max(s.x) for s in inside)]
    diagonal = Series("perfect", ends, ends, aside=True)
    return line_chart(
        [*series, diagonal],
        x_label="confidence",
        width=width,
        height=360 if width >= WIDE else 300,
        label=f"Accuracy over confidence of {', '.join(s.label for s in series)}",
    )


def pooled(each: Iterable[Bins]) -> list[dict[str, float]]:
    """The calibration bins of several runs taken together."""
    found: dict[int, list[Mapping[str, float]]] = {}
    for bins in each:
        for one in bins:
            found.setdefault(min(int(one["confidence"] * BINS), BINS - 1), []).append(one)
    means = []
    for _, members in sorted(found.items()):
        samples = np.array([one["samples"] for one in members])
        mean = {
            key: float(np.average([one[key] for one in members], weights=samples)) for key in ("confidence", "accuracy")
        }
        means.append({**mean, "samples": float(samples.sum())})
    return means


def _confusions(subject: ReportData) -> str:
    return "".join(
        f"<details><summary>Confusion matrix of {escape(label)}</summary>{_confusion(_measured(subject, label))}</details>"
        for label in subject.everyone
        if all(one.confusion is not None for one in _measured(subject, label))
    )


def _measured(subject: ReportData, label: str) -> list[FinalMetrics]:
    """Return all metrics of the round that counts, of every run of an algorithm."""
    scoring = subject.result.scoring()
    return [scoring.measured(run) for run in subject.result.runs[label]]


def _confusion(runs: Sequence[FinalMetrics]) -> str:
    counts: Any = sum(run.confusion for run in runs if run.confusion is not None)
    if len(counts) > MANY_CLASSES:
        return f"<p>{len(counts)} classes are too many to draw: <code>run.confusion()</code> has the counts.</p>"
    names = runs[0].class_names
    drawn = _both(lambda width: confusion_chart(counts, names, width))
    of = f"all {len(runs)} runs" if len(runs) > 1 else "the run"
    caption = f"Common test samples of {of}: labels in rows, predictions in columns."
    return f"<figure>{drawn}<figcaption>{caption}</figcaption></figure>"


def confusion_chart(counts: NDArray[np.int64], class_names: Sequence[str], width: float) -> str:
    """A confusion matrix as a heat map."""
    names = (
        [str(name)[:20] for name in class_names]
        if len(class_names) == len(counts)
        else list(map(str, range(len(counts))))
    )
    return heat_map(
        counts.tolist(), names, names, row_label="label", column_label="prediction", unit="samples", width=width
    )


def _both(draw: Callable[[float], str]) -> str:
    return f'<div class="wide">{draw(WIDE)}</div><div class="narrow">{draw(NARROW)}</div>'
