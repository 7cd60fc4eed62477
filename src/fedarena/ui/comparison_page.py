"""The page of a comparison: its progress, the verdict so far, its curves, costs and runs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np

from fedarena.config.errors import DataBroken, FedarenaError
from fedarena.reports.charts.lines import Series, line_chart
from fedarena.reports.charts.posteriors import posterior_rows
from fedarena.reports.charts.svg import NARROW
from fedarena.reports.client_gains_section import effects_section, gains_section
from fedarena.reports.collect import collect_runs
from fedarena.reports.cost_table import costs
from fedarena.reports.page import render as render_report
from fedarena.reports.page_elements import Cell, Row, Section, Table
from fedarena.reports.report_data import ReportData, colour_index
from fedarena.reports.suite_report import render_suite
from fedarena.reports.templating import macros
from fedarena.reports.unseen_section import unseen_section
from fedarena.results.comparison import Comparison
from fedarena.results.suite import SuiteComparison
from fedarena.ui.catalogue import Catalogue
from fedarena.ui.partial_scores import OVER, common_splits, format_score, judged, means, score, score_name, scoring_of
from fedarena.ui.rendering import (
    FULL,
    render_page,
    render_unreadable,
    ui_macros,
    when,
)
from fedarena.ui.round_log import RoundLog
from fedarena.ui.run_page import AXES, curve_metric, unit_of_axis
from fedarena.ui.safe_files import reason
from fedarena.ui.summaries import ComparisonSummary, RunSummary, SuiteSummary, part_name

POINTS = 400  # of a curve


def page(catalogue: Catalogue, id: str, query: dict[str, str]) -> str | None:
    """Return the page of a comparison; None if there is no such comparison."""
    comparison = catalogue.find(id, "comparison")
    if comparison is None:
        return None
    running = sum(run.state == "running" for run in comparison.all_runs)
    frame: dict[str, Any] = {"running": running, "folder": catalogue.name}
    try:
        sections = [section for section in _sections(catalogue, comparison, query) if section is not None]
        values = {"comparison": comparison, "sections": sections, **_head(comparison)}
        return render_page("comparison.html", comparison.name, **frame, **values)
    except Exception as error:  # the folder holds something that no page expects
        return render_unreadable(comparison.name, comparison.name, error, **frame)


def report(catalogue: Catalogue, id: str) -> str | None:
    """Return the report of a finished comparison, run or suite, made on request; nothing is written."""
    found = catalogue.find(id, "comparison", "run", "suite")
    if found is None:
        return None
    try:
        catalogue.files.check_tree(found.folder)
        if isinstance(found, SuiteSummary):
            return render_suite(SuiteComparison.load(found.folder))
        return render_report(ReportData(collect_runs([found.folder])))
    except FedarenaError:
        raise
    except Exception as error:
        raise DataBroken(f"the report cannot be made: {reason(error)}", remedy=f"check {found.folder}") from error


def _head(comparison: ComparisonSummary) -> dict[str, Any]:
    cells = {"done": comparison.ended, "cells": max(len(comparison.all_runs), 1)}
    plan = comparison.plan
    if plan is None:
        return {"facts": [], "limit": None, **cells}
    parts = " · ".join(part_name(plan.experiment.get(key)) for key in ("data", "partition", "model"))
    return {"facts": [parts, plan.test, plan.about], "limit": plan.at_most, **cells}


def _sections(catalogue: Catalogue, comparison: ComparisonSummary, query: dict[str, str]) -> Iterator[Section | None]:
    if comparison.plan is None:
        return
    result = _result(catalogue, comparison)
    yield _verdict(comparison, result)
    yield _curves(catalogue, comparison, query.get("over", "round"))
    if isinstance(result, Comparison):
        yield Section("costs", "Results and costs", costs(ReportData(result)))
        if gains := gains_section(result, FULL):
            yield Section("gains", "Who gains by the federation", gains)
        if effects := effects_section(result, FULL):
            yield Section("left-out", "Without one client", effects)
        if unseen := unseen_section(result):
            yield Section("unseen", "Clients that never trained", unseen)
    yield _cells(comparison)
    yield _next_steps(catalogue, comparison)


def _result(catalogue: Catalogue, comparison: ComparisonSummary) -> Comparison | str | None:
    """Return the comparison as it is reported, once all cells have ended; or why it cannot be read."""
    if comparison.state != "finished":
        return None

    def load() -> Comparison | str:
        try:
            catalogue.files.check_tree(comparison.folder)
            loaded = Comparison.load(comparison.folder)
        except Exception as error:
            return reason(error)
        runs = {label: [replace(run, state={}) for run in runs] for label, runs in loaded.runs.items()}
        return replace(loaded, runs=runs)  # no page shows the models

    return catalogue.loaded_comparison(comparison, load)


# The verdict


def _verdict(comparison: ComparisonSummary, result: Comparison | str | None) -> Section:
    plan, is_over = comparison.known_plan, comparison.state == "finished"
    note = ""
    if isinstance(result, Comparison) and len(result.labels) > 1:
        names, pairs = result.ranked, ReportData(result).pairs()
    else:
        names = judged(comparison)
        found = {(a, b): one for a, b in permutations(names, 2) if (one := common_splits(comparison, a, b))}
        pairs = {key: pair for key, (pair, _) in found.items()}
        splits = min((splits for _, splits in found.values()), default=0)
        if pairs and not is_over:
            note = f"provisional, from {splits} of {len(plan.splits)} splits: it may change"
    sentences = result.words if isinstance(result, Comparison) else []
    if not (sentences or pairs or is_over):
        sentences = ["A first verdict appears when two algorithms have finished two splits."]
    body = macros.paragraphs(sentences)
    if pairs:
        shown = [pair for (row, _), pair in pairs.items() if row == names[0]]
        body += macros.paragraphs([f"Differences in {score_name(plan)}."], "note")
        body += macros.charts([lambda width: posterior_rows(shown, plan.rope, width=width)] if shown else [], FULL)
        body += macros.verdicts("Row against column", names, pairs, plan.rope, unknown="…")
        body = macros.box("" if is_over else "provisional", body)
    problem = [result] if isinstance(result, str) else []
    return Section("verdict", "Verdict", macros.paragraphs(problem, "note") + body, note)


# Curves and costs


def _mean(logs: Sequence[RoundLog], over: str, column: str) -> list[list[float]]:
    """Return the cost, the mean, the least and the largest value at every round that a split has reached so far."""
    rounds = sorted({r for log in logs for r, a in zip(log["round"], log[column], strict=True) if math.isfinite(a)})
    chosen = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), POINTS)).round().astype(int))
    at = np.array(rounds)[chosen] if rounds else np.empty(0)
    x, y = (np.full((len(logs), len(at)), np.nan) for _ in range(2))
    for k, log in enumerate(logs):
        known = np.array(log["round"])
        place = np.minimum(np.searchsorted(known, at), max(len(known) - 1, 0))
        there = known[place] == at if len(known) else np.zeros(len(at), bool)
        x[k, there], y[k, there] = np.array(log[over])[place[there]], np.array(log[column])[place[there]]
    seen = np.isfinite(y).any(axis=0)
    x, y = x[:, seen], y[:, seen]
    means = np.maximum.accumulate(np.nanmean(x, axis=0)) if len(logs) and seen.any() else np.empty(0)
    return [means.tolist(), *(f(y, axis=0).tolist() if y.size else [] for f in (np.nanmean, np.nanmin, np.nanmax))]


def _curves(catalogue: Catalogue, comparison: ComparisonSummary, over: str) -> Section | None:
    logs = {label: [catalogue.log(run) for run in row if run.round] for label, row in comparison.cells.items()}
    all_logs = [log for row in logs.values() for log in row if len(log)]
    known = {key: axis for key, axis in AXES.items() if any(log[key][-1] > 0 for log in all_logs)}
    if not known:
        return None
    over = over if over in known else "round"
    metric, column, is_share = curve_metric(comparison.known_plan.metric, all_logs)
    factor, x_label = unit_of_axis(over, max(log[over][-1] for log in all_logs))
    lines = [_series(comparison, label, row, over, column, factor) for label, row in logs.items()]
    lines = [line for line in lines if len(line.x)]
    draw = lambda width: line_chart(
        lines,
        x_label=x_label,
        y_label=metric,
        width=width,
        height=430 if width > NARROW else 300,
        fractions=is_share,
    )
    body = ui_macros.tabs({key: axis[0] for key, axis in known.items()}, over) + macros.charts([draw], FULL, lines)
    note = f"{metric} on the common test samples: the mean over the splits so far, and the range from worst to best"
    return Section("curves", "Learning curves", body, note)


def _series(
    comparison: ComparisonSummary, label: str, logs: Sequence[RoundLog], over: str, column: str, factor: float
) -> Series:
    plan = comparison.known_plan
    logs = [log for log in logs if len(log)]
    x, mean, *band = _mean(logs, over, column)
    look: dict[str, Any] = {"index": colour_index(plan, label), "aside": label == plan.reference}
    return Series(label, [factor * value for value in x], mean, *(band if len(logs) > 1 else ()), **look)


def _cells(comparison: ComparisonSummary) -> Section:
    plan, known, scoring = comparison.known_plan, means(comparison), scoring_of(comparison.known_plan)
    rows = []
    for label, runs in comparison.cells.items():
        scores = [score(plan, run) for run in runs]
        scored = f"{sum(value is not None for value in scores)} of {len(runs)}"
        texts = [_cell_text(run, format_score(scoring, value)) for run, value in zip(runs, scores, strict=True)]
        mean = Cell(format_score(scoring, known[label]), scored)
        rows.append(Row(label, [mean, *map(ui_macros.run_cell, runs, texts)]))
    failed = {run.why: label for label, runs in comparison.cells.items() for run in runs if run.state == "failed"}
    body = macros.table(Table("Runs", ["mean", *(split.name for split in plan.splits)], rows, "cells"))
    body += macros.paragraphs([f"{label}: {why}" for why, label in failed.items()], "why")
    return Section("cells", "Runs", body, f"{score_name(plan)}; {when(comparison.changed)}")


def _cell_text(run: RunSummary, score: str) -> str:
    if run.state in ("waiting", "failed", "damaged"):
        return run.state
    return score if run.state in OVER else ""


def _next_steps(catalogue: Catalogue, comparison: ComparisonSummary) -> Section | None:
    """Return the notes of the plan, and the command that writes the report or resumes the comparison."""
    notes = [*comparison.known_plan.notes, *(f"Look at {look}." for look in comparison.known_plan.looks)]
    body = macros.paragraphs(notes)
    if comparison.state == "running":
        return Section("how", "Notes", body) if notes else None
    path = shlex.quote(catalogue.path(comparison.folder))
    what, command = "Resume it:", f"fedarena compare --resume {path}"
    if comparison.state == "finished":
        what, command = "Write the report to a file:", f"fedarena report {path} -o report.html"
    return Section("how", "Next", body + macros.paragraphs([what]) + macros.code(command))
